#!/bin/sh
# What a program that was compiled yesterday counts on: the library's symbols and their version, sizes and
# places in its structs, enumerators, macros and prototypes, use from C++ and by dlopen. Method: all is read out of
# the header (tests/abi.awk) and compared with tests/abi.txt, which changes only with a new version in
# clients/holdfast.map.
set -u
n=0
check() { n=$((n + 1)); if [ "$1" = 0 ]; then echo "ok $n - $2"; else echo "not ok $n - $2"; fi; }
case "$SANITIZE_FLAGS" in *sanitize*) echo "1..0 # SKIP a program of another build cannot load a sanitizer's library"; exit 0;; esac
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
lib="$BUILDDIR/.libs/libholdfast.so"

{ cat <<'C'
#include <stddef.h>
#include <stdio.h>
#include "clients/client.h"
#define SIZE(t) printf("size %s %zu\n", #t, sizeof(struct t))
#define AT(t, f) printf("at %s.%s %zu %zu\n", #t, #f, offsetof(struct t, f), sizeof(((struct t *)0)->f))
int main(void)
{
C
awk -f "$SRCDIR/tests/abi.awk" "$SRCDIR/clients/client.h"
echo 'return 0; }'; } >"$dir/abi.c"
$CC -I"$SRCDIR" -o "$dir/abi" "$dir/abi.c" || echo "# it does not compile"
{ ${NM:-nm} -D --defined-only --with-symbol-versions "$lib" | awk '$3 ~ /^hf_/ { sub(/@@/, " ", $3); print "symbol", $3 }' | sort
  "$dir/abi"; } >"$dir/found"
diff -u "$SRCDIR/tests/abi.txt" "$dir/found" | sed 's/^/# /'
cmp -s "$SRCDIR/tests/abi.txt" "$dir/found"
check $? "symbols and their version, every struct's size and members, enumerators, macros, prototypes are those of tests/abi.txt"
! grep '^unread' "$dir/found" && [ "$(grep -c '^function [^t]' "$dir/found")" = "$(grep -c '^symbol' "$dir/found")" ]
check $? "nothing of the header is passed over: each symbol has its prototype"

cat >"$dir/plain.cc" <<'C'
#include "clients/client.h"
#include <string>
int main()
{
	struct hf_client *c = nullptr;
	struct hf_options o = {};
	o.timeout_ms = 100;
	int code = hf_open("ipc:///nonexistent/s", &o, &c);
	hf_close(&c);
	return std::string(hf_name(code)) == "no_file" ? 0 : 1;
}
C
$CXX -I"$SRCDIR" -o "$dir/plain" "$dir/plain.cc" "$lib" && "$dir/plain"
check $? "a C++ program uses it"

cat >"$dir/opens.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
	for (int i = 0; i < 3; i++) { /* again and again: it leaves nothing behind */
		void *lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
		if (!lib)
			return fprintf(stderr, "%s\n", dlerror()), 1;
		const char *(*name)(int) = (const char *(*)(int))dlvsym(lib, "hf_name", "HOLDFAST_0.1");
		if (!name || strcmp(name(-404), "context_full") != 0 || dlsym(lib, "wire_validate"))
			return 2;
		dlclose(lib);
	}
	return argc - 2;
}
C
$CC -o "$dir/opens" "$dir/opens.c" -ldl && "$dir/opens" "$lib"
check $? "a program opens it by dlopen, by the symbol's version, and finds nothing that is private"
# What it asks of the system, all of it. Not there: what ends a process (but abort, where an invariant of ours is broken), signal
# handlers (sigfillset and pthread_sigmask keep its own threads out of them), words on somebody's stdout or stderr, locales,
# the environment but to read, fork, and anything else that a program would not expect of a library.
allowed='abort calloc malloc realloc free mem* str* bcmp stpcpy snprintf vsnprintf explicit_bzero getenv secure_getenv getuid getrandom
clock_gettime fopen fopen64 fgets fclose open read write close pipe2 fcntl fcntl64 poll socket connect __errno_location
pthread_attr_* pthread_cond_* pthread_mutex_* pthread_create pthread_self pthread_sigmask sigfillset zmq_*
_ITM_* __cxa_finalize __gmon_start__ __stack_chk_fail __tls_get_addr _GLOBAL_OFFSET_TABLE_'
strange() { # of the names on stdin those that no word of the list is; the checked forms of functions are the functions
	while read -r name; do
		case $name in __*_chk) plain=${name#__} plain=${plain%_chk} ;; *) plain=${name#__isoc[0-9][0-9]_} ;; esac
		set -f
		for word in $allowed; do
			# shellcheck disable=SC2254
			case $plain in $word) continue 2 ;; esac
		done
		set +f
		echo "$name"
	done
}
${NM:-nm} -D --undefined-only "$lib" | awk '{ sub(/@.*/, "", $NF); print $NF }' | sort -u >"$dir/asks"
[ "$(wc -l <"$dir/asks")" -gt 20 ] && strange <"$dir/asks" >"$dir/strange" && [ ! -s "$dir/strange" ]
check $? "it asks of the system what the list has: no exit, no signal handler, no words of its own"
sed 's/^/# asked for: /' "$dir/strange"
[ "$(printf '%s\n' exit _exit printf __printf_chk signal sigaction setlocale atexit fork puts setenv system mallopt snprintf | strange | wc -l)" = 13 ]
check $? "and the list would tell of those"
echo "1..$n"
