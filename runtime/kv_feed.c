/*
 * Events of KV blocks on their way: gathered ops become batches, batches are kept and sent, and played
 * again for who asks.
 */
#include "runtime/kv_events.h"

#include <string.h>
#include <time.h>
#include <zmq.h>

enum { RUN_TOKENS = 4096 };

static void put_medium(struct wire_writer *w, uint32_t place)
{
	static const char *const media[PLACE_COUNT] = {"GPU", "CPU", "DISK"};
	wire_put_text(w, media[place]);
}

static void put_key(const struct daemon *d, struct wire_writer *w, const char *key)
{
	if (d->options.kv_events_form == KV_FORM_MAP)
		wire_put_text(w, key);
}

static void put_event(const struct daemon *d, struct wire_writer *w, uint32_t parts, const char *name)
{
	if (d->options.kv_events_form == KV_FORM_MAP)
		wire_put_map(w, parts);
	else
		wire_put_array(w, parts);
	put_key(d, w, "type");
	wire_put_text(w, name);
}

static void put_hashes(const struct daemon *d, struct wire_writer *w, const struct kv_op *op, uint32_t count)
{
	put_key(d, w, "block_hashes");
	wire_put_array(w, count);
	for (uint32_t i = 0; i < count; i++)
		wire_put_u64(w, op[i].hash);
}

/* Blocks that follow each other, as one event. */
static void put_stored(const struct daemon *d, struct wire_writer *w, const struct kv_op *op, uint32_t count)
{
	const struct kv *kv = d->kv;
	put_event(d, w, 8, "BlockStored");
	put_hashes(d, w, op, count);
	put_key(d, w, "parent_block_hash");
	if (op->has_parent)
		wire_put_u64(w, op->parent);
	else
		wire_put_nil(w);
	put_key(d, w, "token_ids");
	wire_put_array(w, count * kv->span);
	for (uint32_t i = 0; i < count; i++)
		for (uint32_t k = 0; k < kv->span; k++)
			wire_put_u64(w, kv->token[op[i].token_at + k]);
	put_key(d, w, "block_size");
	wire_put_u64(w, kv->span);
	put_key(d, w, "lora_id");
	wire_put_nil(w);
	put_key(d, w, "medium");
	put_medium(w, op->place);
	put_key(d, w, "lora_name");
	wire_put_nil(w);
}

static void put_op(const struct daemon *d, struct wire_writer *w, const struct kv_op *op, uint32_t count)
{
	if (op->kind == OP_CLEAR) {
		put_event(d, w, 1, "AllBlocksCleared");
	} else if (op->kind == OP_STORE) {
		put_stored(d, w, op, count);
	} else {
		put_event(d, w, 3, "BlockRemoved");
		put_hashes(d, w, op, count);
		put_key(d, w, "medium");
		put_medium(w, op->place);
	}
}

/* How many ops from this one on are one event. */
static uint32_t run_of(const struct kv *kv, const struct kv_op *op, uint32_t left)
{
	uint32_t n = 1;
	if (op->kind == OP_CLEAR)
		return 1;
	while (n < left && op[n].kind == op->kind && op[n].place == op->place && op[n].tenant == op->tenant &&
	       (op->kind == OP_REMOVE ? n < RUN_TOKENS / 16
				      : op[n].has_parent && op[n].parent == op[n - 1].hash &&
						(n + 1) * kv->span <= RUN_TOKENS))
		n++;
	return n;
}

static double unix_seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The batch around the events that were written: an array in either form. */
static size_t payload_make(struct kv *kv, const struct wire_writer *events, uint32_t count)
{
	struct wire_writer w;
	wire_writer_init(&w, kv->payload, sizeof kv->payload);
	wire_put_array(&w, 3);
	wire_put_f64(&w, unix_seconds());
	wire_put_array(&w, count);
	CHECK(w.length + events->length < sizeof kv->payload);
	memcpy(kv->payload + w.length, events->at, events->length);
	w.length += events->length;
	wire_put_u64(&w, 0);
	CHECK(!w.full);
	return w.length;
}

static void feed_keep(const struct daemon *d, struct kv_feed *f, const uint8_t *payload, size_t length)
{
	const size_t room = d->options.kv_events_kept;
	const struct kv_kept *oldest = &f->kept[f->first];
	const bool around = f->end + length > room;
	const size_t at = around ? 0 : f->end;
	/* The oldest stand right behind the newest. */
	while (f->count && (f->count == KV_KEPT_MAX || (around && oldest->at >= f->end) ||
			    (oldest->at < at + length && oldest->at + oldest->length > at))) {
		f->first = (f->first + 1) % KV_KEPT_MAX;
		f->count--;
		oldest = &f->kept[f->first];
	}
	memcpy(f->arena + at, payload, length);
	f->end = at + length;
	f->kept[(f->first + f->count++) % KV_KEPT_MAX] =
		(struct kv_kept){.seq = f->next, .at = at, .length = length};
}

struct reader { /* who gets a batch: everybody, or one who asked again */
	const struct outlet *again;
	const void *id;
	size_t id_length;
	bool delimiter;
};

