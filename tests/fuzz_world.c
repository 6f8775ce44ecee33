#include "tests/fuzz_world.h"

#include <stdio.h>
#include <string.h>

struct world world;
struct daemon daemon_;
const char *wrong;

/* Why a call is over for its client, the last of so many channels: for whoever reads a failure. */
enum { REASONS = 4096 };
static char reason[CLIENTS][REASONS];

static void over(struct owed_call *c, char why)
{
	c->used = false;
	reason[c->client][c->channel % REASONS] = why;
}

static void bad(const char *what)
{
	if (!wrong)
		wrong = what;
}

struct owed_call *call_find(uint32_t client, uint64_t channel)
{
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		if (world.calls[i].used && world.calls[i].client == client && world.calls[i].channel == channel)
			return &world.calls[i];
	return NULL;
}

static uint64_t mix(uint64_t h, const void *at, size_t length)
{
	const uint8_t *p = at;
	for (size_t i = 0; i < length; i++)
		h = (h ^ p[i]) * 0x100000001b3;
	return h;
}

struct known_op *op_find(const struct wire_id *op)
{
	for (uint32_t i = 0; i < OPS; i++)
		if (memcmp(&world.ops[i].op, op, sizeof *op) == 0)
			return &world.ops[i];
	return NULL;
}

uint32_t client_gone(uint32_t client)
{
	uint32_t owed = 0;
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		if (world.calls[i].used && world.calls[i].client == client) {
			over(&world.calls[i], 'g');
			owed++;
		}
	world.refused[client] = false;
	return owed;
}

static void accepted(struct owed_call *c, uint32_t principal, const void *body, size_t length)
{
	struct wire_accepted m;
	if (wire_read_accepted(body, length, &daemon_.wire, &m) != 0 || c->accepted) {
		bad("ACCEPTED twice, or unreadable");
		return;
	}
	c->accepted = true;
	c->dup = m.dup;
	c->op = m.op;
	struct known_op *k = op_find(&m.op);
	c->seq = c->after_seq;
	/* Of an op that was forgotten meanwhile it is not known where it stood. */
	const bool known = k && c->after_seq && c->after_seq <= OFFS && k->sum[c->after_seq - 1];
	c->off = !c->after_seq ? 0 : known ? k->off[c->after_seq - 1] : UINT64_MAX;
	if (k)
		return;
	k = &world.ops[world.op_next++ % OPS];
	*k = (struct known_op){.op = m.op, .principal = principal};
}

static void data(struct owed_call *c, const struct wire_header *h, const void *body, size_t length,
		 const void *blob, size_t blob_length)
{
	struct wire_data m;
	struct known_op *k = op_find(&c->op);
	const uint32_t sum = (uint32_t)mix(mix(1, body, length), blob, blob_length) | 1; /* 0: not seen */
	const bool readable = wire_read_data(body, length, &daemon_.wire, &m) == 0;
	if (readable && c->off == UINT64_MAX)
		c->off = m.off - m.text.length;
	if (!readable || !c->accepted || h->seq != c->seq + 1 || blob_length != m.n_tokens * 4 ||
	    m.off != c->off + m.text.length) {
		printf("# seq %llu after %llu, off %llu after %llu and %zu bytes, ids in %zu bytes\n",
		       (unsigned long long)h->seq, (unsigned long long)c->seq, (unsigned long long)m.off,
		       (unsigned long long)c->off, m.text.length, blob_length);
		bad("DATA out of order, or not what it says");
		return;
	}
	c->seq = h->seq;
	c->off = m.off;
	world.data++;
	if (k && m.off > c->window && m.off > k->granted[c->client])
		bad("DATA beyond its credit");
	if (!k || h->seq > OFFS)
		return;
	if (k->sum[h->seq - 1] && (k->off[h->seq - 1] != m.off || k->sum[h->seq - 1] != sum))
		bad("what is sent again is not what it was");
	k->off[h->seq - 1] = (uint32_t)m.off;
	k->sum[h->seq - 1] = sum;
	k->seqs = h->seq > k->seqs ? h->seq : k->seqs;
}

static bool is(const struct wire_str *s, const char *text)
{
	return s->length == strlen(text) && memcmp(s->at, text, s->length) == 0;
}

static void end(struct owed_call *c, uint32_t principal, const struct wire_header *h, const void *body,
		size_t length)
{
	static struct wire_end m;
	if (wire_read_end(body, length, &daemon_.wire, &m) != 0 || !c->accepted || h->seq != c->seq + 1 ||
	    m.status.length == 0) {
		bad("END out of order, or unreadable");
		return;
	}
	const uint32_t at = call_of_op(&daemon_, principal, &c->op);
	const struct call *slot = at == NONE ? NULL : &daemon_.calls[at];
	/* A turn that was ended from outside leaves half a character of what was sent before. */
	const bool own = is(&m.status, "stop") || is(&m.status, "limit") || is(&m.status, "context_full");
	const bool told = slot && own && !slot->dropped && !slot->restarted && c->off != UINT64_MAX;
	if (told && c->off != slot->visible) {
		printf("# %.*s at %llu of %zu\n", (int)m.status.length, m.status.at, (unsigned long long)c->off,
		       slot->visible);
		bad("END before all of the text");
	}
	/* What is gone is asked for again, but not for ever. */
	const bool ends = c->method == METHOD_SESSION_CLOSE || c->method == METHOD_SESSION_FORGET;
	const bool gone = m.err.code == ERR_NOT_FOUND || (m.err.code == 0 && ends);
	struct wire_id *ids = world.sessions[principal];
	for (uint32_t i = 0; gone && i < SESSIONS; i++)
		if (memcmp(&ids[i], &c->sess, sizeof c->sess) == 0)
			ids[i] = ids[world.session_next[principal] % SESSIONS];
	if (m.has_sess && m.err.code == 0)
		ids[world.session_next[principal]++ % SESSIONS] = m.sess;
	world.ends++;
	over(c, 'e');
}

