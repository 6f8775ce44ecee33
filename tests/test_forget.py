"""Goal: what is forgotten is nowhere. Method: prompts of known tokens and words; the folder of the state, and the memory of
the process, are searched for them before and after session.forget, a kill, and --history-ttl-ms. The log still verifies."""
import glob
import json
import os
import signal
import subprocess
import time

import ar1
from ar1 import BUILD, Daemon, Refused, Tap, Wire, pack
from daemon_rig import MODEL, left_clean, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96")


def start(*options, home=None):
    if home and os.path.exists(f"{home}/log"):
        os.rename(f"{home}/log", f"{home}/log.{time.time()}")
    return Daemon(MODEL, *OPTIONS, *options, home=home)


def audit(state, *question):
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", state, "--json", *question], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def on_disk(home, *needles):
    found = []
    for path in glob.glob(f"{home}/state/**", recursive=True):
        if os.path.isfile(path):
            data = open(path, "rb").read()
            found += [(os.path.basename(path), n[:8]) for n in needles if n in data]
    return found


def in_memory(daemon, needle):
    """How often the bytes are in the process's own memory; None where that may not be read."""
    count = 0
    try:
        maps, memory = open(f"/proc/{daemon.process.pid}/maps"), open(f"/proc/{daemon.process.pid}/mem", "rb", buffering=0)
    except OSError:
        return None
    with maps, memory:
        for line in maps:
            span, mode = line.split()[:2]
            if not mode.startswith("rw"):
                continue
            low, high = (int(x, 16) for x in span.split("-"))
            for at in range(low, min(high, low + (1 << 28)), 1 << 22):
                try:
                    memory.seek(at)
                    count += memory.read(min(1 << 22, high - at)).count(needle)
                except (OSError, ValueError, OverflowError):
                    break
    return count


def gone(wire, session):
    try:
        return wire.call("session.show", sess=session).end.get("err", {}).get("n")
    except Refused as refused:
        return refused.name


def forgotten():
    daemon = start()
    home = daemon.home
    wire = Wire(daemon.endpoint)
    secret, other = [259 - i * 3 % 200 for i in range(40)], words(40)
    needle = pack(secret[5:35])
    session, stays = wire.open(label="zebra-label"), wire.open()
    key = os.urandom(16)
    a = {"tokens": True, "ignore_end": True, "max_tokens": 8, "logprobs": 1}
    answer = wire.call("session.turn", a, pack(secret), sess=session, idem=key)
    right = wire.turn(stays, other, max_tokens=4, ignore_end=True)
    fork = wire.ok("session.fork", {}, sess=session)["sess"]
    # Not even now in the clear on the disk: tokens, label, the answer's tokens.
    assert on_disk(home, needle, b"zebra-label", pack(answer.ids)) == []
    before = in_memory(daemon, needle)
    assert before is None or before >= 1, before
    wire.ok("session.forget", sess=fork)
    wire.ok("session.forget", sess=session)
    assert gone(wire, session) == gone(wire, fork) == "not_found"
    again = wire.begin("session.turn", a, pack(secret), sess=session, idem=key)
    try:
        assert wire.finish(again).end["err"]["n"] in ("not_found", "gone")
    except Refused as refused:
        assert refused.name in ("not_found", "gone"), refused
    del again
    for _ in range(40):  # the message that was just refused lies in a buffer of libzmq until another takes it
        wire.call("tokenize", {"text": "x" * 200})
    if ar1.SLOW == 1 and before is not None:  # a sanitizer keeps freed memory
        assert in_memory(daemon, needle) == 0, (before, in_memory(daemon, needle))
    kinds = [r["kind"] for r in audit(f"{home}/state", "session", session.hex())]
    assert "forget" in kinds and "session_close" in kinds and "turn_end" in kinds, kinds
    assert wire.turn(stays, words(3), max_tokens=3, ignore_end=True).usage["resident"] > 0 and right.ids
    daemon.process.kill()
    daemon.process.wait()
    assert on_disk(home, needle, b"zebra-label", pack(answer.ids)) == []
    keys = open(f"{home}/state/keys", "rb").read()
    assert session not in keys and fork not in keys and stays in keys
    daemon = start(home=home)
    wire = Wire(daemon.endpoint)
    assert gone(wire, session) == "not_found"
    assert wire.turn(stays, words(3), max_tokens=3, ignore_end=True).end["turn"] == 3
    assert len(wire.ok("session.list")["r"]) == 1
    left_clean(daemon)
    assert audit(f"{home}/state", "verify")[0]["ok"]


