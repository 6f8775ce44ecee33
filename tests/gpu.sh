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
programs='holdfastd tests/make_tiny tests/gpu_cuda tests/gpu_sample tests/gpu_groups tests/gpu_given tests/gpu_heart
	tests/bench/bench_gpu'
carry() { # BUILD FOLDER
	libraries=
	mkdir -p "$2/lib" "$2/tests/bench" || return 1
	for program in $programs; do
		# What libtool leaves in the build folder is a script around it, now and then.
		real=$1/${program%/*}/.libs/${program##*/}
		[ -x "$real" ] && [ "${program%/*}" != "$program" ] || real=$1/$program
		[ ! -x "$1/.libs/$program" ] || real=$1/.libs/$program
		strip -o "$2/$program" "$real" 2>/dev/null || cp "$real" "$2/$program" || return 1
		needs=$(ldd "$real") || return 1
		case $needs in *'not found'*) printf '%s\n' "$needs" >&2; return 1 ;; esac
		libraries="$libraries $(printf '%s\n' "$needs" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | tr '\n' ' ')"
	done
	# shellcheck disable=SC2086 # words
	for library in $(printf '%s\n' $libraries | sort -u); do
		case ${library##*/} in
		libc.so* | libm.so* | libdl.so* | librt.so* | libpthread.so* | libresolv.so* | ld-linux*) continue ;;
		esac
		cp -L "$library" "$2/lib/" || return 1
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
# The toolkit where it is commonly put, behind what is in the paths; GPU 0 is nvidia-smi's.
PATH=$PATH:/usr/local/cuda/bin
LD_LIBRARY_PATH=$build/lib:${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/usr/local/cuda/lib64
CUDA_DEVICE_ORDER=PCI_BUS_ID
export PATH LD_LIBRARY_PATH CUDA_DEVICE_ORDER
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
	elif timeout -k 5 $((left < 120 ? left : 120)) "$@" >"$work/out" 2>"$work/err"; then
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
	# It says in words, and on the same way, that it finds none.
	capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null |
		sed -n 's/^\([0-9]*\)\.\([0-9]*\)$/\1\2/p' | head -n 1)
	# shellcheck disable=SC2016,SC2086 # for the other shell; words
	# Two thirds of the time: what is measured after it needs some.
	if timeout -k 5 $((most * 2 / 3)) sh -c 'cd "$1" && "$2/configure" -q --with-cuda --with-cuda-arch="$3" && shift 3 &&
		exec make -s -j "$(nproc)" "$@"' sh "$build" "$source" "${capability:-90}" $programs \
		>"$work/out" 2>"$work/err"; then
		say build ok
	else
		tail -n 5 "$work/err" >&2
		say build failed
	fi
fi
for program in $programs; do
	if [ -x "$build/$program" ]; then say "has ${program##*/}" ok; else say "has ${program##*/}" failed; fi
done
if nm "$daemon" 2>/dev/null | grep -q cuda_device_open || grep -q 'sm_%d%d' "$daemon" 2>/dev/null; then
	say "built with CUDA" ok
elif [ $dry = 1 ]; then
	say "built with CUDA" skipped '"why": "this build has none"'
else
	say "built with CUDA" failed
fi

# A random model, and the CPU's answer to it.
run "random model" "$build/tests/make_tiny" "$work/model.gguf" 7
printf '[{"tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12], "name": "a"}]\n' >"$work/cases.json"
# shellcheck disable=SC2016 # for another shell: DAEMON FOLDER DEVICE FILE
logits='"$1" logits "$2/model.gguf" --device "$3" --act i8 --tokens "$2/cases.json" >"$2/$4"'
run "CPU logits" sh -c "$logits" sh "$daemon" "$work" cpu cpu.json

