#!/bin/sh
# Goal: what nvcc makes of the kernels is what they were written for. Method: what ptxas said of each
# kernel for each GPU of the build: no spill and no stack frame in any, and registers that leave room for
# at least one block; the PTX has the instructions that the hot loops are about, and where cuobjdump is, so has
# the machine code; one file is compiled for all GPUs at once, with HOLDFAST_LONG all of them. Then the
# program: a device that is not here is refused in one line, and the CPU still works.
# The README's table of registers is compared with what ptxas said. HOLDFAST_CUDA_TABLE=1 prints registers, shared memory and the blocks that an SM of sm_90 can hold.
set -u
LC_ALL=C
export LC_ALL
SRCDIR=${SRCDIR:-$(dirname "$0")/..}
BUILDDIR=${BUILDDIR:-.}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
count=0
failed=0

tap() { # 0 or 1, what, the reasons
	count=$((count + 1))
	[ -z "$3" ] || printf '%s\n' "$3" | sed 's/^/# /'
	if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}
skip() {
	count=$((count + 1))
	echo "ok $count - $1 # SKIP $2"
}

nvcc=$(sed -n 's/^NVCC = //p' "$BUILDDIR/Makefile" 2>/dev/null)
kernels='rows matmul given attend_row attend_tile attend sample ranks digest'
checks='no kernel spills
registers
the README on registers
vector loads, matrix products, async copies
one file for sm_80, sm_90 and sm_100
machine code'
skip_all() {
	old=$IFS
	IFS='
'
	for what in $checks; do skip "$what" "$1"; done
	IFS=$old
}

# One line a kernel instance: name, registers, shared bytes, stack, spills.
usage() {
	awk '/Compiling entry function/ { split($0, q, "\047"); name = q[2] }
		/bytes stack frame/ { stack = $1; spills = $5 + $9 }
		/Used [0-9]+ registers/ {
			shared = 0
			for (i = 1; i <= NF; i++) {
				if ($i == "Used") registers = $(i + 1)
				if ($(i + 2) ~ /^smem/) shared = $i
			}
			print name, registers, shared, stack, spills
		}' "$@"
}

if [ -z "$nvcc" ] || [ "$nvcc" = no ]; then
	skip_all "this build has no nvcc"
elif [ -n "${HOLDFAST_SANITIZED:-}" ]; then
	skip_all "the same in the plain build"
