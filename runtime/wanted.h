/*
 * Which tensors an architecture has, under GGUF's names, and of what shape: one list, walked by the
 * loader that holds a file against it and by weights.c that packs what it names. Pure.
 */
#ifndef HOLDFAST_RUNTIME_WANTED_H
#define HOLDFAST_RUNTIME_WANTED_H

#include "runtime/model.h"

/* Numbers 0 .. 3 are these; then the places layer by layer. */
enum { WANTED_EMBEDDING, WANTED_HEAD, WANTED_NORM, WANTED_ROPE_FACTORS, WANTED_LAYERS };

/* The sides of a tensor, as the architecture gives them. */
enum side { SIDE_ONE, SIDE_WIDTH, SIDE_QUERY, SIDE_KEY, SIDE_FF, SIDE_HEAD, SIDE_VOCAB };

struct wanted {
	char name[64];
	enum weight_use use;
	uint32_t rows, columns;
	enum side row_side, column_side;
	bool used;     /* the architecture has it */
	bool optional; /* and works without it */
	bool padded;   /* the tensor may have more rows: ids that do not exist */
	uint32_t layer; /* of a place */
	size_t at;     /* of a place: where in struct ops_layer its pointer is */
};

uint32_t wanted_count(const struct arch *arch);
void wanted_at(const struct arch *arch, uint32_t number, struct wanted *out);

/* Every tensor that the architecture needs is there in the right shape, and no other. -ERR_BAD_FILE
   or -ERR_UNSUPPORTED with reason set (MODEL_REASON_MAX of room). */
int wanted_check(const struct model *model, char *reason);

#endif