# The largest five logits of each row: who is in both, within a bound; who is in one only, not above the
# other's fifth by more; the first the same where it is ahead by more than two. The forms differ in the order
# of sums, and in bf16 for q and p.
compare='
function most(x, y) { return x > y ? x : y }
BEGIN { RS = "{" }
FNR == 1 { file++ }
/^"argmax":/ {
	row = ++rows[file]
	argmax = $0
	sub(/^"argmax":/, "", argmax)
	first[file, row] = argmax + 0
	sub(/^[^[]*\[\[/, "")
	sub(/\]\].*/, "")
	count[file, row] = split($0, pair, /\],\[/)
	for (i = 1; i <= count[file, row]; i++) {
		split(pair[i], v, ",")
		id[file, row, i] = v[1]
		logit[file, row, v[1]] = v[2] + 0
		low[file, row] = i == 1 || v[2] + 0 < low[file, row] ? v[2] + 0 : low[file, row]
	}
}
END {
	good = rows[1] > 0 && rows[1] == rows[2]
	for (r = 1; r <= rows[1] && good; r++) {
		size = worst = 0
		top = second = -1e30
		good = count[1, r] == 5 && count[2, r] == 5
		for (i = 1; i <= 5; i++) {
			x = logit[1, r, id[1, r, i]]
			size = most(size, x < 0 ? -x : x)
			second = most(second, x > top ? top : x)
			top = most(top, x)
		}
		bound = 0.02 * size
		for (i = 1; i <= 5; i++)
			for (f = 1; f <= 2; f++) {
				t = id[f, r, i]
				off = logit[f, r, t] - ((3 - f, r, t) in logit ? logit[3 - f, r, t] : low[f, r])
				worst = most(worst, off < 0 ? -off : off)
			}
		if (top - second > 2 * bound) {
			ahead++
			good = good && first[1, r] == first[2, r]
		}
		good = good && worst <= bound
		if (!good)
			print "row " r ": off by " worst " of " bound ", first " first[1, r] " and " first[2, r]
	}
	if (!ahead)
		print rows[1] + 0 " and " rows[2] + 0 " rows, none of which says who is first"
	exit !(good && ahead)
}
'
run "comparison" awk "$compare" "$work/cpu.json" "$work/cpu.json"
# A logit that is off must be seen.
sed 's/\[\([0-9]*\),[0-9.]*\]/[\1,9]/' "$work/cpu.json" >"$work/off.json"
if awk "$compare" "$work/cpu.json" "$work/off.json" >/dev/null; then
	say "comparison of what differs" failed
else
	say "comparison of what differs" ok
fi

# The tests of the kernels that the emulation runs, and the heart of the project, on the GPU.
for name in cuda sample groups given heart; do
	gpu "vectors, $name" "$build/tests/gpu_$name"
	[ "$name" = given ] && [ $dry = 0 ] || continue
	if grep -q '^# .*cuBLASLt' "$work/out"; then
		say "cuBLASLt in use" ok
	else
		say "cuBLASLt in use" skipped '"why": "it is not found, or does not do what is asked"'
	fi
done
step=gpu
model_daemon=$daemon
if [ $dry = 1 ] && [ -x "$build/tests/emulated_daemon" ]; then
	step=run
	model_daemon=$build/tests/emulated_daemon
fi
$step "GPU logits" sh -c "$logits" sh "$model_daemon" "$work" cuda gpu.json
$step "GPU against CPU" awk "$compare" "$work/cpu.json" "$work/gpu.json"
$step "without graphs" env HOLDFAST_CUDA_GRAPHS=off sh -c "$logits && cmp \"\$2/gpu.json\" \"\$2/\$4\"" sh "$model_daemon" \
	"$work" cuda plain.json
for tool in memcheck racecheck initcheck synccheck; do
	gpu "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 "$daemon" logits "$work/model.gguf" \
		--device cuda --act i8 --tokens "$work/cases.json"
done
# Every operation on small shapes; with the tool that finds races it takes longest.
for tool in memcheck racecheck; do
	gpu "$tool of whole steps" env HOLDFAST_CUDA_ONLY=6 compute-sanitizer --tool "$tool" --error-exitcode 1 \
		"$build/tests/gpu_cuda"
done
gpu "memcheck of digests" env HOLDFAST_CUDA_ONLY=11 compute-sanitizer --tool memcheck --error-exitcode 1 \
	"$build/tests/gpu_cuda"
gpu "bench" "$daemon" bench "$work/model.gguf" --device cuda
if [ -n "${HOLDFAST_MODEL:-}" ] && [ $dry = 0 ]; then
	gpu "bench of the model" "$daemon" bench "$HOLDFAST_MODEL" --device cuda
fi
# An 8B-class model's shapes: shares of the copy bandwidth, FP8 against BF16 pages at 1, 8, 32, 64.
figures='
!/^[{].*[}]$/ || /: -?(nan|inf)/ { bad = 1 }
{
	n = split($0, x, /[:,}] */)
	for (i = 1; i <= n; i++)
		if (x[i] ~ /^-?[0-9]+[.][0-9]+$/ && ((x[i] + 0 < 0 && !/"target"/) || x[i] + 0 >= 1e12))
			bad = 1
}
/"figure": "decode"/ {
	kv = batch = $0
	sub(/.*"kv": "/, "", kv)
	sub(/".*/, "", kv)
	sub(/.*"batch": /, "", batch)
	found[kv, batch + 0] = 1
}
/"figure": "resident"/ { resident++ }
/"figure": "prefill"/ { prefill++ }
/"figure": "digest"/ { digest++ }
/"figure": "target"/ && /"reached": (true|false)[}]$/ { target++ }
END {
	for (batch = 1; batch <= 64; batch *= batch < 8 ? 8 : batch < 32 ? 4 : 2)
		if (!(("fp8", batch) in found) || !(("bf16", batch) in found))
			bad = 1
	exit bad || resident != 1 || !prefill || digest != 2 || target < 14
}
'
shapes() { # NAME ARGUMENT...
	name=$1
	shift
	left=$((began + most - $(date +%s)))
	if timeout -k 5 $((left < 1 ? 1 : left < 200 ? left : 200)) "$build/tests/bench/bench_gpu" "$@" >"$work/figures" \
		2>"$work/err" &&
		awk "$figures" "$work/figures"; then
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
# The kernels that a step of a random model takes little of, on few shapes each, where there is time left.
late() { # NAME COMMAND...
	if [ $dry = 0 ] && [ $((began + most - $(date +%s))) -le 15 ]; then
		say "$1" skipped '"why": "no time is left"'
	else
		gpu "$@"
	fi
}
for part in 3 11 12; do
	late "racecheck of part $part" env HOLDFAST_SANITIZED=1 HOLDFAST_CUDA_ONLY=$part compute-sanitizer --tool racecheck \
		--error-exitcode 1 "$build/tests/gpu_cuda"
done
for name in sample given; do
	late "racecheck of $name" env HOLDFAST_SANITIZED=1 compute-sanitizer --tool racecheck --error-exitcode 1 \
		"$build/tests/gpu_$name"
done
exit $failed
