/*
 * CURVE keys: certificate files as czmq and pyzmq write them, and `holdfast keygen`.
 */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zmq.h>

#include "clients/command.h"

enum { KEY_CHARS = 40 };

/* Never over a file that is there: it may be somebody's only key. */
static int certificate_write(const char *path, mode_t mode, const char *public_key, const char *secret)
{
	const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
	FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
	if (!file) {
		fprintf(stderr, "holdfast: keygen: %s cannot be made: %s\n", path, strerror(errno));
		return EXIT_FAILED;
	}
	fprintf(file, "#   ZeroMQ CURVE %s Certificate\n", secret ? "**Secret**" : "Public");
	fprintf(file, "#   %s\n\nmetadata\ncurve\n    public-key = \"%s\"\n",
		secret ? "DO NOT PROVIDE THIS FILE TO OTHER USERS nor change its permissions."
		       : "Exchange securely, or use a secure mechanism to verify the contents.", public_key);
	if (secret)
		fprintf(file, "    secret-key = \"%s\"\n", secret);
	const bool bad = ferror(file) || fsync(fd) != 0;
	if (fclose(file) == 0 && !bad)
		return EXIT_DONE;
	fprintf(stderr, "holdfast: keygen: %s cannot be written\n", path);
	unlink(path);
	return EXIT_FAILED;
}

int command_keygen(struct said *o)
{
	char public_key[KEY_CHARS + 1], secret[KEY_CHARS + 1], path[4096];
	const char *name = o->word_count > 0 ? o->words[0] : NULL;
	if (!name || strlen(name) > sizeof path - 16)
		return say_usage(o, "where to? NAME.key and NAME.key_secret are made");
	if (!zmq_has("curve") || zmq_curve_keypair(public_key, secret) != 0) {
		fprintf(stderr, "holdfast: keygen: this libzmq has no CURVE\n");
		return EXIT_FAILED;
	}
	snprintf(path, sizeof path, "%s.key_secret", name);
	int exit = certificate_write(path, 0600, public_key, secret);
	explicit_bzero(secret, sizeof secret);
	snprintf(path, sizeof path, "%s.key", name);
	if (exit == EXIT_DONE)
		exit = certificate_write(path, 0644, public_key, NULL);
	if (exit == EXIT_DONE)
		printf(o->json ? "{\"key\":\"%s\"}\n" : "%s\n", public_key);
	return exit;
}

const char *connect_advice(const struct said *o, const char *endpoint, int code)
{
	if (o->key_file && code == -ERR_NO_FILE && access(o->key_file, F_OK) != 0)
		return "no such file as --key names";
	if (code == -ERR_NO_FILE || code == -ERR_CLOSED)
		return "no daemon listens at this endpoint; start holdfastd";
	if (o->key_file && code == -ERR_BAD_FILE)
		return "--key names no certificate with a secret key; holdfast keygen makes one";
	if (code == -ERR_BAD_ARG &&
	    (!o->key_file != !o->server_key || (o->server_key && strlen(o->server_key) != 40)))
		return "--key FILE and --server-key KEY go together; KEY has 40 characters and is the daemon's";
	if (code == -ERR_BAD_ARG)
		return "an endpoint is ipc://PATH or tcp://HOST:PORT";
	if (code == -ERR_TIMEOUT && strncmp(endpoint, "tcp:", 4) == 0)
		return o->key_file ? "nobody listens there, or the daemon does not know this --key"
				   : "nobody listens there, or the daemon asks for a key: --key and --server-key";
	return NULL;
}
