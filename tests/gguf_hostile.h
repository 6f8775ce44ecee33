/*
 * Hostile and foreign files: each a twist of the small valid one, the code it must be refused with,
 * and a word that the reason must have. test_load tries them; fuzz_load --write makes its corpus of
 * them.
 */
#ifndef HOLDFAST_TESTS_GGUF_HOSTILE_H
#define HOLDFAST_TESTS_GGUF_HOSTILE_H

#include "sched/check.h"
#include "tests/gguf_make.h"

struct hostile {
	const char *name;
	void (*twist)(struct maker *m);
	int code;
	const char *word;
};

#define TWIST(name) static inline void name(struct maker *m)

TWIST(bad_magic) { m->magic[3] = 'X'; }
TWIST(version_1) { m->version = 1; }
TWIST(version_4) { m->version = 4; }
TWIST(big_endian) { m->version = 0x03000000; }
TWIST(many_keys) { m->key_claim = 1ull << 60; }
TWIST(many_tensors) { m->tensor_claim = 1ull << 60; }
TWIST(more_keys) { m->key_claim = m->key_count + 1; }
TWIST(more_tensors) { m->tensor_claim = m->tensor_count + 1; }
TWIST(fewer_tensors) { m->tensor_claim = m->tensor_count - 1; }
TWIST(no_header) { m->cut = 11; }
TWIST(empty_file) { m->cut = 0; }
TWIST(cut_in_keys) { m->cut = 600; }
TWIST(long_key) { m->key[0].name_length = UINT64_MAX - 7; }
TWIST(long_key_small) { m->key[0].name_length = 2000; }
TWIST(empty_key) { m->key[0].name_length = 0, m->key[0].name[0] = 0; }
TWIST(same_key) { m->key[m->key_count] = m->key[2], m->key[m->key_count++].value = (struct bytes){0};
	put_u32(&m->key[m->key_count - 1].value, 1); }
TWIST(key_type) { make_key(m, "x", 13); }
TWIST(key_bool) { put(&make_key(m, "x", 7)->value, "\2", 1); }
TWIST(key_string) { put_u64(&make_key(m, "x", 8)->value, UINT64_MAX); }
TWIST(nested_array) { make_array(m, "x", 9, 1); }
TWIST(array_type) { make_array(m, "x", 77, 1); }
TWIST(array_long) { make_array(m, "x", 10, UINT64_MAX / 4); }
TWIST(array_strings) { make_array(m, "x", 8, UINT64_MAX / 4); }
TWIST(array_string) { put_u64(make_array(m, "x", 8, 1), 1ull << 40); }

TWIST(long_name) { m->tensor[0].name_length = 64; memset(m->tensor[0].name, 'n', 64); }
TWIST(huge_name) { m->tensor[0].name_length = UINT64_MAX; }
TWIST(empty_name) { m->tensor[0].name_length = 0, m->tensor[0].name[0] = 0; }
TWIST(nul_name) { m->tensor[0].name_length = 4; memset(m->tensor[0].name, 0, 80);
	memcpy(m->tensor[0].name, "abcd", 4); m->tensor[0].name[2] = '\1'; }
TWIST(same_name) { strcpy(m->tensor[3].name, m->tensor[4].name); m->tensor[3].name_length =
	m->tensor[4].name_length; }
TWIST(dimensions_5) { m->tensor[1].dimensions = 5; }
TWIST(dimensions_0) { m->tensor[1].dimensions = 0; }
TWIST(dimensions_many) { m->tensor[1].dimensions = UINT32_MAX; }
TWIST(dimension_0) { m->tensor[0].dimension[1] = 0; }
TWIST(dimension_huge) { m->tensor[0].dimension[0] = 1ull << 63; }
TWIST(rows_overflow) { m->tensor[0].dimensions = 4; for (int i = 1; i < 4; i++)
	m->tensor[0].dimension[i] = 0xffffffe0; }
