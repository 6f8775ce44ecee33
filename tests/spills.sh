#!/bin/sh
# The hot loops of the vector leaves keep their sums in registers: gcc has put them on the stack
# before (fifty uses a loop), at half the speed, and nothing else would show it. Counts the instructions that name both
# a vector register and the stack, in the functions that are inner loops.
set -u
cd "$BUILDDIR" || exit 1
echo 1..3
n=0
check() { # library, register, names, most that are allowed, what is judged
	n=$((n + 1))
	if ! command -v objdump >/dev/null || ! grep -q '^CFLAGS = .*-O[23]' Makefile ||
	    ! grep -q '^SANITIZE_FLAGS = *$' Makefile; then
		echo "ok $n - $1 # SKIP needs objdump and an optimised build without sanitizers"
		return
	fi
	objdump -d --no-show-raw-insn "$1" | awk -v lib="$1" -v reg="%$2" -v names="^($3)\$" -v most="$4" -v n="$n" -v what="$5" '
		/^[0-9a-f]+ </ { name = $2; gsub(/[<>:]/, "", name); hot = name ~ names; found += hot }
		hot && index($0, reg) && /\(%r[sb]p/ { count[name]++ }
		END {
			bad = found < 10
			if (bad)
				print "# only " found + 0 " functions found"
			for (f in count)
				if (count[f] > most) {
					print "# " f ": " count[f] " uses of the stack"
					bad = 1
				}
			print (bad ? "not ok " : "ok ") n " - the loops of " lib " (" what ") do not spill"
			exit bad
		}' || failed=1
}
failed=0
check libkernels_avx512.a zmm '(q4_[01]|q8_0)_[0-9]+|(score|values)_[1-4]|[kv]_(fp8|int8|bf16|f32)' 12 'many rows'
# Three heads and the decoding of FP8 want more registers than there are; with gcc the sums stay in
# theirs. clang orders these loops so that they do not (up to 78 uses seen): slower there, not wrong.
case ${CC-} in
*clang*)
	n=$((n + 1))
	echo "ok $n - the loops of libkernels_avx512.a (one row) do not spill # SKIP clang spills them" ;;
*) check libkernels_avx512.a zmm 'few_(score|value)_(fp8|int8|bf16)_[1-4]' 20 'one row' ;;
esac
check libkernels_avx2.a ymm '(q4_[01]|q8_0)_[0-9]+|(score|values)_[1-4]|[kv]_(fp8|int8|bf16)' 8 'all'
exit $failed
