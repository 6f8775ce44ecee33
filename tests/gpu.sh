#!/bin/sh
# For a machine with one GPU, its driver and the toolkit: is what the emulation says true? At most six
# minutes; the results go to stdout as JSON, one line a step, words to stderr.
#   gpu.sh [--dry] SOURCE BUILD
#   gpu.sh --carry BUILD FOLDER
# A BUILD that is not there, or empty, is made first: `configure` must be in SOURCE, and the daemon's
# dependencies on the machine. Where they are not, --carry puts the programs of a build of another machine
# and the libraries that they need, but the C library's, into a folder that can be BUILD here.
# --dry: every step that needs no GPU is done, the daemon's on the emulated one if that is built; the
# others are said to be skipped. `check` does that.
# A step: {"step": NAME, "result": "ok"|"failed"|"skipped", "s": seconds, ...}. Exit 0 if none failed.
set -u
LC_ALL=C
export LC_ALL
programs='holdfastd tests/make_tiny tests/gpu_cuda tests/gpu_sample tests/gpu_given tests/gpu_heart tests/bench/bench_gpu'
carry() { # BUILD FOLDER
	mkdir -p "$2/lib" "$2/tests/bench" || exit 1
	for program in $programs; do
		# What libtool leaves in the build folder is a script around it, now and then.
		real=$1/${program%/*}/.libs/${program##*/}
		[ -x "$real" ] && [ "${program%/*}" != "$program" ] || real=$1/$program
		[ ! -x "$1/.libs/$program" ] || real=$1/.libs/$program
		strip -o "$2/$program" "$real" 2>/dev/null || cp "$real" "$2/$program" || exit 1
		ldd "$real" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p'
	done | sort -u | grep -v -E '/(libc|libm|libdl|librt|libpthread|libresolv|ld-linux[^/]*)\.so' | while read -r library; do
		cp -L "$library" "$2/lib/" || exit 1
	done
}
dry=0
[ "${1:-}" = --carry ] && [ $# = 3 ] && { carry "$2" "$3"; exit; }
[ "${1:-}" = --dry ] && { dry=1; shift; }
[ $# = 2 ] || { echo "usage: gpu.sh [--dry] SOURCE BUILD, or gpu.sh --carry BUILD FOLDER" >&2; exit 2; }
began=$(date +%s)
source=$(cd "$1" && pwd) || exit 2
build=$(mkdir -p "$2" && cd "$2" && pwd) || exit 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
[ ! -d "$build/lib" ] || export LD_LIBRARY_PATH="$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
failed=0
XDG_CACHE_HOME=$work
XDG_STATE_HOME=$work
export XDG_CACHE_HOME XDG_STATE_HOME

step_began=$began
say() { # step, result, more JSON
	now=$(date +%s)
	printf '{"step": "%s", "result": "%s", "s": %d%s}\n' "$1" "$2" $((now - step_began)) "${3:+, $3}"
	step_began=$now
	[ "$2" != failed ] || failed=1
}
daemon=$build/holdfastd
most=${GPU_SECONDS:-360}
run() { # NAME COMMAND...: within what is left of the time
	name=$1
	shift
	left=$((began + most - $(date +%s)))
	if [ $left -le 0 ]; then
		say "$name" failed "\"why\": \"the $most s are over\""
	elif timeout $((left < 120 ? left : 120)) "$@" >"$work/out" 2>"$work/err"; then
		say "$name" ok
	else
		tail -n 5 "$work/out" "$work/err" >&2
		say "$name" failed
	fi
}
gpu() { # NAME COMMAND...: a step that needs a GPU
	if [ $dry = 1 ]; then say "$1" skipped '"why": "dry"'; else run "$@"; fi
}

# What is needed.
if [ ! -e "$build/holdfastd" ] && [ ! -e "$build/Makefile" ]; then
	capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
	# shellcheck disable=SC2086 # words
	if (cd "$build" && "$source/configure" -q --with-cuda --with-cuda-arch="${capability:-90}" &&
		make -s -j "$(nproc)" $programs) >"$work/out" 2>"$work/err"; then
		say build ok
	else
		tail -n 5 "$work/err" >&2
		say build failed
	fi
fi
for program in $programs; do
	if [ -x "$build/$program" ]; then say "has ${program##*/}" ok; else say "has ${program##*/}" failed; fi
done
if nm "$daemon" 2>/dev/null | grep -q cuda_device_open || strings -a "$daemon" 2>/dev/null | grep -q 'sm_%d%d'; then
	say "built with CUDA" ok
elif [ $dry = 1 ]; then
	say "built with CUDA" skipped '"why": "this build has none"'
else
	say "built with CUDA" failed
fi

# A random model, and the CPU's answer to it.
python=${PYTHON_FOR_TESTS:-python3}
run "random model" "$build/tests/make_tiny" "$work/model.gguf" 7
printf '[{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "name": "a"}]\n' >"$work/cases.json"
logits() { # DEVICE FILE
	"$daemon" logits "$work/model.gguf" --device "$1" --act i8 --tokens "$work/cases.json" >"$2" 2>"$work/err"
}
if logits cpu "$work/cpu.json"; then say "CPU logits" ok; else
	tail -n 3 "$work/err" >&2
	say "CPU logits" failed
fi

# The largest five logits of each row: who is in both, within a bound; who is in one only, not above the
# other's fifth by more; the first the same where it is ahead by more than two. The forms differ in the order
# of sums, and in bf16 for q and p.
compare='
import json, sys
def rows(path):
    return [row for case in json.load(open(path)) for row in case["rows"]]
a, b = (rows(path) for path in sys.argv[1:3])
assert len(a) == len(b) > 0
worst = held = 0
for x, y in zip(a, b):
    p, q = dict(x["top"]), dict(y["top"])
    assert len(p) == len(q) == 5
    bound = 0.02 * max(map(abs, p.values()))
    low = min(p.values()), min(q.values())
    for t in set(p) | set(q):
        off = abs(p[t] - q[t]) if t in p and t in q else max(p.get(t, low[0]) - low[0], q.get(t, low[1]) - low[1])
        worst = max(worst, off / bound)
    ranked = sorted(p.values(), reverse=True)
    if ranked[0] - ranked[1] > 2 * bound:
        held += 1
        assert x["argmax"] == y["argmax"], (x, y)
assert worst <= 1, worst
assert held > 0, "no row says who is first"
'
run "comparison" "$python" -c "$compare" "$work/cpu.json" "$work/cpu.json"
# A logit that is off must be seen.
sed 's/\[\([0-9]*\),[0-9.]*\]/[\1,9]/' "$work/cpu.json" >"$work/off.json"
if "$python" -c "$compare" "$work/cpu.json" "$work/off.json" 2>/dev/null; then
	say "comparison of what differs" failed
else
	say "comparison of what differs" ok
fi

# The tests of the kernels that the emulation runs, and the heart of the project, on the GPU.
for name in cuda sample given heart; do
	gpu "vectors, $name" "$build/tests/gpu_$name"
done
step=gpu
model_daemon=$daemon
if [ $dry = 1 ] && [ -x "$build/tests/emulated_daemon" ]; then
	step=run
	model_daemon=$build/tests/emulated_daemon
fi
gpu_logits="'$model_daemon' logits '$work/model.gguf' --device cuda --act i8 --tokens '$work/cases.json'"
$step "GPU logits" sh -c "$gpu_logits >'$work/gpu.json'"
$step "GPU against CPU" "$python" -c "$compare" "$work/cpu.json" "$work/gpu.json"
$step "without graphs" sh -c "HOLDFAST_CUDA_GRAPHS=off $gpu_logits >'$work/plain.json' && cmp '$work/gpu.json' '$work/plain.json'"
for tool in memcheck racecheck initcheck synccheck; do
	gpu "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$daemon" logits "$work/model.gguf" \
		--device cuda --act i8 --tokens "$work/cases.json"
done
# Every operation on small shapes; with the tool that finds races it takes longest.
for tool in memcheck racecheck; do
	gpu "$tool of whole steps" env HOLDFAST_CUDA_ONLY=6 compute-sanitizer --tool "$tool" --error-exitcode 1 \
		"$build/tests/gpu_cuda"
done
gpu "bench" "$daemon" bench "$work/model.gguf" --device cuda
if [ -n "${HOLDFAST_MODEL:-}" ] && [ $dry = 0 ]; then
	gpu "bench of the model" "$daemon" bench "$HOLDFAST_MODEL" --device cuda
fi
# An 8B-class model's shapes: shares of the copy bandwidth, FP8 against BF16 pages at 1, 8, 32, 64.
figures='
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
found = {(r.get("kv"), r.get("batch")) for r in rows if r["figure"] == "decode"}
wanted = {(kv, n) for kv in ("fp8", "bf16") for n in (1, 8, 32, 64)}
bad = [r for r in rows for x in r.values() if isinstance(x, float) and not 0 <= x < 1e12]
resident = [r["ratio"] for r in rows if r["figure"] == "resident"]
sys.exit(bool(wanted - found or bad) or len(resident) != 1 or not any(r["figure"] == "prefill" for r in rows))
'
shapes() { # NAME ARGUMENT...
	name=$1
	shift
	left=$((began + most - $(date +%s)))
	if timeout $((left < 1 ? 1 : left < 200 ? left : 200)) "$build/tests/bench/bench_gpu" "$@" >"$work/figures" \
		2>"$work/err" &&
		"$python" -c "$figures" "$work/figures"; then
		say "$name" ok "\"figures\": [$(paste -sd, "$work/figures")]"
	else
		tail -n 3 "$work/err" >&2
		say "$name" failed
	fi
}
shapes "small shapes on the CPU" cpu --small
if [ $dry = 1 ]; then
	say "shapes of an 8B-class model" skipped '"why": "dry"'
else
	shapes "shapes of an 8B-class model" cuda
fi
exit $failed
