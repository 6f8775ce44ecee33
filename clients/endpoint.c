/*
 * Where the daemon and its clients meet when nothing else is said.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "clients/wire.h"

int wire_default_endpoint(char *out, size_t capacity)
{
	const char *said = getenv("HOLDFAST_ENDPOINT");
	const char *dir = getenv("XDG_RUNTIME_DIR");
	int length;
	if (said && *said)
		length = snprintf(out, capacity, "%s", said);
	else if (dir && *dir)
		length = snprintf(out, capacity, "ipc://%s/holdfast.sock", dir);
	else
		length = snprintf(out, capacity, "ipc:///tmp/holdfast-%lu/holdfast.sock",
			(unsigned long)getuid());
	return length < 0 || (size_t)length >= capacity ? -ERR_TOO_BIG : 0;
}
