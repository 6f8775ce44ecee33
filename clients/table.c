/*
 * Results as tables and lists for people. Columns are as wide as what is in them. Where the terminal is
 * narrower, those that are missed least are left out, and the last is cut if it is text; no id or number is.
 */
#include "config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "clients/command.h"
#include "clients/item.h"

enum { CELL = 72, COLUMNS_MAX = 10, CUT_WIDE = 8 /* no text is cut to less */ };
enum cell_kind { CELL_TEXT, CELL_ID, CELL_NUMBER, CELL_MIB, CELL_AGE, CELL_KINDS };

struct column {
	const char *title, *key;
	uint8_t kind; /* enum cell_kind; by SPARE(n, kind) the nth that is left out where there is no room */
};
#define SPARE(n, kind) ((n) * CELL_KINDS + (kind))

void print_text(void *stream, const char *text, size_t length)
{
	FILE *f = stream;
	if (!isatty(fileno(f))) {
		fwrite(text, 1, length, f);
		return;
	}
	for (size_t i = 0; i < length; i++) {
		unsigned char b = (unsigned char)text[i];
		/* C0 but newline and tab, DEL, and C1 (c2 80 to c2 9f) steer terminals. */
		bool c1 = b == 0xc2 && i + 1 < length && (unsigned char)text[i + 1] < 0xa0;
		if (c1)
			i++;
		if (c1 || b == 0x7f || (b < 0x20 && b != '\n' && b != '\t'))
			fputs("\xef\xbf\xbd", f);
		else
			fputc(b, f);
	}
}

