"""Page groups on the daemon: layers with a window keep what it shows. Every answer is the one of a daemon that
keeps all pages; forks and cuts inside what is kept compute nothing again, and those below it say why they do."""
import json
import os
import re
import subprocess
import time

import ar1
import daemon_rig
from ar1 import BUILD, Daemon, Tap, Wire
from daemon_rig import FOLDER, audit, balanced, begin, kill, left_clean, same, words

GEMMA = os.path.join(FOLDER, "gemma.gguf")
MISTRAL = os.path.join(FOLDER, "mistral.gguf")
for path, family in ((GEMMA, "gemma3"), (MISTRAL, "mistral")):
    subprocess.run([f"{BUILD}/tests/make_tiny", path, "7", family], check=True)
REAL = os.path.join(os.environ.get("HOLDFAST_MODELS", ""), "gemma3-270m.gguf")
# A window of 40: 40 + 16 tokens stay, in at most 5 pages; two layers of three have it.
OPTIONS = ["--template", "smollm2", "--chunk", "64", "--batch-rows", "96", "--strikes", "0", "--audit-commit-ms", "1",
           "--share", "no"]  # or a history computed anew would not be
PAGES_AT_REST = 5


def plan(model, *options):
    out = subprocess.run([f"{BUILD}/holdfastd", "--check", "--json", "--model", model, *options],
                         check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])


def start(*options, home=None):
    return begin(home, *OPTIONS, *options, model=GEMMA)


trim = start("--kv-memory", "4M", "--host-memory", "2M", "--digest", "resume")
keep = start("--kv-memory", "4M", "--windows", "keep")
wire, other = Wire(trim.endpoint), Wire(keep.endpoint)


def both(sessions, ids, **arguments):
    arguments = {"ignore_end": True, "seed": 3, **arguments}
    replies = [w.turn(s, ids, **arguments) for w, s in zip((wire, other), sessions)]
    same(*replies)
    return replies[0]


def opened():
    return wire.open(), other.open()


def bytes_of(w, session):
    return next(s["bytes"] for s in w.ok("session.list")["r"] if s["sess"] == session)


def incidents(daemon):
    return audit(f"{daemon.home}/state", "incidents")


def plans(wire):
    one, two = (plan(GEMMA, "--kv-memory", "4M", *o) for o in (["--windows", "keep"], ["--kv-context", "1024"]))
    assert one["window_pages"] == 0 and one["window_tokens"] == 0, one
    assert two["window_tokens"] == 40 and two["window_page_bytes"] == 2 * two["page_bytes"], two
    assert one["page_bytes"] == two["page_bytes"] + two["window_page_bytes"], (one, two)
    assert two["pages"] > one["pages"] * 3 // 2, (one, two)
    held = two["pages"] * two["page_bytes"] + two["window_pages"] * two["window_page_bytes"]
    assert two["kv_bytes"] == held <= 4 << 20 < held + two["page_bytes"], two
    # A context that is named shorter wants more of the pages for windows.
    short = plan(GEMMA, "--kv-memory", "4M", "--kv-context", "64")
    assert short["window_pages"] > two["window_pages"] and short["pages"] < two["pages"], (short, two)
    # Where all layers have a window the first keeps all its pages.
    alike = plan(MISTRAL, "--kv-memory", "4M")
    assert alike["window_tokens"] == 40 and alike["window_page_bytes"] == 2 * alike["page_bytes"], alike
    # A context no longer than what stays anyway has one group.
    assert plan(GEMMA, "--kv-memory", "4M", "--context", "96")["window_pages"] == 0


