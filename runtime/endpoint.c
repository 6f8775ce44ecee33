/*
 * The daemon's socket. libzmq unlinks a socket file before it binds, so a second daemon would steal
 * the first one's endpoint: a lock file beside it is held for life.
 */
#include "config.h"

#include "runtime/endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
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

#include "runtime/intake.h"

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
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)fd < limit.rlim_cur / 5 * 4) {
		intake_begin(fd);
		return fd;
	}
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

static int lock_take(int *lock, const char *path)
{
	char name[SUN_PATH_MAX + 8];
	snprintf(name, sizeof name, "%s.lock", path);
	*lock = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (*lock < 0) {
		log_say(LOG_ERROR, "the lock %s cannot be opened: %s", name, strerror(errno));
		return errno == EACCES ? -ERR_PERMISSION : -ERR_IO;
	}
	if (flock(*lock, LOCK_EX | LOCK_NB) != 0) {
		char pid[16] = "";
		const ssize_t n = read(*lock, pid, sizeof pid - 1);
		log_say(LOG_ERROR, "another daemon (process %.*s) serves %s; stop it, or say another --listen",
			n > 0 ? (int)strcspn(pid, "\n") : 1, n > 0 ? pid : "?", path);
		return -ERR_IN_USE;
	}
	char pid[16];
	const int length = snprintf(pid, sizeof pid, "%d\n", (int)getpid());
	if (ftruncate(*lock, 0) != 0 || write(*lock, pid, (size_t)length) != length) {
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
	/* Large frames are mapped apart, so that those of a connection that was closed leave the process at once,
	   whatever came to lie above them. */
	mallopt(M_MMAP_THRESHOLD, 32 << 10);
	intake_limit(d->options.unread_bytes);
	d->zmq = zmq_ctx_new();
	if (!d->zmq)
		return -ERR_MEMORY;
	zmq_ctx_set(d->zmq, ZMQ_BLOCKY, 0);
	zmq_ctx_set(d->zmq, ZMQ_MAX_SOCKETS, 3 * DOORS_MAX + 16);
	d->zap = zmq_socket(d->zmq, ZMQ_REP);
	if (!d->zap)
		return -ERR_MEMORY;
	/* The handler must stand before any socket is bound. */
	if (zmq_bind(d->zap, "inproc://zeromq.zap.01") != 0)
		return -ERR_INTERNAL;
	return 0;
}

void endpoint_watch(void *socket, uint64_t heartbeat_ms)
{
	/* The kernel counts seconds here. */
	const int beat = heartbeat_ms < 1000 ? 1 : (int)(heartbeat_ms / 1000);
	set_int(socket, ZMQ_HANDSHAKE_IVL, 3000);
	set_int(socket, ZMQ_TCP_KEEPALIVE, 1);
	set_int(socket, ZMQ_TCP_KEEPALIVE_IDLE, 2 * beat);
	set_int(socket, ZMQ_TCP_KEEPALIVE_INTVL, beat);
	set_int(socket, ZMQ_TCP_KEEPALIVE_CNT, 2);
	/* While something is on its way nothing is probed, but it is sent again, for a quarter of an hour. */
	set_int(socket, ZMQ_TCP_MAXRT, 4 * beat * 1000);
}

/* A ROUTER of one tenant, unbound. */
static int door_make(struct daemon *d, struct door *door)
{
	const int64_t frame = (int64_t)(d->options.blob_bytes > d->options.body_bytes ? d->options.blob_bytes
										      : d->options.body_bytes);
	const char *domain = d->tenants.tenant[door->tenant].name;
	void *router = zmq_socket(d->zmq, ZMQ_ROUTER);
	door->socket = router;
	if (!router)
		return -ERR_MEMORY;
	set_int(router, ZMQ_ROUTER_MANDATORY, 1);
	set_int(router, ZMQ_ROUTER_HANDOVER, 0);
	/* Beyond what a burst of refusals needs; streams are bounded by their credit, not by this. */
	set_int(router, ZMQ_SNDHWM, 2048);
	set_int(router, ZMQ_RCVHWM, 64);
	set_int(router, ZMQ_SNDBUF, 262144);
	set_int(router, ZMQ_RCVBUF, 262144);
	endpoint_watch(router, d->options.heartbeat_ms);
	set_int(router, ZMQ_LINGER, 1000);
	CHECK(zmq_setsockopt(router, ZMQ_MAXMSGSIZE, &frame, sizeof frame) == 0);
	CHECK(zmq_setsockopt(router, ZMQ_ZAP_DOMAIN, domain, strlen(domain)) == 0);
	/* Who is not asked about does not come in. Older libraries ask whenever there is a domain and a handler,
	   which stands before any socket is bound. */
#ifdef ZMQ_ZAP_ENFORCE_DOMAIN
	set_int(router, ZMQ_ZAP_ENFORCE_DOMAIN, 1);
#endif
	return 0;
}

/* The file's path within the endpoint; NULL if it is none of ours, with a line on stderr. */
static const char *path_of(const char *listen)
{
	if (strncmp(listen, "ipc://", 6) != 0 || listen[6] != '/') {
		log_say(LOG_ERROR, "--listen takes ipc:///ABSOLUTE/PATH; TCP is for tenants with keys (--tenants)");
		return NULL;
	}
	if (strlen(listen + 6) > SUN_PATH_MAX - 5) {
		log_say(LOG_ERROR, "the endpoint's path has %zu bytes; the system takes %d", strlen(listen + 6),
			SUN_PATH_MAX - 5);
		return NULL;
	}
	return listen + 6;
}

/* What libzmq would remove before it binds must be a socket of nobody's. */
static int path_take(int *lock, const char *path, bool make)
{
	struct stat st;
	if (lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode)) {
		log_say(LOG_ERROR, "%s is not a socket; say another --listen", path);
		return -ERR_BAD_ARG;
	}
	if (make)
		TRY(folder_make(path));
	return lock_take(lock, path);
}