else
	# What ptxas said when the build compiled them, for every GPU of it; the PTX is made anew.
	for k in $kernels; do
		cp "$BUILDDIR/kernels/cuda/$k.gpu.o.log" "$work/$k.log"
	done
	usage "$work"/*.log >"$work/usage"
	for k in matmul given attend_row attend_tile; do
		"$nvcc" -std=c++17 -O3 -fmad=false -arch=compute_90 -I"$SRCDIR" -ptx \
			"$SRCDIR/kernels/cuda/$k.cu" -o "$work/$k.ptx" 2>"$work/err" || bad=$(cat "$work/err")
	done
	bad=$(awk '$4 != 0 || $5 != 0 { print $1 ": stack " $4 ", spilled " $5 }' "$work/usage")
	[ -z "$bad" ] && [ "$(wc -l <"$work/usage")" -ge 86 ]
	state=$?
	tap $state "no kernel spills or has a stack frame ($(wc -l <"$work/usage") instances)" "$bad"
	# A block's threads, by kernel, are in the names of nobody: the largest that each is launched with.
	bad=$(awk '{ threads = $1 ~ /sample/ ? 512 : $1 ~ /attend|rope|digest/ ? 128 : 256 }
		$2 * threads > 65536 { print $1 ": " $2 " registers x " threads }' "$work/usage")
	[ -z "$bad" ]
	state=$?
	tap $state "registers leave room for a block" "$bad"
	# Its table is of one compiler and one GPU.
	if ! "$nvcc" --version | grep -q 'release 13\.0' || grep -h 'Compiling entry' "$work"/*.log | grep -qv "'sm_90'"; then
		skip "the README on registers" "its table is of nvcc 13.0 for sm_90 alone"
	else
		awk -f "$SRCDIR/tests/cuda_registers.awk" "$work/usage" >"$work/rows"
		bad=$(awk -F'\t' 'NR == FNR { n++; begin[n] = $1; last[n] = $2; next }
			{
				for (i = 1; i <= n; i++)
					if (index($0, begin[i]) == 1 && substr($0, length($0) - length(last[i]) + 1) == last[i])
						found[i] = 1
			}
			END {
				for (i = 1; i <= n; i++) if (!found[i]) print "not in the README: " begin[i] " ... " last[i]
				if (n != 16) print n " rows"
			}' "$work/rows" "$SRCDIR/kernels/cuda/README.md")
		[ -z "$bad" ]
		state=$?
		tap $state "the README has the registers and the blocks that follow" "$bad"
	fi
	[ -z "${HOLDFAST_CUDA_TABLE:-}" ] || awk '{ threads = $1 ~ /sample/ ? 512 : $1 ~ /attend|rope|digest/ ? 128 : 256
		r = int(($2 + 7) / 8) * 8 * threads; b = int(65536 / r); t = int(2048 / threads)
		if (t < b) b = t
		printf "# %-60s %4d regs %6d shared %3d blocks %5.0f %% of 64 warps\n", $1, $2, $3, b, b * threads / 2048 * 100
	}' "$work/usage"
	bad=
	for want in 'matmul ld.global.*v4' 'matmul mma.sync.aligned.m16n8k32' 'matmul mma.sync.aligned.m16n8k16' 'given mma.sync.aligned.m16n8k32' \
		'attend_tile mma.sync.aligned.m16n8k16.row.col.f32.bf16' 'attend_tile cp.async.cg' \
		'attend_tile cp.async.wait_group' 'attend_row ld\..*v4'; do
		k=${want%% *}
		grep -q -- "${want#* }" "$work/$k.ptx" || bad="$bad$want is not in the PTX
"
	done
	for k in matmul given attend_row attend_tile; do
		! grep -q '\.local' "$work/$k.ptx" || bad="$bad$k uses local memory
"
	done
	[ -z "$bad" ]
	state=$?
	tap $state "vector loads, matrix products, async copies, no local memory" "$bad"

	# One object for three generations; no spill in any.
	some=ranks
	[ -z "${HOLDFAST_LONG:-}" ] || some=$kernels
	bad=
	for k in $some; do
		"$nvcc" -std=c++17 -O3 -Xptxas -v -fmad=false -gencode arch=compute_80,code=sm_80 \
			-gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100 -I"$SRCDIR" \
			-c "$SRCDIR/kernels/cuda/$k.cu" -o "$work/$k.o" 2>"$work/fat" || bad="$bad$k: $(tail -n 3 "$work/fat")
"
		for arch in sm_80 sm_90 sm_100; do
			grep -q "for '$arch'" "$work/fat" || bad="$bad$k has nothing for $arch
"
		done
		bad=$bad$(usage "$work/fat" | awk '$4 != 0 || $5 != 0 { print $1 ": stack " $4 ", spilled " $5 }')
		[ -z "$bad" ] || bad="$bad
"
	done
	[ -z "$bad" ]
	state=$?
	tap $state "one object for sm_80, sm_90 and sm_100: $some" "$bad"

	# What the GPU would run, function by function. cuobjdump is no part of the smallest toolkit;
	# bootstrap's check and build --cuda put it into the cache. It asks nvdisasm, beside it.
	dump=
	for dir in "$(dirname "$nvcc")" "${XDG_CACHE_HOME:-${HOME:-}/.cache}/holdfast/cuda-tools/nvidia/cu13/bin" \
		"$(dirname "$(command -v cuobjdump || echo /none/)")"; do
		[ -n "$dump" ] || ! [ -x "$dir/cuobjdump" ] || dump=$dir/cuobjdump
	done
	PATH=$PATH:$(dirname "${dump:-/none}")
	if [ -z "$dump" ]; then
		skip "machine code" "no cuobjdump is here: bootstrap check fetches it"
	else
		bad=
		for k in matmul given attend_row attend_tile; do
			"$dump" -arch sm_90 -sass "$BUILDDIR/kernels/cuda/$k.gpu.o" >"$work/$k.sass" 2>&1
		done
		# Every instance has what its loop is about, and none has local memory.
		for want in 'matmul matmul_i8 (IMMA)' 'matmul matmul_i8 LDG[.A-Z]*[.]128' \
			'given given_product (IMMA|HMMA)' 'given given_product LDG?[.A-Z]*[.]128' \
			'attend_tile attend_tile HMMA' 'attend_tile attend_tile LDGSTS[.A-Z]*[.]128' \
			'attend_row attend_row LDG?[.A-Z]*[.]128'; do
			# shellcheck disable=SC2086 # three words
			set -- $want
			bad=$bad$(awk -v name="$2" -v want="$3" '
				function end() { if (on && !n) print f " has no " want; if (on) all++ }
				/Function :/ { end(); f = $3; on = index(f, name); n = 0 }
				on && $0 ~ "[ \t]" want { n++ }
				END { end(); if (!all) print "no " name " is there" }' "$work/$1.sass")
		done
		for k in matmul given attend_row attend_tile; do
			bad=$bad$(awk '/Function :/ { f = $3 } /[ \t](LDL|STL)[. ]/ { print f " uses local memory" }' \
				"$work/$k.sass" | sort -u)
		done
		# A value of FP8 costs instructions before it costs bandwidth: kernels/cuda/README.md counts them.
		awk -f "$SRCDIR/tests/sass_loops.awk" "$work/attend_tile.sass" "$work/attend_row.sass" >"$work/loops"
		[ -z "${HOLDFAST_CUDA_TABLE:-}" ] ||
			awk '{
				split($1, t, /ELi|ILi/) # the kind of pages, then how many eights of vectors, or heads
				x = $3 ? $3 / (t[3] + 0) : $4 / 8 / (t[3] + 0)
				printf "# %s: %d instructions, %d HMMA, %d FFMA; for 256 values %.1f and %.1f of bits\n",
					$1, $2, $3, $4, $2 / x, $5 / x
			}' "$work/loops"
		# Up to 8 vectors, heads of 65 to 128: the loop of scores and that of values together, for 512 values.
		bad=$bad$(awk '$1 ~ /attend_tileILi[01]ELi1ELi2E/ {
				n[$1]++
				cost = 2 * $5 > $2 ? 2 * $5 / $3 : $2 / $3
				if (n[$1] == 1 || cost < least[$1]) { next_least[$1] = least[$1]; least[$1] = cost }
				else if (n[$1] == 2 || cost < next_least[$1]) next_least[$1] = cost
			}
			END {
				for (f in n) {
					all++
					if (n[f] < 2 || least[f] + next_least[f] > 80)
						print f ": " least[f] + next_least[f] " clocks of a warp for 256 values of K and of V"
				}
				if (all != 2) print "no loops of attention are found"
			}' "$work/loops")
		[ -z "$bad" ]
		state=$?
		tap $state "machine code: loads of 16 bytes, IMMA, HMMA, no local memory, short loops" "$bad"
	fi
fi

# The program, on a machine that most likely has no GPU.
daemon=$BUILDDIR/holdfastd
if [ ! -x "$daemon" ] || [ ! -x "$BUILDDIR/tests/make_tiny" ]; then
	skip "a device that is not here is refused" "the program is not built"
else
	"$BUILDDIR/tests/make_tiny" "$work/tiny.gguf" 1 >/dev/null 2>&1
	start() {
		XDG_STATE_HOME=$work XDG_CACHE_HOME=$work "$daemon" --model "$work/tiny.gguf" --device "$1" \
			--log error --kv-memory 16M --listen "ipc://$work/s" --check
	}
	bad=
	for device in cuda:1000 cudax cuda: cuda:-1 cuda:1x gpu; do
		out=$(start "$device" 2>&1 >/dev/null)
		if [ $? = 0 ] || [ "$(printf '%s\n' "$out" | wc -l)" != 1 ] || [ -z "$out" ]; then
			bad="$bad--device $device: $out
"
		fi
	done
	start cpu >/dev/null 2>&1 || bad="$bad--device cpu does not work"
	[ -z "$bad" ]
	state=$?
	tap $state "a device that is not here is refused in one line" "$bad"
fi
echo "1..$count"
exit $failed