static void reply(const struct reader *r, uint64_t seq, const void *body, size_t length)
{
	void *socket = r->again->replay;
	if (zmq_send(socket, r->id, r->id_length, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return;
	if (r->delimiter)
		zmq_send(socket, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	uint8_t number[8];
	for (int i = 0; i < 8; i++)
		number[i] = (uint8_t)(seq >> 8 * (7 - i));
	zmq_send(socket, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(socket, body, length, ZMQ_DONTWAIT);
}

static void batch_out(struct daemon *d, struct kv_feed *f, const struct reader *r,
		      const struct wire_writer *events, uint32_t count)
{
	struct kv *kv = d->kv;
	const size_t length = payload_make(d->kv, events, count);
	if (r) {
		reply(r, f->next ? f->next - 1 : 0, kv->payload, length);
		return;
	}
	feed_keep(d, f, kv->payload, length);
	for (uint32_t i = 0; i < d->outlet_count; i++)
		if (d->outlet[i].kv && d->outlet[i].tenant == f->tenant)
			outlet_say(&d->outlet[i], d->options.kv_topic, strlen(d->options.kv_topic), f->next,
				   kv->payload, length);
	f->next++;
}

/* The ops that this feed's readers may hear of, in batches. */
static void feed_flush(struct daemon *d, struct kv_feed *f, const struct reader *r)
{
	struct kv *kv = d->kv;
	const uint32_t tenant = f->tenant;
	struct wire_writer w;
	uint32_t count = 0;
	wire_writer_init(&w, kv->events, sizeof kv->events);
	for (uint32_t i = 0, n; i < kv->op_count; i += n) {
		const struct kv_op *op = &kv->op[i];
		n = run_of(kv, op, kv->op_count - i);
		if (tenant != 0 && op->kind != OP_CLEAR && op->tenant != tenant)
			continue;
		const size_t before = w.length;
		put_op(d, &w, op, n);
		if (w.full) {
			/* One event fits a batch of its own. */
			w.length = before;
			w.full = false;
			CHECK(count > 0);
			batch_out(d, f, r, &w, count);
			wire_writer_init(&w, kv->events, sizeof kv->events);
			put_op(d, &w, op, n);
			CHECK(!w.full);
			count = 0;
		}
		count++;
	}
	if (count)
		batch_out(d, f, r, &w, count);
}

void kv_flush(struct daemon *d)
{
	struct kv *kv = d->kv;
	if (!kv || !kv->op_count)
		return;
	for (uint32_t i = 0; i < kv->feed_count; i++)
		feed_flush(d, &kv->feed[i], NULL);
	kv->op_count = kv->token_count = 0;
}

/* --- Played again. --- */

/* All blocks that are there, as if they had just come: for who asks for more than is kept. */
static void snapshot(struct daemon *d, struct kv_feed *f, const struct reader *r)
{
	struct kv *kv = d->kv;
	kv->op[kv->op_count++] = (struct kv_op){.kind = OP_CLEAR};
	for (uint32_t i = 0; i < d->options.sessions; i++) {
		const struct session *s = &d->sessions[i];
		struct session_view view;
		if (!s->used || s->sched == SCHED_NONE || sched_session(d->sched, s->sched, &view) != 0)
			continue;
		const uint32_t units = sched_page_table(d->sched, s->sched, 0, 0, view.resident / kv->span, d->refs);
		for (uint32_t u = 0; u < units; u++) {
			const struct page_ref *ref = &d->refs[u];
			const struct kv_page *p = ref->place < PLACE_COUNT ? &kv->page[ref->place][ref->page] : NULL;
			if (!p || !p->stored || p->tag != ref->tag)
				continue;
			if (kv->op_count == OPS_GATHERED) {
				feed_flush(d, f, r);
				kv->op_count = kv->token_count = 0;
			}
			const struct kv_op *op = kv_op_add(d, OP_STORE, ref->place, p);
			memcpy(kv->token + op->token_at, s->token + u * kv->span, kv->span * sizeof *s->token);
			kv->token_count += kv->span;
		}
	}
	feed_flush(d, f, r);
	kv->op_count = kv->token_count = 0;
}

static void answer(struct daemon *d, struct kv_feed *f, const struct reader *r, uint64_t from)
{
	kv_flush(d);
	const uint64_t oldest = f->count ? f->kept[f->first].seq : f->next;
	if (from < oldest)
		snapshot(d, f, r);
	for (uint32_t i = 0; from >= oldest && i < f->count; i++) {
		const struct kv_kept *k = &f->kept[(f->first + i) % KV_KEPT_MAX];
		if (k->seq >= from)
			reply(r, k->seq, f->arena + k->at, k->length);
	}
	reply(r, UINT64_MAX, "", 0);
}

bool kv_replay(struct daemon *d, struct outlet *o)
{
	struct kv *kv = d->kv;
	/* Id, maybe an empty frame, and the number from which on. */
	uint8_t frame[4][ROUTING_MAX + 1];
	int length[4] = {0}, count = 0, more = 1;
	for (; more; count++) {
		const int at = count < 3 ? count : 3;
		size_t size = sizeof more;
		length[at] = zmq_recv(o->replay, frame[at], sizeof frame[at], ZMQ_DONTWAIT);
		if (length[at] < 0)
			return false;
		zmq_getsockopt(o->replay, ZMQ_RCVMORE, &more, &size);
	}
	const bool delimiter = count == 3 && length[1] == 0;
	const int at = delimiter ? 2 : 1;
	if ((count != 2 && !delimiter) || length[at] != 8 || length[0] > ROUTING_MAX)
		return true;
	uint64_t from = 0;
	for (int i = 0; i < 8; i++)
		from = from << 8 | frame[at][i];
	const struct reader r = {o, frame[0], (size_t)length[0], delimiter};
	for (uint32_t i = 0; i < kv->feed_count; i++)
		if (kv->feed[i].tenant == o->tenant)
			answer(d, &kv->feed[i], &r, from);
	return true;
}
