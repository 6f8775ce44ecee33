"""The clients' RESUME: `holdfast turn` over a relay that cuts its connections, against one that does not; both clients stopped
for longer than a daemon waits for a sign of life."""
import json
import os
import random
import re
import signal
import subprocess
import sys

import ar1
import daemon_rig
from ar1 import BUILD, Tap, Wire
from daemon_rig import balanced, left_clean
from relay import Relay

RANDOM = random.Random(3)
PACKAGE = os.path.join(os.path.abspath(os.environ.get("SRCDIR", ".")), "clients", "python")


def turn(at, session, *more, wait=60):
    done = subprocess.run([f"{BUILD}/holdfast", "turn", "--endpoint", at, "--session", session, "--message", "count", "--max-tokens",
                           "250", "--temperature", "1", "--seed", "5", "--ignore-end", *more],
                          capture_output=True, timeout=wait * ar1.SLOW)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def cut_anywhere(wire):
    code, whole, words = turn(endpoint, wire.open("smollm2").hex())
    assert code == 0 and len(whole) > 100, words
    cuts = done = 0
    while done < 8 or cuts <= 6 and done < 60:  # how much comes on one connection depends on how busy the machine is
        done += 1
        relay = Relay(endpoint)
        left = [RANDOM.randrange(300, 4000) for _ in range(3)]
        relay.cut_when = lambda count: bool(left) and count > left[0] and bool(left.pop(0))
        session = wire.open("smollm2")
        try:
            code, text, words = turn(relay.endpoint, session.hex())
            assert code == 0 and text == whole, (code, words, text[:200], whole[:200])
            cuts += relay.cuts
        finally:
            relay.close()
        assert wire.ok("session.show", sess=session)["r"]["turn"] == 1
        wire.ok("session.close", sess=session)
    assert cuts > 6, cuts
    balanced(wire)


PYTHON = """
import sys
from holdfast import Client
with Client(sys.argv[1]) as client:
    turn = client.session(sys.argv[2]).turn("count", max_tokens=250, temperature=1, seed=5, ignore_end=True)
    for piece in turn:
        sys.stdout.buffer.write(piece.text.encode())
        sys.stdout.flush()
"""


def metric(wire, name):
    return int(re.search(rf"^holdfast_{name} (\d+)", wire.ok("metrics")["r"]["text"], re.M)[1])


def connections(daemon):
    return sum(os.readlink(f"/proc/{daemon.process.pid}/fd/{n}").startswith("socket:") for n in os.listdir(f"/proc/{daemon.process.pid}/fd"))


def asleep(_):
    """H8: a client that is stopped for longer than silence may last keeps its connection, for which the kernel answers, and no
    more: its call has no reader, and ends where it named no time for that. A client of ours that wakes goes on with it."""
    slow = min(ar1.SLOW, 4)
    own = daemon_rig.narrow("--turns", "1", "--heartbeat-ms", str(100 * slow), "--stall-ms", str(400 * slow), "--window-max", "60")
    watcher, before, children, granted = Wire(own.endpoint), Wire(own.endpoint), [], [1]
    raw = ("import sys; sys.path.insert(0, %r); import ar1; w = ar1.Wire(sys.argv[1]); w.begin('session.turn', {'tokens': True, 'max_tokens': "
           "9, 'ignore_end': True}, ar1.pack([5] * 50), sess=bytes.fromhex(sys.argv[2])); import time; time.sleep(600)" % os.path.dirname(os.path.abspath(ar1.__file__)))
    try:
        code, whole, said = turn(own.endpoint, watcher.open("smollm2").hex())
        whole = whole.rstrip("\n")
        assert code == 0 and len(whole) > 200, (said, len(whole))  # more than one window of what the daemon takes

        def until(what):
            """The turn before theirs goes on meanwhile, and does not end."""
            def looks():
                granted[0] += 1
                before.send(ar1.WINDOW, 0, {"op": op, "max_off": granted[0]})
                return what()
            daemon_rig.until(looks)

        for outlives, command in ((True, [f"{BUILD}/holdfast", "turn", "--endpoint", own.endpoint, "--session", None, "--message", "count",
                                          "--max-tokens", "250", "--temperature", "1", "--seed", "5", "--ignore-end"]),
                                  (True, [sys.executable, "-c", PYTHON, own.endpoint, None]), (False, [sys.executable, "-c", raw, own.endpoint, None])):
            first = before.open()
            granted[0] = 1
            channel = before.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, ar1.pack([7] * 20), sess=first, window=1)
            op = daemon_rig.await_message(before, ar1.ACCEPTED, channel)["op"]
            session = watcher.open("smollm2")
            child = subprocess.Popen([session.hex() if part is None else part for part in command], stdout=subprocess.PIPE,
                                     env={**os.environ, "PYTHONPATH": PACKAGE, "PYTHONDONTWRITEBYTECODE": "1"})
            children.append(child)
            until(lambda: metric(watcher, "turns_waiting") == 1)
            child.send_signal(signal.SIGSTOP)
            there, resumed = connections(own), metric(watcher, "resumes_total")
            until(lambda: metric(watcher, "turns_detached") == 1 if outlives else metric(watcher, "turns_waiting") == 0)
            assert connections(own) == there
            if outlives:
                child.send_signal(signal.SIGCONT)
                until(lambda: metric(watcher, "resumes_total") > resumed)
            else:
                child.kill()
                until(lambda: connections(own) < there)
            before.send(ar1.CANCEL, channel, {})
            if outlives:
                text, _ = child.communicate(timeout=30 * ar1.SLOW)
                assert child.returncode == 0 and text.decode(errors="replace").rstrip("\n") == whole, (command[0], text, whole)
            daemon_rig.await_message(before, ar1.END, channel)
            for each in (first, session):
                watcher.ok("session.close", sess=each)
        balanced(watcher)
        watcher.close()
        before.close()
    finally:
        for child in children:
            child.kill()
            child.wait()
        assert own.stop() == 0


daemon = daemon_rig.start()
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("a turn whose connection is cut anywhere prints what it would have printed", cut_anywhere),
    ("who sleeps longer than the daemon waits", asleep)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
