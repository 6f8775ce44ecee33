"""Goal: a machine that stands still for a while, a disk that does not answer, and a log that is put back from a copy made under
load take nothing from anybody. Method: the daemon is stopped (SIGSTOP) for longer than leases, deadlines and detach times last; a
flush that takes seconds, while a turn streams; LMDB's own copy of the log, taken by another program while turns run, opened
by a daemon of its own."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import ar1
from ar1 import END, HELLO, WELCOME, WINDOW, Refused, Reply, Tap, Wire
from daemon_rig import Subscriber, ask, audit, await_message, begin, left_clean, more_of_it, resume, unsanitary, until, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "1200000", "--chunk", "64", "--batch-rows", "96", "--stream-bytes", "1024")
SOON = 3000 * min(ar1.SLOW, 3)  # ms: longer than what is begun in it takes, shorter than the pause
GIVEN, MORE = words(20), {"max_tokens": 900, "temperature": 0.8, "seed": 9}


def begun(wire, **more):
    """A turn that waits for credit after its first tokens."""
    a, blob = ask(GIVEN, **MORE)
    session = wire.open()
    channel = wire.begin("session.turn", a, blob, sess=session, window=8, **more)
    reply = wire.finish(channel, tokens=1)
    return session, channel, reply


def turns_ended(state, session):
    return [line for line in audit(state, "session", session.hex()) if line["kind"] == "turn_end"]


def paused():
    daemon = begin(None, *OPTIONS)
    state = f"{daemon.home}/state"
    wires = [Wire(daemon.endpoint) for _ in range(4)]
    events = Subscriber(daemon.endpoint + "-events")
    events.settle(wires[0])
    a, blob = ask(GIVEN, **MORE)
    right = wires[0].call("session.turn", a, blob, sess=wires[0].open())
    assert "does not answer" not in daemon.words(), daemon.words()
    began = time.time()
    leased = wires[0].open(residency={"kind": "leased", "bytes": 40000, "lease_ms": SOON})
    stays = begun(wires[0], detach_ms=60000, idem=os.urandom(16))
    late = begun(wires[1], deadline_ms=SOON)
    left = begun(wires[2], detach_ms=SOON)
    kept = begun(wires[3], detach_ms=600000)
    wires[2].close()
    wires[3].close()
    time.sleep(0.2)
    daemon.process.send_signal(signal.SIGSTOP)
    assert time.time() - began < SOON / 1000, "the machine is too slow for this test"
    time.sleep(SOON / 1000 + 1.5)
    daemon.process.send_signal(signal.SIGCONT)
    # The one whose deadline passed ends by that, once; and so does the one that nobody came back to.
    wires[1].send(WINDOW, 0, {"op": late[2].op, "max_off": 1 << 20})
    end = await_message(wires[1], END, late[1])
    assert end["status"] == "deadline", end
    until(lambda: len(turns_ended(state, left[0])) == 1)
    # Who is connected goes on where he was, and who comes back too.
    reply = stays[2]
    wires[0].send(WINDOW, 0, {"op": reply.op, "max_off": 1 << 20})
    more_of_it(wires[0], stays[1], reply, None)
    assert reply.ids == right.ids and reply.text == right.text and reply.logprobs == right.logprobs
    other = Wire(daemon.endpoint)
    reply = kept[2]
    more_of_it(other, resume(other, reply.op, reply.seq), reply, None)
    assert reply.ids == right.ids and reply.text == right.text and reply.end["status"] == "limit"
    until(lambda: other.ok("session.show", sess=leased)["r"]["residency"] == "best_effort")
    assert other.turn(leased, words(5), max_tokens=3, ignore_end=True).status == "limit"
    time.sleep(0.5)
    seen = []
    while event := events.take(0.2):
        seen.append(event)
    grants = [e["kind"] for e in seen if e["event"] == "granted" and e["sess"] == leased]
    assert grants == ["leased", "best_effort"], grants
    for session in (stays[0], late[0], left[0], kept[0]):
        assert len([e for e in seen if e["event"] == "ended" and e["sess"] == session]) == 1, seen
        assert len(turns_ended(state, session)) == 1
        assert other.turn(session, words(3), max_tokens=2, ignore_end=True).status == "limit"
    assert wires[1].socket.poll(100) == 0, wires[1].receive()
    health = other.ok("health")["r"]
    assert health["turns_running"] == health["turns_waiting"] == 0, health
    events.close()
    left_clean(daemon)


def refused(wire, method, a=None, **more):
    try:
        return wire.call(method, a or {}, **more).end["status"]
    except Refused as no:
        return no.name


def stalled():
    """A commit that takes seconds: what runs goes on, and nothing new begins once it has lasted too long."""
    wait = 6000 * min(ar1.SLOW, 3)
    # In memory, where a busy disk does not stall by itself.
    folder = tempfile.mkdtemp(prefix="hf-stall-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    state = f"{folder}/state"
    daemon = begin(None, *OPTIONS, "--state", state, "--audit-stall-ms", "1000", "--inject", f"commit@12=wait:{wait}")
    wire, other = Wire(daemon.endpoint), Wire(daemon.endpoint)
    runs = begun(wire)
    idle = other.open()
    asked = []
    # The commit that does not come back is one of these; its END waits for it.
    while "does not answer" not in daemon.words():
        assert len(asked) < 40
        asked.append(other.begin("session.open", {"template": "none"}))
        time.sleep(0.15)
    began = time.time()
    third = Wire(daemon.endpoint)
    said = refused(third, "session.open", {"template": "none"})
    assert said == "audit_stalled", said
    assert refused(third, "session.turn", {"tokens": True, "max_tokens": 2}, sess=idle) == "audit_stalled"
    before = third.ok("health")["r"]["tokens_sampled"]
    # Tokens flow, since they are no promise: their turn was accepted before.
    wire.send(WINDOW, 0, {"op": runs[2].op, "max_off": 1 << 20})
    more_of_it(wire, runs[1], runs[2], 700)
    sampled = third.ok("health")["r"]["tokens_sampled"]
    assert sampled > before + 100, (before, sampled)
    assert time.time() - began < wait / 1000 - 1.5, "the machine is too slow for this test"
    assert "answers again" not in daemon.words()
    more_of_it(wire, runs[1], runs[2], None)
    assert runs[2].end["status"] == "limit" and len(runs[2].ids) == MORE["max_tokens"]
    until(lambda: "answers again" in daemon.words())
    # All that was asked before is answered; the last of it may have come too late to begin.
    ends = {}
    while len(ends) < len(asked):
        type, channel, _, body, _ = other.receive()
        if type in (END, ar1.REJECT):
            ends[channel] = body["status"] if type == END else body["err"]["n"]
    assert [ends[channel] for channel in asked[:-2]] == ["ok"] * len(asked[:-2]), ends
    assert {ends[channel] for channel in asked[-2:]} <= {"ok", "audit_stalled"}, ends
    assert wire.turn(runs[0], words(3), max_tokens=3, ignore_end=True).status == "limit"
    assert third.open()
    left_clean(daemon)
    assert audit(state, "verify")[0]["ok"]
    shutil.rmtree(folder)


def stuck():
    """It does not come back: the daemon says so where it can, and ends; nothing that was answered is lost."""
    folder = tempfile.mkdtemp(prefix="hf-stall-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    state = f"{folder}/state"
    daemon = begin(None, *OPTIONS, "--state", state, "--audit-stall-ms", "300", "--audit-abort-ms", "1200", "--inject",
                   "commit@12=wait:600000")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    right = wire.turn(session, GIVEN, max_tokens=20, ignore_end=True)
    known, began = {session}, time.time()
    while "does not answer" not in daemon.words():
        assert time.time() - began < 60 * ar1.SLOW
        channel = wire.begin("session.open", {"template": "none"})
        try:
            known.add(wire.finish(channel, timeout=0.2 * ar1.SLOW).end["sess"])
        except (TimeoutError, KeyError, Refused):
            pass
    # Nobody asks anything any more: it ends by itself.
    assert daemon.process.wait(30 * ar1.SLOW) == -signal.SIGABRT
    said = daemon.words()
    assert "does not answer: nothing new begins" in said and "--audit-abort-ms): the process ends" in said, said
    daemon.log.close()
    unsanitary(said)
    daemon = begin(daemon.home, *OPTIONS, "--state", state)
    assert "ended with a last word" in daemon.words()
    wire = Wire(daemon.endpoint)
    assert {s["sess"] for s in wire.call("session.list").end["r"]} >= known
    again = wire.ok("session.show", sess=session)["r"]
    assert again["history"] == right.usage["history"] and again["turn"] == 1
    left_clean(daemon)
    last = [line for line in audit(state, "incidents") if line["kind"] == "incident"]
    assert [(line["reason"], line["place"]) for line in last] == [("beacon", 7)], last
    assert last[0]["value"][1] >= 1200 and audit(state, "verify")[0]["ok"]
    shutil.rmtree(folder)


def stuck_at_the_end(inject, running):
    """It does not come back, and the daemon is to stop: it waits no longer than --audit-abort-ms."""
    folder = tempfile.mkdtemp(prefix="hf-stall-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    daemon = begin(None, *OPTIONS, "--state", f"{folder}/state", "--audit-stall-ms", "300", "--audit-abort-ms", "2000", "--drain-ms", "100",
                   "--audit-pace-ms", "1", "--inject", inject)
    wire, known = Wire(daemon.endpoint), set()
    while running and "does not answer" not in daemon.words():
        channel = wire.begin("session.open", {"template": "none"})
        try:
            known.add(wire.finish(channel, timeout=0.2 * ar1.SLOW).end["sess"])
        except (TimeoutError, KeyError, Refused):
            pass
    assert len(known) > 2 or not running
    daemon.process.send_signal(signal.SIGTERM)
    began = time.time()
    assert daemon.process.wait(40 * ar1.SLOW) == -signal.SIGABRT, daemon.words()
    said = daemon.words()
    assert "--audit-abort-ms): the process ends" in said, said
    assert time.time() - began < 20 * ar1.SLOW
    daemon.log.close()
    unsanitary(said)
    daemon = begin(daemon.home, *OPTIONS, "--state", f"{folder}/state")
    assert "ended with a last word" in daemon.words()
    assert {s["sess"] for s in Wire(daemon.endpoint).call("session.list").end["r"]} >= known
    left_clean(daemon)
    shutil.rmtree(folder)


def loop_itself(inject, *options):
    """What the loop itself writes hangs, in the middle of a stream: nobody hears a signal then, and the process ends by itself."""
    folder = tempfile.mkdtemp(prefix="hf-stall-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    daemon = begin(None, *OPTIONS, "--state", f"{folder}/state", "--audit-stall-ms", "300", "--audit-abort-ms", "6000", "--inject", inject,
                   *options)
    wire = Wire(daemon.endpoint)
    session = wire.open()
    a, blob = ask(GIVEN, **MORE)
    wire.begin("session.turn", a, blob, sess=session)
    # Two seconds without an answer are no slow machine; the process has four more then.
    until(lambda: not answers(daemon))
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(40 * ar1.SLOW) == -signal.SIGABRT, daemon.words()
    said = daemon.words()
    assert "the file streams has not answered for" in said and "--audit-abort-ms): the process ends" in said, said
    daemon.log.close()
    unsanitary(said)
    daemon = begin(daemon.home, *OPTIONS, "--state", f"{folder}/state")
    assert "ended with a last word" in daemon.words() and "1 of them in a turn" in daemon.words(), daemon.words()
    left_clean(daemon)
    last = [line for line in audit(f"{folder}/state", "incidents") if line["kind"] == "incident"]
    assert [(line["reason"], line["place"]) for line in last] == [("beacon", 7)], last
    shutil.rmtree(folder)


def answers(daemon):
    wire = Wire(daemon.endpoint, hello=False)  # it may hang before it answers even a HELLO
    try:
        wire.send(HELLO, 0, {"client": "test", "minor": 0, "caps": []})
        wire.expect(WELCOME, timeout=2 / ar1.SLOW)
        wire.finish(wire.begin("health"), timeout=2 / ar1.SLOW)
        return True
    except TimeoutError:
        return False
    finally:
        wire.close()


def ended_at_the_end():
    """What never settles by itself ends a stop too: a log that has failed, with a turn that is in the middle of its step."""
    for inject in ("commit@14=eio", "put@30=eio"):
        daemon = begin(None, *OPTIONS, "--audit-abort-ms", "600000", "--audit-stall-ms", "500000", "--drain-ms", "100", "--inject", inject)
        wire = Wire(daemon.endpoint)
        for _ in range(40):
            try:
                wire.begin("session.open", {"template": "none"})
            except OSError:
                break
            time.sleep(0.02)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(40 * ar1.SLOW) == 1, daemon.words()
        daemon.log.close()
        unsanitary(daemon.words())


def second_place():
    """The folder of the anchors does not answer: nothing waits for it, and a stop only for a moment."""
    folder = tempfile.mkdtemp(prefix="hf-stall-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    options = (*OPTIONS, "--state", f"{folder}/state", "--anchor", f"{folder}/second", "--anchor-ms", "50", "--anchor-entries", "4")
    began = time.time()
    daemon = begin(None, *options, "--audit-stall-ms", "1000", "--audit-abort-ms", "4000", "--inject", "anchor@2=wait:600000")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    while "no anchor can be written" not in daemon.words():
        assert time.time() - began < 60 * ar1.SLOW and daemon.process.poll() is None, daemon.words()
        wire.turn(session, words(3), max_tokens=3, ignore_end=True)
        time.sleep(0.05)
    said = daemon.words()
    assert time.time() - began > 4 and "nothing new begins" not in said and "no answer in time" in said, said
    left_clean(daemon)
    assert "the last entries of the log are not anchored" in daemon.words()
    verdict = audit(f"{folder}/state", "--anchor", f"{folder}/second", "verify")[0]
    assert verdict["ok"] and verdict["anchors"] == 1 and verdict["clean"], verdict
    daemon = begin(daemon.home, *options)
    Wire(daemon.endpoint).turn(session, words(3), max_tokens=3, ignore_end=True)
    left_clean(daemon)
    assert audit(f"{folder}/state", "--anchor", f"{folder}/second", "verify")[0]["anchors"] > 1
    shutil.rmtree(folder)


COPY = """
import ctypes.util, sys
lmdb, env = ctypes.CDLL(ctypes.util.find_library("lmdb")), ctypes.c_void_p()
assert lmdb.mdb_env_create(ctypes.byref(env)) == 0
assert lmdb.mdb_env_open(env, sys.argv[1].encode(), 0x20000, 0o600) == 0
assert lmdb.mdb_env_copy2(env, sys.argv[2].encode(), 0) == 0
"""


def put_back():
    daemon = begin(None, *OPTIONS)
    state, copy = f"{daemon.home}/state", f"{daemon.home}/copy"
    wires = [Wire(daemon.endpoint) for _ in range(3)]
    sessions = [wires[0].open() for _ in range(4)]
    for session in sessions:
        wires[0].turn(session, words(30), max_tokens=20, ignore_end=True)
    runs = begun(wires[1], detach_ms=600000, idem=os.urandom(16))
    a, blob = ask(words(10), max_tokens=400)
    busy = wires[2].begin("session.turn", a, blob, sess=wires[2].open())
    os.mkdir(copy, 0o700)
    made = subprocess.run([sys.executable, "-c", COPY, state, copy], capture_output=True, text=True, timeout=60 * ar1.SLOW)
    assert made.returncode == 0, made.stderr
    for name in ("uuid", "keys"):  # in this order: the keys are never behind data.mdb
        shutil.copy2(f"{state}/{name}", f"{copy}/{name}")
    wires[2].finish(busy)
    turns = [(session, words(6), {"max_tokens": 12, "temperature": 0.9, "seed": 4}) for session in sessions]
    right = [wires[0].turn(session, ids, ignore_end=True, **more) for session, ids, more in turns]
    wires[1].send(WINDOW, 0, {"op": runs[2].op, "max_off": 1 << 20})
    more_of_it(wires[1], runs[1], runs[2], None)
    left_clean(daemon)
    # What is in the copy is what is in the log, up to where it was made.
    assert audit(state, "verify")[0]["ok"] and audit(copy, "verify")[0]["ok"]
    mine, theirs = audit(state, "export"), audit(copy, "export")
    assert 20 < len(theirs) < len(mine) and theirs == mine[:len(theirs)]
    home = f"{daemon.home}/restored"
    os.makedirs(home)
    os.rename(copy, f"{home}/state")
    daemon = begin(home, *OPTIONS)
    wire = Wire(daemon.endpoint)
    assert {s["sess"] for s in wire.call("session.list").end["r"]} >= {*sessions, runs[0]}
    for (session, ids, more), reply in zip(turns, right):
        again = wire.turn(session, ids, ignore_end=True, **more)
        assert again.ids == reply.ids and again.logprobs == reply.logprobs and again.end["turn"] == reply.end["turn"] == 2
    whole = Reply()
    whole.op = runs[2].op
    more_of_it(wire, resume(wire, whole.op, 0), whole, None)
    assert whole.ids == runs[2].ids and whole.text == runs[2].text and whole.end["status"] == "limit"
    left_clean(daemon)
    assert audit(f"{home}/state", "verify")[0]["ok"]
    assert audit(f"{home}/state", "export")[:len(theirs)] == theirs


tap.run("a machine that stands still: leases, deadlines and detach times end once, streams go on", paused)
tap.run("a disk that does not answer: what runs goes on, nothing new begins, and all comes when it does", stalled)
tap.run("a disk that never answers: the process ends with a last word, and nothing answered is lost", stuck)
tap.run("and so does one that is to stop", lambda: stuck_at_the_end("commit@12=wait:600000", True))
tap.run("and one whose loop hangs in what it writes itself", lambda: loop_itself("mark@3=wait:600000"))
tap.run("and one whose very last record does not come back", lambda: stuck_at_the_end("commit@3=wait:600000", False))
tap.run("a stop ends where the log has failed", ended_at_the_end)
tap.run("a place for anchors that does not answer: nothing waits for it", second_place)
tap.run("a copy made under load is put back: the same chain up to there, and the sessions go on", put_back)
raise SystemExit(tap.done())
