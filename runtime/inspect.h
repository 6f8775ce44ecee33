/*
 * The programs inside holdfastd that need only a model file: `inspect` and `tokenize`. Each is like
 * a main: argv[0] is the command's name; data goes to stdout, words to stderr; returns the exit code
 * (0 done, 1 failed, 2 used wrongly).
 */
#ifndef HOLDFAST_RUNTIME_INSPECT_H
#define HOLDFAST_RUNTIME_INSPECT_H

/* inspect MODEL [--json] */
int inspect_main(int argc, char **argv);
/* tokenize MODEL [--special] [--decode]: bytes on stdin to a JSON list of ids, or back. */
int tokenize_main(int argc, char **argv);

#endif
