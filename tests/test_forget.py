"""Goal: what is forgotten is nowhere. Method: prompts of known tokens and words; the folder of the state, and the memory of
the process, are searched for them before and after session.forget, a kill, and --history-ttl-ms. The log still verifies."""
import glob
import os
import random
import signal
import time

import ar1
from ar1 import Refused, Tap, Wire, pack
from daemon_rig import audit, begin, kill, left_clean, until, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96")


def start(*options, home=None):
    return begin(home, *OPTIONS, *options)


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
    kill(daemon)
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
    kill(daemon)
    assert session not in open(f"{daemon.home}/state/keys", "rb").read()
    daemon = start(home=daemon.home)
    assert Wire(daemon.endpoint).ok("session.list")["r"] == [] and "damaged" not in daemon.words()
    left_clean(daemon)


def by_age():
    daemon = start("--history-ttl-ms", "600")
    wire = Wire(daemon.endpoint)
    old, young = wire.open(), wire.open()
    wire.turn(old, words(20), max_tokens=2, ignore_end=True)
    def over():
        wire.ok("session.show", sess=young)
        return all(s["sess"] != old for s in wire.ok("session.list")["r"])
    until(over)
    assert gone(wire, young) is None
    def told():
        return [r["kind"] for r in audit(f"{daemon.home}/state", "session", old.hex())].count("forget")
    until(told)  # nobody waits for that record: it is written a moment later
    assert told() == 1
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
    assert not any(r["kind"] == "assign" and r["reason"] for r in records), "one principal's own pages need no zeroing"


