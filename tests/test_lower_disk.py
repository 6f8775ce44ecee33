"""The disk tier on the daemon: contexts that neither device nor host hold go to a file and come back, and every
answer is the one of a session that was never moved. What the disk does to pages (bits that turn, reads and writes
that fail, no room, no answer) costs a computation and is told, and no token is wrong."""
import os
import time

import ar1
from ar1 import Tap, Wire
from daemon_rig import audit, balanced, begin, left_clean, same, words

# The slab holds about 2,900 tokens; six contexts of 700 do not fit.
SESSIONS, TOKENS, ROUNDS = 6, 700, 2
ASK = dict(max_tokens=6, ignore_end=True, temperature=0.8, seed=3)
BEGIN = [words(TOKENS) for _ in range(SESSIONS)]
MORE = [[words(20) for _ in range(ROUNDS)] for _ in range(SESSIONS)]
tap = Tap()


def start(*options, home=None):
    return begin(home, "--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96",
                 "--strikes", "0", "--audit-commit-ms", "1", "--disk-reserve", "0", *options)


def play(wire, sessions=None):
    """The same turns, the sessions in turn. Returns the replies of each, and the tokens by origin."""
    sessions = sessions or [wire.open() for _ in range(SESSIONS)]
    seen = [[wire.turn(s, BEGIN[i], **ASK)] for i, s in enumerate(sessions)]
    for round in range(ROUNDS):
        for i, s in enumerate(sessions):
            seen[i].append(wire.turn(s, MORE[i][round], **ASK))
    count = {k: sum(r.usage[k] for replies in seen for r in replies[1:]) for k in ("reloaded", "recomputed")}
    return sessions, seen, count