TWIST(bytes_huge) { m->tensor[0].dimension[0] = m->tensor[0].dimension[1] = 0xffffffe0; }
TWIST(block_cut) { m->tensor[0].dimension[0] = 33; }
TWIST(offset_odd) { m->tensor[1].offset = 17; }
TWIST(offset_far) { m->tensor[1].offset = 1ull << 40; }
TWIST(offset_max) { m->tensor[1].offset = UINT64_MAX - 31; }
TWIST(overlap) { m->tensor[1].offset = 0; }
TWIST(data_cut) { m->tensor[m->tensor_count - 1].bytes -= 64; }
TWIST(type_gone) { m->tensor[3].type = 4; }
TWIST(type_gone_too) { m->tensor[3].type = 36; }
TWIST(type_unknown) { m->tensor[3].type = 1000; }
TWIST(type_not_taken) { m->tensor[3].type = 10; }
TWIST(alignment_0) { make_u32(m, "general.alignment", 0); }
TWIST(alignment_24) { make_u32(m, "general.alignment", 24); }
TWIST(alignment_huge) { make_u32(m, "general.alignment", 1u << 31); }
TWIST(alignment_type) { put_u32(&make_key(m, "general.alignment", 5)->value, 32); }

TWIST(no_arch) { make_drop(m, "general.architecture"); }
TWIST(other_arch) { make_string(m, "general.architecture", "mamba"); }
TWIST(binary_arch) { make_string(m, "general.architecture", "\x1b[31m\xff\n"); }
TWIST(arch_type) { make_u32(m, "general.architecture", 1); }
TWIST(split_file) { put(&make_key(m, "split.count", 2)->value, "\3\0", 2); }
TWIST(no_layers) { make_drop(m, "llama.block_count"); }
TWIST(zero_layers) { make_u32(m, "llama.block_count", 0); }
TWIST(many_layers) { make_u32(m, "llama.block_count", 513); }
TWIST(one_layer_more) { make_u32(m, "llama.block_count", 2); }
TWIST(layers_type) { put_u64(&make_key(m, "llama.block_count", 10)->value, 1); }
TWIST(wide) { make_u32(m, "llama.embedding_length", 1u << 30); }
TWIST(other_width) { make_u32(m, "llama.embedding_length", 64); }
TWIST(long_context) { make_u32(m, "llama.context_length", (1u << 20) + 1); }
TWIST(zero_heads) { make_u32(m, "llama.attention.head_count", 0); }
TWIST(odd_heads) { make_u32(m, "llama.attention.head_count", 3); }
TWIST(zero_kv) { make_u32(m, "llama.attention.head_count_kv", 0); }
TWIST(many_kv) { make_u32(m, "llama.attention.head_count_kv", 4); }
TWIST(other_kv) { make_u32(m, "llama.attention.head_count_kv", 2); }
TWIST(other_head) { make_u32(m, "llama.attention.key_length", 32); }
TWIST(other_value) { make_u32(m, "llama.attention.value_length", 8); }
TWIST(rope_odd) { make_u32(m, "llama.rope.dimension_count", 15); }
TWIST(rope_long) { make_u32(m, "llama.rope.dimension_count", 18); }
TWIST(rope_nan) { make_f32(m, "llama.rope.freq_base", __builtin_nanf("")); }
TWIST(rope_yarn) { make_string(m, "llama.rope.scaling.type", "yarn"); }
TWIST(epsilon_nan) { make_f32(m, "llama.attention.layer_norm_rms_epsilon", __builtin_nanf("")); }
TWIST(epsilon_negative) { make_f32(m, "llama.attention.layer_norm_rms_epsilon", -1); }
TWIST(experts) { make_u32(m, "llama.expert_count", 8); }
TWIST(vocab_size) { make_u32(m, "llama.vocab_size", 4); }
TWIST(missing_tensor) { m->tensor_count--; }
TWIST(stray_tensor) { make_tensor(m, "blk.0.attn_q_norm.weight", 0, 16, 0); }
TWIST(stray_layer) { make_tensor(m, "blk.1.attn_norm.weight", 0, 32, 0); }
TWIST(stray_number) { make_tensor(m, "blk.00.attn_norm.weight", 0, 32, 0); }
TWIST(turned_tensor) { struct made_tensor *t = make_find(m, "blk.0.attn_k.weight");
	t->dimension[0] = 32; t->dimension[1] = 15; }
