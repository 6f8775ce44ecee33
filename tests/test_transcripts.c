/*
 * Real conversations of coding agents, turn by turn: where a turn ends the next one begins, whatever
 * the template. Method: each transcript is played as the daemon would (new messages, the assistant's
 * turn opened, its reply as sampled text up to its end mark, and so on), and beside it rendered from
 * nothing up to each turn. The texts must be the same, the tokens of each rendering must be the
 * beginning of the next one's, and the calls must be found again in what was said.
 *
 * tests/data has one transcript; HOLDFAST_TRANSCRIPTS names a folder of more.
 */
#include <dirent.h>
#include <string.h>

#include "runtime/json.h"
#include "runtime/template.h"
#include "runtime/template_inside.h"
#include "tests/files.h"
#include "tests/tap.h"

enum { MESSAGES_MAX = 512, IDS_MAX = 1 << 18, FILES_MAX = 64, FILE_NAME_BYTES = 512 };

static const struct {
	const char *template, *model; /* the model whose tokenizer is used, by its file's name */
} families[] = {
	{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"}, {"qwen2.5", "qwen2.5-coder-0.5b.gguf"},
	{"qwen3", "qwen2.5-coder-0.5b.gguf"}, {"llama-3.1", "SmolLM2-135M-Instruct.Q4_1.gguf"},
	{"mistral", "SmolLM2-135M-Instruct.Q4_1.gguf"}, {"gemma", "gemma3-270m.gguf"},
};

static char files[FILES_MAX][FILE_NAME_BYTES];
static unsigned file_count, chosen;

/* One transcript, read. */
static struct {
	char *file, *text; /* of all strings, unescaped */
	size_t used;
	struct message system, message[MESSAGES_MAX];
	struct tool_call call[MESSAGES_MAX];
	uint32_t count, call_count;
} r;

static struct model *model;
static struct tokenizer *tokenizer;
static char model_name[64];

static struct text take(struct json object, const char *key)
{
	struct json value;
	struct text t = {r.text + r.used, 0};
	if (json_find(object, key, &value) && json_kind(value) == JSON_STRING)
		t.length = json_string(value, r.text + r.used);
	r.used += t.length;
	return t;
}

static void read_message(struct json entry)
{
	struct message m = {0};
	struct json value, item, function;
	json_find(entry, "role", &value);
	m.role = json_equals(value, "system", 6) ? ROLE_SYSTEM : json_equals(value, "user", 4) ? ROLE_USER :
		 json_equals(value, "tool", 4) ? ROLE_TOOL : ROLE_ASSISTANT;
	m.content = take(entry, "content");
	m.call_id = take(entry, "tool_call_id");
	m.calls = r.call + r.call_count;
	if (json_find(entry, "tool_calls", &value)) {
		struct json_walk walk = json_walk(value);
		while (json_next(&walk, NULL, &item) && r.call_count < MESSAGES_MAX) {
			json_find(item, "function", &function);
			r.call[r.call_count++] = (struct tool_call){
				take(item, "id"), take(function, "name"), take(function, "arguments")};
			m.call_count++;
		}
	}
	if (m.role == ROLE_SYSTEM && r.count == 0)
		r.system = m;
	else if (r.count < MESSAGES_MAX)
		r.message[r.count++] = m;
}

static bool read_transcript(const char *path)
{
	struct json all, list, entry;
	size_t length;
	free(r.file);
	free(r.text);
	memset(&r, 0, sizeof r);
	r.file = file_read(path, &length);
	if (!r.file || json_check(r.file, length, &all) != 0 || !json_find(all, "messages", &list))
		return false;
	r.text = malloc(length);
	if (!r.text)
		return false;
	struct json_walk walk = json_walk(list);
	while (json_next(&walk, NULL, &entry))
		read_message(entry);
	return r.count > 0;
}

static bool open_tokenizer(const char *name)
{
	char path[4096], reason[MODEL_REASON_MAX];
	const char *folder = getenv("HOLDFAST_MODELS"), *first = getenv("HOLDFAST_MODEL");
	if (tokenizer && !strcmp(name, model_name))
		return true;
	tokenizer_close(&tokenizer);
	model_close(&model);
	snprintf(model_name, sizeof model_name, "%s", name);
	if (folder)
		snprintf(path, sizeof path, "%s/%s", folder, name);
	else
		snprintf(path, sizeof path, "%s", first && strstr(first, name) ? first : "");
	return model_open(path, &model, reason) == 0 && tokenizer_open(model, &tokenizer, reason) == 0;
}

/* The ids of a rendering's segments from the given one on, appended. */
static size_t tokenise(const struct rendering *out, size_t segment, uint32_t *ids, size_t count)
{
	for (size_t i = segment; i < out->count; i++)
		if (tokenizer_encode(tokenizer, out->bytes + out->segment[i].at, out->segment[i].length,
				     out->segment[i].special, ids, IDS_MAX, &count) != 0)
			return SIZE_MAX;
	return count;
}

static const char tool_json[] =
	"{\"type\": \"function\", \"function\": {\"name\": \"bash\", \"description\": \"Run a command.\", "
	"\"parameters\": {\"type\": \"object\", \"properties\": {\"command\": {\"type\": \"string\"}}, "
	"\"required\": [\"command\"]}}}";

static int head(const struct template *t, struct template_state *state, struct rendering *out)
{
	const struct tool tool = {{tool_json, sizeof tool_json - 1}};
	memset(state, 0, sizeof *state);
	return template_begin(t, state, r.system.content.at ? &r.system : NULL, &tool, 1, out);
}

/* The calls of a message, as they were, in what was said. */
static bool calls_are(const struct template *t, const char *said, size_t length, const struct message *m)
{
	struct calls calls;
	calls_parse(t, said, length, true, &calls);
	if (m->call_count == 0)
		return calls.count == 0;
	if (calls.state != CALLS_COMPLETE || calls.count != m->call_count)
		return false;
	for (uint32_t i = 0; i < calls.count; i++) {
		struct json_out a = {0}, b = {0};
		struct json value;
		bool same = calls.call[i].name.length == m->calls[i].name.length &&
			    json_check(m->calls[i].arguments.at, m->calls[i].arguments.length, &value) == 0 &&
			    json_write(value, &a) == 0 &&
			    json_check(calls.call[i].arguments.at, calls.call[i].arguments.length, &value) == 0 &&
			    json_write(value, &b) == 0 && a.length == b.length && !memcmp(a.bytes, b.bytes, a.length);
		free(a.bytes);
		free(b.bytes);
		if (!same)
			return false;
	}
	return true;
}

static struct {
	struct template_state state;
	struct rendering out;
} live, fresh, once;
static uint32_t ids[2][IDS_MAX];

/* What the assistant says: its message as rendered, less what opens it and what follows its end mark. */
static bool reply(const struct template *t, const struct message *m, size_t *at, size_t *length)
{
	const struct family *f = t->family;
	once.state = (struct template_state){0};
	rendering_clear(&once.out);
	if (template_append(t, &once.state, m, 1, &once.out) != 0)
		return false;
	*at = strlen(f->open);
	*length = once.out.length - *at - strlen(f->line);
	return once.out.length > *at && !memcmp(once.out.bytes, f->open, *at);
}

static void play(const struct template *t)
{
	size_t counts[2] = {0, 0}, turns = 0, said_at, said;
	uint32_t from = 0;
	rendering_clear(&live.out);
	REQUIRE(head(t, &live.state, &live.out) == 0);
	for (uint32_t i = 0; i < r.count; i++) {
		const struct message *m = &r.message[i];
		if (m->role != ROLE_ASSISTANT)
			continue;
		REQUIRE(template_append(t, &live.state, r.message + from, i - from, &live.out) == 0);
		REQUIRE(template_open_turn(t, &live.state, &live.out) == 0);
		from = i + 1;
		REQUIRE(reply(t, m, &said_at, &said));
		REQUIRE(rendering_own(&live.out, "") == 0);
		REQUIRE(rendering_plain(&live.out, (struct text){once.out.bytes + said_at, said}) == 0);
		REQUIRE(calls_are(t, once.out.bytes + said_at, said - strlen(t->family->end), m));
		template_turn_over(t, &live.state, true);
		/* The same from nothing: what the history holds now must stand at its beginning. */
		rendering_clear(&fresh.out);
		REQUIRE(head(t, &fresh.state, &fresh.out) == 0);
		REQUIRE(template_append(t, &fresh.state, r.message, i + 1, &fresh.out) == 0);
		REQUIRE(fresh.out.length == live.out.length + strlen(t->family->line));
		REQUIRE(!memcmp(fresh.out.bytes, live.out.bytes, live.out.length));
		/* And its tokens those of the rendering before. */
		const unsigned now = turns++ & 1;
		counts[now] = tokenise(&fresh.out, 0, ids[now], 0);
		REQUIRE(counts[now] != SIZE_MAX);
		REQUIRE(counts[now] >= counts[!now]);
		REQUIRE(!memcmp(ids[now], ids[!now], counts[!now] * sizeof ids[0][0]));
	}
	printf("# %s: %zu turns, %zu tokens, %zu bytes\n", template_name(t), turns, counts[(turns - 1) & 1],
	       live.out.length);
	EXPECT(turns > 0);
}

static void plays(void)
{
	const struct template *t;
	unsigned played = 0;
	for (unsigned i = 0; i < file_count; i++) {
		REQUIRE(read_transcript(files[i]));
		if (!open_tokenizer(families[chosen].model))
			TAP_SKIP("the model's file is not there");
		REQUIRE(template_find(families[chosen].template, &t) == 0);
		play(t);
		played++;
	}
	EXPECT(played == file_count && played > 0);
}

static void files_find(void)
{
	const char *source = getenv("SRCDIR"), *folder = getenv("HOLDFAST_TRANSCRIPTS");
	DIR *dir = folder ? opendir(folder) : NULL;
	const struct dirent *entry;
	snprintf(files[file_count++], FILE_NAME_BYTES, "%s/tests/data/transcript.json", source ? source : ".");
	while (dir && (entry = readdir(dir)) && file_count < FILES_MAX)
		if (strstr(entry->d_name, ".json"))
			snprintf(files[file_count++], FILE_NAME_BYTES, "%s/%.200s", folder, entry->d_name);
	if (dir)
		closedir(dir);
	printf("# %u transcripts\n", file_count);
}

int main(void)
{
	files_find();
	for (chosen = 0; chosen < sizeof families / sizeof families[0]; chosen++)
		TAP_RUN(plays, families[chosen].template);
	tokenizer_close(&tokenizer);
	model_close(&model);
	rendering_free(&live.out);
	rendering_free(&fresh.out);
	rendering_free(&once.out);
	free(r.file);
	free(r.text);
	return tap_done();
}
