#!/usr/bin/env python3
"""Goal: the emulated suite catches bugs. Method: each planted bug below is put into a copy of the
kernels, the emulated tests are built with it, and one of them must fail.

cuda_bugs.py [--all | N ... | WORDS ...]: those numbers, or those whose description has the words. Without
arguments what `check` runs: every text is still in the sources and is changed, and SHORT of the bugs are
planted: which, the kernels' sources decide, so that one tree has one result and a change of a kernel tries
others. Needs a build folder with the tests built (BUILDDIR).
Prints TAP.

What cannot be caught by construction, and why:
 - a missing __threadfence or volatile, a missing fence of the async proxy: fibers have no memory model;
 - an `asm volatile` that loses its "memory" clobber, a wrong PTX mnemonic: the host compiles none;
 - -fmad=true, -use_fast_math: flags of the other compiler;
 - bank conflicts, uncoalesced loads, low occupancy: nothing here takes time;
 - __launch_bounds__ that are too small: the emulation has no registers.
"""
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

SRC = os.environ.get("SRCDIR", os.path.join(os.path.dirname(__file__), ".."))
BUILD = os.environ.get("BUILDDIR", ".")
CXX = os.environ.get("CXX", "g++").split()
K = "kernels/cuda/"

# What, file, text, what it becomes, the test and which of its parts.
BUGS = [
    ("barrier before the sums of a product are read, removed", "matmul.cu",
     "acc[n][i];\n\t__syncthreads();", "acc[n][i];", "test_cuda", 4),
    ("wait for an async copy left out", "attend_tile.cu", "copy_wait<1>();", "", "test_cuda", 3),
    ("scale of K left out", "attend_row.cu", "sum[i][h] = fmaf(part[i][h], s, sum[i][h]);",
     "sum[i][h] = part[i][h] + 0 * s + sum[i][h];", "test_cuda", 2),
    ("stale tag taken for good", "rows.cu", "there && found != p[i].tag", "there && found > p[i].tag",
     "test_cuda", 8),
    ("wrong lane of the fragment of B", "matmul.cu", "(token + g) * a.act.stride + r * 64 +\n\t\t\t\t\t\t\t   t * 16",
     "(token + g) * a.act.stride + r * 64 +\n\t\t\t\t\t\t\t   (t ^ 1) * 16", "test_cuda", 5),
    ("barrier after the scores removed", "attend_row.cu",
     "tile_scores<KV, G>(&a, &r, t, from, to);\n\t\t__syncthreads();", "tile_scores<KV, G>(&a, &r, t, from, to);",
     "test_cuda", 2),
    ("barrier in a divergent branch", "attend_tile.cu", "if (threadIdx.x < TILES)\n\t\t\tr.tiles",
     "if (threadIdx.x < 32)\n\t\t\t__syncthreads();\n\t\tif (threadIdx.x < TILES)\n\t\t\tr.tiles", "test_cuda", 3),
    ("two chunks share one place", "attend_tile.cu", "uint8_t *const to = r->stage + chunk % 2 * r->stage_bytes;",
     "uint8_t *const to = r->stage;", "test_cuda", 3),
    ("wait too late by one chunk", "attend_tile.cu", "copy_wait<1>();", "copy_wait<2>();", "test_cuda", 3),
    ("barrier after a chunk removed", "attend_tile.cu",
     "\t\t__syncthreads(); /* the next copy but one goes where this chunk was */\n", "", "test_cuda", 3),
    ("mask of the values off by one", "attend_tile.cu", "token + 1 >= low && token + 1 < high",
     "token + 1 >= low && token < high", "test_cuda", 3),
    ("unseen values not masked", "attend_tile.cu", "x[0] &= mask0;\n\t\t\tx[1] &= mask0;", "", "test_cuda", 3),
    ("a chunk that is seen in part taken for whole", "attend_tile.cu", "if (tile * TILE_TOKENS >= low && end * TILE_TOKENS <= high)",
     "if (tile * TILE_TOKENS >= low)", "test_cuda", 3),
    ("a weight's two groups swapped", "attend_tile.cu", "j ? y0[n].y : y0[n].x, j", "j ? y0[n].x : y0[n].y, j", "test_cuda", 3),
    ("barrier after the weights are packed removed", "attend_tile.cu",
     "weights_pack<KV, NT>(a, r, tile_low, tile_high);\n\t\t\t\t__syncthreads();",
     "weights_pack<KV, NT>(a, r, tile_low, tile_high);", "test_cuda", 3),
    ("scale of V of the other position", "attend_tile.cu", "p0 * s[1][0], p1 * s[1][1]", "p0 * s[1][1], p1 * s[1][0]", "test_cuda", 3),
    ("scale of V of a deep head taken from K's line", "attend_tile.cu",
     "\t\t\tconst uint32_t line = groups + (groups > 1 ? j : 0);\n", "\t\t\tconst uint32_t line = groups > 1 ? j : 0;\n", "test_cuda", 3),
    ("scale of V taken from K's line", "attend_tile.cu", "const uint32_t line = groups + (groups > 1 ? j : 0);",
     "const uint32_t line = (groups > 1 ? j : 0);", "test_cuda", 3),
    ("rows of K in the wrong order", "attend_tile.cu", "g / 2 * 16 + g % 2 * 4", "g / 2 * 16 + (1 - g % 2) * 4",
     "test_cuda", 3),
    ("a row sees the position after its own", "attend.h", "*to = position + 1 > base ? position + 1 - base : 0;",
     "*to = position + 2 > base ? position + 2 - base : 0;", "test_cuda", 2),
    ("window off by one", "attend.h", "position + 1 > a->window ? position + 1 - a->window : 0",
     "position > a->window ? position - a->window : 0", "test_cuda", 2),
    ("page index off by one", "attend.h", "(position - first) / a->page_tokens;",
     "(position + 16 - first) / a->page_tokens;", "test_cuda", 2),
    ("merge keeps the wrong maximum", "attend.h", "*to = most;", "", "test_cuda", 2),
    ("merge in the wrong order of factors", "attend.h", "*add = exp_f32(m - most);", "*add = exp_f32(most - m);",
     "test_cuda", 2),
    ("weights of another lane's maximum", "attend.h", "largest = fmaxf(largest, warp_xor(largest, mask));",
     "largest = warp_xor(largest, mask);", "test_cuda", 2),
    ("a sequence at fault attends", "attend.h", "if (a->faults[u->sequence].page == (uint32_t)OPS_NONE)\n\t\treturn false;",
     "return false;", "test_cuda", 8),
    ("a sequence at fault writes pages", "rows.cu",
     "if (is_q || a.faults[r.sequence].page != (uint32_t)OPS_NONE)", "if (is_q)", "test_cuda", 8),
    ("K and V written to each other's place", "rows.cu", "base + a.block + (2 * h + is_v) * a.block_bytes",
     "base + a.block + (2 * h + !is_v) * a.block_bytes", "test_cuda", 1),
    ("smoothing left out of K", "rows.cu", "x[d] = x[d] / a.smooth[h * a.head + d];", "x[d] = x[d] / 1.0f;",
     "test_cuda", 1),
    ("sine and cosine swapped in one quarter", "rows.cu", "quarter == 1 || quarter == 2 ? -first : first",
     "quarter == 1 ? -first : first", "test_cuda", 1),
    ("norm's sum misses the last warp", "rows.cu", "for (int w = 1; w < ROW_WARPS; w++)\n\t\tsum += room[w];",
     "for (int w = 1; w < ROW_WARPS - 1; w++)\n\t\tsum += room[w];", "test_cuda", 4),
    ("barrier before the norm's room is read, removed", "rows.cu",
     "room[threadIdx.x / WARP] = x;\n\t__syncthreads();\n\tfloat sum", "room[threadIdx.x / WARP] = x;\n\tfloat sum",
     "test_cuda", 4),
    ("the activation's sum is of one half", "rows.cu",
     "int sum = v;\n\tfor (int mask = 16;", "int sum = v;\n\tfor (int mask = 8;", "test_cuda", 5),
    ("gate of the wrong kind", "rows.cu", "if (kind == GATE_SILU)", "if (kind != GATE_SILU)", "test_cuda", 4),
    ("fifth bit of the wrong half", "matmul.cu", "4 * block + 2 * high + half) & 0x01010101u",
     "4 * block + 2 * high + (half ^ 1)) & 0x01010101u", "test_cuda", 5),
    ("zero point not subtracted", "matmul.cu", "a[block][i] = bytes_centre<form_zero(F)>(x);", "a[block][i] = x;",
     "test_cuda", 5),
    ("minimum left out", "matmul.cu", "acc[i] = fmaf(m[i >> 1], s[i & 1], acc[i]);", ";", "test_cuda", 5),
    ("scale of 256 of the wrong record", "matmul.cu", "super + (size_t)(r / 4) *", "super + (size_t)(r / 5) *",
     "test_cuda", 5),
    ("one warp's sum left out", "matmul.cu", "for (int w = 1; w < MATMUL_WARPS; w++)",
     "for (int w = 1; w < MATMUL_WARPS - 1; w++)", "test_cuda", 5),
    ("bias added twice", "product.h", "sum += p->bias[row];", "sum += 2 * p->bias[row];", "test_cuda", 4),
    ("residual left out", "product.h", "p->residual[at] += sum;", ";", "test_cuda", 4),
    ("equal logits: the higher id", "sample.cu", "<< 32 | (0xffffffffu - i);", "<< 32 | i;", "test_cuda_sample", 0),
    ("cut one too many", "sample.cu", "if (n >= most || mass >= enough)\n\t\t\t\tbreak;",
     "if (n > most || mass >= enough)\n\t\t\t\tbreak;", "test_cuda_sample", 0),
    ("mask read from the wrong bit", "sample.cu", "mask[i / 32] >> (i % 32) & 1", "mask[i / 32] >> (31 - i % 32) & 1",
     "test_cuda_sample", 0),
    ("penalty forgets the count", "sample.cu", "(float)times * s->frequency", "s->frequency", "test_cuda_sample", 0),
    ("the draw's seed is halved", "sample.cu", "k1 = (uint32_t)(seed >> 32);", "k1 = 0;", "test_cuda_sample", 0),
    ("tokens are read before the wait", "launch.cu", "TRY(ranks_wait(d));\n\t\td->copied_down",
     "d->copied_down", "test_cuda_device", 0),
    ("a graph for another bucket", "launch.cu", "key.rows = b->rows;", "", "test_cuda_device", 0),
    ("a rank's part left out of a sum", "ranks.cu", "for (uint32_t r = 1; r < a.ranks; r++)\n\t\tsum",
     "for (uint32_t r = 1; r < a.ranks - 1; r++)\n\t\tsum", "test_cuda_ranks", 0),
    ("logits of the wrong rank", "ranks.cu", "const uint32_t rank = id / a.share;",
     "const uint32_t rank = (a.vocab - 1 - id) / a.share;", "test_cuda_ranks", 0),
    ("a residual added on every rank", "launch.cu", "p.residual = norm || split ? NULL", "p.residual = norm ? NULL",
     "test_cuda_ranks", 0),
    ("another rank's id looked up", "rows.cu", "token - a.first < a.count ?", "token - a.first + 1 ?",
     "test_cuda_ranks", 0),
    ("a fault on another rank unheard", "ranks.cu", "for (uint32_t r = a.ranks; r-- > 0;)\n\t\tif (all[r * a.count + i].page",
     "for (uint32_t r = 1; r-- > 0;)\n\t\tif (all[r * a.count + i].page", "test_cuda_device", 0),
    ("of two ranks at fault the higher has the word", "ranks.cu", "for (uint32_t r = a.ranks; r-- > 0;)\n\t\tif",
     "for (uint32_t r = 0; r < a.ranks; r++)\n\t\tif", "test_cuda_device", 0),
    ("a sum of ranks before its norm left out of X", "rows.cu", "a.x[(size_t)row * a.width + k] += y[k];\n\t\treturn;",
     "a.x[(size_t)row * a.width + k] += 0 * y[k];\n\t\treturn;", "test_cuda_ranks", 0),
    ("logits laid by the vocabulary, not by the share", "launch.cu", "p.stride = d->plan.vocab_share;", "", "test_cuda_ranks", 0),
    ("a rank that is gone goes unseen", "ranks.cu", "e->d->rank_lost = true;\n}", ";\n}", "test_cuda_device", 0),
    ("a token's scale left out", "given.cu", "p->copy.scales[row] * a->scales[token] * sum", "p->copy.scales[row] * sum",
     "test_cuda_given", 0),
    ("rows of a fragment swapped", "given.cu", "{u[i], v[i], u[i + 1], v[i + 1]}", "{v[i], u[i], v[i + 1], u[i + 1]}",
     "test_cuda_given", 0),
    ("given tokens' results where they stand in the list", "given.cu", "row_to(a->step, ROWS_GIVEN, token)", "token",
     "test_cuda_given", 0),
    ("sampled tokens take the copy", "step.cu", "(rows[i].phase != 0) != (phase != 0)", "phase == 1", "test_cuda_given", 0),
    ("a graph for other phases", "launch.cu", "memcpy(key.phases, b->phases, sizeof key.phases);", "", "test_cuda_given", 0),
    ("an algorithm that splits K", "blas.cu", " && parts <= 1", "", "test_cuda_given", 0),
    ("an algorithm of too much workspace", "blas.cu", "r->state == 0 && r->workspace <= BLAS_ROOM_BYTES", "r->state == 0",
     "test_cuda_given", 0),
    ("a library's sums are not looked at", "blas.cu", "PREFILL_INT8 ? whole != sum : real != (float)sum)",
     "PREFILL_INT8 ? 0 * whole : 0 * (int)real + 0 * sum)", "test_cuda_given", 0),
    ("a library's refusal goes unseen", "blas.cu", "d->failed = true;", ";", "test_cuda_given", 0),
    ("a bucket too small", "blas.cu", "*padded < tokens && *padded", "*padded * 2 < tokens && *padded", "test_cuda_given", 0),
    ("graphs beyond their room", "launch.cu", "took <= GRAPH_ROOM_BYTES - d->graph_bytes", "took <= 8 * (size_t)GRAPH_ROOM_BYTES",
     "test_cuda_device", 0),
    ("pages of the first group for all", "attend.h", "STEP_PAGES(a->step)[s->page_first[a->group] + index].page",
     "STEP_PAGES(a->step)[s->page_first[0] + index].page", "test_cuda_groups", 0),
    ("pages written as if the first were there", "rows.cu", "r.position - s->page_position[a.group]", "r.position",
     "test_cuda_groups", 0),
    ("what was before a history is seen", "attend.h", "return first > s->position_first ? first : s->position_first;",
     "return first;", "test_cuda_groups", 0),
    ("tags of the second group not looked at", "rows.cu", "if (g >= a.group_count)", "if (g >= 1)", "test_cuda_groups", 0),
    ("tags of the first group for all", "rows.cu", "found = there ? a.tags[g][p[i].page] : 0",
     "found = there ? a.tags[0][p[i].page] : 0", "test_cuda_groups", 0),
    ("the halves of a pair of FP8 swapped", "attend.h", "i ? 0x3424 : 0x1404", "i ? 0x2434 : 0x0414", "test_cuda", 3),
    ("subnormal codes of FP8 taken for zero", "attend.h", "fma_bf16_pair(pair, 0x7b807b80u,",
     "fma_bf16_pair(pair & 0x7f80 ? pair : pair & 0xffff0000u, 0x7b807b80u,", "test_cuda", 12),
    ("the same on CUDA cores", "attend_row.cu", "KV == KV_FP8 ? float_from_bits(", "KV == KV_FP8 ? (c & 0x78 ? 1.0f : 0.0f) * float_from_bits(",
     "test_cuda", 12),
    ("a digest's last tile of V as one of K", "digest.cu", "if (s->is_v) {", "if (0 * s->is_v) {", "test_cuda", 11),
    ("a digest without the scales", "digest.cu", "i < s->lines * s->tokens ?", "i < 0 * s->lines ?", "test_cuda", 11),
    ("a hash's words are read before they are there", "digest.cu",
     "source_words(s, at, lane, words);\n\t\twarp_sync();", "source_words(s, at, lane, words);", "test_cuda", 11),
    ("a hash that turns the wrong way back", "digest.cu",
     "v[1] = warp_from(v[1], last_one);", "v[1] = warp_from(v[1], next);", "test_cuda", 11),
    ("one page's digests for all", "digest.cu", "(size_t)blockIdx.x * a.blocks_most", "(size_t)0 * a.blocks_most",
     "test_cuda", 11),
    ("as many blocks as the deepest group has", "digest.cu", "NULL, g->blocks * 16,", "NULL, a.blocks_most * 16,",
     "test_cuda", 11),
    ("digests are read before the wait", "pages.cu", "TRY(pages_end(d));\n\tfor (uint32_t i = 0; i < count; i++)\n\t\tmemcpy(",
     "for (uint32_t i = 0; i < count; i++)\n\t\tmemcpy(", "test_cuda", 11),
    ("a page in pinned memory is read before the wait", "pages.cu", "TRY(pages_end(d));\n\tif (!straight)",
     "if (!straight)\n\t\tTRY(pages_end(d));\n\tif (!straight)", "test_cuda_device", 0),
    ("pinned memory that ends too late", "pages.cu", "bytes <= (uint64_t)(d->pinned + d->pinned_bytes - p)", "bytes > 0 * (uint64_t)(d->pinned - p)",
     "test_cuda_device", 0),
    ("the first GPU for all threads", "launch.cu", "CUDA_TRY(d, cudaSetDevice((int)d->plan.gpu));", "", "test_cuda_device", 0),
    ("NCCL's time is not kept", "nccl.cu", "seconds_now() + most;", "seconds_now() + 15 * most;", "test_cuda_nccl", 0),
    ("a communicator is left behind", "nccl.cu", "d->lost = true;\n\tnccl_close(d);", "d->lost = true;", "test_cuda_nccl", 0),
    ("a gather's failure in the background goes unseen", "nccl.cu", "if (code == NC_SUCCESS)\n\t\treturn 0;\n\tsnprintf", "return 0;\n\tsnprintf",
     "test_cuda_nccl", 0),
    ("NCCL's end makes words", "nccl.cu", "\t\tnc_find()->abort(d->nccl);", "\t\tfprintf(stderr, \"x\\n\"), nc_find()->abort(d->nccl);", "test_cuda_nccl", 0),
    ("a lost context goes unseen", "device.cu", "d->lost = true;", "", "test_cuda_device", 0),
    ("no memory in a step taken for no loss", "device.cu", "d && !d->opened)", "d)", "test_cuda_device", 0),
    ("a graph of other calls", "launch.cu", "d->calls, d->call_count * sizeof *d->calls) == 0) {", "d->calls, 0) == 0) {",
     "test_cuda_device", 0),
    ("the merge begins at another partition", "attend.cu", "partial_at(&a, blockIdx.x, blockIdx.y, 0,",
     "partial_at(&a, blockIdx.x, blockIdx.y, first,", "test_cuda", 2),
    ("the merge leaves the last partition out", "attend.cu", "i = first + 1; i <= last;", "i = first + 1; i < last;",
     "test_cuda", 2),
    ("pages do not wait for the step", "pages.cu", "CUDA_TRY(d, cudaStreamWaitEvent(d->copy, d->stepped, 0));", "",
     "test_cuda_device", 0),
    ("the step does not wait for pages", "pages.cu", "CUDA_TRY(d, cudaStreamWaitEvent(d->step, d->copied, 0));", "",
     "test_cuda_device", 0),
    ("the event of the step recorded where pages are copied", "pages.cu", "cudaEventRecord(d->stepped, d->step)",
     "cudaEventRecord(d->stepped, d->copy)", "test_cuda_device", 0),
    ("scales of 256 looked for in another place", "device.cu", "w->m.data + supers_at;", "w->m.data + supers_at / 2;",
     "test_cuda", 10),
    ("scales of 256 put in another place", "pack.cpp", "+ first / 256) *", "+ 0 * first) *", "test_cuda", 10),
    ("fifth bit of the other half, on the host", "pack.cpp", "4 * p->block + 2 * p->high + p->half",
     "4 * p->block + 2 * p->high + !p->half", "test_cuda", 10),
    ("minimum of the other row", "pack.h", "super + 8 * g + 4 + 2 * p.high", "super + 8 * g + 4 + 2 * !p.high", "test_cuda", 10),
    ("a given row's scale of half its columns", "matmul.cu", "for (int mask = 16; mask > 0; mask /= 2)\n\t\t\tlargest",
     "for (int mask = 8; mask > 0; mask /= 2)\n\t\t\tlargest", "test_cuda_given", 0),
    ("a given row's scale put one row off", "matmul.cu", "a.scales[row] = scale;", "a.scales[row ^ 1] = scale;",
     "test_cuda_given", 0),
    ("a copy's scales looked for in another place", "copy.cu", "reinterpret_cast<float *>(data + values);\n\ta.w",
     "reinterpret_cast<float *>(data + values) + 1;\n\ta.w", "test_cuda_given", 0),
    ("code for another generation taken", "find.cu", "built[i] / 100 == major &&", "built[i] / 100 <= major &&",
     "test_cuda_device", 0),
    ("the host reads the device's memory", "pages.cu", "memcpy(tag, d->page_room, sizeof *tag);",
     "memcpy(tag, d->group[group].tags + page, sizeof *tag);", "test_cuda", 9),
    ("a page's tag behind the end of all", "rows.cu", "a.tags[g][p[i].page] : 0", "a.tags[g][p[i].page + (1u << 20)] : 0", "test_cuda", 8),
    ("a device index that does not exist, taken", "find.cu", "index >= (uint32_t)count", "index > (uint32_t)count",
     "test_cuda_device", 0),
]
SHORT = 6


