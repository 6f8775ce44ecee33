/*
 * stream_turn ENDPOINT SESSION blocking|started RESUME_MS DEADLINE_MS: one turn by the C library, as the
 * tests of the clients' RESUME ask for it. Its text goes to stdout piece by piece; at the end one line to
 * stderr: the code's name, and the status or "-".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/client.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t told = PTHREAD_COND_INITIALIZER;
static int ends; /* under lock */

static int on_piece(void *data, const struct hf_piece *piece)
{
	(void)data;
	for (size_t at = 0; at < piece->length;) {
		const ssize_t n = write(1, piece->text + at, piece->length - at);
		if (n <= 0)
			return 1;
		at += (size_t)n;
	}
	return 0;
}

static void say(struct hf_end *end)
{
	fprintf(stderr, "%s %s\n", end->code == 0 ? "ok" : end->name, end->status ? end->status : "-");
	hf_end_free(end);
}

static void on_end(void *data, struct hf_end *end)
{
	(void)data;
	say(end);
	pthread_mutex_lock(&lock);
	ends++;
	pthread_cond_signal(&told);
	pthread_mutex_unlock(&lock);
}

int main(int count, char **word)
{
	struct hf_client *client;
	struct hf_session session = {.epoch = HF_NONE, .turn = HF_NONE};
	struct hf_end end;
	if (count != 6 || !hf_id_read(word[2], &session.id))
		return 2;
	const struct hf_options options = {.client = "stream_turn", .resume_ms = (uint32_t)atoi(word[4])};
	const struct hf_message message = {.role = HF_USER, .content = "count"};
	const struct hf_turn turn = {.messages = &message, .message_count = 1,
		.deadline_ms = (uint32_t)atoi(word[5]),
		.sampling = {.max_tokens = 600, .temperature = 1, .seed = 5, .ignore_end = true}};
	const struct hf_stream stream = {.on_piece = on_piece};
	const int code = hf_open(word[1], &options, &client);
	if (code != 0) {
		fprintf(stderr, "%s -\n", hf_name(code));
		return 1;
	}
	if (strcmp(word[3], "started") != 0) {
		hf_session_turn(client, &session, &turn, &stream, &end);
		say(&end);
	} else if (hf_session_turn_start(client, &session, &turn, &stream, on_end, NULL) == 0) {
		pthread_mutex_lock(&lock);
		while (ends == 0)
			pthread_cond_wait(&told, &lock);
		pthread_mutex_unlock(&lock);
	}
	hf_close(&client);
	return 0;
}