TWIST(quantised_norm) { struct made_tensor *t = make_find(m, "output_norm.weight");
	t->type = 8; t->bytes = 34; }

TWIST(bias_missing) { make_family(m, "qwen2"); m->tensor_count--; }
TWIST(bias_not_known) { make_family(m, "qwen3"); make_tensor(m, "blk.0.attn_q.bias", 0, 32, 0); }
TWIST(norm_missing) { make_family(m, "qwen3"); m->tensor_count--; }
TWIST(post_norm_missing) { make_family(m, "gemma3"); m->tensor_count--; }
TWIST(norm_of_width) { make_family(m, "qwen3"); make_find(m, "blk.0.attn_k_norm.weight")->dimension[0] = 32;
	make_find(m, "blk.0.attn_k_norm.weight")->bytes = 128; }
TWIST(window_not_known) { make_family(m, "qwen2"); make_u32(m, "qwen2.attention.sliding_window", 64); }
TWIST(window_type) { put(&make_key(m, "llama.attention.sliding_window", 6)->value, "abcd", 4); }
TWIST(window_no_period) { make_family(m, "gemma3"); make_u32(m, "gemma3.attention.sliding_window", 64);
	make_u32(m, "gemma3.attention.sliding_window_pattern", 0); }
TWIST(softcap_not_known) { make_f32(m, "llama.final_logit_softcapping", 30); }
TWIST(softcap_nan) { make_family(m, "gemma3");
	make_f32(m, "gemma3.final_logit_softcapping", __builtin_nanf("")); }
TWIST(keys_of_another) { make_string(m, "general.architecture", "qwen2"); }
TWIST(no_tokenizer) { make_drop(m, "tokenizer.ggml.model"); }
TWIST(template_number) { make_u32(m, "tokenizer.chat_template", 4); }
TWIST(template_array) { make_array(m, "tokenizer.chat_template", 10, 0); }
TWIST(other_tokenizer) { make_string(m, "tokenizer.ggml.model", "bert"); }
static inline void scores(struct maker *m, float last, const char *const *token, const int32_t *kind)
{
	struct bytes *b;
	make_string(m, "tokenizer.ggml.model", "llama");
	b = make_array(m, "tokenizer.ggml.scores", 6, 5);
	for (int i = 0; i < 5; i++)
		put(b, &(float){i < 4 ? 0 : last}, 4);
	if (!token)
		return;
	make_strings(m, "tokenizer.ggml.tokens", token, 5);
	put(make_array(m, "tokenizer.ggml.token_type", 5, 5), kind, 20);
}
TWIST(no_scores) { make_string(m, "tokenizer.ggml.model", "llama"); }
TWIST(score_nan) { scores(m, __builtin_nanf(""), NULL, NULL); }
TWIST(score_infinite) { scores(m, -__builtin_inff(), NULL, NULL); }
TWIST(no_bytes) { scores(m, 0, NULL, NULL); }
TWIST(bad_byte) { scores(m, 0, (const char *const[]){"a", "b", "c", "<0x0g>", "d"},
			 (const int32_t[]){1, 1, 1, 6, 1}); }
TWIST(long_byte) { scores(m, 0, (const char *const[]){"a", "b", "c", "<0x000>", "d"},
			  (const int32_t[]){1, 1, 1, 6, 1}); }
TWIST(byte_twice) { scores(m, 0, (const char *const[]){"a", "<0x0F>", "c", "<0x0F>", "d"},
			   (const int32_t[]){1, 6, 1, 6, 1}); }