def make_run(command):
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=600)


def test_run(command, env):
    """A test that does not end is one that fails; its ranks end with it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
                          start_new_session=True) as run:
        try:
            words = run.communicate(timeout=300)[0]
            return run.returncode, words
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            return -1, b"it does not end"


def objects(test):
    """The test's own objects and what the fixture needs, as the build made them."""
    names = [test, "emulate_hooks", "kernels_fixture", "kernels_model"]
    return [f"{BUILD}/tests/{test}-{n}.o" if os.path.exists(f"{BUILD}/tests/{test}-{n}.o")
            else f"{BUILD}/tests/{n}.o" for n in names]


def planted(bug):
    """The changed text, or the reason why there is none."""
    what, file, old, new, _, _ = bug
    text = open(f"{SRC}/{K}{file}", encoding="utf-8").read()
    if old not in text or old == new:
        return None, f"the text is not in {file}: {what}"
    return text.replace(old, new, 1), None


def plant(work, bug):
    text, reason = planted(bug)
    if text is not None:
        shutil.copytree(f"{SRC}/kernels", f"{work}/kernels", dirs_exist_ok=True)
        open(f"{work}/{K}{bug[1]}", "w", encoding="utf-8").write(text)
    return reason


def texts():
    """Whether each bug can still be planted, without a compiler."""
    reasons = [reason for bug in BUGS for _, reason in [planted(bug)] if reason]
    for reason in reasons:
        print(f"# {reason}")
    return not reasons


