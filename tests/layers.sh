#!/bin/sh
# Goal: the dependency rule holds. Method: what each folder includes, and what libsched.a calls.
# SRCDIR and BUILDDIR come from make; alone it takes the folder above its own.
set -u
SRCDIR=${SRCDIR:-$(dirname "$0")/..}
BUILDDIR=${BUILDDIR:-.}
NM=${NM:-nm}
count=0
failed=0

tap() { # 0 or 1, what, the reasons
	count=$((count + 1))
	[ -z "$3" ] || printf '%s\n' "$3" | sed 's/^/# /'
	if [ "$1" = 0 ]; then
		echo "ok $count - $2"
	else
		echo "not ok $count - $2"
		failed=1
	fi
}

sources() { # folder
	find "$SRCDIR/$1" -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' \
		-o -name '*.cpp' \) 2>/dev/null
}

includes_ok() { # folder, pattern of what it may include beside config.h
	bad=$(sources "$1" | while IFS= read -r file; do
		grep -HnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$file"
	done | grep -vE "include[[:space:]]*\"($2|config\.h)\"")
	[ -z "$bad" ]
	state=$?
	tap $state "$1/ includes only what it may" "$bad"
}

includes_ok sched 'sched/[a-z_]+\.h'
includes_ok kernels '(kernels/[a-z0-9_/]+\.(h|cuh|inc)|sched/check\.h)'
includes_ok clients '(clients/[a-z0-9_/]+\.h|sched/check\.h|holdfast/[a-z_]+\.h|holdfast\.h)'
includes_ok runtime '(runtime/[a-z0-9_/]+\.(h|inc)|sched/sched\.h|sched/language\.h|sched/check\.h|kernels/ops\.h|clients/wire\.h)'

# Upward or sideways paths would hide a folder from the patterns above.
bad=$(for folder in sched kernels clients runtime; do sources $folder; done |
	while IFS= read -r file; do grep -HnE '#[[:space:]]*include.*(\.\./|tests/)' "$file"; done)
[ -z "$bad" ]
state=$?
tap $state "no include goes up, and none reaches into tests/" "$bad"

# The folders' doors can be opened from C++ too.
for door in sched/check.h sched/sched.h kernels/ops.h kernels/fp8.h clients/wire.h; do
	bad=$(echo "#include \"$door\"" |
		${CXX:-c++} -std=c++17 -Wall -Wextra -Werror -fsyntax-only -I"$SRCDIR" -x c++ - 2>&1)
	state=$?
	tap $state "$door is C++17 as well" "$bad"
done

# In sched/ only check.c may see the system: it ends the process.
bad=$(sources sched | while IFS= read -r file; do
	case $file in */check.c) continue ;; esac
	grep -HnE '#[[:space:]]*include[[:space:]]*<' "$file"
done | grep -vE '<(stddef|stdint|string)\.h>')
[ -z "$bad" ]
state=$?
tap $state "sched/ includes no system header but stddef, stdint, string" "$bad"

# What libsched.a takes from outside. The sanitizers' own calls are not ours.
library=$BUILDDIR/libsched.a
if [ -f "$library" ]; then
	own=$($NM "$library" 2>/dev/null | awk 'NF == 3 && $2 ~ /^[TDBRVW]$/ { print $3 }' | sort -u)
	bad=$($NM "$library" 2>/dev/null | awk '
		/^[^ ].*\.o:$/ { object = $1 }
		$1 == "U" { print object, $2 }' | sort -u | while read -r object symbol; do
		case $symbol in
		memcpy | memmove | memset | memcmp) continue ;;
		__asan_* | __ubsan_* | __tsan_* | __sanitizer_* | __stack_chk_fail) continue ;;
		_GLOBAL_OFFSET_TABLE_) continue ;;
		esac
		# The one who aborts says so on standard error first.
		case $object$symbol in
		*check.o:abort | *check.o:write | *check.o:strlen) continue ;;
		esac
		printf '%s\n' "$own" | grep -qxF "$symbol" || echo "$object $symbol"
	done)
	[ -z "$bad" ] && [ -n "$own" ]
	state=$?
	tap $state "sched/ calls nothing outside but the mem functions" "$bad"
else
	tap 1 "sched/ calls nothing outside but the mem functions" "$library is not there"
fi

echo "1..$count"
exit $failed
