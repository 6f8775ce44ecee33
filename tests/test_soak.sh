#!/bin/sh
# Goal: messages without end leave nothing behind: no memory, no call. Method: the daemon with a scripted
# engine takes small calls and streams over its socket in turn; each must have its END, and anonymous memory
# at the end is held against that after the beginning. HOLDFAST_SOAK=10000000 is a day's worth.
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
echo 1..1
