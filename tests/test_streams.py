"""Goal: a stream has no gap and no repeat where it could not be written down how far it went (a full disk, a power cut), and no
session is lost whose key could not be written at once. Method: writes that fail on purpose, and kills in between; for the power cut
another boot id of the kernel, and marks that are gone."""
import os
import subprocess
import time

import ar1
from ar1 import Refused, Reply, Tap, Wire
from daemon_rig import ask, begin, kill, left_clean, more_of_it, resume, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96")
GIVEN, MORE = words(40), {"max_tokens": 900, "temperature": 0.7, "seed": 5}


def start(home=None, *options, **more):
    daemon = begin(home, *OPTIONS, *options, **more)
    return daemon, Wire(daemon.endpoint)


def turn(wire, **keys):
    a, blob = ask(GIVEN, **MORE)
    session = wire.open()
    return session, wire.begin("session.turn", a, blob, sess=session, detach_ms=60000, idem=os.urandom(16), **keys)


def asked():
    daemon, wire = start()
    reply = wire.finish(turn(wire)[1])
    left_clean(daemon)
    return reply


RIGHT = asked()


def right(reply):
    assert reply.ids == RIGHT.ids and reply.text == RIGHT.text and reply.logprobs == RIGHT.logprobs
    assert reply.status == "limit", reply.end


def refused(wire, op, after):
    channel = resume(wire, op, after)
    type, at, _, body, _ = wire.expect(ar1.ACCEPTED, ar1.REJECT)
    return type == ar1.REJECT and body["err"]["n"]


def joined(wire, reply, tokens=None):
    channel = resume(wire, reply.op, reply.seq)
    type, at, _, body, _ = wire.expect(ar1.ACCEPTED, ar1.REJECT)
    assert type == ar1.ACCEPTED, body
    more_of_it(wire, channel, reply, tokens)


def unmarked():
    """No mark can be written: what is sent is what is on the disk with the answer, cut as it is there."""
    daemon, wire = start(None, "--inject", "mark/1=enospc")
    channel = turn(wire)[1]
    reply = wire.finish(channel, tokens=5)
    shown = wire.call("session.list").end["r"][0]
    assert shown["turn"] == 1 and shown["state"] != "running", shown
    kill(daemon)
    daemon, wire = start(daemon.home)
    joined(wire, reply)
    right(reply)
    left_clean(daemon)


def longer():
    """An answer that is longer than what may be unread, and no mark can be written: it waits for the disk, and its reader is not
    called slow."""
    daemon, wire = start(None, "--inject", "mark/1=enospc", "--stream-bytes", "1024", "--stall-ms", "200")
    a, blob = ask(words(20), max_tokens=900, ignore_end=True)
    channel = wire.begin("session.turn", a, blob, sess=wire.open())
    assert wire.expect(ar1.ACCEPTED)[1] == channel
    other, sampled = Wire(daemon.endpoint), [0, 0]
    while sampled[-1] == 0 or sampled[-1] != sampled[-2]:
        time.sleep(0.3)
        sampled.append(other.ok("health")["r"]["tokens_sampled"])
    time.sleep(2)
    health = other.ok("health")["r"]
    assert health["turns_running"] == 1 and 0 < health["tokens_sampled"] < 900, (health, sampled)
    wire.send(ar1.CANCEL, channel, {})
    end = wire.expect(ar1.END)[3]
    assert end["status"] == "cancelled" and "err" not in end, end
    left_clean(daemon)


def at_times():
    """Each third mark fails, and the process ends in the middle."""
    home = None
    for tokens in (3, 20, 40):
        daemon, wire = start(home, "--inject", "mark/3=enospc")
        home = daemon.home
        reply = wire.finish(turn(wire)[1], tokens=tokens)
        kill(daemon)
        daemon, wire = start(home, "--inject", "mark/3=enospc")
        joined(wire, reply, 10)
        assert not reply.end, "it is to be in the middle yet"
        kill(daemon)
        daemon, wire = start(home)
        joined(wire, reply)
        right(reply)
        kill(daemon)
    left_clean(start(home)[0])


def power():
    """After a power cut a stream of before cannot be joined in its middle, neither while it is computed again nor after: it
    is cut otherwise. From its beginning it can be had."""
    if os.geteuid() or subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        return "skip needs the right to change what a process sees"
    # It stands in its middle: what the reader granted and what may be unread are less than the answer.
    assert len(RIGHT.text.encode()) > 300 + 1024
    daemon, wire = start(None, "--stream-bytes", "1024")
    home = daemon.home
    reply = wire.finish(turn(wire, window=300)[1], tokens=20)
    kill(daemon)
    with open(f"{home}/boot", "w") as file:
        file.write("another boot of the kernel\n")
    under = ("unshare", "-m", "sh", "-c", f"mount --bind {home}/boot /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh")
    with open(f"{home}/state/streams", "r+b") as file:
        size = os.fstat(file.fileno()).st_size
        file.truncate(0)
        file.truncate(size)
    daemon, wire = start(home, under=under)
    assert refused(wire, reply.op, reply.seq) == "gone"
    deadline = time.time() + 60 * ar1.SLOW
    while wire.call("session.list").end["r"][0]["turn"] == 0:
        assert time.time() < deadline
        time.sleep(0.05)
    assert refused(wire, reply.op, reply.seq) == "gone" and refused(wire, reply.op, 1) == "gone"
    kill(daemon)
    daemon, wire = start(home, under=under)
    assert refused(wire, reply.op, reply.seq) == "gone"
    whole = Reply()
    whole.op = reply.op
    joined(wire, whole)
    right(whole)
    left_clean(daemon)


def served(what):
    """While the writer waits for room what is new is refused, and then not."""
    deadline = time.time() + 20 * ar1.SLOW
    while True:
        try:
            return what()
        except Refused as no:
            assert no.name == "log_full" and time.time() < deadline, no
        time.sleep(0.02)


def keys():
    """A key that cannot be written is written before anything that it opens is on the disk, and one that was to go is gone."""
    for spec in ("key/2=enospc", "key/3=enospc,keys@2=enospc,keys@4=enospc"):
        daemon, wire = start(None, "--inject", spec)
        home, sessions = daemon.home, [served(wire.open) for _ in range(5)]
        for session in sessions:
            served(lambda: wire.turn(session, words(5), max_tokens=3, ignore_end=True))
        wire.ok("session.forget", sess=sessions[0])
        kill(daemon)
        with open(f"{home}/state/keys", "rb") as file:
            there = file.read()
        assert [s in there for s in sessions] == [False, True, True, True, True], (spec, [s in there for s in sessions])
        daemon, wire = start(home)
        assert {x["sess"] for x in wire.call("session.list").end["r"]} == set(sessions[1:])
        for session in sessions[1:]:
            assert wire.turn(session, words(3), max_tokens=3, ignore_end=True).end["turn"] == 2
        left_clean(daemon)


tap.run("no mark can be written: an answer comes whole, and can be joined", unmarked)
tap.run("longer than what may be unread: it waits for the disk, and its reader is not slow", longer)
tap.run("marks fail at times, and the process ends: no gap, no repeat", at_times)
tap.run("a power cut: a stream begins anew, and is never joined in its middle", power)
tap.run("keys that cannot be written at once: none is lost, none stays", keys)
raise SystemExit(tap.done())
