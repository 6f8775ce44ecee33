/*
 * A model split into several GGUF files, as llama.cpp's gguf-split makes them: NAME-00001-of-00003.gguf
 * and so on. The first has the keys, each has some of the tensors. Which files belong together
 * follows from the first one's name and is held against what each says of itself.
 */
#include "runtime/load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int split_count(struct gguf *g, uint32_t *count)
{
	uint32_t number = 0;
	*count = 1;
	TRY(gguf_u16(g, "split.count", false, count));
	TRY(gguf_u16(g, "split.no", false, &number));
	/* Tools leave a count of 0 or 1 in a file that is whole. */
	if (*count <= 1) {
		*count = 1;
		return 0;
	}
	if (*count > GGUF_SPLIT_MAX)
		return gguf_refuse(g, -ERR_UNSUPPORTED, "split.count: %u files, %d are taken", *count,
				   GGUF_SPLIT_MAX);
	if (number != 0)
		return gguf_refuse(g, -ERR_BAD_FILE,
				   "split.no: this is file %u of %u, the first one is wanted",
				   number + 1, *count);
	return 0;
}

/* The path of a part, from the first one's. */
static int part_path(struct gguf *first, const char *path, uint32_t part, uint32_t count,
		     char *out, size_t room)
{
	char end[32];
	const size_t n = strlen(path),
		     k = (size_t)snprintf(end, sizeof end, "-00001-of-%05u.gguf", count);
	if (n < k || strcmp(path + n - k, end))
		return gguf_refuse(first, -ERR_BAD_FILE,
				   "split.count: %u files, but the name does not end in \"%s\"", count,
				   end);
	/* As long as the first one's. */
	CHECK((size_t)snprintf(out, room, "%.*s-%05u-of-%05u.gguf", (int)(n - k), path, part + 1, count) < room);
	return 0;
}

/* Puts the file's number before what its reader said. */
static int part_refuse(char *reason, uint32_t part, uint32_t count, int code)
{
	char said[MODEL_REASON_MAX];
	snprintf(said, sizeof said, "%s", reason);
	snprintf(reason, MODEL_REASON_MAX, "file %u of %u: %.*s", part + 1, count,
		 MODEL_REASON_MAX - 40, said);
	return code;
}

static int part_check(struct gguf *g, uint32_t part, uint32_t count)
{
	uint32_t number = 0, of = 0;
	TRY(gguf_u16(g, "split.no", true, &number));
	TRY(gguf_u16(g, "split.count", true, &of));
	if (number != part || of != count)
		return gguf_refuse(g, -ERR_BAD_FILE, "split.no: it calls itself %u of %u", number + 1,
				   of);
	return 0;
}

int split_open(const char *path, struct gguf *parts, uint32_t count)
{
	struct gguf *first = &parts[0];
	const struct gguf_value *v = gguf_find(first, "split.tensors.count");
	char name[4096];
	uint64_t tensors = first->tensor_count;
	for (uint32_t i = 1; i < count; i++) {
		TRY(part_path(first, path, i, count, name, sizeof name));
		int code = gguf_open(name, &parts[i], first->reason);
		if (code == 0)
			code = part_check(&parts[i], i, count);
		if (code != 0)
			return part_refuse(first->reason, i, count, code);
		tensors += parts[i].tensor_count;
	}
	if (tensors > GGUF_TENSORS_MAX)
		return gguf_refuse(first, -ERR_BAD_FILE, "tensor count: %llu in all, %d are taken",
				   (unsigned long long)tensors, GGUF_TENSORS_MAX);
	if (!v)
		return 0;
	if (v->type != GGUF_I32 && v->type != GGUF_U32)
		return gguf_refuse(first, -ERR_BAD_FILE, "split.tensors.count: its type must be int32");
	if (gguf_get_u32(first->bytes + v->at) != tensors)
		return gguf_refuse(first, -ERR_BAD_FILE,
				   "split.tensors.count: %u, the files have %llu",
				   gguf_get_u32(first->bytes + v->at), (unsigned long long)tensors);
	return 0;
}
