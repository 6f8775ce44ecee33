/*
 * The file of tenants, and the file of the server's key.
 */
#include "config.h"

#include "runtime/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sodium.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/daemon.h"

enum { LINE_BYTES = 1024, WORDS_MAX = 16 };
enum { RATE_DEFAULT = 200, BYTES_DEFAULT = 8 << 20, CALLS_DEFAULT = 64, SESSIONS_DEFAULT = 1024,
	CONNECTIONS_DEFAULT = 256 };

/* Opens a file that others may not have a hand in: mask is what its mode must not have. */
static FILE *open_private(const char *path, mode_t mask)
{
	struct stat st;
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
		log_say(LOG_ERROR, "%s cannot be read: %s", path, fd < 0 ? strerror(errno) : "it is no file");
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	if ((st.st_mode & mask) || (st.st_uid != getuid() && st.st_uid != 0)) {
		log_say(LOG_ERROR, "%s is open to others (mode %04o); chmod 600", path,
			(unsigned)(st.st_mode & 07777));
		close(fd);
		return NULL;
	}
	FILE *file = fdopen(fd, "r");
	if (!file)
		close(fd);
	return file;
}

static bool name_read(const char *text, char out[TENANT_NAME_MAX + 1])
{
	const size_t n = strlen(text);
	if (n == 0 || n > TENANT_NAME_MAX ||
	    strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") != n)
		return false;
	memcpy(out, text, n + 1);
	return true;
}

static bool number_read(const char *text, uint64_t *out)
{
	char *end;
	errno = 0;
	*out = strtoull(text, &end, 10);
	return text[0] >= '0' && text[0] <= '9' && !*end && !errno && *out <= INT64_MAX;
}

static bool endpoint_read(const char *text, char out[TENANT_ENDPOINT_MAX])
{
	const bool ipc = strncmp(text, "ipc:///", 7) == 0, tcp = strncmp(text, "tcp://", 6) == 0;
	if ((!ipc && !tcp) || strlen(text) >= TENANT_ENDPOINT_MAX)
		return false;
	snprintf(out, TENANT_ENDPOINT_MAX, "%s", text);
	return true;
}

static bool events_read(const char *text, char out[TENANT_ENDPOINT_MAX])
{
	if (strcmp(text, "none") != 0)
		return endpoint_read(text, out);
	snprintf(out, TENANT_ENDPOINT_MAX, "none");
	return true;
}

static bool roles_read(char *text, uint32_t *out)
{
	char *rest = NULL;
	*out = 0;
	for (char *one = strtok_r(text, ",", &rest); one; one = strtok_r(NULL, ",", &rest)) {
		if (strcmp(one, "agent") == 0)
			*out |= ROLE_AGENT;
		else if (strcmp(one, "gateway") == 0)
			*out |= ROLE_GATEWAY;
		else if (strcmp(one, "operator") == 0)
			*out |= ROLE_OPERATOR;
		else
			return false;
	}
	return *out != 0;
}

/* The end of that day, so that `until` is the last on which it holds. */
static bool day_read(const char *text, int64_t *out)
{
	struct tm tm = {0};
	const char *end = strptime(text, "%Y-%m-%d", &tm);
	if (!end || *end)
		return false;
	*out = (int64_t)timegm(&tm) + 24 * 3600;
	return true;
}

static const char *tenant_line(struct tenants *t, char **word, int count)
{
	struct tenant *one = &t->tenant[t->count];
	if (t->count > TENANTS_MAX)
		return "too many tenants";
	*one = (struct tenant){.rate = RATE_DEFAULT, .bytes = BYTES_DEFAULT, .calls = CALLS_DEFAULT,
			       .sessions = SESSIONS_DEFAULT, .connections = CONNECTIONS_DEFAULT};
	if (!name_read(word[1], one->name) || tenants_find(t, one->name) != UINT32_MAX)
		return "a tenant needs a name of its own, of letters, digits, - and _";
	for (int i = 2; i < count; i++) {
		char *value = strchr(word[i], '=');
		if (!value)
			return "expected key=value";
		*value++ = 0;
		uint64_t *number = strcmp(word[i], "rate") == 0 ? &one->rate
				   : strcmp(word[i], "bytes") == 0 ? &one->bytes
				   : strcmp(word[i], "calls") == 0 ? &one->calls
				   : strcmp(word[i], "sessions") == 0 ? &one->sessions
				   : strcmp(word[i], "connections") == 0 ? &one->connections : NULL;
		if (number ? !number_read(value, number)
		    : strcmp(word[i], "listen") == 0 ? !endpoint_read(value, one->listen)
		    : strcmp(word[i], "control") == 0 ? !endpoint_read(value, one->control)
		    : strcmp(word[i], "kv-events") == 0 ? !endpoint_read(value, one->kv_events)
		    : strcmp(word[i], "kv-replay") == 0 ? !endpoint_read(value, one->kv_replay)
		    : strcmp(word[i], "events") == 0 ? !events_read(value, one->events) : true)
			return "this is no setting of a tenant, or no value for it";
	}
	if (!one->listen[0])
		return "a tenant needs listen=";
	if (one->kv_replay[0] && !one->kv_events[0])
		return "kv-replay= is beside kv-events=";
	t->count++;
	return NULL;
}

static const char *allow_line(struct tenants *t, char **word, int count)
{
	struct grant *g = &t->grant[t->grant_count];
	uint64_t uid = UINT64_MAX;
	uint8_t raw[32];
	if (t->grant_count == GRANTS_MAX)
		return "too many grants";
	*g = (struct grant){.tenant = tenants_find(t, word[1]), .roles = ROLE_AGENT};
	if (g->tenant == UINT32_MAX || g->tenant == 0)
		return "this tenant is not named above";
	for (int i = 2; i < count; i++) {
		char *value = strchr(word[i], '=');
		if (!value)
			return "expected key=value";
		*value++ = 0;
		bool good = false;
		if (strcmp(word[i], "key") == 0) {
			good = strlen(value) == KEY_CHARS && zmq_z85_decode(raw, value);
			g->by_key = good;
			if (good)
				memcpy(g->key, value, KEY_CHARS + 1);
		} else if (strcmp(word[i], "uid") == 0) {
			good = number_read(value, &uid) && uid < UINT32_MAX;
			g->uid = (uint32_t)uid;
		} else if (strcmp(word[i], "name") == 0) {
			good = name_read(value, g->name);
		} else if (strcmp(word[i], "roles") == 0) {
			good = roles_read(value, &g->roles);
		} else if (strcmp(word[i], "until") == 0) {
			good = day_read(value, &g->until);
		}
		if (!good)
			return "this is no part of a grant, or no value for it";
	}
	if (g->by_key == (uid != UINT64_MAX))
		return "a grant is by key= or by uid=";
	if (!g->name[0] && g->by_key)
		return "a grant by key= needs name=";
	if (!g->name[0])
		snprintf(g->name, sizeof g->name, "uid:%u", g->uid);
	t->grant_count++;
	return NULL;
}

int tenants_read(const char *path, struct tenants *out)
{
	char line[LINE_BYTES];
	const char *wrong = NULL;
	memset(out, 0, sizeof *out);
	out->count = 1;
	snprintf(out->tenant[0].name, sizeof out->tenant[0].name, "local");
	if (!path[0])
		return 0;
	FILE *file = open_private(path, 022);
	if (!file)
		return -ERR_PERMISSION;
	for (unsigned number = 1; !wrong && fgets(line, sizeof line, file); number++) {
		char *word[WORDS_MAX], *rest = NULL;
		int count = 0;
		for (char *w = strtok_r(line, " \t\r\n", &rest); w; w = strtok_r(NULL, " \t\r\n", &rest))
			if (count < WORDS_MAX)
				word[count++] = w;
		if (count == 0 || word[0][0] == '#')
			continue;
		if (count >= 3 && strcmp(word[0], "tenant") == 0)
			wrong = tenant_line(out, word, count);
		else if (count >= 3 && strcmp(word[0], "allow") == 0)
			wrong = allow_line(out, word, count);
		else
			wrong = "expected `tenant NAME …` or `allow NAME …`";
		if (wrong)
			log_say(LOG_ERROR, "%s:%u: %s", path, number, wrong);
	}
	fclose(file);
	return wrong ? -ERR_BAD_ARG : 0;
}

uint32_t tenants_find(const struct tenants *t, const char *name)
{
	for (uint32_t i = 0; i < t->count; i++)
		if (strcmp(t->tenant[i].name, name) == 0)
			return i;
	return UINT32_MAX;
}

uint32_t tenants_of_principal(const struct tenants *t, const char *name)
{
	const size_t length = strcspn(name, "/");
	for (uint32_t i = 1; i < t->count && name[length]; i++)
		if (strlen(t->tenant[i].name) == length && memcmp(t->tenant[i].name, name, length) == 0)
			return i;
	return 0;
}

bool tenants_reload(struct tenants *at, const struct tenants *fresh)
{
	bool more = false;
	for (uint32_t i = 1; i < fresh->count; i++) {
		const struct tenant *new = &fresh->tenant[i];
		const uint32_t old = tenants_find(at, new->name);
		if (old == UINT32_MAX || strcmp(at->tenant[old].listen, new->listen) != 0) {
			more = true;
			continue;
		}
		struct tenant *t = &at->tenant[old];
		t->rate = new->rate;
		t->bytes = new->bytes;
		t->calls = new->calls;
		t->sessions = new->sessions;
		t->connections = new->connections;
	}
	at->grant_count = 0;
	for (uint32_t i = 0; i < fresh->grant_count; i++) {
		const uint32_t old = tenants_find(at, fresh->tenant[fresh->grant[i].tenant].name);
		if (old == UINT32_MAX)
			continue;
		at->grant[at->grant_count] = fresh->grant[i];
		at->grant[at->grant_count++].tenant = old;
	}
	return more;
}

static bool holds(const struct grant *g)
{
	return !g->until || (int64_t)time(NULL) < g->until;
}

const struct grant *tenants_key(const struct tenants *t, uint32_t tenant, const char *key)
{
	for (uint32_t i = 0; i < t->grant_count; i++) {
		const struct grant *g = &t->grant[i];
		if (g->by_key && g->tenant == tenant && holds(g) && memcmp(g->key, key, KEY_CHARS) == 0)
			return g;
	}
	return NULL;
}

const struct grant *tenants_uid(const struct tenants *t, uint32_t tenant, uint32_t uid)
{
	for (uint32_t i = 0; i < t->grant_count; i++) {
		const struct grant *g = &t->grant[i];
		if (!g->by_key && g->tenant == tenant && holds(g) && g->uid == uid)
			return g;
	}
	return NULL;
}

int key_read(const char *path, char secret[KEY_CHARS + 1])
{
	char line[LINE_BYTES];
	uint8_t raw[32];
	FILE *file = open_private(path, 077);
	if (!file)
		return -ERR_PERMISSION;
	int code = -ERR_BAD_FILE;
	while (code && fgets(line, sizeof line, file)) {
		char *at = strstr(line, "secret-key");
		at = at ? strchr(at, '"') : NULL;
		char *from = at ? at + 1 : line;
		from[strcspn(from, "\"\r\n")] = 0;
		if (strlen(from) == KEY_CHARS && zmq_z85_decode(raw, from)) {
			memcpy(secret, from, KEY_CHARS + 1);
			code = 0;
		}
	}
	sodium_memzero(line, sizeof line);
	sodium_memzero(raw, sizeof raw);
	fclose(file);
	if (code)
		log_say(LOG_ERROR, "%s holds no secret key; holdfast keygen makes one", path);
	return code;
}
