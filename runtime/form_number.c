/*
 * Bounds of numbers as patterns of their digits: "at least" and "at most" each written out by the
 * first digit that differs, then combined with what a number looks like.
 */
#include "runtime/form_inside.h"

#include <stdio.h>
#include <string.h>

enum { DIGITS_MAX = 40, PATTERN_MAX = 32768 };

/* A bound's digits: before the point without leading zeros ("0" at least), after it without those at
   the end. */
struct decimal {
	bool negative;
	char whole[DIGITS_MAX + 1], part[DIGITS_MAX + 1];
};

struct writer {
	char text[PATTERN_MAX];
	size_t length;
};

static void put(struct writer *w, const char *text)
{
	const size_t n = strlen(text);
	CHECK(w->length + n <= sizeof w->text);
	memcpy(w->text + w->length, text, n);
	w->length += n;
}

static void put_some(struct writer *w, const char *digits, size_t count)
{
	CHECK(w->length + count <= sizeof w->text);
	memcpy(w->text + w->length, digits, count);
	w->length += count;
}

/* A digit of a range, then so many of any; false: the range is empty, nothing is written. */
static bool put_digit(struct writer *w, int low, int high, const char *rest)
{
	const char piece[] = {'[', (char)('0' + low), '-', (char)('0' + high), ']', 0};
	if (low > high)
		return false;
	put(w, piece);
	put(w, rest);
	return true;
}

static void put_count(struct writer *w, const char *format, size_t count)
{
	char piece[64];
	snprintf(piece, sizeof piece, format, count);
	put(w, piece);
}

/* Reads a JSON number; false: too many digits. */
static bool decimal_read(struct json number, struct decimal *d)
{
	char digits[2 * DIGITS_MAX + 1];
	size_t count = 0, i = number.at[0] == '-';
	long exponent = 0;
	memset(d, 0, sizeof *d);
	d->negative = i > 0;
	for (bool point = false; i < number.length && number.at[i] != 'e' && number.at[i] != 'E'; i++) {
		if (number.at[i] == '.') {
			point = true;
			continue;
		}
		if (count == DIGITS_MAX)
			return false;
		digits[count++] = number.at[i];
		exponent -= point;
	}
	if (i < number.length) {
		bool below = number.at[++i] == '-';
		long e = 0;
		for (i += below || number.at[i] == '+'; i < number.length && e < 1000; i++)
			e = e * 10 + (number.at[i] - '0');
		exponent += below ? -e : e;
	}
	while (count > 0 && digits[count - 1] == '0') {
		count--;
		exponent++;
	}
	/* digits x 10^exponent */
	long whole = (long)count + exponent;
	if (count == 0)
		whole = 0;
	if (whole > DIGITS_MAX || (count > 0 && (long)count - whole > DIGITS_MAX))
		return false;
	size_t n = 0, from = 0;
	for (long k = 0; k < whole; k++)
		d->whole[n++] = (size_t)k < count ? digits[k] : '0';
	while (from + 1 < n && d->whole[from] == '0')
		from++;
	memmove(d->whole, d->whole + from, n - from);
	d->whole[n - from] = 0;
	if (n == 0)
		d->whole[0] = '0';
	n = 0;
	for (long k = whole; k < 0; k++)
		d->part[n++] = '0';
	for (size_t k = whole > 0 ? (size_t)whole : 0; k < count; k++)
		d->part[n++] = digits[k];
	d->negative &= count > 0;
	return true;
}

#define FRACTION "([.][0-9]+)?"

/* Magnitudes that are more than, or at least, d. */
static void put_more(struct writer *w, const struct decimal *d, bool open)
{
	const size_t n = strlen(d->whole), m = strlen(d->part);
	put(w, "(");
	put_count(w, "[1-9][0-9]{%zu,}", n);
	put(w, FRACTION);
	for (size_t i = 0; i < n; i++) {
		char rest[48];
		snprintf(rest, sizeof rest, "[0-9]{%zu}", n - i - 1);
		if (d->whole[i] == '9')
			continue;
		put(w, "|");
		put_some(w, d->whole, i);
		put_digit(w, d->whole[i] - '0' + 1, 9, rest);
		put(w, FRACTION);
	}
	for (size_t i = 0; i < m; i++) {
		if (d->part[i] == '9')
			continue;
		put(w, "|");
		put_some(w, d->whole, n);
		put(w, "[.]");
		put_some(w, d->part, i);
		put_digit(w, d->part[i] - '0' + 1, 9, "[0-9]*");
	}
	put(w, "|");
	put_some(w, d->whole, n);
	if (m > 0)
		put(w, "[.]");
	put_some(w, d->part, m);
	if (open)
		put(w, m > 0 ? "[0-9]*[1-9][0-9]*" : "[.][0-9]*[1-9][0-9]*");
	else
		put(w, m > 0 ? "[0-9]*" : FRACTION);
	put(w, ")");
}

