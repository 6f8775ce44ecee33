/*
 * Nodes: lists of them as the kernel writes them and as nobody does, and memory that is laid over them.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/nodes.h"
#include "sched/check.h"
#include "tests/tap.h"

static char path[] = "/tmp/hf-nodes-XXXXXX";

static uint64_t nodes_of(const char *text)
{
	FILE *const file = fopen(path, "we");
	CHECK(file != NULL);
	fputs(text, file);
	CHECK(fclose(file) == 0);
	return nodes_read(path);
}

static void lists(void)
{
	static const struct {
		const char *text;
		uint64_t nodes;
	} cases[] = {
		{"0\n", 1}, {"0-1\n", 3}, {"0,2\n", 5}, {"0-1,4-5,9\n", 0x233}, {"3", 8},
		{"63\n", 1ull << 63}, {"64\n", 0}, {"0-100\n", UINT64_MAX}, {"0-4294967295\n", UINT64_MAX},
		{"", 0}, {"\n", 0}, {"0-\n", 0}, {"-1\n", 0}, {"1-0\n", 0}, {"0,3-1\n", 0}, {"0,,1\n", 0},
		{"0,\n", 0}, {"0 1\n", 0}, {"all\n", 0}, {" 0\n", 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (!EXPECT(nodes_of(cases[i].text) == cases[i].nodes))
			printf("# %s\n", cases[i].text);
	EXPECT(nodes_read("/nowhere/has_memory") == 0);
}

static void spreading(void)
{
	enum { BYTES = 4 << 20, BY_ADDRESS = 2, INTERLEAVE = 3 };
	int policy = -1;
	uint8_t *const p = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t nodes = nodes_read(NODES_PATH);
	CHECK(p != MAP_FAILED);
	if (nodes == 0 || syscall(SYS_get_mempolicy, &policy, NULL, 0, NULL, 0) != 0 || policy != 0) {
		printf("# no nodes here, no policies, or one that is given\n");
		return;
	}
	REQUIRE(syscall(SYS_get_mempolicy, &policy, NULL, 0, p, BY_ADDRESS) == 0);
	EXPECT(policy != INTERLEAVE);
	EXPECT_EQ(nodes_spread(nodes, p, BYTES), 0);
	CHECK(syscall(SYS_get_mempolicy, &policy, NULL, 0, p, BY_ADDRESS) == 0);
	EXPECT_EQ(policy, INTERLEAVE);
	memset(p, 1, BYTES);
	EXPECT(p[BYTES - 1] == 1);
	/* Where somebody said where memory is to lie, it lies there. */
	REQUIRE(syscall(SYS_set_mempolicy, INTERLEAVE, &nodes, 65) == 0);
	EXPECT(nodes_spread(nodes, p, BYTES) == -ERR_UNSUPPORTED);
	REQUIRE(syscall(SYS_set_mempolicy, 0, NULL, 0) == 0);
	/* No node at all is refused, and changes nothing. */
	EXPECT(nodes_spread(0, p, BYTES) == -ERR_UNSUPPORTED);
	munmap(p, BYTES);
}

/* Whether the kernel notes for the mapping of an address that it may have huge pages. */
static int is_huge(const void *at)
{
	FILE *const file = fopen("/proc/self/smaps", "re");
	char line[512];
	unsigned long first, end;
	int here = 0, found = 0;
	CHECK(file != NULL);
	while (fgets(line, sizeof line, file)) {
		if (sscanf(line, "%lx-%lx ", &first, &end) == 2)
			here = (uintptr_t)at >= first && (uintptr_t)at < end;
		else if (here && strncmp(line, "VmFlags:", 8) == 0)
			found = strstr(line, " hg") != NULL;
	}
	fclose(file);
	return found;
}

/* A pack of weights, as the device makes it: in a chunk that may lie in huge pages. */
static void huge_pages(void)
{
	enum { ROWS = 4096, COLUMNS = 1024 };
	struct chunk *chunks = NULL;
	struct weight *w = NULL;
	uint8_t *const data = calloc(ROWS * COLUMNS / 32, 18);
	CHECK(data != NULL);
	if (access("/sys/kernel/mm/transparent_hugepage/enabled", R_OK) != 0 || getenv("HOLDFAST_SANITIZED")) {
		free(data);
		TAP_SKIP("no huge pages here, or memory is a sanitizer's");
	}
	REQUIRE(pack_make(&chunks, TYPE_Q4_0, WEIGHT_MATMUL, ROWS, COLUMNS, data, &w) == 0);
	EXPECT(w->bytes > 2 << 20 && is_huge(w->data) && is_huge(w->data + w->bytes - 1));
	EXPECT(!is_huge(data) && (uintptr_t)chunks->at % (2 << 20) == 0);
	pack_free(&chunks, w);
	chunks_free(&chunks);
	free(data);
}

int main(void)
{
	const int fd = mkstemp(path);
	CHECK(fd >= 0);
	close(fd);
	TAP_RUN(lists, "lists of nodes");
	TAP_RUN(spreading, "memory over all nodes");
	TAP_RUN(huge_pages, "weights lie in memory that may have huge pages");
	unlink(path);
	return tap_done();
}