int endpoint_lock(struct daemon *d)
{
	const char *path = path_of(d->options.listen);
	struct door *door = &d->door[0];
	if (!path)
		return -ERR_BAD_ARG;
	d->door_count = 1;
	door->lock = -1;
	snprintf(door->listen, sizeof door->listen, "%s", d->options.listen);
	return path_take(&door->lock, path, true);
}

/* No moment in which others could connect: a file is made with the mode that it keeps. */
int endpoint_bind(void *socket, const char *listen, mode_t mask)
{
	const mode_t before = umask(mask);
	const int bound = zmq_bind(socket, listen);
	const int error = errno;
	umask(before);
	if (bound == 0)
		return 0;
	log_say(LOG_ERROR, "the endpoint %s cannot be bound: %s", listen, zmq_strerror(error));
	return error == EACCES ? -ERR_PERMISSION : error == EADDRINUSE ? -ERR_IN_USE : -ERR_IO;
}

/* Over TCP there is nobody whom the kernel vouches for: only keys come in. */
int endpoint_secure(void *socket, const char *listen, const char *secret)
{
	if (strncmp(listen, "tcp://", 6) != 0)
		return 0;
	if (!secret[0] || !zmq_has("curve")) {
		log_say(LOG_ERROR, "%s: TCP is served with keys only; say --curve-key FILE", listen);
		return -ERR_BAD_ARG;
	}
	set_int(socket, ZMQ_CURVE_SERVER, 1);
	CHECK(zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, KEY_CHARS + 1) == 0);
	return 0;
}

bool endpoint_path_fits(const char *listen, const char *suffix)
{
	return strlen(listen + 6) + strlen(suffix) <= SUN_PATH_MAX;
}

int endpoint_path_take(int *lock, const char *listen)
{
	if (strncmp(listen, "tcp://", 6) == 0)
		return 0;
	if (strncmp(listen, "ipc:///", 7) != 0 || !endpoint_path_fits(listen, "")) {
		log_say(LOG_ERROR, "events are told at ipc:///ABSOLUTE/PATH of %d bytes at most, or over TCP "
			"where there are keys", SUN_PATH_MAX);
		return -ERR_BAD_ARG;
	}
	return path_take(lock, listen + 6, false);
}

/* A tenant's socket. Its file may be reached by whom its folder lets in; the kernel says who that is, and
   the grants whether he may. */
static int tenant_door(struct daemon *d, uint32_t tenant, const char *listen, bool control,
		       const char *secret)
{
	struct door *door = &d->door[d->door_count++];
	*door = (struct door){.tenant = tenant, .control = control, .lock = -1};
	snprintf(door->listen, sizeof door->listen, "%s", listen);
	TRY(door_make(d, door));
	TRY(endpoint_secure(door->socket, door->listen, secret));
	if (strncmp(listen, "ipc://", 6) == 0)
		TRY(path_take(&door->lock, listen + 6, false));
	return endpoint_bind(door->socket, door->listen, 0111);
}

static int tenants_open(struct daemon *d)
{
	char secret[KEY_CHARS + 1] = "";
	int code = d->options.curve_key[0] ? key_read(d->options.curve_key, secret) : 0;
	for (uint32_t i = 1; !code && i < d->tenants.count; i++) {
		const struct tenant *t = &d->tenants.tenant[i];
		char control[TENANT_ENDPOINT_MAX + 16];
		code = tenant_door(d, i, t->listen, false, secret);
		snprintf(control, sizeof control, "%s%s", t->listen, t->control[0] ? "" : "-control");
		if (t->control[0])
			snprintf(control, sizeof control, "%s", t->control);
		/* A second port is named, or there is none. */
		if (!code && (t->control[0] || strncmp(t->listen, "ipc:", 4) == 0))
			code = tenant_door(d, i, control, true, secret);
	}
	sodium_memzero(secret, sizeof secret);
	return code;
}

int endpoint_open(struct daemon *d)
{
	CHECK(d->door[0].lock >= 0);
	TRY(sockets_make(d));
	TRY(door_make(d, &d->door[0]));
	TRY(endpoint_bind(d->door[0].socket, d->door[0].listen, 0177));
	return tenants_open(d);
}

void endpoint_close(struct daemon *d)
{
	for (uint32_t i = 0; i < d->door_count; i++)
		if (d->door[i].socket)
			zmq_close(d->door[i].socket);
	if (d->zap) {
		set_int(d->zap, ZMQ_LINGER, 0);
		zmq_close(d->zap);
	}
	if (d->zmq)
		zmq_ctx_term(d->zmq);
	for (uint32_t i = 0; i < d->door_count; i++)
		if (d->door[i].lock >= 0)
			close(d->door[i].lock);
}