def killed():
    """The key is written over, and the process ends before anything else is on disk: it is forgotten all the same."""
    daemon = start("--inject", "forget@1=crash")
    wire = Wire(daemon.endpoint)
    session, stays = wire.open(), wire.open()
    wire.turn(session, words(30), max_tokens=4, ignore_end=True)
    wire.turn(stays, words(30), max_tokens=4, ignore_end=True)
    wire.begin("session.forget", sess=session)
    assert daemon.process.wait(20 * ar1.SLOW) == -signal.SIGKILL
    daemon = start(home=daemon.home)
    wire = Wire(daemon.endpoint)
    assert gone(wire, session) == "not_found" and "damaged" not in daemon.words()
    assert wire.turn(stays, words(5), max_tokens=4, ignore_end=True).end["turn"] == 2
    left_clean(daemon)
    assert audit(f"{daemon.home}/state", "verify")[0]["ok"]


def running():
    """In the middle of a turn: it ends, and nothing of it is kept."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "ignore_end": True, "max_tokens": 800}, pack(words(50)), sess=session,
                         idem=os.urandom(16), detach_ms=60000)
    wire.finish(channel, tokens=3)
    other = Wire(daemon.endpoint)
    other.ok("session.forget", sess=session)
    while wire.receive()[:2] != (ar1.END, channel):
        pass
    assert gone(other, session) == "not_found"
    daemon.process.kill()
    daemon.process.wait()
    assert session not in open(f"{daemon.home}/state/keys", "rb").read()
    daemon = start(home=daemon.home)
    assert Wire(daemon.endpoint).ok("session.list")["r"] == [] and "damaged" not in daemon.words()
    left_clean(daemon)


def by_age():
    daemon = start("--history-ttl-ms", "600")
    wire = Wire(daemon.endpoint)
    old, young = wire.open(), wire.open()
    wire.turn(old, words(20), max_tokens=2, ignore_end=True)
    deadline = time.time() + 20 * ar1.SLOW
    while any(s["sess"] == old for s in wire.ok("session.list")["r"]):
        wire.ok("session.show", sess=young)
        assert time.time() < deadline
        time.sleep(0.05)
    assert gone(wire, young) is None
    kinds = [r["kind"] for r in audit(f"{daemon.home}/state", "session", old.hex())]
    assert kinds.count("forget") == 1, kinds
    left_clean(daemon)


def again():
    """Pages of what was forgotten come back to their own principal: zeroed already, so not once more."""
    daemon = start("--host-memory", "400000")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    wire.turn(session, words(200), max_tokens=4, ignore_end=True)
    wire.ok("session.forget", sess=session)
    fresh = wire.open()
    wire.turn(fresh, words(200), max_tokens=4, ignore_end=True)
    wire.ok("session.close", sess=fresh)
    left_clean(daemon)
    records = audit(f"{daemon.home}/state", "export")
    assert any(r["kind"] == "forget" for r in records)
    assert not any(r["kind"] == "assign" and r["value"][0] for r in records), "one principal's own pages need no zeroing"


for what, test in (("tokens, label, answer: nowhere after session.forget", forgotten), ("a kill in the middle of it", killed),
                   ("a turn that runs", running), ("by age", by_age), ("its pages are given out again", again)):
    tap.run(what, test)
raise SystemExit(tap.done())
