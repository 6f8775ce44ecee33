/*
 * The daemon's socket. libzmq unlinks a socket file before it binds, so a second daemon would steal
 * the first one's endpoint: a lock file beside it is held for life.
 */
#include "config.h"

#include "runtime/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <zmq.h>

enum { SUN_PATH_MAX = 107 };

/* In place of the C library's, for libzmq, which ends the process when an ipc endpoint runs out of
   descriptors. Connections beyond four fifths of them are closed at once: who is connected is served,
   and others are as soon as there is room. The kernel gives the lowest descriptor that is free, so that
   its number tells how many there are. */
int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags)
{
	struct rlimit limit;
	const int fd = (int)syscall(SYS_accept4, listener, address, length, flags);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			errno = ECONNABORTED;
		return fd;
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)fd < limit.rlim_cur / 5 * 4)
		return fd;
	close(fd);
	errno = ECONNABORTED;
	return -1;
}

/* Makes the folder of the endpoint that is taken when nothing is said, and no other: whoever says
   another one has it, or has misspelled it. */
static int folder_make(const char *path)
{
	char folder[SUN_PATH_MAX + 1], own[SUN_PATH_MAX + 1];
	struct stat st;
	snprintf(folder, sizeof folder, "%s", path);
	snprintf(own, sizeof own, "/tmp/holdfast-%lu", (unsigned long)getuid());
	char *slash = strrchr(folder, '/');
	if (!slash || slash == folder)
		return 0;
	*slash = 0;
	if (stat(folder, &st) == 0) {
		if (S_ISDIR(st.st_mode))
			return 0;
		log_say(LOG_ERROR, "%s is not a folder; say another --listen", folder);
		return -ERR_BAD_ARG;
	}
	if (errno == ENOENT && strcmp(folder, own) != 0) {
		log_say(LOG_ERROR, "the folder %s of the endpoint does not exist", folder);
		return -ERR_NO_FILE;
	}
	if (errno == ENOENT && mkdir(folder, 0700) == 0)
		return 0;
	log_say(LOG_ERROR, "the folder %s of the endpoint cannot be made: %s", folder, strerror(errno));
	return errno == EACCES ? -ERR_PERMISSION : -ERR_IO;
}

static int lock_take(struct daemon *d, const char *path)
{
	char name[SUN_PATH_MAX + 8];
	snprintf(name, sizeof name, "%s.lock", path);
	d->lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (d->lock < 0) {
		log_say(LOG_ERROR, "the lock %s cannot be opened: %s", name, strerror(errno));
		return errno == EACCES ? -ERR_PERMISSION : -ERR_IO;
	}
	if (flock(d->lock, LOCK_EX | LOCK_NB) != 0) {
		char pid[16] = "";
		const ssize_t n = read(d->lock, pid, sizeof pid - 1);
		log_say(LOG_ERROR, "another daemon (process %.*s) serves %s; stop it, or say another --listen",
			n > 0 ? (int)strcspn(pid, "\n") : 1, n > 0 ? pid : "?", path);
		return -ERR_IN_USE;
	}
	char pid[16];
	const int length = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
	if (ftruncate(d->lock, 0) != 0 || write(d->lock, pid, (size_t)length) != length) {
		log_say(LOG_ERROR, "the lock %s cannot be written: %s", name, strerror(errno));
		return errno == ENOSPC ? -ERR_DISK_FULL : -ERR_IO;
	}
	return 0;
}

static void set_int(void *socket, int option, int value)
{
	CHECK(zmq_setsockopt(socket, option, &value, sizeof value) == 0);
}

