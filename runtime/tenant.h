/*
 * Tenants: who may come in, where, as whom, and how much. One file, read at the start and again on
 * SIGHUP; a line is
 *
 *	tenant NAME listen=ipc:///… | tcp://ADDRESS:PORT [control=…] [events=…|none] [kv-events=…]
 *	                            [kv-replay=…] [rate=N] [bytes=N] [calls=N] [sessions=N] [connections=N]
 *	allow  NAME key=Z85 | uid=N  [name=NAME] [roles=agent,gateway,operator] [until=YYYY-MM-DD]
 *
 * Tenant 0 is the daemon's own user, by --listen; the file cannot change it.
 */
#ifndef HOLDFAST_RUNTIME_TENANT_H
#define HOLDFAST_RUNTIME_TENANT_H

#include <stdbool.h>
#include <stdint.h>

enum { TENANTS_MAX = 32, GRANTS_MAX = 4096, TENANT_NAME_MAX = 16, TENANT_ENDPOINT_MAX = 256 };
enum { KEY_CHARS = 40, KEY_BYTES = 32 };
enum { ROLE_AGENT = 1, ROLE_GATEWAY = 2, ROLE_OPERATOR = 4 };

struct tenant {
	char name[TENANT_NAME_MAX + 1];
	char listen[TENANT_ENDPOINT_MAX], control[TENANT_ENDPOINT_MAX];
	char events[TENANT_ENDPOINT_MAX], kv_events[TENANT_ENDPOINT_MAX], kv_replay[TENANT_ENDPOINT_MAX];
	/* Of one peer: messages and bytes a second; 0: no limit. */
	uint64_t rate, bytes;
	/* Of the tenant: calls in flight, sessions, connections; 0: no limit of its own. */
	uint64_t calls, sessions, connections;
};

struct grant {
	uint32_t tenant, roles, uid;
	bool by_key;
	char key[KEY_CHARS + 1];
	char name[TENANT_NAME_MAX + 1]; /* of the principal: TENANT/NAME */
	int64_t until;                  /* seconds since 1970; 0: for ever */
};

struct tenants {
	uint32_t count, grant_count;
	struct tenant tenant[TENANTS_MAX + 1];
	struct grant grant[GRANTS_MAX];
};

/* Fills `out` from the file ("": none but tenant 0). Says on stderr what is wrong with it, and where;
   then `out` is not to be used. The file may be written by its owner alone, us or root. */
int tenants_read(const char *path, struct tenants *out);
/* Takes over limits and grants of `fresh` for the tenants that are there by name. True if `fresh` names
   others, which need a restart. */
bool tenants_reload(struct tenants *at, const struct tenants *fresh);
/* The grant by which a key or a user comes in at that tenant now; NULL: none. */
const struct grant *tenants_key(const struct tenants *t, uint32_t tenant, const char *key);
const struct grant *tenants_uid(const struct tenants *t, uint32_t tenant, uint32_t uid);
uint32_t tenants_find(const struct tenants *t, const char *name); /* UINT32_MAX: none */
/* Of a principal by its name, TENANT/…; 0 for users of --listen, and where there is none any more. */
uint32_t tenants_of_principal(const struct tenants *t, const char *name);

/* The server's secret key, from a certificate file of czmq or pyzmq, or a line of Z85. The file must be
   readable by its owner alone. The caller wipes it. */
int key_read(const char *path, char secret[KEY_CHARS + 1]);

#endif