TWIST(no_pre) { make_drop(m, "tokenizer.ggml.pre"); }
TWIST(other_pre) { make_string(m, "tokenizer.ggml.pre", "qwen99"); }
TWIST(long_pre) { make_string(m, "tokenizer.ggml.pre", "a name that is much longer than 31 bytes"); }
TWIST(no_tokens) { make_drop(m, "tokenizer.ggml.tokens"); }
TWIST(zero_tokens) { make_array(m, "tokenizer.ggml.tokens", 8, 0); }
TWIST(tokens_type) { put_u32(make_array(m, "tokenizer.ggml.tokens", 4, 1), 1); }
TWIST(tokens_text) { make_string(m, "tokenizer.ggml.tokens", "abc"); }
TWIST(split_type) { put_u32(&make_key(m, "split.count", 4)->value, 3); }
TWIST(long_token) { struct bytes *b = make_array(m, "tokenizer.ggml.tokens", 8, 5); char t[4098];
	memset(t, 'x', 4097); t[4097] = 0; put_string(b, t);
	for (int i = 0; i < 4; i++) put_string(b, "y"); }
TWIST(few_kinds) { put(make_array(m, "tokenizer.ggml.token_type", 5, 1), "\1\0\0\0", 4); }
TWIST(bad_kind) { struct bytes *b = make_array(m, "tokenizer.ggml.token_type", 5, 5);
	for (uint32_t i = 0; i < 5; i++) put_u32(b, i * 2); }
TWIST(few_scores) { make_array(m, "tokenizer.ggml.scores", 6, 0); }
TWIST(bad_merge) { make_strings(m, "tokenizer.ggml.merges", (const char *const[]){"ab"}, 1); }
TWIST(half_merge) { make_strings(m, "tokenizer.ggml.merges", (const char *const[]){"ab "}, 1); }
TWIST(first_merge) { make_strings(m, "tokenizer.ggml.merges", (const char *const[]){" b"}, 1); }
TWIST(far_eos) { make_u32(m, "tokenizer.ggml.eos_token_id", 5); }
TWIST(far_other) { make_u32(m, "tokenizer.ggml.fim_pre_token_id", UINT32_MAX); }
TWIST(eos_type) { put_u64(&make_key(m, "tokenizer.ggml.eos_token_id", 10)->value, 1); }
TWIST(few_rows) { struct made_tensor *t = make_find(m, "token_embd.weight");
	t->dimension[1] = 4; t->bytes = 34 * 4; }

#undef TWIST
#define BAD(name, word) {#name, name, -ERR_BAD_FILE, word}
#define FOREIGN(name, word) {#name, name, -ERR_UNSUPPORTED, word}

