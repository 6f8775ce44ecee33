/*
 * `holdfastd selftest`: the daemon without its socket, under faults made on purpose.
 */
#ifndef HOLDFAST_RUNTIME_SELFTEST_H
#define HOLDFAST_RUNTIME_SELFTEST_H

int selftest_main(int argc, char **argv);

#endif