static void reject(struct owed_call *c, uint32_t client, const struct wire_header *h, const void *body,
		   size_t length)
{
	static struct wire_reject refused;
	world.rejects++;
	if (wire_read_reject(body, length, &daemon_.wire, &refused) != 0)
		bad("REJECT is unreadable");
	world.unknown[client] |= refused.err.code == ERR_UNAUTHENTICATED;
	/* A cancel that came too late is refused on its call's channel. */
	if (!c && h->channel && !world.cancelled[client])
		bad("REJECT of what nobody asked");
	/* Unless another came for it meanwhile. */
	if (c && c->must && refused.err.code != ERR_FENCED) {
		printf("# refused with %d\n", refused.err.code);
		bad("a turn that was accepted is not there after a kill");
	}
	if (c)
		over(c, 'r');
}

int world_sink(struct daemon *d, uint32_t peer, const struct wire_header *h, const void *body, size_t length,
	       const void *blob, size_t blob_length)
{
	const uint32_t client = d->peers[peer].id[2], principal = client % PRINCIPALS;
	if (d->peers[peer].id[1] != 'p')
		return 0; /* a stranger's */
	if (world.lost[client]) {
		world.lost[client] = false;
		client_gone(client);
		return -ERR_CLOSED;
	}
	world.refused[client] = world.stuck[client];
	if (world.stuck[client])
		return -ERR_LIMIT;
	struct owed_call *c = h->channel ? call_find(client, h->channel) : NULL;
	const uint64_t what[] = {client, h->type, h->channel, h->seq, length, blob_length};
	world.digest = mix(mix(mix(world.digest, what, sizeof what), body, length), blob, blob_length);
	switch (h->type) {
	case WIRE_REJECT:
		reject(c, client, h, body, length);
		break;
	case WIRE_ACCEPTED:
	case WIRE_DATA:
	case WIRE_END:
		if (!c) {
			printf("# type %#x, client %u, channel %llu, which ended by '%c'\n", h->type, client,
			       (unsigned long long)h->channel, reason[client][h->channel % REASONS]);
			bad("a message of a call that is over");
		} else if (h->type == WIRE_ACCEPTED)
			accepted(c, principal, body, length);
		else if (h->type == WIRE_DATA)
			data(c, h, body, length, blob, blob_length);
		else
			end(c, principal, h, body, length);
		break;
	case WIRE_NOTE:
		if (!c || !c->accepted)
			bad("NOTE of a call that is over, or that was not accepted");
		break;
	default:
		break;
	}
	return 0;
}

void places_look(void)
{
	bool here[CLIENTS] = {false};
	for (uint32_t i = 0; i < daemon_.options.peers; i++)
		if (daemon_.peers[i].used && daemon_.peers[i].id[1] == 'p')
			here[daemon_.peers[i].id[2]] = true;
	for (uint32_t i = 0; i < CLIENTS; i++) {
		const bool reads = !world.refused[i];
		if (world.here[i] && !here[i] && client_gone(i) && reads)
			bad("a client that reads was let go");
		world.here[i] = here[i];
	}
}

uint32_t still_owed(void)
{
	uint32_t n = 0;
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++)
		n += world.calls[i].used;
	return n;
}

void owed_print(void)
{
	for (uint32_t i = 0; i < OWED_MAX_CALLS; i++) {
		const struct owed_call *o = &world.calls[i];
		const uint32_t at = o->used && o->accepted ? call_of_op(&daemon_, o->client % PRINCIPALS, &o->op)
							   : NONE;
		if (!o->used)
			continue;
		printf("# client %u, channel %llu, method %u, accepted %d, dup %d, seq %llu", o->client,
		       (unsigned long long)o->channel, o->method, o->accepted, o->dup, (unsigned long long)o->seq);
		if (at != NONE)
			printf("; its slot: state %d, peer %d, channel %llu, seq %llu of %llu, end %zu, sent %d, "
			       "restarted %d", daemon_.calls[at].state, (int)daemon_.calls[at].peer,
			       (unsigned long long)daemon_.calls[at].channel, (unsigned long long)daemon_.calls[at].seq,
			       (unsigned long long)daemon_.calls[at].seq_made,
			       daemon_.calls[at].end_length, daemon_.calls[at].end_sent, daemon_.calls[at].restarted);
		printf("\n");
	}
}
