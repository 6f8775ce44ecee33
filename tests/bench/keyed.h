/*
 * A tenant over TCP with keys, for a bench: its files, as the daemon reads them.
 */
#ifndef HOLDFAST_TESTS_BENCH_KEYED_H
#define HOLDFAST_TESTS_BENCH_KEYED_H

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "runtime/tenant.h"

/* Keys (the clients' public and secret, and the daemon's public), a tenant at a port that was free, and whom
   it lets in, in files under `home`. */
static inline void tenant_make(char keys[3][KEY_CHARS + 1], const char *home, char tenants[128],
			       char secret_file[128], char endpoint[64], uint32_t connections)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof a;
	char secret[KEY_CHARS + 1];
	const int fd = socket(AF_INET, SOCK_STREAM, 0);
	if (fd < 0 || bind(fd, (struct sockaddr *)&a, length) ||
	    getsockname(fd, (struct sockaddr *)&a, &length) ||
	    zmq_curve_keypair(keys[0], keys[1]) || zmq_curve_keypair(keys[2], secret))
		abort();
	close(fd);
	snprintf(endpoint, 64, "tcp://127.0.0.1:%u", ntohs(a.sin_port));
	snprintf(tenants, 128, "%s/tenants", home);
	snprintf(secret_file, 128, "%s/secret", home);
	umask(0177);
	FILE *f = fopen(secret_file, "w");
	if (!f || fprintf(f, "curve\n    public-key = \"%s\"\n    secret-key = \"%s\"\n", keys[2],
			  secret) < 0 || fclose(f))
		abort();
	f = fopen(tenants, "w");
	if (!f || fprintf(f, "tenant red listen=%s connections=%u rate=0 bytes=0\nallow red key=%s name=ann\n",
			  endpoint, connections, keys[0]) < 0 || fclose(f))
		abort();
	umask(077);
}

#endif