def alone():
    """Each of them on a slab that holds it, one after the other."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    right = []
    for i in range(SESSIONS):
        s = wire.open()
        right.append([wire.turn(s, BEGIN[i], **ASK)] + [wire.turn(s, m, **ASK) for m in MORE[i]])
        wire.ok("session.close", sess=s)
    left_clean(daemon)
    return right


def all_same(seen, right):
    for mine, theirs in zip(seen, right):
        for a, b in zip(mine, theirs):
            same(a, b)


def metric(wire, name):
    text = wire.ok("metrics")["r"]["text"]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(f"holdfast_{name}"))


def incidents(daemon):
    return audit(f"{daemon.home}/state", "incidents")


def followed(daemon):
    """By the log alone, each page that came up or went on below was there, under that page and tag. How many went on, and where."""
    below, moves = set(), {}
    for r in audit(f"{daemon.home}/state", "export"):
        if r["kind"] not in ("free", "assign", "move") or (r["kind"] != "move" and r["reason"] != "moved"):
            continue
        other = r["from" if r["kind"] == "assign" else "to"]
        there = (other["place"], other["page"], other["tag"])
        if r["kind"] == "assign":
            assert there in below, r
            continue
        if r["kind"] == "move":
            here = PLACES[r["place"]]
            assert (here, r["page"], r["tag"]) in below and here != other["place"], r
            moves[here, other["place"]] = moves.get((here, other["place"]), 0) + 1
        below.add(there)
    return moves


PLACES = ("device", "host", "disk")


def moved(*options):
    def test():
        daemon = start("--disk-bytes", "4M", *options)
        wire = Wire(daemon.endpoint)
        sessions, seen, count = play(wire)
        all_same(seen, RIGHT)
        assert count["recomputed"] == 0 and count["reloaded"] > SESSIONS * TOKENS // 3, count
        accounts = wire.ok("ledger.show")["r"]["accounts"]
        assert accounts["disk"]["retained"] > 0 and sum(accounts["disk"].values()) > 3 << 20, accounts
        assert metric(wire, "ledger_bytes{account=\"disk\",column=\"retained\"}") == accounts["disk"]["retained"]
        assert metric(wire, "disk_pages_total{verb=\"put\"}") > 0 and metric(wire, "disk_pages_total{verb=\"get\"}") > 0
        used = os.stat(f"{daemon.home}/state/pages").st_blocks * 512
        assert used > accounts["disk"]["retained"], used
        wire.ok("session.park", {"place": "disk"}, sess=sessions[0])
        reply = wire.turn(sessions[0], words(3), max_tokens=2, ignore_end=True)
        assert reply.usage["reloaded"] == reply.usage["history"] - 6 and reply.usage["recomputed"] == 0, reply.usage
        for s in sessions:
            wire.ok("session.close", sess=s)
        balanced(wire)
        deadline = time.time() + 10 * ar1.SLOW
        while os.stat(f"{daemon.home}/state/pages").st_blocks * 512 > 200000 and time.time() < deadline:
            time.sleep(0.05)
        used = os.stat(f"{daemon.home}/state/pages").st_blocks * 512
        assert used <= 200000, f"{used} bytes of closed sessions are in the file"
        moves = followed(daemon)
        assert (moves.get(("host", "disk"), 0) > 0) == bool(options) and not moves.get(("host", "device")), moves
        left_clean(daemon)
        assert incidents(daemon) == []
    return test


def harmed(spec, said, *options, kind=None, lost=True):
    def test():
        daemon = start("--disk-bytes", "4M", "--inject", spec, *options)
        wire = Wire(daemon.endpoint)
        _, seen, count = play(wire)
        all_same(seen, RIGHT)
        assert (count["recomputed"] > 0) == lost, count
        assert not said or said in daemon.words(), daemon.words()[-600:]
        balanced(wire)
        left_clean(daemon)
        if kind:
            found = incidents(daemon)
            assert any(x["reason"] == kind for x in found), found
            # The log tells who held pages of the device: of another place's page it has no such history.
            assert all(x["kind"] == "incident" and x["place"] > 0 for x in found), found
    return test


def bad_slot():
    """A slot that cannot be written is put out of use, and a spare one takes its place: nothing is lost."""
    daemon = start("--disk-bytes", "4M", "--inject", "tier-write@4=eio,tier-write@9=eio")
    wire = Wire(daemon.endpoint)
    _, seen, count = play(wire)
    all_same(seen, RIGHT)
    assert count["recomputed"] == 0, count
    assert daemon.words().count("it is out of use") == 2, daemon.words()
    assert metric(wire, "disk_bad_slots") == 2
    left_clean(daemon)


def no_answer():
    """The disk hangs: turns go on meanwhile, what waited for it is computed again, and it is used when it is back."""
    daemon = start("--disk-bytes", "4M", "--disk-wait-ms", "200", "--inject", f"tier-write@6=wait:{1500 * ar1.SLOW}")
    wire = Wire(daemon.endpoint)
    began = time.time()
    sessions, seen, count = play(wire)
    all_same(seen, RIGHT)
    assert "does not answer" in daemon.words(), (daemon.words(), time.time() - began)
    assert count["recomputed"] > 0, count
    deadline = time.time() + 20 * ar1.SLOW
    before = metric(wire, "disk_pages_total{verb=\"put\"}")
    while metric(wire, "disk_pages_total{verb=\"put\"}") < before + 20 and time.time() < deadline:
        for s in sessions:
            wire.turn(s, words(2), max_tokens=2, ignore_end=True)
    assert metric(wire, "disk_pages_total{verb=\"put\"}") >= before + 20, "it is not used again"
    balanced(wire)
    left_clean(daemon)


RIGHT = alone()
tap.run("what does not fit goes to the disk and comes back, and no answer differs", moved())
tap.run("by way of the host", moved("--host-memory", "150000"))
tap.run("a bit that turns on the disk is found", harmed("bits-disk/20,seed=3", "not those that were put", kind="digest"))
tap.run("a bit that turns in host memory is found",
        harmed("bits-host/20,seed=4", "", "--host-memory", "1M", kind="lower"))
tap.run("a copy that moved nothing is found", harmed("copy-skip/20,seed=5", "", kind="lower"))
tap.run("a page that cannot be read", harmed("tier-read/15=eio", "cannot be read", kind="lower"))
tap.run("half a write", harmed("tier-write/15=half", "not those that were put", kind="digest"))
tap.run("no room on the disk", harmed("tier-write/12=enospc", "could not be written"))
tap.run("a slot that cannot be written", bad_slot)
tap.run("a disk that does not answer", no_answer)
raise SystemExit(tap.done())