/* Magnitudes that are less than, or at most, d. What matches nothing is written as such. */
static void put_less(struct writer *w, const struct decimal *d, bool open)
{
	const size_t n = strlen(d->whole), m = strlen(d->part);
	put(w, "([]");
	if (n > 1) {
		put_count(w, "|(0|[1-9][0-9]{0,%zu})", n - 2);
		put(w, FRACTION);
	}
	for (size_t i = 0; i < n; i++) {
		char rest[48];
		const int least = i == 0 && n > 1;
		snprintf(rest, sizeof rest, "[0-9]{%zu}", n - i - 1);
		if (d->whole[i] - '0' - 1 < least)
			continue;
		put(w, "|");
		put_some(w, d->whole, i);
		put_digit(w, least, d->whole[i] - '0' - 1, rest);
		put(w, FRACTION);
	}
	if (m > 0) {
		put(w, "|");
		put_some(w, d->whole, n);
	}
	for (size_t i = 0; i < m; i++) {
		if (i > 0) {
			put(w, "|");
			put_some(w, d->whole, n);
			put(w, "[.]");
			put_some(w, d->part, i);
		}
		if (d->part[i] == '0')
			continue;
		put(w, "|");
		put_some(w, d->whole, n);
		put(w, "[.]");
		put_some(w, d->part, i);
		put_digit(w, 0, d->part[i] - '0' - 1, "[0-9]*");
	}
	if (!open) {
		put(w, "|");
		put_some(w, d->whole, n);
		put(w, m > 0 ? "[.]" : "([.]0+)?");
		put_some(w, d->part, m);
		put(w, m > 0 ? "0*" : "");
	}
	put(w, ")");
}

static bool is_zero(const struct decimal *d)
{
	return d->part[0] == 0 && strcmp(d->whole, "0") == 0;
}

/* Numbers on one side of the bound. */
static int side(struct maker *m, struct json bound, bool low, bool open, struct dfa **out)
{
	static struct writer w;
	struct decimal d;
	w.length = 0;
	if (!decimal_read(bound, &d))
		return form_fail(m, -ERR_UNSUPPORTED, "a bound of a number has too many digits (more than 40)");
	/* On the far side of zero all magnitudes fit, and some on the near side. */
	bool far = low ? d.negative || (is_zero(&d) && !open) : !d.negative && !(is_zero(&d) && open);
	if (low && !d.negative) {
		put_more(&w, &d, open);
		if (far) /* at least 0 */
			put(&w, "|-0([.]0+)?");
	} else if (low) {
		put(&w, "[0-9]+" FRACTION "|-");
		put_less(&w, &d, open);
	} else if (d.negative) {
		put(&w, "-");
		put_more(&w, &d, open);
	} else if (is_zero(&d)) {
		put(&w, open ? "-([1-9][0-9]*" FRACTION "|0[.][0-9]*[1-9][0-9]*)" :
			       "-[0-9]+" FRACTION "|0([.]0+)?");
	} else {
		put(&w, "-[0-9]+" FRACTION "|");
		put_less(&w, &d, open);
	}
	return dfa_pattern(&m->dfa, w.text, w.length, false, out);
}

/* What a number looks like, at most as long as is written; without bounds it may have an exponent, and
   with them 15 digits in all: then what is compared as doubles compares as it is written. */
static const char *look(bool integer, bool bounded)
{
	return integer ? "-?(0|[1-9][0-9]{0,17})" :
	       bounded ? "-?((0|[1-9][0-9]{0,8})([.][0-9]{1,6})?|[1-9][0-9]{9,14})" :
			 "-?(0|[1-9][0-9]{0,14})([.][0-9]{1,15})?([eE][+\\-]?[0-9]{1,2})?";
}

/* The numbers of that look within all bounds; DFA_EMPTY: there is none. */
static int within(struct maker *m, const char *text, const struct number_bounds *b, struct dfa **out)
{
	struct dfa *one, *both;
	int code = dfa_pattern(&m->dfa, text, strlen(text), false, out);
	for (uint32_t i = 0; code == 0 && i < b->lows + b->highs; i++) {
		const bool low = i < b->lows;
		const uint32_t k = low ? i : i - b->lows;
		code = side(m, low ? b->low[k] : b->high[k], low, low ? b->low_open[k] : b->high_open[k], &one);
		if (code == 0) {
			code = dfa_both(&m->dfa, *out, one, false, &both);
			dfa_free(one);
			dfa_free(*out);
			*out = both;
		}
	}
	if (code != 0) {
		dfa_free(*out);
		*out = NULL;
	}
	return code;
}

int form_number(struct maker *m, bool integer, const struct number_bounds *b, uint32_t *at)
{
	struct dfa *all, *longer;
	int code = within(m, look(integer, b->lows + b->highs > 0), b, &all);
	if (code == DFA_EMPTY && within(m, integer ? "-?[0-9]+" : "-?[0-9]+" FRACTION, b, &longer) == 0) {
		dfa_free(longer);
		return form_add_node(m, (struct node){.kind = NODE_NONE, .low = NONE_DIGITS}, at);
	}
	return form_add_dfa(m, NODE_DFA, code, all, at);
}
