#!/bin/sh
# Goal: the package is Python for every version that it says it takes. Method: each interpreter that is found
# (python3.N in PATH, those of pyenv, and what HOLDFAST_PYTHONS names) compiles it; where pyzmq and msgpack
# are there too, it also runs a turn against the fake daemon.
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
done
echo "1..$count"
exit $bad
