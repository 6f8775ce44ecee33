/*
 * The tensor types of the format: numbers and names as in ggml.h, blocks as in ggml-common.h.
 */
#include "runtime/load.h"

struct type_entry {
	uint32_t type;
	const char *name;
	uint32_t elements, bytes; /* 0: known, not taken */
};

/* Gone from the format, and so not here: 4, 5, 31 to 33, 36 to 38. */
static const struct type_entry types[] = {
	{TYPE_F32, "F32", 1, 4},       {TYPE_F16, "F16", 1, 2},       {TYPE_BF16, "BF16", 1, 2},
	{TYPE_Q4_0, "Q4_0", 32, 18},   {TYPE_Q4_1, "Q4_1", 32, 20},   {TYPE_Q5_0, "Q5_0", 32, 22},
	{TYPE_Q5_1, "Q5_1", 32, 24},   {TYPE_Q8_0, "Q8_0", 32, 34},   {TYPE_Q4_K, "Q4_K", 256, 144},
	{TYPE_Q5_K, "Q5_K", 256, 176}, {TYPE_Q6_K, "Q6_K", 256, 210}, {9, "Q8_1", 0, 0},
	{10, "Q2_K", 0, 0},            {11, "Q3_K", 0, 0},            {15, "Q8_K", 0, 0},
	{16, "IQ2_XXS", 0, 0},         {17, "IQ2_XS", 0, 0},          {18, "IQ3_XXS", 0, 0},
	{19, "IQ1_S", 0, 0},           {TYPE_IQ4_NL, "IQ4_NL", 32, 18}, {21, "IQ3_S", 0, 0},
	{22, "IQ2_S", 0, 0},           {23, "IQ4_XS", 0, 0},          {24, "I8", 0, 0},
	{25, "I16", 0, 0},             {26, "I32", 0, 0},             {27, "I64", 0, 0},
	{28, "F64", 0, 0},             {29, "IQ1_M", 0, 0},           {34, "TQ1_0", 0, 0},
	{35, "TQ2_0", 0, 0},           {TYPE_MXFP4, "MXFP4", 32, 17}, {40, "NVFP4", 0, 0},
	{41, "Q1_0", 0, 0},            {42, "Q2_0", 0, 0},
};

const char *gguf_type_block(uint32_t type, uint32_t *elements, uint32_t *bytes)
{
	for (unsigned i = 0; i < sizeof types / sizeof types[0]; i++) {
		if (types[i].type != type)
			continue;
		*elements = types[i].elements;
		*bytes = types[i].bytes;
		return types[i].name;
	}
	return NULL;
}