def some_bytes(home, count=12):
    """Pieces of pages of the disk tier: long enough to be nowhere else by chance, and no piece twice. Proofs, of 136 bytes,
    come before slots, of 4,096; what they say (model, plan) is in memory anyway."""
    data, found = open(f"{home}/state/pages", "rb").read(), {}
    first = 2 * 4096 + len(data) // (4096 + 136) * 136
    for _ in range(100000):
        at = random.randrange(first, len(data) - 40)
        piece = data[at:at + 40]
        if len(set(piece)) > 24 and data.count(piece) == 1:
            found[at // 4096] = piece
        if len(found) == count:
            return list(found.values())
    raise AssertionError("the disk tier has nothing to speak of")


def pieces(daemon, needles):
    """How many of them are in the process's memory, and in its files."""
    memory = [n for n in needles if ar1.SLOW == 1 and in_memory(daemon, n)]
    return len(memory), len(set(n for _, n in on_disk(daemon.home, *needles)))


TIERS = ("--host-memory", "400000", "--disk-bytes", "4M", "--disk-reserve", "0", "--share", "no", "--audit-commit-ms", "1")


def tiers():
    """K and V, wherever they are or have been: a session that moved through all places, and gave pages back on the way."""
    daemon = start(*TIERS)
    wire = Wire(daemon.endpoint)
    session, stays = wire.open(), wire.open()
    wire.turn(session, words(300), max_tokens=2, ignore_end=True)
    wire.ok("session.park", {"place": "disk"}, sess=session)
    until(lambda: wire.ok("ledger.show")["r"]["accounts"]["disk"]["retained"] > 0 == wire.ledger()["moving"])
    time.sleep(0.1 * ar1.SLOW)
    needles = some_bytes(daemon.home)
    assert pieces(daemon, needles)[1] == len(needles)
    reply = wire.turn(session, words(3), max_tokens=2, ignore_end=True)  # up again, and behind in the file
    assert reply.usage["reloaded"] > 280, reply.usage
    for place in ("host", "tokens"):
        right = wire.turn(session, words(3), max_tokens=2, ignore_end=True)
        wire.ok("session.park", {"place": place}, sess=session)
        until(lambda: wire.ledger()["moving"] == 0)
    wire.turn(stays, words(100), max_tokens=2, ignore_end=True)
    wire.ok("session.park", {"place": "disk"}, sess=stays)
    memory, disk = pieces(daemon, needles)
    assert disk > 0 and right.ids, (memory, disk)
    assert ar1.SLOW > 1 or memory > len(needles) // 2, "what is free keeps its bytes until it is used again"
    wire.ok("session.forget", sess=session)
    until(lambda: pieces(daemon, needles) == (0, 0))
    reply = wire.turn(stays, words(3), max_tokens=3, ignore_end=True)
    assert reply.usage["recomputed"] == 0 and reply.usage["reloaded"] > 90, reply.usage
    left_clean(daemon)
    assert audit(f"{daemon.home}/state", "incidents") == []


def left_on_disk():
    """A daemon that has ended: its folder, a session whose pages are in that, and pieces of them."""
    daemon = start(*TIERS)
    wire = Wire(daemon.endpoint)
    session = wire.open()
    wire.turn(session, words(300), max_tokens=2, ignore_end=True)
    left_clean(daemon)
    return daemon.home, session, some_bytes(daemon.home)


def on_its_way():
    """Forgotten while its pages come from the disk: what comes up all the same is zeroed, and the slots are empty."""
    home, session, needles = left_on_disk()
    daemon = start(*TIERS, "--inject", f"tier-read@4=wait:{1000 * min(ar1.SLOW, 4)}", home=home)
    wire, other = Wire(daemon.endpoint), Wire(daemon.endpoint)
    channel = wire.begin("session.turn", {"tokens": True, "ignore_end": True, "max_tokens": 8}, pack(words(3)), sess=session)
    until(lambda: other.ledger()["moving"] > 0)
    other.ok("session.forget", sess=session)
    while wire.receive()[:2] != (ar1.END, channel):
        pass
    assert other.ledger()["moving"] > 0, "the disk is to be slower than that"
    until(lambda: other.ledger()["moving"] == 0)
    until(lambda: pieces(daemon, needles) == (0, 0))
    fresh = other.open()
    assert other.turn(fresh, words(30), max_tokens=3, ignore_end=True).status == "limit"
    left_clean(daemon)


def moving(first, then):
    """Forgotten while its pages go on from where they were parked first: down, or up for a turn."""
    home, session, needles = left_on_disk()
    late = f"tier-write@2=wait:{1000 * min(ar1.SLOW, 4)}" if first == "host" and then else "copy-late/1"
    daemon = start(*TIERS, "--inject", late, home=home)
    wire, other = Wire(daemon.endpoint), Wire(daemon.endpoint)
    def under_way():
        return sum(account["moving"] for account in other.ok("ledger.show")["r"]["accounts"].values())
    reply = wire.turn(session, words(3), max_tokens=2, ignore_end=True)  # 19 copies
    assert reply.usage["recomputed"] == 0, reply.usage
    if first:
        wire.ok("session.park", {"place": first}, sess=session)
        until(lambda: under_way() == 0)
    if then:
        wire.ok("session.park", {"place": then}, sess=session)
    else:
        wire.begin("session.turn", {"tokens": True, "ignore_end": True, "max_tokens": 8}, pack(words(3)), sess=session)
    until(lambda: under_way() > 0)
    other.ok("session.forget", sess=session)
    assert under_way() > 0, "the engine is to be slower than that"
    until(lambda: under_way() == 0)
    until(lambda: pieces(daemon, needles) == (0, 0))
    left_clean(daemon)


def idle_after():
    """When all is zeroed nothing more is done."""
    daemon = start(*TIERS)
    wire = Wire(daemon.endpoint)
    for _ in range(3):
        session = wire.open()
        wire.turn(session, words(200), max_tokens=2, ignore_end=True)
        wire.ok("session.forget", sess=session)
    time.sleep(0.2 * ar1.SLOW)
    def cpu():
        return sum(map(int, open(f"/proc/{daemon.process.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
    before = cpu()
    time.sleep(1)
    assert cpu() - before < 30, "it is busy with nothing"
    left_clean(daemon)


for what, test in (("tokens, label, answer: nowhere after session.forget", forgotten), ("a kill in the middle of it", killed),
                   ("a turn that runs", running), ("by age", by_age), ("its pages are given out again", again),
                   ("pages on the device, the host and the disk, now and before", tiers),
                   ("pages that are on their way up", on_its_way),
                   ("pages that are on their way down to the host", lambda: moving(None, "host")),
                   ("down to the disk", lambda: moving(None, "disk")),
                   ("up from the host", lambda: moving("host", None)),
                   ("from the host down to the disk", lambda: moving("host", "disk")),
                   ("and then it rests", idle_after)):
    tap.run(what, test)
raise SystemExit(tap.done())