def long_contexts(_):
    """Twenty windows, turn by turn, given and sampled tokens."""
    sessions = opened()
    for turn in range(8):
        reply = both(sessions, words(80 + 7 * turn), max_tokens=9 + turn, temperature=0.7 if turn % 2 else 0)
        assert reply.usage["recomputed"] == 0, reply.usage
    history = reply.usage["history"]
    assert history > 20 * 40, history
    # From nothing, in one go.
    for w in (wire, other):
        fork = w.ok("session.fork", sess=sessions[w is other])["sess"]
        w.ok("session.park", {"place": "tokens"}, sess=fork)
        reply = w.turn(fork, words(1), max_tokens=1)
        assert reply.usage["recomputed"] == history - 1, reply.usage
        w.ok("session.close", sess=fork)
    p = plan(GEMMA, "--kv-memory", "4M")
    units = (history + 14) // 16
    had, all_had = bytes_of(wire, sessions[0]), bytes_of(other, sessions[1])
    assert all_had == units * (p["page_bytes"] + p["window_page_bytes"]), all_had
    assert had <= units * p["page_bytes"] + PAGES_AT_REST * p["window_page_bytes"], (had, all_had)
    for w, s in zip((wire, other), sessions):
        w.ok("session.close", sess=s)


def forks_and_cuts(_):
    sessions = opened()
    first = both(sessions, words(400), max_tokens=12)
    forks = [w.ok("session.fork", sess=s)["sess"] for w, s in zip((wire, other), sessions)]
    ask = words(30)
    reply = both(forks, ask, max_tokens=8)
    assert reply.usage["resident"] == 400 and reply.usage["diverged_why"] == "fork_tail", reply.usage
    both(sessions, words(100), max_tokens=20)
    # The parent has gone on by more than a window: the fork has what it needs, and goes on from there.
    reply = both(forks, words(5), max_tokens=30)
    assert reply.usage["recomputed"] <= 1, reply.usage
    # Back by 15 tokens: inside. The cut is the same, whether a turn or a rollback asks for it.
    history = reply.usage["history"]
    reply = both(forks, words(9), keep=history - 15, max_tokens=4)
    assert reply.usage["recomputed"] == 0 and reply.usage["resident"] == history - 15, reply.usage
    for w, s in zip((wire, other), sessions):
        w.ok("session.rollback", {"to_tokens": 520}, sess=s)
    assert both(sessions, words(3), max_tokens=4).usage["resident"] == 520
    # Below: everything is computed again, and why is said.
    for ask_keep in (300, None):
        if ask_keep is None:
            for w, s in zip((wire, other), sessions):
                w.ok("session.rollback", {"to_tokens": 200}, sess=s)
        usage = both(sessions, words(3), max_tokens=4, **({} if ask_keep is None else {"keep": ask_keep})).usage
        assert usage["recomputed"] == (ask_keep or 200) and usage["resident"] == 0, usage
        assert usage["diverged_why"] == "window_passed", usage
    for w, all_of in ((wire, (sessions[0], forks[0])), (other, (sessions[1], forks[1]))):
        for s in all_of:
            w.ok("session.close", sess=s)
    device = balanced(wire)
    assert device["retained"] == device["shared"] == 0, device


def crowd(w):
    """More contexts than the pages hold: some wait, go down, come back; no answer differs."""
    begin = [words(300 + 40 * i) for i in range(12)]
    more = [words(25) for _ in range(12)]
    sessions = [w.open() for _ in range(12)]
    ask = dict(max_tokens=5, ignore_end=True, seed=3)
    seen = []
    for i, s in enumerate(sessions):
        seen.append(w.turn(s, begin[i], **ask))
    channels = [w.begin("session.turn", {"tokens": True, "logprobs": 1, **ask}, ar1.pack(more[i]), sess=s)
                for i, s in enumerate(sessions)]
    again = finish_all(w, channels)
    for i in range(12):
        alone = other.open()
        same(seen[i], other.turn(alone, begin[i], **ask))
        same(again[i], other.turn(alone, more[i], **ask))
        other.ok("session.close", sess=alone)
    return sessions, {k: sum(reply.usage[k] for reply in again) for k in ("reloaded", "recomputed")}


def crowded(_):
    sessions, count = crowd(wire)
    for s in sessions:
        wire.ok("session.close", sess=s)
    assert count["reloaded"] > 500, count


