/*
 * The commands export and import. What lies between them is a MessagePack map:
 * {format: "holdfast session", version: 1, settings: what session.export gave, tokens: bin of u32,
 * little-endian}.
 */
#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clients/command.h"

enum { FORMAT_VERSION = 1, ROOM = 1 << 12, FILE_MAX = 4 << 20 };
static const char format[] = "holdfast session";

int command_export(struct said *o)
{
	struct hf_session s = {.epoch = HF_NONE, .turn = HF_NONE};
	struct hf_end end;
	struct wire_writer w;
	if (o->word_count == 0 || !hf_id_read(o->words[0], &s.id))
		return say_usage(o, "which session? 32 hexadecimal digits");
	if (isatty(1))
		return say_usage(o, "what is exported is no text: > FILE");
	int code = hf_session_export(o->client, &s, &end), exit = EXIT_DONE;
	if (code) {
		exit = say_error(o, code, &end);
		return hf_end_free(&end), exit;
	}
	const size_t capacity = end.packed_bytes + end.id_count * 4 + ROOM;
	uint8_t *room = malloc(capacity), *ids = malloc(end.id_count * 4 + 1);
	if (room && ids) {
		for (size_t i = 0; i < end.id_count * 4; i++)
			ids[i] = (uint8_t)(end.ids[i / 4] >> 8 * (i % 4));
		wire_writer_init(&w, room, capacity);
		wire_put_map(&w, 4);
		wire_put_text(&w, "format");
		wire_put_text(&w, format);
		wire_put_text(&w, "version");
		wire_put_u64(&w, FORMAT_VERSION);
		wire_put_text(&w, "settings");
		wire_put_value(&w, (struct wire_value){end.packed, end.packed_bytes});
		wire_put_text(&w, "tokens");
		wire_put_bin(&w, ids, end.id_count * 4);
		fwrite(w.at, 1, w.length, stdout);
	} else {
		exit = say_error(o, -ERR_MEMORY, NULL);
	}
	free(room);
	free(ids);
	hf_end_free(&end);
	return exit;
}

static uint8_t *file_read(const struct said *o, const char *path, size_t *length)
{
	FILE *file = path ? fopen(path, "rbe") : stdin;
	uint8_t *at = file ? malloc(FILE_MAX + 1) : NULL;
	*length = at ? fread(at, 1, FILE_MAX + 1, file) : 0;
	if (!file || !at || ferror(file)) {
		fprintf(stderr, "holdfast: %s: %s cannot be read: %s\n", o->command, path ? path : "standard input",
			strerror(errno));
		free(at);
		at = NULL;
	}
	if (file && file != stdin)
		fclose(file);
	return at;
}

/* Only a whole file of ours is sent anywhere. */
static int file_parts(const uint8_t *at, size_t length, struct wire_value *settings, struct wire_bin *tokens)
{
	struct wire_limits limits;
	struct wire_str said;
	const struct wire_value v = {at, length};
	uint64_t version;
	uint32_t pairs;
	wire_limits_default(&limits);
	limits.body_bytes = limits.string_bytes = FILE_MAX;
	if (length > FILE_MAX || wire_validate(at, length, &limits) != 0 || !wire_get_map(v, &pairs) ||
	    !wire_get_str(wire_find(v, "format"), &said) || said.length != sizeof format - 1 ||
	    memcmp(said.at, format, said.length) != 0)
		return -ERR_BAD_FILE;
	if (!wire_get_u64(wire_find(v, "version"), &version) || version != FORMAT_VERSION)
		return -ERR_UNSUPPORTED;
	*settings = wire_find(v, "settings");
	return settings->at && wire_get_bin(wire_find(v, "tokens"), tokens) && tokens->length % 4 == 0
		? 0 : -ERR_BAD_FILE;
}

int command_import(struct said *o)
{
	struct wire_value settings;
	struct wire_bin tokens;
	struct hf_session s;
	struct hf_end end;
	char id[33];
	size_t length;
	uint8_t *at = file_read(o, o->word_count ? o->words[0] : NULL, &length);
	if (!at)
		return EXIT_FAILED;
	int code = file_parts(at, length, &settings, &tokens), exit;
	if (code) {
		exit = say_error(o, code, NULL);
		return free(at), exit;
	}
	uint32_t *ids = malloc(tokens.length + 4);
	for (size_t i = 0; ids && i < tokens.length / 4; i++)
		ids[i] = (uint32_t)tokens.at[4 * i] | (uint32_t)tokens.at[4 * i + 1] << 8 |
			(uint32_t)tokens.at[4 * i + 2] << 16 | (uint32_t)tokens.at[4 * i + 3] << 24;
	if (!ids)
		return free(at), say_error(o, -ERR_MEMORY, NULL);
	code = hf_session_import(o->client, settings.at, settings.length, ids, tokens.length / 4, &s, &end);
	exit = code ? say_error(o, code, &end) : EXIT_DONE;
	if (!code) {
		hf_id_text(&s.id, id);
		printf(o->json ? "{\"session\":\"%s\"}\n" : "%s\n", id);
	}
	hf_end_free(&end);
	free(ids);
	free(at);
	return exit;
}
