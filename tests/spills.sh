#!/bin/sh
# The hot loops of the vector leaves keep their sums in registers: gcc has put them on the stack
# before, and clang too, at half the speed, and nothing else would show it. A sum on the stack is
# stored there in each round, so this counts the stores of whole vector registers to the stack
# within innermost loops: from the target of a jump backward to the jump, with no other such in it.
# Reads do not count: constants and weights that the loop takes from the stack cost it nothing.
# Four are allowed: the weights of four heads are stored there on purpose, and clang has that loop
# as an innermost one. Of the functions around the kernels, which keep tiles and unpacked weights on the
# stack on purpose, only stores to fixed places count: a register that is spilled has one.
set -u
LC_ALL=C
export LC_ALL
cd "$BUILDDIR" || exit 1
echo 1..2
n=0
failed=0
check() { # library, register, least number of functions, names that may
	n=$((n + 1))
	if ! command -v objdump >/dev/null || ! grep -q '^CFLAGS = .*-O[23]' Makefile ||
	    ! grep -q '^SANITIZE_FLAGS = *$' Makefile; then
		echo "ok $n - $1 # SKIP needs objdump and an optimised build without sanitizers"
		return
	fi
	objdump -d --no-show-raw-insn "$1" | awk -v lib="$1" -v n="$n" -v most=4 \
	    -v store="%$2[0-9]+,-?(0x)?[0-9a-f]*[(]%r[sb]p" \
	    -v fixed="%$2[0-9]+,-?(0x)?[0-9a-f]*[(]%r[sb]p[)]" \
	    -v names='^(amx_(plain|least)_[0-9]+|row8_(vnni_)?[0-9]+|bf16_[0-9]+|q[48]_[01]_[0-9]+|wide_[qtk][0-9](_vnni)?_[0-9]+|(few_)?(pair_)?(scores?|values?)(_(fp8|int8|bf16|f32))?_[1-4]|[kv]_(fp8|int8|bf16|f32))$' \
	    -v cold='^(leaf_init_.*|fast_.*(init|ready|have).*)$' -v allowed="$4" -v floor="$3" '
		function judge(    i, k, inner, count) {
			if (!hot)
				return
			functions++
			for (i = 0; i < loops; i++) {
				inner = 1
				for (k = 0; k < loops && inner; k++)
					inner = k == i || from[k] < from[i] || to[k] > to[i]
				if (!inner)
					continue
				judged++
				count = 0
				for (k = 0; k < stores; k++)
					count += at[k] >= from[i] && at[k] <= to[i]
				if (count > most && index(allowed, " " name " ") == 0) {
					print "# " name ": " count " stores to the stack in a loop"
					bad = 1
				}
			}
		}
		/^[0-9a-f]+ </ {
			judge()
			name = $2
			gsub(/[<>:]/, "", name)
			hot = name !~ cold
			loops = stores = 0
			next
		}
		!hot || !/^ *[0-9a-f]+:\t/ { next }
		{ here = sprintf("%16s", substr($1, 1, length($1) - 1)) }
		# Addresses of equal width are in order as text. A jump out of the function makes no loop.
		$2 ~ /^j/ && index($4, "<" name "+") == 1 && sprintf("%16s", $3) <= here {
			from[loops] = sprintf("%16s", $3)
			to[loops++] = here
		}
		$0 ~ (name ~ names ? store : fixed) { at[stores++] = here }
		END {
			judge()
			print "# " lib ": " judged + 0 " innermost loops of " functions + 0 " functions"
			if (functions < floor || judged < functions)
				bad = 1
			print (bad ? "not ok " : "ok ") n " - the loops of " lib " do not spill"
			exit bad
		}' || failed=1
}
check libkernels_avx512.a zmm 60 ' '
# exp_sum of AVX2: a v16 is two registers, and the polynomial's constants and both halves' steps do not fit
# sixteen; what is stored is a step of the polynomial, once for sixteen values. Sums stay in registers.
check libkernels_avx2.a ymm 50 ' exp_sum '
exit $failed
