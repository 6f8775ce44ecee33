/*
 * Commands for a shell, with paths in quotes.
 */
#include "config.h"

#include "runtime/cure.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 3200, ASIDE_MAX = 1000, COMMAND_BYTES = 4096 };

/* In single quotes; one within is put between them. False: there is no room. */
static bool quote(char *out, size_t room, size_t *at, const char *path)
{
	const char *const quotes[] = {"'", "'\\''"};
	size_t n = *at;
	for (const char *p = path; n + 8 < room; p++) {
		if (p == path)
			out[n++] = '\'';
		if (*p == 0) {
			out[n++] = '\'';
			*at = n;
			return true;
		}
		if (*p == '\'') {
			memcpy(out + n, quotes[1], 4);
			n += 4;
		} else {
			out[n++] = *p;
		}
	}
	return false;
}

/* Without the slash at the end, and never like an option; beside: a name that is free. False too where a
   command would not be one line, or not mean the folder: of "." there is nothing beside it. */
static bool path_of(char out[PATH_BYTES + 32], const char *path, bool beside)
{
	struct stat st;
	size_t n = strlen(path);
	while (n > 1 && path[n - 1] == '/')
		n--;
	if (n == 0 || n >= PATH_BYTES - 2)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)path[i] < ' ' || path[i] == 127)
			return false;
	if (beside && (path[n - 1] == '/' || (path[n - 1] == '.' && (n == 1 || path[n - 2] == '/' ||
			(path[n - 2] == '.' && (n == 2 || path[n - 3] == '/'))))))
		return false;
	if (path[0] == '-') {
		*out++ = '.';
		*out++ = '/';
	}
	memcpy(out, path, n);
	out[n] = 0;
	for (unsigned i = 1; beside && i < ASIDE_MAX; i++) {
		snprintf(out + n, 32, i == 1 ? ".aside" : ".aside.%u", i);
		if (lstat(out, &st) != 0)
			return true;
	}
	return !beside;
}

/* The text with the path in its places; false: there is no room for all of it. */
static bool expand(char *out, size_t room, size_t *at, const char *text, const char *path)
{
	char name[PATH_BYTES + 32];
	for (const char *p = text; *p != 0; p++) {
		if (*p == '@' || *p == '^') {
			if (!path_of(name, path, *p == '^') || !quote(out, room, at, name))
				return false;
		} else if (*at + 1 < room) {
			out[(*at)++] = *p;
		} else {
			return false;
		}
	}
	return true;
}

void cure_add(char *line, size_t room, const char *words, const char *command, const char *path)
{
	char tail[COMMAND_BYTES];
	size_t length = strlen(line), at = 0;
	if (strstr(line, "; run: ") != NULL || strstr(line, ", run: ") != NULL)
		return;
	const bool whole = expand(tail, sizeof tail, &at, words[0] ? "; " : ";", path) &&
			   expand(tail, sizeof tail, &at, words, path) &&
			   expand(tail, sizeof tail, &at, words[0] ? ", run: " : " run: ", path) &&
			   expand(tail, sizeof tail, &at, command, path);
	if (!whole || length + at + 1 > room)
		return;
	memcpy(line + length, tail, at);
	line[length + at] = 0;
}

/* What of the path is there: all of it, or the nearest folder above, or the file that stands in its way. */
static bool standing(char name[PATH_BYTES + 32], const char *path, struct stat *st)
{
	char *slash;
	if (!path_of(name, path, false))
		return false;
	while (lstat(name, st) != 0) {
		slash = strrchr(name, '/');
		if (slash == NULL || slash == name)
			return false;
		*slash = 0;
	}
	return true;
}

/* Of what is not there yet nothing above it is to be changed. */
static void cure_right(char *line, size_t room, const char *path)
{
	char command[80], name[PATH_BYTES + 32];
	struct stat st;
	const bool there = path_of(name, path, false) && lstat(name, &st) == 0;
	if (there && st.st_uid == geteuid()) {
		cure_add(line, room, "this user must be able to read and write it", "chmod -R u+rwX @", path);
		return;
	}
	snprintf(command, sizeof command, there ? "sudo chown -R %u @" : "sudo install -d -m 0700 -o %u @",
		 (unsigned)geteuid());
	cure_add(line, room, there ? "it must be this user's; choose another place, or, if what is in it is to "
			"be trusted" : "choose a place where this user may write, or", command, path);
}

void cure_errno(char *line, size_t room, const char *path, int code)
{
	char there[PATH_BYTES + 32];
	struct stat st;
	switch (code) {
	case ENOSPC: case EDQUOT: case EFBIG:
		cure_add(line, room, "make room on its disk, or choose another place; to see how much there is",
				"df -h @", standing(there, path, &st) ? there : path);
		return;
	case EACCES: case EPERM:
		cure_right(line, room, path);
		return;
	case EROFS:
		cure_add(line, room, "it must be writable", "sudo mount -o remount,rw \"$(findmnt -n -o TARGET -T "
				"@)\"", path);
		return;
	case ENOENT:
		cure_add(line, room, "", "install -d -m 0700 @", path);
		return;
	case ELOOP: case ENOTDIR: case EISDIR: case ENXIO:
		cure_add(line, room, "it must be what is expected there, and no link; to set aside what is in the "
				"way", "mv @ ^", standing(there, path, &st) ? there : path);
		return;
	case ENOMEM:
		cure_add(line, room, "to see what memory there is", "free -h", path);
		return;
	default:
		cure_add(line, room, "to see what the system says of the disk", "dmesg --level err,crit", path);
	}
}