int columns_of_terminal(void)
{
	struct winsize w;
	if (isatty(1) && ioctl(1, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
		return w.ws_col;
	return isatty(1) ? 80 : 10000;
}

int rows_of_terminal(void)
{
	struct winsize w;
	return isatty(1) && ioctl(1, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 ? w.ws_row : 24;
}

/* Any value as a line of text without control characters. */
static void cell_text(struct wire_value v, char out[CELL])
{
	struct wire_str s;
	if (wire_get_str(v, &s)) {
		size_t n = s.length < CELL - 1 ? s.length : CELL - 1;
		/* Not in the middle of a character. */
		while (n > 0 && n < s.length && ((unsigned char)s.at[n] & 0xc0) == 0x80)
			n--;
		memcpy(out, s.at, n);
		out[n] = 0;
		for (size_t i = 0; i < n; i++) {
			unsigned char b = (unsigned char)out[i];
			if (b < 0x20 || b == 0x7f ||
			    (b == 0xc2 && (unsigned char)out[i + 1] < 0xa0))
				out[i] = '?';
		}
		return;
	}
	wire_json(v, out, CELL);
	size_t length = strlen(out);
	/* Ids are shown as they are typed. */
	if (length >= 2 && out[0] == '"' && out[length - 1] == '"') {
		memmove(out, out + 1, length - 2);
		out[length - 2] = 0;
	}
}

static void cell_age(uint64_t ms, char out[CELL])
{
	static const struct { const char *unit; uint64_t ms; } units[] = {
		{"d", 86400000}, {"h", 3600000}, {"m", 60000}, {"s", 1000},
	};
	for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
		if (ms >= 2 * units[i].ms) {
			snprintf(out, CELL, "%" PRIu64 "%s", ms / units[i].ms, units[i].unit);
			return;
		}
	snprintf(out, CELL, "%" PRIu64 "ms", ms);
}

static void cell(struct wire_value v, uint8_t kind, char out[CELL])
{
	uint64_t n;
	snprintf(out, CELL, "-");
	if (!v.at)
		return;
	if (kind == CELL_TEXT || kind == CELL_ID || !wire_get_u64(v, &n))
		cell_text(v, out);
	else if (kind == CELL_MIB)
		snprintf(out, CELL, "%.1f", (double)n / (1 << 20));
	else if (kind == CELL_AGE)
		cell_age(n, out);
	else
		snprintf(out, CELL, "%" PRIu64, n);
}

/* Characters, near enough: bytes that begin one. */
static int width(const char *text)
{
	int n = 0;
	for (; *text; text++)
		n += ((unsigned char)*text & 0xc0) != 0x80;
	return n;
}

static void print_cell(const char *text, int wide, bool right, bool last)
{
	int n = width(text);
	for (int i = n; right && i < wide; i++)
		putchar(' ');
	for (int i = 0; *text; text++) {
		i += ((unsigned char)*text & 0xc0) != 0x80;
		if (i <= wide)
			putchar(*text);
	}
	for (int i = n; !right && !last && i < wide; i++)
		putchar(' ');
	if (!last)
		fputs("  ", stdout);
}

/* What the columns that are not left out take, with the last one cut as far as it may be. */
static int columns_take(const struct column *c, int columns, const int *wide, const bool *out, int *last)
{
	int all = -2;
	*last = 0;
	for (int k = 0; k < columns; k++)
		if (!out[k]) {
			all += wide[k] + 2;
			*last = k;
		}
	if (c[*last].kind % CELL_KINDS == CELL_TEXT && wide[*last] > CUT_WIDE)
		all -= wide[*last] - CUT_WIDE;
	return all;
}

/* Leaves out columns until the rest has room; what has room again beside those that were left out later is
   shown after all. Cuts what must be cut. Returns the last that is shown. */
static int columns_choose(const struct column *c, int columns, int *wide, bool *out)
{
	const int room = columns_of_terminal();
	int last, spare = 1;
	for (; columns_take(c, columns, wide, out, &last) > room && spare <= columns; spare++)
		for (int k = 0; k < columns; k++)
			out[k] |= c[k].kind / CELL_KINDS == spare;
	while (--spare > 0)
		for (int k = 0; k < columns; k++)
			if (c[k].kind / CELL_KINDS == spare) {
				out[k] = false;
				out[k] = columns_take(c, columns, wide, out, &last) > room;
			}
	int over = columns_take(c, columns, wide, out, &last) - room;
	if (c[last].kind % CELL_KINDS == CELL_TEXT && wide[last] > CUT_WIDE) {
		over += wide[last] - CUT_WIDE;
		const int cut = over > wide[last] - CUT_WIDE ? wide[last] - CUT_WIDE : over > 0 ? over : 0;
		wide[last] -= cut;
		over -= cut;
	}
	/* Names may be long, and nothing is left to leave out. */
	if (over > 0 && c[0].kind % CELL_KINDS == CELL_TEXT)
		wide[0] = wide[0] - over < CUT_WIDE ? CUT_WIDE : wide[0] - over;
	return last;
}

/* rows: count × columns cells. */
static void print_rows(const struct column *c, int columns, char (*cells)[CELL], size_t count)
{
	int wide[COLUMNS_MAX];
	bool out[COLUMNS_MAX] = {false};
	for (int k = 0; k < columns; k++) {
		wide[k] = width(c[k].title);
		for (size_t i = 0; i < count; i++) {
			int n = width(cells[i * (size_t)columns + (size_t)k]);
			wide[k] = n > wide[k] ? n : wide[k];
		}
	}
	const int last = columns_choose(c, columns, wide, out);
	for (size_t i = 0; i <= count; i++) {
		for (int k = 0; k < columns; k++)
			if (!out[k])
				print_cell(i == 0 ? c[k].title : cells[(i - 1) * (size_t)columns + (size_t)k],
						wide[k], c[k].kind % CELL_KINDS > CELL_ID, k == last);
		putchar('\n');
	}
}

/* An array of maps, or a map of maps whose keys are the first column. */
static void print_table(struct wire_value rows, const struct column *c, int columns)
{
	struct wire_value row, name;
	struct walk w;
	uint32_t pairs = 0, count = 0;
	bool map = wire_get_map(rows, &pairs);
	if (!map && !wire_get_array(rows, &count))
		return;
	count += pairs;
	char (*cells)[CELL] = calloc((size_t)count * (size_t)columns + 1, CELL);
	if (!cells)
		return;
	walk_init(&w, rows);
	for (size_t i = 0; i < count; i++) {
		if (map)
			walk_next(&w, &name);
		walk_next(&w, &row);
		for (int k = 0; k < columns; k++)
			cell(map && k == 0 ? name : wire_find(row, c[k].key), c[k].kind % CELL_KINDS,
				cells[i * (size_t)columns + (size_t)k]);
	}
	print_rows(c, columns, cells, count);
	free(cells);
}

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

void print_sessions(struct wire_value r)
{
	static const struct column c[] = {
		{"SESSION", "sess", CELL_ID}, {"STATE", "state", SPARE(9, CELL_TEXT)},
		{"TURN", "turn", SPARE(3, CELL_NUMBER)}, {"TOKENS", "history", SPARE(6, CELL_NUMBER)},
		{"HELD", "resident", SPARE(2, CELL_NUMBER)}, {"MiB", "bytes", SPARE(8, CELL_MIB)},
		{"LOWER", "lower", SPARE(1, CELL_MIB)}, {"IDLE", "idle_ms", SPARE(4, CELL_AGE)},
		{"BACK IN", "returns_in_ms", SPARE(5, CELL_AGE)}, {"LABEL", "label", SPARE(7, CELL_TEXT)},
	};
	print_table(r, c, COUNT(c));
}

void print_ledger(struct wire_value r)
{
	static const struct column accounts[] = {
		{"MiB", "", CELL_TEXT}, {"free", "free", CELL_MIB},
		{"running", "running", SPARE(6, CELL_MIB)},
		{"promised", "promised", SPARE(3, CELL_MIB)}, {"retained", "retained", SPARE(5, CELL_MIB)},
		{"shared", "shared", SPARE(4, CELL_MIB)}, {"moving", "moving", SPARE(2, CELL_MIB)},
		{"doomed", "doomed", SPARE(1, CELL_MIB)},
	};
	static const struct column principals[] = {
		{"PRINCIPAL", "principal", CELL_TEXT}, {"SESSIONS", "sessions", SPARE(8, CELL_NUMBER)},
		{"OF", "sessions_limit", SPARE(1, CELL_NUMBER)}, {"TURNS", "turns", SPARE(5, CELL_NUMBER)},
		{"RUN", "running", SPARE(3, CELL_NUMBER)}, {"OF", "running_limit", SPARE(2, CELL_NUMBER)},
		{"MiB", "bytes", CELL_MIB}, {"GRANTED", "granted", SPARE(4, CELL_MIB)},
		{"CHARGED", "charged", SPARE(6, CELL_MIB)}, {"LIMIT", "limit", SPARE(7, CELL_MIB)},
	};
	static const struct column sessions[] = {
		{"SESSION", "sess", CELL_ID}, {"PRINCIPAL", "principal", SPARE(1, CELL_TEXT)},
		{"STATE", "state", SPARE(8, CELL_TEXT)}, {"MiB", "bytes", SPARE(7, CELL_MIB)},
		{"LOWER", "lower", SPARE(2, CELL_MIB)}, {"GRANTED", "granted", SPARE(4, CELL_MIB)},
		{"CHARGED", "charged", SPARE(6, CELL_MIB)}, {"PROMISED", "promised", SPARE(3, CELL_MIB)},
		{"LABEL", "label", SPARE(5, CELL_TEXT)},
	};
	static const struct column deployment[] = {
		{"DEPLOYMENT", "", CELL_TEXT}, {"MiB", "bytes", CELL_MIB},
		{"FREE", "free", SPARE(2, CELL_MIB)}, {"TURNS", "turns", SPARE(1, CELL_NUMBER)},
	};
	print_table(wire_find(r, "accounts"), accounts, COUNT(accounts));
	uint32_t count;
	struct wire_value all = wire_find(r, "deployment");
	if (wire_get_map(all, &count)) {
		putchar('\n');
		print_table(wire_find(r, "deployment"), deployment, COUNT(deployment));
	}
	struct wire_value part = wire_find(r, "principals");
	if (wire_get_array(part, &count) && count > 0) {
		putchar('\n');
		print_table(part, principals, COUNT(principals));
	}
	part = wire_find(r, "sessions");
	if (wire_get_array(part, &count) && count > 0) {
		putchar('\n');
		print_table(part, sessions, COUNT(sessions));
	}
	static const char *const lists[] = {"principals", "sessions"};
	for (unsigned i = 0; i < 2; i++) {
		uint64_t more;
		if (wire_get_u64(wire_find(wire_find(r, "more"), lists[i]), &more) && more > 0)
			printf("\n... and %" PRIu64 " more %s: see --first, --count\n", more, lists[i]);
	}
}

void print_pages(struct wire_value r)
{
	static const struct column c[] = {
		{"PAGE", "page", CELL_NUMBER}, {"GROUP", "group", SPARE(2, CELL_NUMBER)},
		{"STATE", "state", SPARE(5, CELL_TEXT)}, {"TAG", "tag", SPARE(1, CELL_NUMBER)},
		{"OWNERS", "owners", SPARE(3, CELL_NUMBER)}, {"POSITION", "position", SPARE(4, CELL_NUMBER)},
		{"SESSION", "sess", SPARE(6, CELL_ID)},
	};
	print_table(r, c, COUNT(c));
}

static void print_pairs(struct wire_value map, const char *before)
{
	struct wire_value name, value;
	struct walk w;
	uint32_t pairs;
	walk_init(&w, map);
	while (walk_next(&w, &name) && walk_next(&w, &value)) {
		char key[CELL], text[CELL], full[2 * CELL];
		cell_text(name, key);
		snprintf(full, sizeof full, "%s%s", before, key);
		/* One level is enough for all that the protocol has. */
		if (wire_get_map(value, &pairs) && !*before) {
			strncat(full, ".", sizeof full - strlen(full) - 1);
			print_pairs(value, full);
			continue;
		}
		cell_text(value, text);
		printf("%-20s %s\n", full, text);
	}
}

void print_map(struct wire_value r)
{
	print_pairs(r, "");
}
