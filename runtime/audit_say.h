/*
 * How `holdfast audit` writes what it found: a line of a table, or a line of JSON.
 */
#ifndef HOLDFAST_RUNTIME_AUDIT_SAY_H
#define HOLDFAST_RUNTIME_AUDIT_SAY_H

#include <stdbool.h>

#include "runtime/store_read.h"

void audit_say_head(bool json);
/* A record of an entry; the entry's own kind is a boot's or a shutdown's as well. */
void audit_say_record(const struct store_read_entry *e, const struct store_record *r, bool json);

#endif