# What takes a header's text.
TAKES = {"attend.h": ["attend_row.cu", "attend_tile.cu", "attend.cu"], "product.h": ["matmul.cu", "given.cu"],
         "pack.h": ["matmul.cu", "given.cu", "rows.cu", "device.cu", "pack.cpp"]}


def caught(work, bug):
    _, file, _, _, test, part = bug
    changed = TAKES.get(file, [file])
    made = []
    for name in changed:
        out = f"{work}/{name}.o"
        done = make_run(CXX + ["-std=c++17", "-O1", "-w", "-ffp-contract=off", f"-I{work}", f"-I{SRC}", "-x", "c++",
                               "-c", f"{work}/{K}{name}", "-o", out])
        if done.returncode:
            return None, "it does not compile: " + done.stdout.decode()[:500]
        made.append(out)
    libraries = [f"{BUILD}/{lib}" for lib in ("libcuda_emulated.a", "libkernels.a", "libkernels_avx512.a",
                                              "libkernels_avx2.a", "libsched.a")]
    rest = [o for n in sorted(os.listdir(f"{SRC}/{K}")) if n.endswith(".cu") and n not in changed
            for o in [f"{BUILD}/{K}{n[:-3]}.o"]]
    emulator = [f"{BUILD}/{K}libcuda_emulated_a-{n}.o" for n in ("emulate", "emulate_runtime", "pack")
                if f"{n}.cpp" not in changed]
    first = [f"{BUILD}/libruntime.a"] if test == "test_cuda_ranks" else []
    done = make_run(CXX + objects(test) + first + made + rest + emulator + libraries[1:] +
                    ["-Wl,--export-dynamic", "-lsodium", "-lpthread", "-lm", "-ldl", "-o", f"{work}/test"])
    if done.returncode:
        return None, "it does not link: " + done.stdout.decode()[:500]
    env = dict(os.environ)
    env.pop("HOLDFAST_CUDA_ONLY", None)
    if part:
        env["HOLDFAST_CUDA_ONLY"] = str(part)
    code, words = test_run([f"{work}/test"], env)
    return code != 0, words.decode(errors="replace")[:300]


