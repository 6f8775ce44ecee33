#!/bin/sh
# Goal: the script for a GPU machine goes as far as it can without one. Method: its dry mode; each step
# is a line of JSON here turned into TAP.
set -u
SRCDIR=${SRCDIR:-$(dirname "$0")/..}
BUILDDIR=${BUILDDIR:-.}
if [ ! -x "$BUILDDIR/holdfastd" ]; then
	echo "1..1"
	echo "ok 1 - gpu.sh # SKIP the program is not built"
	exit 0
fi
sh "$SRCDIR/tests/gpu.sh" --dry "$SRCDIR" "$BUILDDIR" | awk '
	{
		split($0, q, "\"")
		if (q[8] == "ok" || q[8] == "skipped") printf "ok %d - %s%s\n", NR, q[4], q[8] == "ok" ? "" : " # SKIP " q[14]
		else { printf "not ok %d - %s\n", NR, q[4]; bad = 1 }
	}
	END { print "1.." NR; exit bad || NR < 25 }'
