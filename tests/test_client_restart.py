"""The clients over a daemon's restart: the C library in both forms, the Python package in both, and the command line go on
with their streams, without gap or repeat, when the daemon is killed in the middle and another comes on its state; one
that stays away, for longer than the call may outlive its connection or than the call's own deadline, is an error that says so.

Method: the daemon takes small windows only, so that an answer takes many grants. When its first byte is there the client is stopped,
then the daemon is killed, then the client goes on: the answer has begun and cannot be over. The one after it counts RESUMEs.
"""
import os
import re
import signal
import subprocess
import sys
import time

import ar1
import daemon_rig
from ar1 import BUILD, Tap, Wire
from daemon_rig import begin, kill, left_clean

PACKAGE = os.path.join(os.path.abspath(os.environ.get("SRCDIR", ".")), "clients", "python")
OPTIONS = ["--template", "smollm2", "--kv-memory", "600000", "--window-max", "60", "--stream-bytes", "1024"]
SAID = ["ok", "limit"]

PYTHON = """
import sys
sys.path.insert(0, sys.argv[1])
from holdfast import Client, Error
out, status = sys.stdout.buffer, "-"
try:
    with Client(sys.argv[2], resume=float(sys.argv[4]) / 1000) as client:
        turn = client.session(sys.argv[3]).turn("count", max_tokens=600, temperature=1, seed=5, ignore_end=True,
                                                deadline=float(sys.argv[5]) / 1000 or None)
        for piece in turn:
            out.write(piece.text.encode())
            out.flush()
        print("ok", turn.end.status, file=sys.stderr)
except Error as e:
    print(e.name, "-", file=sys.stderr)
"""
ASYNCIO = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from holdfast import AsyncClient, Error
async def go():
    out = sys.stdout.buffer
    try:
        async with AsyncClient(sys.argv[2], resume=float(sys.argv[4]) / 1000) as client:
            turn = client.session(sys.argv[3]).turn("count", max_tokens=600, temperature=1, seed=5, ignore_end=True,
                                                    deadline=float(sys.argv[5]) / 1000 or None)
            async for piece in turn:
                out.write(piece.text.encode())
                out.flush()
            print("ok", turn.end.status, file=sys.stderr)
    except Error as e:
        print(e.name, "-", file=sys.stderr)
asyncio.run(go())
"""


def command(name, endpoint, session, resume_ms, deadline_ms):
    if name in ("blocking", "started"):
        return [f"{BUILD}/tests/stream_turn", endpoint, session, name, str(resume_ms), str(deadline_ms)]
    if name in ("sync", "asyncio"):
        return [sys.executable, "-B", "-c", PYTHON if name == "sync" else ASYNCIO, PACKAGE, endpoint, session, str(resume_ms), str(deadline_ms)]
    return [f"{BUILD}/holdfast", "turn", "--endpoint", endpoint, "--session", session, "--message", "count", "--max-tokens", "600",
            "--temperature", "1", "--seed", "5", "--ignore-end", *(["--deadline", str(deadline_ms)] if deadline_ms else [])]


def begun(name, wire, endpoint, resume_ms, deadline_ms=0):
    """A client whose answer has begun, and which is stopped; its first bytes."""
    child = subprocess.Popen(command(name, endpoint, wire.open("smollm2").hex(), resume_ms, deadline_ms), stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    first = os.read(child.stdout.fileno(), 1)
    child.send_signal(signal.SIGSTOP)
    assert first, child.communicate()
    return child, first


def heard(child, first):
    text, words = child.communicate(timeout=60 * ar1.SLOW)
    return (first + text).decode(errors="replace").rstrip("\n"), words.decode(errors="replace")


def right(name, text, words, whole):
    assert text == whole, (name, words, len(text), len(whole))
    if name == "command line":
        assert "error" not in words and "closed" not in words, words
    else:
        assert words.split() == SAID, words


def resumes(wire):
    return int(re.search(r"^holdfast_resumes_total (\d+)", wire.ok("metrics")["r"]["text"], re.M)[1])


def goes_on(name):
    home, children = daemon.home, []
    wire = Wire(at[0].endpoint)
    try:
        child, first = begun(name, wire, at[0].endpoint, 60000 * ar1.SLOW)
        children.append(child)
        wire.close()
        kill(at[0])
        child.send_signal(signal.SIGCONT)
        time.sleep(0.3)  # it looks for a daemon while there is none
        at[0] = begin(home, *OPTIONS, model=daemon_rig.MODEL)
        text, words = heard(child, first)
        wire = Wire(at[0].endpoint)
        right(name, text, words, whole[0])
        assert resumes(wire) == 1, resumes(wire)
        sessions = wire.ok("session.list")["r"]
        assert [s["turn"] for s in sessions] == [1], sessions
        wire.ok("session.close", sess=sessions[0]["id"] if "id" in sessions[0] else sessions[0]["sess"])
        wire.close()
    finally:
        for child in children:
            child.kill()
            child.wait()


def stays_away(_):
    """Gone for longer than a call outlives its connection, and for longer than the call's own deadline."""
    for name in NAMES:
        for resume_ms, deadline_ms in ((500, 0), (60000, 1500 * min(ar1.SLOW, 2))):
            if name == "command line" and not deadline_ms:
                continue  # it has no such option, and half a minute is long
            wire = Wire(at[0].endpoint)
            child, first = begun(name, wire, at[0].endpoint, resume_ms, deadline_ms)
            wire.close()
            kill(at[0])
            began = time.monotonic()
            child.send_signal(signal.SIGCONT)
            try:
                text, words = heard(child, first)
            finally:
                child.kill()
            took = time.monotonic() - began
            print(f"# {name}, resume {resume_ms} ms, deadline {deadline_ms} ms: {took:.1f} s, {words.strip()}")
            assert took < 10 * ar1.SLOW, (name, resume_ms, deadline_ms, took)
            assert whole[0].startswith(text) and text != whole[0], (name, text)
            error = "deadline" if deadline_ms else "closed"
            assert words.split()[0] == error if name != "command line" else error in words and child.returncode != 0, (name, words)
            at[0] = begin(daemon.home, *OPTIONS, model=daemon_rig.MODEL)


NAMES = ("blocking", "started", "sync", "asyncio", "command line")
daemon = daemon_rig.Daemon(daemon_rig.MODEL, *OPTIONS)
at, whole = [daemon], [""]


def undisturbed():
    wire = Wire(daemon.endpoint)
    for name in NAMES:
        session = wire.open("smollm2")
        done = subprocess.run(command(name, daemon.endpoint, session.hex(), 60000, 0), stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=60 * ar1.SLOW)
        text, words = done.stdout.decode(errors="replace").rstrip("\n"), done.stderr.decode(errors="replace")
        whole[0] = whole[0] or text
        assert len(text) > 400, (name, words)
        right(name, text, words, whole[0])
        wire.ok("session.close", sess=session)
    wire.close()


tap = Tap()
tap.run("five clients print the same answer of a daemon that lives", undisturbed)
for client in NAMES:
    tap.run(f"killed in the middle and started again, {client}: the same, with no gap and no repeat", goes_on, client)
tap.run("a daemon that stays away is an error, in time", stays_away, None)
tap.run("it ends with 0 at once, and no sanitizer spoke", lambda: left_clean(at[0]))
daemon_rig.finish(tap, at[0])
