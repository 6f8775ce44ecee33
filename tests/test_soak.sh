#!/bin/sh
# Goal: messages without end leave nothing behind: no memory, no call. Method: the daemon with a scripted
# engine takes small calls and streams over its socket in turn; each must have its END, and anonymous memory
# at the end is held against that after the beginning, and the heap of the second half against its messages: less
# than a byte for every four, where one lost allocation a stream's message would be more. HOLDFAST_SOAK=10000000 is a day's worth.
set -u
BUILDDIR=${BUILDDIR:-.}
messages=${HOLDFAST_SOAK:-400000}
[ -z "${HOLDFAST_SANITIZED:-}" ] || messages=${HOLDFAST_SOAK:-60000}
# What is freed stays in the sanitizer's quarantine, by default 256 MB of it: that is no growth of ours.
ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=1:thread_local_quarantine_size_kb=64"
export ASAN_OPTIONS
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$BUILDDIR/tests/make_tiny" "$folder/tiny.gguf" 7
if out=$("$BUILDDIR/tests/bench/bench_wire" "$folder/tiny.gguf" soak "$messages" 2>&1); then
	echo "ok 1 - $(echo "$out" | tail -n 1)"
else
	echo "$out" | sed 's/^/# /'
	echo "not ok 1 - messages without end leave nothing behind"
fi

# Whatever it is called with that is wrong, it says so at once.
wrong=
says() { # exit code, words
	code=$1
	shift
	said=$(timeout 60 "$BUILDDIR/tests/bench/bench_wire" "$@" 2>&1)
	[ $? = "$code" ] && case $said in *bench_wire*) true ;; *) false ;; esac || wrong="$wrong [$*]"
}
says 2
says 2 latency
says 2 "$folder"
says 2 "$folder/none" data
says 2 "$folder/tiny.gguf" later
says 2 "$folder/tiny.gguf" idle many
says 2 "$folder/tiny.gguf" soak 0
says 2 "$folder/tiny.gguf" latency 10
says 2 "$folder/tiny.gguf" soak 10 10
echo "no model" >"$folder/text"
says 1 "$folder/text" data
if [ -z "$wrong" ]; then
	echo "ok 2 - a bench that is called wrongly says how"
else
	echo "not ok 2 - a bench that is called wrongly says how:$wrong"
fi
echo 1..2
