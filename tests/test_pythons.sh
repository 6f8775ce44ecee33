#!/bin/sh
# Goal: the package is Python for every version that it says it takes. Method: each interpreter that is found
# (python3.N in PATH, those of pyenv, and what HOLDFAST_PYTHONS names) compiles it; where pyzmq and msgpack
# are there too, it also runs a turn against the fake daemon. With HOLDFAST_PIP=1 (some minutes, and pip must
# reach an index) each also installs the built wheel, by pip in a fresh environment, and there runs the turn and the
# examples, these against the daemon with a tiny model.
set -u
SRCDIR=${SRCDIR:-$(dirname "$0")/..}
BUILDDIR=${BUILDDIR:-.}
. "$SRCDIR/tests/fake_start.sh"
cat >"$dir/turn.py" <<'P'
import asyncio
import holdfast
with holdfast.Client() as client:
    with client.open(system="Be brief.") as session:
        text = "".join(piece.text for piece in session.turn("hello", max_tokens=8))
        assert text, "nothing came"
async def go():
    async with holdfast.AsyncClient() as client:
        async with await client.open() as session:
            assert [p.text async for p in session.turn("hello", max_tokens=8)]
asyncio.run(go())
P
# Nothing of the source folder is on the path of what runs.
installed() { # PYTHON
	rm -rf "$dir/venv"
	"$1" -m venv "$dir/venv" && "$dir/venv/bin/python" -m pip install -q --disable-pip-version-check "$dir"/wheel/*.whl &&
		cd "$dir" && "$dir/venv/bin/python" -I "$dir/turn.py" || return 1
	for example in 'agent.py Look.' 'checkpoint.py t Hello.' 'checkpoint.py t And?' 'forks.py a? b?'; do
		# shellcheck disable=SC2086
		HOLDFAST_ENDPOINT="ipc://$dir/real" FORCE_TOOLS=1 MAX_TOKENS=60 CHECKPOINTS="$dir/checkpoints.$version" \
			"$dir/venv/bin/python" -I "$SRCDIR/clients/python/examples/"$example || return 1
	done
}
real=
if [ -n "${HOLDFAST_PIP:-}" ]; then
	SRCDIR=$(cd "$SRCDIR" && pwd) BUILDDIR=$(cd "$BUILDDIR" && pwd)
	"$BUILDDIR/tests/make_tiny" "$dir/tiny.gguf" 7
	"$BUILDDIR/holdfastd" --model "$dir/tiny.gguf" --template smollm2 --listen "ipc://$dir/real" --state "$dir/state" \
		--cache "$dir/cache" --log error &
	real=$!
	trap 'exec 9>&-; kill $daemon $real 2>/dev/null; wait $real; rm -rf "$dir"' EXIT
	cp -r "$SRCDIR/clients/python" "$dir/package"
	"${PYTHON_FOR_TESTS:-python3}" -m pip wheel -q --disable-pip-version-check --no-deps -w "$dir/wheel" "$dir/package" \
		>"$dir/out" 2>&1
	code=$?
	[ $code = 0 ] || sed 's/^/# /' "$dir/out"
	check $code "pip builds a wheel"
fi
seen=
for python in ${HOLDFAST_PYTHONS:-} $(ls /usr/bin/python3.* "$HOME"/.pyenv/versions/*/bin/python3 2>/dev/null); do
	version=$("$python" -c 'import sys
print("%d.%d" % sys.version_info[:2] if (3, 9) <= sys.version_info else "")' 2>/dev/null) || continue
	[ -n "$version" ] || continue
	libraries=no
	"$python" -c 'import zmq, msgpack' 2>/dev/null && libraries=yes
	case "$seen" in *" $version:yes "*) continue ;; *" $version:$libraries "*) continue ;; esac
	seen="$seen $version:$libraries "
	what="Python $version compiles the package"
	PYTHONPYCACHEPREFIX="$dir/$version" "$python" -W error -m compileall -q -f "$SRCDIR/clients/python/holdfast" \
		"$SRCDIR/clients/python/examples" >"$dir/out" 2>&1
	code=$?
	if [ $code = 0 ] && [ $libraries = yes ]; then
		what="$what, and runs turns with it"
		PYTHONDONTWRITEBYTECODE=1 PYTHONPATH="$SRCDIR/clients/python" "$python" "$dir/turn.py" >"$dir/out" 2>&1
		code=$?
	fi
	[ $code = 0 ] || sed 's/^/# /' "$dir/out"
	check $code "$what"
	[ -n "$real" ] || continue
	(installed "$python") >"$dir/out" 2>&1
	code=$?
	[ $code = 0 ] || sed 's/^/# /' "$dir/out"
	check $code "Python $version installs the wheel by pip, and runs turns and the examples with it"
done
echo "1..$count"
exit $bad