static const struct hostile hostile[] = {
	BAD(bad_magic, "magic"), FOREIGN(version_1, "version: 1"), FOREIGN(version_4, "version: 4"),
	BAD(big_endian, "endian"), BAD(many_keys, "key count"), BAD(many_tensors, "tensor count"),
	BAD(more_keys, "left"), BAD(more_tensors, ""), BAD(fewer_tensors, "ffn_down"),
	BAD(no_header, "tensor count"), BAD(empty_file, "magic"), BAD(cut_in_keys, "left"),
	BAD(long_key, "key"), BAD(long_key_small, "key"), BAD(empty_key, "0 bytes"),
	BAD(same_key, "twice"), BAD(key_type, "type 13"), BAD(key_bool, "bool"),
	BAD(key_string, "x: needs"), BAD(nested_array, "array of arrays"),
	BAD(array_type, "item type 77"), BAD(template_number, "tokenizer.chat_template"),
	BAD(template_array, "tokenizer.chat_template"), BAD(array_long, "items"), BAD(array_strings, "items"),
	BAD(array_string, "x: needs"), BAD(long_name, "64 bytes"), BAD(huge_name, "tensor name"),
	BAD(empty_name, "0 bytes"), BAD(nul_name, "missing"), BAD(same_name, "twice"),
	BAD(dimensions_5, "5 dimensions"), BAD(dimensions_0, "0 dimensions"),
	BAD(dimensions_many, "dimensions"), BAD(dimension_0, "dimension 1 is 0"),
	BAD(dimension_huge, "dimension 0"), BAD(rows_overflow, "rows"), BAD(bytes_huge, "overflows"),
	BAD(block_cut, "multiple"), BAD(offset_odd, "alignment"), BAD(offset_far, "offset"),
	BAD(offset_max, "offset"), BAD(overlap, "overlaps"), BAD(data_cut, "the data has"),
	BAD(type_gone, "type 4"), BAD(type_gone_too, "type 36"), BAD(type_unknown, "type 1000"),
	FOREIGN(type_not_taken, "Q2_K"), BAD(alignment_0, "alignment"),
	BAD(alignment_24, "alignment: 24"), BAD(alignment_huge, "alignment"),
	BAD(alignment_type, "int32"), BAD(no_arch, "missing"), FOREIGN(other_arch, "mamba"),
	FOREIGN(binary_arch, "?[31m??"), BAD(arch_type, "string"), BAD(split_file, "name does not end"),
	BAD(no_layers, "missing"), BAD(zero_layers, "block_count: 0"),
	BAD(many_layers, "512"), BAD(one_layer_more, "blk.1.attn_norm.weight"),
	BAD(layers_type, "uint64"), BAD(wide, "embedding_length"), BAD(other_width, "64"),
	BAD(long_context, "context_length"), BAD(zero_heads, "head_count"),
	BAD(odd_heads, "divide"), BAD(zero_kv, "head_count_kv"), BAD(many_kv, "head_count_kv"),
	BAD(other_kv, "attn_k.weight"), BAD(other_head, "attn_q.weight"),
	FOREIGN(other_value, "value_length: 8"), BAD(rope_odd, "odd"), BAD(rope_long, "18"),
	BAD(rope_nan, "freq_base"), FOREIGN(rope_yarn, "yarn"), BAD(epsilon_nan, "epsilon"),
	BAD(epsilon_negative, "epsilon"), FOREIGN(experts, "8 experts"),
	BAD(vocab_size, "vocab_size"), BAD(missing_tensor, "ffn_down.weight"),
	FOREIGN(stray_tensor, "attn_q_norm"), FOREIGN(stray_layer, "blk.1.attn_norm"),
	BAD(stray_number, "do not agree with the layers"),
	BAD(turned_tensor, "attn_k.weight"), FOREIGN(quantised_norm, "output_norm"),
	BAD(bias_missing, "attn_v.bias"), FOREIGN(bias_not_known, "attn_q.bias"),
	BAD(norm_missing, "attn_k_norm"), BAD(post_norm_missing, "post_ffw_norm"),
	BAD(norm_of_width, "attn_k_norm"), FOREIGN(window_not_known, "window of 64"),
	BAD(window_type, "float32"), BAD(window_no_period, "pattern: 0"),
	FOREIGN(softcap_not_known, "final_logit"), BAD(softcap_nan, "final_logit"),
	BAD(keys_of_another, "qwen2.block_count"),
	BAD(no_tokenizer, "missing"), FOREIGN(other_tokenizer, "bert"), FOREIGN(no_pre, "pre"),
	FOREIGN(other_pre, "qwen99"), FOREIGN(long_pre, "a name"), BAD(no_tokens, "missing"),
	BAD(zero_tokens,
			"tokens"), BAD(tokens_type, "its type is an array of uint32, it must be an array of string"),
	BAD(tokens_text, "its type is string, it must be an array of string"),
	BAD(split_type, "split.count: its type is uint32, it must be uint16"), BAD(long_token, "4097"),
	BAD(few_kinds, "token_type"), BAD(bad_kind, "kind 0"), BAD(few_scores, "scores"),
	BAD(bad_merge, "merges"), BAD(half_merge, "merges"), BAD(first_merge, "merges"),
	BAD(far_eos, "id 5"), BAD(far_other, "fim_pre"), BAD(eos_type, "uint32"),
	BAD(few_rows, "4 rows"), BAD(no_scores, "scores: the key is missing"),
	BAD(score_nan, "token 4"), BAD(score_infinite, "token 4"), BAD(no_bytes, "0x00"),
	BAD(bad_byte, "token 3"), BAD(long_byte, "token 3"), BAD(byte_twice, "second"),
};

enum { HOSTILE_COUNT = sizeof hostile / sizeof hostile[0] };

static inline struct bytes hostile_bytes(unsigned index)
{
	static struct maker m;
	make_tiny(&m);
	hostile[index].twist(&m);
	return make_bytes(&m);
}

#endif
