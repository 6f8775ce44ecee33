#!/bin/sh
# Goal: the script for a GPU machine goes as far as it can without one, and does not say of a machine without
# one that all is well. Method: its dry mode, each step, a line of JSON, turned into TAP; then all of it with
# every GPU hidden; then what it carries to another machine.
set -u
SRCDIR=${SRCDIR:-$(dirname "$0")/..}
BUILDDIR=${BUILDDIR:-.}
if [ ! -x "$BUILDDIR/holdfastd" ]; then
	echo "1..1"
	echo "ok 1 - gpu.sh # SKIP the program is not built"
	exit 0
fi
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
failed=0
sh "$SRCDIR/tests/gpu.sh" --dry "$SRCDIR" "$BUILDDIR" >"$work/dry"
awk '
	{
		split($0, q, "\"")
		if (q[8] == "ok" || q[8] == "skipped") printf "ok %d - %s%s\n", NR, q[4], q[8] == "ok" ? "" : " # SKIP " q[14]
		else { printf "not ok %d - %s\n", NR, q[4]; bad = 1 }
	}
	END { exit bad || NR < 25 }' "$work/dry" || failed=1
count=$(wc -l <"$work/dry")

tap() { # 0 or 1, what
	count=$((count + 1))
	if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; failed=1; fi
}

CUDA_VISIBLE_DEVICES='' GPU_SECONDS=30 sh "$SRCDIR/tests/gpu.sh" "$SRCDIR" "$BUILDDIR" >"$work/hidden" 2>"$work/words"
[ $? = 1 ] && awk '
	!/^[{]"step": "[^"]*", "result": "(ok|failed|skipped)", "s": [0-9]+(, .*)?[}]$/ { print "# " $0; bad = 1 }
	/"step": "(vectors|GPU|without|memcheck|racecheck|initcheck|synccheck|bench|shapes)/ { steps++ }
	/"step": "(vectors|GPU|without|memcheck|racecheck|initcheck|synccheck|bench|shapes).*"(ok|skipped)"/ { print "# " $0; bad = 1 }
	END { exit bad || steps < 15 }' "$work/hidden"
tap $? "without a GPU every step that needs one fails, in JSON"

# What is reckoned on paper is what the README says.
"${PYTHON_FOR_TESTS:-python3}" "$SRCDIR/tests/bench/gpu_bounds.py" >"$work/paper" &&
	grep '^| ' "$work/paper" >"$work/steps" && [ "$(wc -l <"$work/steps")" = 29 ] &&
	! grep -vxFf "$SRCDIR/kernels/cuda/README.md" "$work/steps" | sed 's/^/# not in the README: /' | grep .
tap $? "the bounds of each kernel and the predicted times of a step"

# Where BUILD is empty it is made: by a configure and a make that are stand-ins, and say how they were called.
mkdir -p "$work/source/tests" "$work/bin" "$work/empty" "$work/empty2"
cp "$SRCDIR/tests/gpu.sh" "$work/source/tests/"
cat >"$work/source/configure" <<'END'
#!/bin/sh
printf 'configure %s in %s\n' "$*" "$(basename "$PWD")" >>"$WORK/called"
: >Makefile
END
cat >"$work/bin/make" <<'END'
#!/bin/sh
printf 'make %s\n' "$*" >>"$WORK/called"
[ -f Makefile ] || exit 1
[ ! -f "$WORK/broken" ] || { echo 'no rule for it' >&2; exit 2; }
for f; do case $f in */* | holdfastd) mkdir -p "$(dirname "$f")" && printf '#!/bin/sh\nexit 1\n' >"$f" && chmod +x "$f" ;; esac; done
END
printf '#!/bin/sh\necho 9.0\n' >"$work/bin/nvidia-smi"
chmod +x "$work/source/configure" "$work/bin/make" "$work/bin/nvidia-smi"
export WORK="$work"
made() { # BUILD
	PATH=$work/bin:$PATH sh "$work/source/tests/gpu.sh" --dry "$work/source" "$work/$1" 2>"$work/words"
}
made empty >"$work/made"
: >"$work/broken"
made empty2 >"$work/failed"
grep -q '"step": "build", "result": "ok"' "$work/made" && [ "$(grep -c '"step": "has .*"ok"' "$work/made")" = 8 ] &&
	grep -qx 'configure -q --with-cuda --with-cuda-arch=90 in empty' "$work/called" &&
	grep -qx 'make -s -j [0-9]* holdfastd tests/make_tiny tests/gpu_cuda .* tests/bench/bench_gpu' "$work/called" &&
	grep -q '"step": "build", "result": "failed"' "$work/failed" && grep -q 'no rule for it' "$work/words" &&
	grep -q '"step": "has holdfastd", "result": "failed"' "$work/failed"
tap $? "an empty folder is built in, for the GPU that is there"

! sh "$SRCDIR/tests/gpu.sh" --carry "$work/nothing" "$work/carried" 2>"$work/words"
tap $? "what is not there is not carried"
if [ -n "${HOLDFAST_SANITIZED:-}" ]; then
	count=$((count + 1))
	echo "ok $count - what is carried runs # SKIP the same in the plain build"
else
	sh "$SRCDIR/tests/gpu.sh" --carry "$BUILDDIR" "$work/carry" &&
		LD_LIBRARY_PATH=$work/carry/lib "$work/carry/holdfastd" --help >"$work/words" &&
		LD_LIBRARY_PATH=$work/carry/lib "$work/carry/tests/make_tiny" "$work/tiny.gguf" 7
	tap $? "what is carried runs"
fi
echo "1..$count"
exit $failed