static int sockets_make(struct daemon *d)
{
	/* Routing ids count up from rand(): an unseeded one could be guessed by a client that wants to
	   collide with the next. */
	srand(randombytes_random());
	d->zmq = zmq_ctx_new();
	if (!d->zmq)
		return -ERR_MEMORY;
	zmq_ctx_set(d->zmq, ZMQ_BLOCKY, 0);
	zmq_ctx_set(d->zmq, ZMQ_MAX_SOCKETS, 16);
	d->zap = zmq_socket(d->zmq, ZMQ_REP);
	d->router = zmq_socket(d->zmq, ZMQ_ROUTER);
	if (!d->zap || !d->router)
		return -ERR_MEMORY;
	/* The handler must stand before any socket is bound. */
	if (zmq_bind(d->zap, "inproc://zeromq.zap.01") != 0)
		return -ERR_INTERNAL;
	const int64_t frame = (int64_t)(d->options.blob_bytes > d->options.body_bytes ? d->options.blob_bytes
										      : d->options.body_bytes);
	set_int(d->router, ZMQ_ROUTER_MANDATORY, 1);
	set_int(d->router, ZMQ_ROUTER_HANDOVER, 0);
	/* Beyond what a burst of refusals needs; streams are bounded by their credit, not by this. */
	set_int(d->router, ZMQ_SNDHWM, 2048);
	set_int(d->router, ZMQ_RCVHWM, 256);
	set_int(d->router, ZMQ_SNDBUF, 262144);
	set_int(d->router, ZMQ_RCVBUF, 262144);
	set_int(d->router, ZMQ_HEARTBEAT_IVL, 5000);
	set_int(d->router, ZMQ_HEARTBEAT_TIMEOUT, 15000);
	set_int(d->router, ZMQ_HEARTBEAT_TTL, 30000);
	set_int(d->router, ZMQ_HANDSHAKE_IVL, 3000);
	set_int(d->router, ZMQ_LINGER, 1000);
	CHECK(zmq_setsockopt(d->router, ZMQ_MAXMSGSIZE, &frame, sizeof frame) == 0);
	CHECK(zmq_setsockopt(d->router, ZMQ_ZAP_DOMAIN, "holdfast", 8) == 0);
	return 0;
}

/* The file's path within the endpoint; NULL if it is none of ours, with a line on stderr. */
static const char *path_of(const char *listen)
{
	if (strncmp(listen, "ipc://", 6) != 0 || listen[6] != '/') {
		log_say(LOG_ERROR, "--listen takes ipc:///ABSOLUTE/PATH; other transports need keys, which are not "
				   "there yet");
		return NULL;
	}
	if (strlen(listen + 6) > SUN_PATH_MAX - 5) {
		log_say(LOG_ERROR, "the endpoint's path has %zu bytes; the system takes %d", strlen(listen + 6),
			SUN_PATH_MAX - 5);
		return NULL;
	}
	return listen + 6;
}

int endpoint_lock(struct daemon *d)
{
	const char *path = path_of(d->options.listen);
	if (!path)
		return -ERR_BAD_ARG;
	/* libzmq removes what stands there before it binds. */
	struct stat st;
	if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
		log_say(LOG_ERROR, "%s is not a socket; say another --listen", path);
		return -ERR_BAD_ARG;
	}
	TRY(folder_make(path));
	return lock_take(d, path);
}

int endpoint_open(struct daemon *d)
{
	CHECK(d->lock >= 0);
	TRY(sockets_make(d));
	/* No moment in which others could connect: the file is made with mode 0600. */
	const mode_t mask = umask(0177);
	const int bound = zmq_bind(d->router, d->options.listen);
	const int error = errno;
	umask(mask);
	if (bound != 0) {
		log_say(LOG_ERROR, "the endpoint %s cannot be bound: %s", d->options.listen, zmq_strerror(error));
		return error == EACCES ? -ERR_PERMISSION : -ERR_IO;
	}
	return 0;
}

void endpoint_close(struct daemon *d)
{
	if (d->router)
		zmq_close(d->router);
	if (d->zap) {
		set_int(d->zap, ZMQ_LINGER, 0);
		zmq_close(d->zap);
	}
	if (d->zmq)
		zmq_ctx_term(d->zmq);
	if (d->lock >= 0)
		close(d->lock);
}
