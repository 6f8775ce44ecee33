/*
 * Options from a table: reading, ranges, and the one line that a refusal is.
 */
#include "runtime/flags.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/check.h"

static int flag_number(const struct flag *flag, const char *value, uint64_t *out)
{
	/* strtoull takes signs and spaces; a number here is digits alone. */
	if (value[0] < '0' || value[0] > '9')
		return -ERR_BAD_ARG;
	char *end;
	errno = 0;
	unsigned long long number = strtoull(value, &end, 10);
	if (errno != 0)
		return -ERR_OUT_OF_RANGE;
	if (flag->kind == FLAG_BYTES && *end != '\0') {
		static const char units[] = "KMGT";
		const char *unit = strchr(units, *end >= 'a' ? *end - 32 : *end);
		if (!unit)
			return -ERR_BAD_ARG;
		const unsigned shift = 10 * (unsigned)(unit - units + 1);
		if (number > UINT64_MAX >> shift)
			return -ERR_OUT_OF_RANGE;
		number <<= shift;
		end++;
	}
	if (*end != '\0')
		return -ERR_BAD_ARG;
	*out = number;
	return 0;
}

static uint64_t flag_most(const struct flag *flag)
{
	if (flag->most)
		return flag->most;
	return flag->kind == FLAG_U32 ? UINT32_MAX : UINT64_MAX;
}

static int flag_choice(const char *words, const char *value)
{
	const size_t length = strlen(value);
	int index = 0;
	for (const char *word = words;; index++) {
		const size_t n = strcspn(word, "|");
		if (n == length && memcmp(word, value, n) == 0)
			return index;
		if (word[n] == '\0')
			return -1;
		word += n + 1;
	}
}

static int flag_refuse(const struct flag *flag, const char *value, char *reason)
{
	if (flag->kind == FLAG_CHOICE)
		snprintf(reason, FLAGS_REASON_MAX, "--%s: %.60s is not one of %s", flag->name,
			 value, flag->words);
	else if (flag->kind == FLAG_SWITCH)
		snprintf(reason, FLAGS_REASON_MAX, "--%s takes no value", flag->name);
	else
		snprintf(reason, FLAGS_REASON_MAX, "--%s: %.60s is not a number in %llu .. %llu",
			 flag->name, value, (unsigned long long)flag->least,
			 (unsigned long long)flag_most(flag));
	return -ERR_BAD_ARG;
}

static int flag_store(const struct flag *flag, const char *value, char *reason)
{
	uint64_t number = 0;
	switch (flag->kind) {
	case FLAG_SWITCH:
		if (value && strcmp(value, "true") != 0 && strcmp(value, "false") != 0)
			return flag_refuse(flag, value, reason);
		*(bool *)flag->to = !value || value[0] == 't';
		return 0;
	case FLAG_TEXT:
		*(const char **)flag->to = value;
		return 0;
	case FLAG_CHOICE: {
		const int index = flag_choice(flag->words, value);
		if (index < 0)
			return flag_refuse(flag, value, reason);
		*(int *)flag->to = index;
		return 0;
	}
	case FLAG_U32:
	case FLAG_U64:
	case FLAG_BYTES:
		if (flag_number(flag, value, &number) != 0 || number < flag->least ||
		    number > flag_most(flag))
			return flag_refuse(flag, value, reason);
		if (flag->kind == FLAG_U32)
			*(uint32_t *)flag->to = (uint32_t)number;
		else
			*(uint64_t *)flag->to = number;
		return 0;
	}
	return -ERR_BAD_ARG; /* no such kind */
}

static const struct flag *flag_find(const struct flag *flags, uint32_t count, const char *name,
				    size_t length)
{
	for (uint32_t i = 0; i < count; i++)
		if (strlen(flags[i].name) == length && memcmp(flags[i].name, name, length) == 0)
			return &flags[i];
	return NULL;
}

int flags_set(const struct flag *flags, uint32_t count, const char *name, const char *value,
	      char *reason)
{
	const struct flag *flag = flag_find(flags, count, name, strlen(name));
	if (!flag) {
		snprintf(reason, FLAGS_REASON_MAX, "there is no option --%.60s", name);
		return -ERR_BAD_ARG;
	}
	if (!value && flag->kind != FLAG_SWITCH) {
		snprintf(reason, FLAGS_REASON_MAX, "--%s needs a value", flag->name);
		return -ERR_BAD_ARG;
	}
	return flag_store(flag, value, reason);
}

int flags_read(const struct flag *flags, uint32_t count, int argc, char **argv,
	       const char **positional, uint32_t positional_count, char *reason)
{
	uint32_t given = 0;
	bool options = true;
	for (int i = 1; i < argc; i++) {
		const char *argument = argv[i];
		if (options && strcmp(argument, "--") == 0) {
			options = false;
			continue;
		}
		if (!options || argument[0] != '-' || argument[1] == '\0') {
			if (given == positional_count) {
				snprintf(reason, FLAGS_REASON_MAX, "%.60s: one argument too many",
					 argument);
				return -ERR_BAD_ARG;
			}
			positional[given++] = argument;
			continue;
		}
		const char *name = argument[1] == '-' ? argument + 2 : argument;
		const size_t length = strcspn(name, "=");
		const struct flag *flag = flag_find(flags, count, name, length);
		if (!flag) {
			snprintf(reason, FLAGS_REASON_MAX, "there is no option %.60s", argument);
			return -ERR_BAD_ARG;
		}
		const char *value = name[length] == '=' ? name + length + 1 : NULL;
		if (!value && flag->kind != FLAG_SWITCH && i + 1 < argc)
			value = argv[++i];
		TRY(flags_set(flags, count, flag->name, value, reason));
	}
	if (given < positional_count) {
		snprintf(reason, FLAGS_REASON_MAX, "%u more argument%s needed",
			 positional_count - given, positional_count - given == 1 ? " is" : "s are");
		return -ERR_BAD_ARG;
	}
	return 0;
}

void flags_help(const struct flag *flags, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) {
		const struct flag *f = &flags[i];
		char form[100];
		if (f->kind == FLAG_SWITCH)
			snprintf(form, sizeof form, "--%s", f->name);
		else if (f->kind == FLAG_CHOICE)
			snprintf(form, sizeof form, "--%s %s", f->name, f->words);
		else
			snprintf(form, sizeof form, "--%s %s", f->name,
				 f->kind == FLAG_TEXT	 ? "TEXT"
				 : f->kind == FLAG_BYTES ? "BYTES"
							 : "N");
		printf("  %-34s %s\n", form, f->help ? f->help : "");
	}
}
