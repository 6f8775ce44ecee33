#!/bin/sh
# The hot loops of the vector leaves keep their sums in registers: gcc has put them on the stack
# before, and clang too, at half the speed, and nothing else would show it. A sum on the stack is
# stored there in each round, so this counts the stores of whole vector registers to the stack
# within innermost loops: from the target of a jump backward to the jump, with no other such in it.
# Reads do not count: constants and weights that the loop takes from the stack cost it nothing.
# Four are allowed: the weights of four heads are stored there on purpose, and clang has that loop
# as an innermost one.
set -u
LC_ALL=C
export LC_ALL
cd "$BUILDDIR" || exit 1
echo 1..2
n=0
failed=0
check() { # library, register
	n=$((n + 1))
	if ! command -v objdump >/dev/null || ! grep -q '^CFLAGS = .*-O[23]' Makefile ||
	    ! grep -q '^SANITIZE_FLAGS = *$' Makefile; then
		echo "ok $n - $1 # SKIP needs objdump and an optimised build without sanitizers"
		return
	fi
	objdump -d --no-show-raw-insn "$1" | awk -v lib="$1" -v n="$n" -v most=4 \
	    -v store="%$2[0-9]+,-?(0x)?[0-9a-f]*[(]%r[sb]p" \
	    -v names='^(amx_(plain|least)_[0-9]+|row8_(vnni_)?[0-9]+|bf16_[0-9]+|q[48]_[01]_[0-9]+|wide_[qtk][0-9](_vnni)?_[0-9]+|(few_)?(pair_)?(scores?|values?)(_(fp8|int8|bf16|f32))?_[1-4]|[kv]_(fp8|int8|bf16|f32))$' '
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
				if (count > most) {
					print "# " name ": " count " stores to the stack in a loop"
					bad = 1
				}
			}
		}
		/^[0-9a-f]+ </ {
			judge()
			name = $2
			gsub(/[<>:]/, "", name)
			hot = name ~ names
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
		$0 ~ store { at[stores++] = here }
		END {
			judge()
			print "# " lib ": " judged + 0 " innermost loops of " functions + 0 " functions"
			if (functions < 10 || judged < functions)
				bad = 1
			print (bad ? "not ok " : "ok ") n " - the loops of " lib " do not spill"
			exit bad
		}' || failed=1
}
check libkernels_avx512.a zmm
check libkernels_avx2.a ymm
exit $failed
