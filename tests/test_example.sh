#!/bin/sh
# The examples of clients/README.md: cut out, compiled against the header as it is installed and the
# built library, and run against the daemon without a model.
set -u
: "${SRCDIR:=.}" "${CC:=cc}" "${PYTHON_FOR_TESTS:=python3}"
. "$SRCDIR/tests/fake_start.sh"

# The code block behind a mark.
cut_out() {
	awk -v mark="<!-- $1 -->" '$0 == mark { found = 1; next }
		found && /^```/ { if (inside) exit; inside = 1; next }
		inside { print }' "$SRCDIR/clients/README.md" >"$dir/$1"
	[ -s "$dir/$1" ]
}
want='I look. The tool says a result
stop; 4 tokens were computed'

mkdir "$dir/holdfast"
cp "$SRCDIR/clients/client.h" "$dir/holdfast/client.h"
LD_LIBRARY_PATH="$BUILDDIR/.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export LD_LIBRARY_PATH
# shellcheck disable=SC2086
cut_out example.c && $CC ${CFLAGS:-} ${SANITIZE_FLAGS:-} -std=c11 -Wall -Wextra -Werror -I"$dir" \
	-o "$dir/example" "$dir/example.c" -L"$BUILDDIR/.libs" -lholdfast >"$dir/log" 2>&1
check $? "the C example compiles against the installed header and the library alone"
sed 's/^/# /' "$dir/log"
got=$("$dir/example" 9>&-)
[ "$got" = "$want" ]
check $? "it runs"
[ "$got" = "$want" ] || echo "$got" | sed 's/^/# /'
(cd "$dir" && echo '#include <holdfast/client.h>' >alone.cc &&
	${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I. alone.cc)
check $? "the header is C++ as well"
# What the library shows to a program is its own.
other=$(${NM:-nm} -D --defined-only "$BUILDDIR/.libs/libholdfast.so" | awk '{ print $3 }' | grep -v '^hf_\|^HOLDFAST_')
[ -z "$other" ]
check $? "the library exports hf_ and nothing else"
[ -z "$other" ] || echo "$other" | sed 's/^/# /'
if "$PYTHON_FOR_TESTS" -c 'import zmq, msgpack' 2>/dev/null; then
	cut_out example.py
	got=$(PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$SRCDIR/clients/python" "$PYTHON_FOR_TESTS" "$dir/example.py" 9>&-)
	[ "$got" = "$want" ]
	check $? "the Python example runs"
	[ "$got" = "$want" ] || echo "$got" | sed 's/^/# /'
else
	count=$((count + 1))
	echo "ok $count - the Python example runs # SKIP pyzmq and msgpack are not here"
fi
echo "1..$count"
exit $bad
