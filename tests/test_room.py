"""Goal: a daemon whose disk is full refuses what is new in clear words, ends what runs, and goes on by itself when there is
room; its log is anchored in a second folder; its old entries move to segments. Method: a daemon on a small file system
in memory, where that can be mounted; then verify and archive from the command line."""
import os
import shutil
import subprocess
import tempfile

import ar1
from ar1 import BUILD, Refused, Tap, Wire
from daemon_rig import MODEL, audit, begin, kill, left_clean, until, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96")


def start(*options, home=None):
    return begin(home, *OPTIONS, *options)


def refused(wire, method, a=None, **more):
    try:
        reply = wire.call(method, a or {}, **more)
        return reply.end.get("err", {}).get("n", "")
    except Refused as no:
        return no.name


def full():
    folder = tempfile.mkdtemp(prefix="hf-room-")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "tmpfs", folder], capture_output=True).returncode == 0
    if not mounted:
        shutil.rmtree(folder)
        return "skip needs the right to mount a small tmpfs"
    try:
        daemon = start("--state", f"{folder}/state", "--audit-headroom", "256K")
        wire = Wire(daemon.endpoint)
        session = wire.open()
        right = wire.turn(session, words(30), max_tokens=5, ignore_end=True)
        with open(f"{folder}/filler", "wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(4096))
            except OSError:
                pass
        # What was reserved is used up by half; then what is new is refused, and what runs ends within the rest.
        turns = 1
        try:
            while True:
                ended = wire.turn(session, words(4), max_tokens=4, ignore_end=True)
                assert ended.status == "limit", ended.end
                turns += 1
                assert turns < 200
                if turns % 8 == 0:
                    wire.ok("session.rollback", {"to_turn": 1}, sess=session)
        except Refused as no:
            assert no.name == "log_full", no
        assert turns > 1
        until(lambda: "no room for the audit log" in daemon.words())
        other = Wire(daemon.endpoint)
        assert refused(other, "session.open", {"template": "none"}) == "log_full"
        assert refused(other, "session.turn", {"tokens": True, "max_tokens": 2}, sess=session) == "log_full"
        shown = other.ok("session.show", sess=session)["r"]
        assert shown["history"] >= right.usage["history"], shown
        assert daemon.process.poll() is None
        os.remove(f"{folder}/filler")
        until(lambda: "has room again" in daemon.words())
        assert wire.turn(session, words(5), max_tokens=5, ignore_end=True).status == "limit"
        wire.ok("session.close", sess=session)
        left_clean(daemon)
        assert audit(f"{folder}/state", "verify")[0]["ok"]
    finally:
        subprocess.run(["umount", "-l", folder], check=False)
        os.rmdir(folder)


def anchored():
    daemon = start("--anchor-ms", "50")
    home = daemon.home
    left_clean(daemon)
    daemon = start("--anchor", f"{home}/second", "--anchor-ms", "50", home=home)
    wire = Wire(daemon.endpoint)
    session = wire.open()
    wire.turn(session, words(30), max_tokens=5, ignore_end=True)
    def by(state=f"{home}/state", code=0, *more):
        return audit(state, "verify", "--anchor", f"{home}/second", *more, code=code)[0]
    until(lambda: by()["tail"] == 0)  # beside the running daemon
    verdict = by()
    assert verdict["ok"] and verdict["anchored"] == verdict["entries"] > 5 and verdict["signed"] == verdict["anchors"] > 0, verdict
    assert verdict["proven"] and audit(f"{home}/state", "verify")[0]["anchored"] == 0
    # Whole, but not proven: without the anchors' keys, and without the log's.
    os.mkdir(f"{home}/nothing")
    alone = by(f"{home}/state", 3, "--anchor-key", f"{home}/nothing")
    assert alone["ok"] and not alone["proven"] and alone["signed"] == 0 < alone["anchors"], alone
    kill(daemon)
    shutil.copytree(f"{home}/state", f"{home}/bare", ignore=shutil.ignore_patterns("keys"))
    bare = by(f"{home}/bare", 3)
    assert bare["ok"] and not bare["proven"] and not bare["keys"] and bare["signed"] == bare["anchors"], bare
    said = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", f"{home}/bare", "verify"], capture_output=True, text=True)
    assert said.returncode == 3 and "not proven: the file 'keys' is not here" in said.stdout, said
    shutil.copytree(f"{home}/state", f"{home}/before")
    daemon = start("--anchor", f"{home}/second", "--anchor-ms", "50", home=home)
    left_clean(daemon)
    assert by()["tail"] == 0
    # The older copy, put in its place: the chain is whole, and yet it is told.
    shutil.rmtree(f"{home}/state")
    shutil.move(f"{home}/before", f"{home}/state")
    assert audit(f"{home}/state", "verify")[0]["ok"]
    assert by(code=1)["error"] == "integrity"
    done = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--state", f"{home}/state", "--anchor", f"{home}/second",
                           "--listen", f"ipc://{home}/x"], capture_output=True, text=True, timeout=60 * ar1.SLOW)
    assert done.returncode == 1 and "an old copy was put in its place" in done.stderr, done.stderr


def segments():
    daemon = start("--audit-history", "40")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    for _ in range(3):
        wire.turn(session, words(10), max_tokens=10, ignore_end=True)
    state = f"{daemon.home}/state"
    before = audit(state, "session", session.hex())
    assert audit(state, "archive", code=1) == [{"moved": 0}]  # the daemon has it
    left_clean(daemon)
    entries = audit(state, "verify")[0]["entries"]
    assert audit(state, "archive", 5) == [{"moved": entries - 5}]
    verdict = audit(state, "verify")[0]
    assert verdict["ok"] and verdict["archived"] == entries - 5 and verdict["first"] == 1, verdict
    assert audit(state, "session", session.hex()) == before
    daemon = start(home=daemon.home)
    wire = Wire(daemon.endpoint)
    assert wire.turn(session, words(5), max_tokens=3, ignore_end=True).end["turn"] == 4
    assert audit(state, "session", session.hex())[:len(before)] == before
    left_clean(daemon)


for what, test in (("a full disk", full), ("anchors in a second folder", anchored), ("old entries in segments", segments)):
    tap.run(what, test)
raise SystemExit(tap.done())
