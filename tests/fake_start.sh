# The start of the scripts that test clients against the daemon without a model, to be sourced: a
# folder $dir, the daemon on $HOLDFAST_ENDPOINT, both gone at exit, and check, which says a result.
# Descriptor 9 holds the daemon's standard input: it ends when the script does, however that ends.
: "${BUILDDIR:=.}"
dir=$(mktemp -d "${TMPDIR:-/tmp}/holdfast-test-XXXXXX") || exit 99
HOLDFAST_ENDPOINT="ipc://$dir/s"
export HOLDFAST_ENDPOINT
mkfifo "$dir/in"
"$BUILDDIR/tests/fake_daemon" "$HOLDFAST_ENDPOINT" 1000 <"$dir/in" >"$dir/ready" &
daemon=$!
exec 9>"$dir/in"
trap 'exec 9>&-; kill $daemon 2>/dev/null; rm -rf "$dir"' EXIT
i=0
while [ $i -lt 300 ]; do
	grep -q ready "$dir/ready" && break
	i=$((i + 1))
	sleep 0.1
done
count=0
bad=0
check() { # 0 if it is right, what was tested
	count=$((count + 1))
	if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; bad=1; fi
}
