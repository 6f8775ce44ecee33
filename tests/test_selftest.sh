#!/bin/sh
# Goal: the self-test finds every fault that it makes, and says so in its last line; a daemon that looks at nothing
# is found out. Method: a tiny random model, and the real one where HOLDFAST_MODEL names it.
set -u
BUILDDIR=${BUILDDIR:-.}
count=0
failed=0
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
faults=${HOLDFAST_FAULTS:-1000}
[ -z "${HOLDFAST_SANITIZED:-}" ] || faults=200

tap() { # 0 or 1, what
	count=$((count + 1))
	if [ "$1" = 0 ]; then
		echo "ok $count - $2"
	else
		echo "not ok $count - $2"
		failed=1
	fi
}

field() { # key; of the last line
	tail -n 1 "$folder/out" | sed "s/.*\"$1\": \([0-9a-z]*\).*/\1/"
}

sum() { # keys; of the last line
	total=0
	for key in "$@"; do
		total=$((total + $(field "$key")))
	done
	echo $total
}

# Each fault that a batch, a digest or a read meets is found by that, one by one; a process that ends there
# takes a batch's with it. What nobody reads again, or where nothing valid is, is of these kinds alone.
found() {
	lost=$((6 * $(field crash)))
	tags=$(sum tag-device tag-table swap double-assign early-free)
	[ "$(field by_tag)" -le "$tags" ] && [ $(($(field by_tag) + lost)) -ge "$tags" ] &&
		[ $(($(sum by_digest by_copy) + lost)) -ge "$(sum bits-idle bits-disk)" ] &&
		[ "$(field unread)" -le $(($(sum skip-free copy-skip bits-host row) + 2 * lost)) ] &&
		[ "$(field undetected)" = 0 ] && [ "$(sum detected endured unread outside)" = "$(field injected)" ]
}

sound() { # model, faults, what, options
	model=$1 wanted=$2 what=$3
	shift 3
	"$BUILDDIR/holdfastd" selftest --model "$model" --faults "$wanted" --seed 7 --json "$@" \
		>"$folder/out" 2>"$folder/err"
	state=$?
	sed 's/^/# /' "$folder/err" | head -n 5
	tail -n 1 "$folder/out" | sed 's/^/# /'
	[ $state = 0 ] && [ "$(field injected)" -ge "$wanted" ] && found && [ "$(field tokens_wrong)" = 0 ] &&
		[ "$(field sessions_lost)" = 0 ] && [ "$(field ok)" = true ]
	tap $? "$what"
}

"$BUILDDIR/tests/make_tiny" "$folder/tiny.gguf" 7
sound "$folder/tiny.gguf" "$faults" "$faults faults, all found, no wrong token, no session lost"
sound "$folder/tiny.gguf" 200 "200 faults without host memory and disk tier" --host-memory 0 --disk-bytes 0
[ "$(sum bits-host bits-disk copy-skip copy-late)" = 0 ]
tap $? "and then none is made there"
"$BUILDDIR/tests/make_tiny" "$folder/gemma.gguf" 7 gemma3
sound "$folder/gemma.gguf" 200 "200 faults on pages of both groups of a model with windows"
# Bits of pages that are being read: nothing compares there, so they are counted apart, as are the tokens that
# they changed; every other session says its own.
sound "$folder/tiny.gguf" 700 "bits of pages that are being read are outside: neither found nor missed, and nobody else's" --outside
[ "$(field outside)" -ge 5 ] && [ "$(field outside)" = "$(field bits-live)" ] && [ "$(field tokens_outside)" -gt 0 ]
tap $? "and they are said by number, with the tokens that they changed"
# Without checks a wrong page does reach tokens: the test can fail.
"$BUILDDIR/holdfastd" selftest --model "$folder/tiny.gguf" --faults 200 --seed 7 --integrity off --json \
	>"$folder/out" 2>/dev/null
[ $? = 1 ] && [ "$(field tokens_wrong)" -gt 0 ]
tap $? "with --integrity off wrong tokens are counted, and it fails"
for bad in "--faults 0" "--faults x" "--seed" "--nonsense"; do
	"$BUILDDIR/holdfastd" selftest --model "$folder/tiny.gguf" $bad >/dev/null 2>&1
	[ $? = 2 ] || failed=1
done
tap $failed "what makes no sense is refused"
if [ -n "${HOLDFAST_MODEL:-}" ] && [ -z "${HOLDFAST_SANITIZED:-}" ]; then
	sound "$HOLDFAST_MODEL" 60 "60 faults with the real model"
else
	count=$((count + 1))
	echo "ok $count - the real model # SKIP HOLDFAST_MODEL is not set, or a sanitized run"
fi
echo "1..$count"
exit $failed
