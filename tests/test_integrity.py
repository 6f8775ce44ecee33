"""Goal: no token of a turn that met a wrong page reaches its client, its neighbours do not notice, and the same
tokens come when it is asked again. Method: a daemon for each kind of fault on purpose, beside four sessions whose
right tokens are known from a daemon without faults."""
import os
import signal
import time

import ar1
from ar1 import Daemon, Refused, Tap, Wire, pack
from daemon_rig import MODEL, left_clean, unsanitary, words

tap = Tap()
GIVEN = [[words(40 + 9 * k), words(5), words(6)] for k in range(4)]
OUTPUT = 24


def start(*options):
    return Daemon(MODEL, "--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96", *options)


def play(wire, right=None):
    """All turns of all sessions side by side. Ended by `integrity`, a turn is asked again; what came is what must
    come, in whole or from the start. Returns the tokens, and how many turns were ended so."""
    sessions = [wire.open() for _ in GIVEN]
    history = [0 for _ in GIVEN]
    tokens = [[] for _ in GIVEN]
    ended = 0
    for turn in range(3):
        waiting = {k: None for k in range(len(GIVEN))}
        while waiting:
            for k in waiting:
                a = {"tokens": True, "max_tokens": OUTPUT, "ignore_end": True, "seed": k, "temperature": 0.8,
                     "keep": history[k]}
                waiting[k] = wire.begin("session.turn", a, pack(GIVEN[k][turn]), sess=sessions[k])
            again = {}
            replies = finish(wire, waiting)
            for k, reply in replies.items():
                if reply.status == "error":
                    assert reply.end["err"]["n"] == "integrity", reply.end
                    assert right is None or right[k][turn][:len(reply.ids)] == reply.ids, "a wrong token came out"
                    again[k] = None
                    ended += 1
                    continue
                assert len(reply.ids) == OUTPUT, reply.end
                if right is not None:
                    assert right[k][turn] == reply.ids, f"session {k} turn {turn}: wrong tokens"
                tokens[k].append(reply.ids)
                history[k] = reply.usage["history"]
            waiting = again
    return tokens, ended


def finish(wire, channels):
    """Reads calls that run side by side."""
    replies = {k: ar1.Reply() for k in channels}
    of = {channel: k for k, channel in channels.items()}
    left = set(channels)
    while left:
        type, at, seq, body, blob = wire.receive(60)
        if at not in of:
            continue
        reply = replies[of[at]]
        if type == ar1.DATA:
            reply.ids += ar1.struct.unpack(f"<{len(blob) // 4}I", blob)
        elif type == ar1.END:
            reply.end = body
            left.discard(of[at])
        elif type == ar1.REJECT:
            raise Refused(body["err"])
    return replies


def quarantined(wire):
    return [p for p in wire.ok("pages.show", {"count": 275})["r"] if p["state"] == "quarantined"]


def once(right, spec, *options, found=1, pages=1):
    def test():
        daemon = start("--inject", spec, *options)
        wire = Wire(daemon.endpoint)
        tokens, ended = play(wire, right)
        assert tokens == right
        assert (ended > 0) == (found > 0), (ended, found, daemon.words()[-800:])
        assert len(quarantined(wire)) >= (pages if found else 0)
        assert "FAULTS ARE MADE ON PURPOSE" in daemon.words()
        left_clean(daemon)
    return test


def off(right):
    """Without checks a wrong tag is not looked at: nothing ends, and (the page is right) nothing is wrong."""
    daemon = start("--inject", "tag-device@9", "--integrity", "off")
    tokens, ended = play(Wire(daemon.endpoint), right)
    assert tokens == right and ended == 0
    left_clean(daemon)


def aborted(right):
    daemon = start("--inject", "tag-device@9", "--integrity", "abort")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 200, "ignore_end": True}, pack(words(30)), sess=session)
    code = daemon.process.wait(30 * ar1.SLOW)
    assert code == -signal.SIGABRT, code
    wire.close()
    daemon.stop(keep=True)
    os.unlink(f"{daemon.home}/log")
    again = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "900000", home=daemon.home)
    assert "ended with a last word" in again.words(), again.words()
    assert again.stop(keep=True) == 0
    os.unlink(f"{daemon.home}/log")
    # Once: the next start has nothing to say.
    third = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "900000", home=daemon.home)
    assert third.words().count("ended with a last word") == 0
    left_clean(third)


def at_rest(right):
    """A bit turned at rest is found there, before anybody asks; the session's next turn is told, and asked again right."""
    daemon = start("--inject", "bits-idle@1", "--digest", "scrub", "--scrub-bytes", "100M", "--scrub-ms", "100")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    a = {"max_tokens": OUTPUT, "ignore_end": True, "seed": 0, "temperature": 0.8}
    first = wire.turn(session, GIVEN[0][0], **a)
    assert list(first.ids) == list(right[0][0])
    deadline = time.time() + 20 * ar1.SLOW
    while "bytes are not what they were" not in daemon.words() and time.time() < deadline:
        time.sleep(0.2)
        wire.ok("health")
    reply = wire.turn(session, GIVEN[0][1], **a)
    assert "bytes are not what they were" in daemon.words(), daemon.words()[-500:]
    assert reply.status == "error" and not reply.ids, reply.end
    reply = wire.turn(session, GIVEN[0][1], keep=first.usage["history"], **a)
    assert list(reply.ids) == list(right[0][1])
    left_clean(daemon)


def bad_specs():
    for spec in ("x", "tag-device", "tag-device@0", "tag-device@x", "commit@1", "commit@1=x", "commit@1=wait:", "seed=",
                 "tag-device@1=crash", "tag-device@1,,swap@1", "a" * 2000, "put@99999999999=eio"):
        try:
            Daemon(MODEL, "--template", "smollm2", "--inject", spec).stop()
            raise AssertionError(spec[:40])
        except RuntimeError as error:
            unsanitary(str(error))
            assert "--inject" in str(error), str(error)


daemon = start()
right, _ = play(Wire(daemon.endpoint))
tap.run("the same sessions without faults", lambda: left_clean(daemon))
for kind in ("tag-device", "tag-table", "swap", "double-assign", "early-free"):
    tap.run(f"{kind}: found, told, asked again", once(right, f"{kind}@9"))
tap.run("all kinds, each with one chance in 60",
        once(right, "tag-device/60,tag-table/60,swap/60,double-assign/60,early-free/60,seed=3"))
tap.run("bits-idle: found when the turn begins", once(right, "bits-idle@3", "--digest", "resume"))
tap.run("skip-free: an owner row that is not free is an incident", once(right, "skip-free@1", found=0))
tap.run("bits of an idle page are found at rest", at_rest, right)
tap.run("--integrity off looks at nothing", off, right)
tap.run("--integrity abort ends the process, and its last word is heard once", aborted, right)
tap.run("specifications that are none", bad_specs)
raise SystemExit(tap.done())
