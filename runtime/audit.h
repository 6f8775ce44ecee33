/*
 * `holdfastd audit`, which `holdfast audit` runs too: questions to the audit log, whether its daemon
 * runs or not.
 */
#ifndef HOLDFAST_RUNTIME_AUDIT_H
#define HOLDFAST_RUNTIME_AUDIT_H

int audit_main(int argc, char **argv);

#endif
