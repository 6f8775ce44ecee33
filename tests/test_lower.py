"""Places below the device, on the daemon: contexts that do not fit go to host memory and come back, and
every answer is the one of a session that was never moved."""
import daemon_rig
from ar1 import Daemon, Tap, Wire
from daemon_rig import audit, MODEL, balanced, left_clean, same, words

# The slab holds about 2,900 tokens; eight contexts of 700 are twice that.
SESSIONS, TOKENS, ROUNDS = 8, 700, 3


def start(*options):
    return Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--host-memory", "2M", "--chunk", "64",
                  "--batch-rows", "96", "--strikes", "0", "--audit-commit-ms", "1", *options)


def moved_and_never_moved(wire):
    """The same turns, eight sessions in turn, and then each alone from nothing."""
    begin = [words(TOKENS) for _ in range(SESSIONS)]
    more = [[words(20) for _ in range(ROUNDS)] for _ in range(SESSIONS)]
    ask = dict(max_tokens=6, ignore_end=True, temperature=0.8, seed=3)
    sessions = [wire.open() for _ in range(SESSIONS)]
    seen = [[wire.turn(s, begin[i], **ask)] for i, s in enumerate(sessions)]
    reloaded = recomputed = 0
    for round in range(ROUNDS):
        for i, s in enumerate(sessions):
            reply = wire.turn(s, more[i][round], **ask)
            reloaded += reply.usage["reloaded"]
            recomputed += reply.usage["recomputed"]
            seen[i].append(reply)
    assert reloaded > SESSIONS * TOKENS // 2, (reloaded, recomputed)
    assert recomputed == 0, (reloaded, recomputed)
    host = wire.ok("ledger.show")["r"]["accounts"]["host"]
    show = wire.ok("ledger.show")["r"]["deployment"]
    assert show["weights"]["bytes"] > 0 and show["kv"]["bytes"] > 500000 >= show["kv"]["free"], show
    assert show["headroom"]["turns"] == 32 and show["headroom"]["bytes"] == show["kv"]["bytes"], show
    assert sum(s["lower"] for s in wire.ok("session.list")["r"]) >= host["retained"] > 0, host
    assert host["retained"] > 0 and sum(host.values()) > 1 << 20, host
    for s in sessions:
        wire.ok("session.close", sess=s)
    for i in range(SESSIONS):
        alone = wire.open()
        same(seen[i][0], wire.turn(alone, begin[i], **ask))
        for round in range(ROUNDS):
            same(seen[i][round + 1], wire.turn(alone, more[i][round], **ask))
        wire.ok("session.close", sess=alone)


def parked(wire):
    session = wire.open()
    wire.turn(session, words(300), max_tokens=3, ignore_end=True)
    wire.ok("session.park", {"place": "host"}, sess=session)
    twin = wire.ok("session.fork", sess=session)["sess"]
    wire.ok("session.park", {"place": "tokens"}, sess=twin)
    ask = words(5)
    came, computed = (wire.turn(s, ask, max_tokens=8, ignore_end=True) for s in (session, twin))
    same(came, computed)
    assert came.usage["reloaded"] == 302 and came.usage["recomputed"] == 0, came.usage
    assert computed.usage["reloaded"] == 0 and computed.usage["recomputed"] == 302, computed.usage
    # The log follows each page: from the device to the host and back, by the same page and tag there.
    said = audit(f"{alone.home}/state", "session", session.hex())
    down = {(r["to"]["page"], r["to"]["tag"]): r["page"] for r in said if (r["kind"], r["reason"]) == ("free", "moved")}
    up = {(r["from"]["page"], r["from"]["tag"]) for r in said if (r["kind"], r["reason"]) == ("assign", "moved")}
    assert len(down) >= 302 // 16 and up <= set(down) and len(up) >= 302 // 16, (down, up)
    assert {r.get("to", r.get("from", {})).get("place") for r in said if r["reason"] == "moved"} == {"host"}
    page = next(r["page"] for r in said if r["reason"] == "moved" and r["kind"] == "assign")
    assert audit(f"{alone.home}/state", "page", page)[-1]["kind"] == "assign"
    assert wire.call("session.park", {"place": "disk"}, sess=session).end["err"]["n"] == "bad_arg"
    wire.ok("session.close", sess=session)
    wire.ok("session.close", sess=twin)
    device = balanced(wire)
    assert device["retained"] == device["shared"] == 0, device


tap = Tap()
daemon, alone = start(), start("--share", "no")
daemon_rig.run(tap, daemon, Wire(daemon.endpoint), [
    ("what does not fit goes to host and comes back, and no answer differs", moved_and_never_moved)])
# With --share a twin that was given up would find what the session has.
daemon_rig.run(tap, alone, Wire(alone.endpoint), [("a parked session comes back from host", parked)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
tap.run("so does the other", left_clean, alone)
daemon_rig.finish(tap, daemon)