def finish_all(w, channels):
    """Reads several calls at once."""
    replies = {c: ar1.Reply() for c in channels}
    left = set(channels)
    while left:
        type, at, _, body, blob = w.receive(60)
        if type == ar1.DATA and at in replies:
            ids = ar1.struct.unpack(f"<{len(blob) // 4}I", blob)
            replies[at].ids += ids
            replies[at].logprobs += [ar1.struct.pack("<f", x["p"]) for x in body[3] or []]
        elif type == ar1.END and at in replies:
            replies[at].end = body
            assert body["status"] == "limit", body
            left.discard(at)
    return [replies[c] for c in channels]


def pages_and_log(_):
    """Both groups can be looked at, and the log names them."""
    session = wire.open()
    wire.turn(session, words(200), max_tokens=2, ignore_end=True)
    mine = [[p for at in range(0, 400, 100) for p in wire.ok("pages.show", {"group": g, "first": at})["r"]
             if p.get("sess") == session] for g in (0, 1)]
    assert len(mine[0]) == 13 and 0 < len(mine[1]) <= PAGES_AT_REST, [len(m) for m in mine]
    assert all(p["group"] == g for g in (0, 1) for p in mine[g])
    assert min(p["position"] for p in mine[0]) == 0 and min(p["position"] for p in mine[1]) > 100, mine
    assert wire.ok("pages.show", {"group": 2})["r"] == []
    wire.ok("session.close", sess=session)


def counted(_):
    """The metrics have the pages of each group by place and column: those that are listed, and in bytes what the ledger has."""
    def look():
        found = {}
        for name, labels, value in re.findall(r"^holdfast_([a-z_]+){(.*)} ([0-9]+)$", wire.ok("metrics")["r"]["text"], re.M):
            found[(name, *re.findall('"(.*?)"', labels))] = int(value)
        for place in ("device", "host", "disk"):
            for column in ("free", "running", "promised", "retained", "shared", "moving", "doomed"):
                sums = sum(found["pages", g, place, column] * found["group_page_bytes", g] for g in "01")
                assert sums == found["ledger_bytes", place, column], (place, column, found)
        return found
    session = wire.open()
    wire.turn(session, words(300), max_tokens=2, ignore_end=True)
    fork = wire.ok("session.fork", sess=session)["sess"]
    rests = look()
    assert all(rests["pages", g, "device", "shared"] > 0 == rests["pages", g, "device", "running"] for g in "01"), rests
    listed = [p["state"] for at in range(0, 4096, 1024) for p in wire.ok("pages.show", {"group": 1, "first": at, "count": 1024})["r"]]
    free = listed.count("free")
    assert rests["pages", "1", "device", "free"] + rests["pages", "1", "device", "promised"] == free > 0, (free, rests)
    wire.ok("session.close", sess=fork)
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 700, "ignore_end": True}, ar1.pack(words(9)), sess=session, window=4)
    daemon_rig.until(lambda: look()["pages", "0", "device", "running"])
    runs = look()
    assert all(runs["pages", g, "device", "running"] > 0 for g in "01") and runs["pages", "0", "device", "promised"] > 0, runs
    wire.send(ar1.CANCEL, channel, {})
    assert daemon_rig.await_message(wire, ar1.END, channel)["status"] == "cancelled"
    wire.ok("session.park", {"place": "host"}, sess=session)
    daemon_rig.until(lambda: all(look()["pages", g, "host", "retained"] for g in "01"))
    wire.ok("session.close", sess=session)


