/*
 * Stands in for the vector leaves where they are not built: the scalar leaves stay.
 */
#include "kernels/cpu/cpu.h"

__attribute__((weak)) void leaf_init_avx2(struct leaf *leaf)
{
	(void)leaf;
}

__attribute__((weak)) void leaf_init_avx512(struct leaf *leaf)
{
	(void)leaf;
}
