/*
 * What the refusal of a file or folder ends in: the command that repairs it, or sets it aside. One for a
 * line, and the last thing in it, so that it can be copied as it stands; paths are in quotes for a shell.
 */
#ifndef HOLDFAST_RUNTIME_CURE_H
#define HOLDFAST_RUNTIME_CURE_H

#include <stddef.h>

/* Appends "; WORDS run: COMMAND" to the line, unless it names a command already, or has not the room for a
   whole one: half a command would do something else. In COMMAND and WORDS '@' stands for the path, and '^'
   for the same beside it, with `.aside` behind, which is not there yet. */
void cure_add(char *line, size_t room, const char *words, const char *command, const char *path);
/* By what the system said: `code` an errno of a call for `path`, which is a folder or lies in one. Of a disk
   that fails the command shows why. */
void cure_errno(char *line, size_t room, const char *path, int code);

#endif
