/*
 * The programs that need no daemon, as functions: argv[0] is the program's name; what is returned is
 * the exit code (0 done, 1 failed, 2 used wrongly). stdout is data, stderr is words.
 */
#ifndef HOLDFAST_RUNTIME_PROGRAMS_H
#define HOLDFAST_RUNTIME_PROGRAMS_H

int inspect_main(int argc, char **argv);
int tokenize_main(int argc, char **argv);
int logits_main(int argc, char **argv);
int perplexity_main(int argc, char **argv);
int bench_main(int argc, char **argv);

#endif