def disk(_):
    """The disk tier takes the pages of both groups, and gives them back. What it has does not outlive the process: after a
    restart such a session has its tokens, and its pages are computed again."""
    options = ("--kv-memory", "4M", "--disk-bytes", "32M", "--disk-reserve", "0")
    daemon = start(*options)
    w = Wire(daemon.endpoint)
    sessions, count = crowd(w)
    assert count["reloaded"] > 500, count
    session, ids = sessions[3], words(5)
    w.ok("session.park", {"place": "disk"}, sess=session)
    groups = [[p for at in range(0, 2000, 100) for p in w.ok("pages.show", {"group": g, "first": at})["r"] if p.get("sess") == session]
              for g in (0, 1)]
    assert groups == [[], []], groups  # nothing of it is on the device
    for k in range(2):
        ask = words(9)
        reply = w.turn(session, ask, max_tokens=4, ignore_end=True)
        assert reply.usage["reloaded"] > 400 and reply.usage["recomputed"] == 0, (k, reply.usage)
        w.ok("session.park", {"place": "disk" if k == 0 else "tokens"}, sess=session)
    right = w.turn(session, ids, max_tokens=9, ignore_end=True)
    history = right.usage["history"]
    w.ok("session.rollback", {"to_tokens": history - 14}, sess=session)
    assert incidents(daemon) == []
    # What is down there when the process ends is not the next one's.
    w.ok("session.park", {"place": "disk"}, sess=session)
    while w.ok("ledger.show")["r"]["accounts"]["disk"]["moving"]:
        time.sleep(0.05)
    time.sleep(0.5)
    kill(daemon)
    daemon = start(*options, home=daemon.home)
    again = Wire(daemon.endpoint).turn(session, ids, max_tokens=9, ignore_end=True)
    same(again, right)
    usage = again.usage
    assert usage["resident"] == usage["reloaded"] == 0 and usage["recomputed"] >= history - 15, usage
    assert usage["diverged_why"] == "restarted", usage
    assert " pages of " in daemon.words(), daemon.words()  # there were some to be found
    left_clean(daemon)


def harmed(_):
    """A page of either group that comes back with a wrong bit is found, and no token is wrong."""
    daemon = start("--kv-memory", "4M", "--disk-bytes", "32M", "--disk-reserve", "0", "--inject", "bits-disk/6")
    w = Wire(daemon.endpoint)
    crowd(w)
    found = [line for line in incidents(daemon) if line["kind"] == "incident"]
    assert found and {line["group"] for line in found} == {0, 1}, found
    left_clean(daemon)


def real(_):
    """What a session of 4,000 tokens takes of the real model."""
    if not os.path.exists(REAL) or os.environ.get("HOLDFAST_SANITIZED"):
        return "skip gemma3-270m is not in HOLDFAST_MODELS, or a sanitized run"
    one = plan(REAL, "--windows", "keep", "--kv-memory", "64M", "--template", "gemma")
    daemon = Daemon(REAL, "--kv-memory", "64M", "--template", "gemma", "--context", "8192")
    try:
        w = Wire(daemon.endpoint)
        session = w.open()
        tokens = [2 + (i * 7919) % 5000 for i in range(4000)]
        reply = w.call("session.turn", {"tokens": True, "max_tokens": 1, "ignore_end": True},
                       ar1.pack(tokens), sess=session)
        assert reply.usage["new"] == 4000, reply.usage
        took, without = bytes_of(w, session), (4000 // 16) * one["page_bytes"]
        print(f"# 4000 tokens take {took} bytes, {without} with all pages: {without / took:.2f} times")
        assert took * 3 < without, (took, without)
        w.close()
    finally:
        daemon.stop()
    return None


tap = Tap()
daemon_rig.run(tap, trim, wire, [
    ("the plan shows both groups, and divides the memory between them", plans),
    ("contexts of twenty windows give what they give with all pages", long_contexts),
    ("forks and cuts: inside the window nothing is computed again, below it all is, and said", forks_and_cuts),
    ("a crowd waits, goes down and comes back, and no answer differs", crowded),
    ("pages are listed by group", pages_and_log),
    ("pages are counted by group, place and column", counted),
    ("bytes of a session of 4,000 tokens of the real model", real)])
tap.run("the disk tier has the pages of both groups, for as long as the process lives", disk, wire)
tap.run("and finds one that is not what it was", harmed, wire)
other.close()
tap.run("the other ends with 0", left_clean, keep)
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, trim)
daemon_rig.finish(tap, trim)