def choose(arguments):
    """Indices; without arguments the share of these sources: SHORT that lie side by side."""
    if arguments == ["--all"]:
        return list(range(len(BUGS)))
    if arguments and all(a.isdigit() for a in arguments):
        return [int(a) - 1 for a in arguments]
    if arguments:
        return [i for i, bug in enumerate(BUGS) if any(a in bug[0] for a in arguments)]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(pathlib.Path(f"{SRC}/{K}").glob("*.cu")))).digest()
    first = int.from_bytes(digest[:8], "big") % len(BUGS)
    return sorted((first + i) % len(BUGS) for i in range(SHORT))


def main():
    chosen = choose(sys.argv[1:])
    print(f"1..{len(chosen) + 1}")
    there = texts()
    print(f"{'ok' if there else 'not ok'} 1 - all {len(BUGS)} bugs have their place in the sources")
    if os.environ.get("HOLDFAST_SANITIZED") or not os.path.exists(f"{BUILD}/libcuda_emulated.a"):
        for i, _ in enumerate(chosen):
            print(f"ok {i + 2} - planted bug # SKIP only in the plain build")
        return not there
    bad = not there
    for i, index in enumerate(chosen):
        bug = BUGS[index]
        with tempfile.TemporaryDirectory() as work:
            reason = plant(work, bug)
            found, words = (None, reason) if reason else caught(work, bug)
        if not found:
            bad += 1
            print(f"# {index + 1}: {words}" if found is None else f"# {index + 1}: not caught")
        print(f"{'ok' if found else 'not ok'} {i + 2} - caught: {bug[0]} ({index + 1})", flush=True)
    return bad != 0


if __name__ == "__main__":
    sys.exit(main())
