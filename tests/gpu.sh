#!/bin/sh
# For a machine with one GPU, its driver and the toolkit: is what the emulation says true? At most six
# minutes; the results go to stdout as JSON, one line a step, words to stderr.
#   gpu.sh [--dry] SOURCE BUILD
# --dry: every step that needs no GPU is done, and the others are said to be skipped. `check` does that.
# A step: {"step": NAME, "result": "ok"|"failed"|"skipped", ...}. Exit 0 if none failed.
set -u
LC_ALL=C
export LC_ALL
dry=0
[ "${1:-}" = --dry ] && { dry=1; shift; }
[ $# = 2 ] || { echo "usage: gpu.sh [--dry] SOURCE BUILD" >&2; exit 2; }
source=$(cd "$1" && pwd) || exit 2
build=$(cd "$2" && pwd) || exit 2
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
XDG_CACHE_HOME=$work
XDG_STATE_HOME=$work
export XDG_CACHE_HOME XDG_STATE_HOME

say() { # step, result, more JSON
	printf '{"step": "%s", "result": "%s"%s}\n' "$1" "$2" "${3:+, $3}"
	[ "$2" != failed ] || failed=1
}
daemon=$build/holdfastd
gpu() { # NAME COMMAND...: a step that needs a GPU
	name=$1
	shift
	if [ $dry = 1 ]; then
		say "$name" skipped '"why": "dry"'
		return 0
	fi
	if timeout 120 "$@" >"$work/out" 2>"$work/err"; then
		say "$name" ok
	else
		tail -n 5 "$work/err" >&2
		say "$name" failed
	fi
}

# What is needed.
for tool in "$daemon" "$build/tests/make_tiny" "$build/tests/bench/bench_gpu"; do
	if [ -x "$tool" ]; then say "has ${tool##*/}" ok; else say "has ${tool##*/}" failed; fi
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
"$build/tests/make_tiny" "$work/model.gguf" 7 >/dev/null 2>&1 && say "random model" ok || say "random model" failed
printf '[{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "name": "a"}]\n' >"$work/cases.json"
logits() { # DEVICE FILE
	"$daemon" logits "$work/model.gguf" --device "$1" --act i8 --tokens "$work/cases.json" >"$2" 2>"$work/err"
}
if logits cpu "$work/cpu.json"; then say "CPU logits" ok; else
	tail -n 3 "$work/err" >&2
	say "CPU logits" failed
fi

# Every number of two answers within a bound of the largest: the forms differ in the order of sums and
# in bf16 for q and p.
compare='
import json, sys
def flat(x):
    if isinstance(x, (int, float)):
        yield float(x)
    elif isinstance(x, list):
        for y in x:
            yield from flat(y)
    elif isinstance(x, dict):
        for k in sorted(x):
            yield from flat(x[k])
a, b = (list(flat(json.load(open(p)))) for p in sys.argv[1:3])
most = max(map(abs, a), default=0)
sys.exit(len(a) != len(b) or not a or any(not abs(x - y) <= 0.03 * most for x, y in zip(a, b)))
'
"$python" -c "$compare" "$work/cpu.json" "$work/cpu.json" && say "comparison" ok || say "comparison" failed

gpu "GPU logits" sh -c "'$daemon' logits '$work/model.gguf' --device cuda --act i8 --tokens '$work/cases.json' >'$work/gpu.json'"
gpu "GPU against CPU" "$python" -c "$compare" "$work/cpu.json" "$work/gpu.json"
gpu "without graphs" sh -c "HOLDFAST_CUDA_GRAPHS=off '$daemon' logits '$work/model.gguf' --device cuda --act i8 \
	--tokens '$work/cases.json' >'$work/plain.json' && cmp '$work/gpu.json' '$work/plain.json'"
for tool in memcheck racecheck initcheck synccheck; do
	gpu "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$daemon" logits "$work/model.gguf" \
		--device cuda --act i8 --tokens "$work/cases.json"
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
	if timeout 200 "$build/tests/bench/bench_gpu" "$@" >"$work/figures" 2>"$work/err" &&
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
