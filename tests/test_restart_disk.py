"""Goal: what a daemon wrote to its disk tier comes back with the next one, after an orderly stop and after kill -9, and
what does not prove to be the session's own does not. Method: sessions play turns; the daemon ends; the file is left as
it is, or harmed; the next daemon's turns say the tokens of a daemon that never ended, and their END says how many were
reloaded and how many computed again."""
import os
import shutil
import subprocess
import time

import ar1
from ar1 import BUILD, Tap, Wire
from daemon_rig import FOLDER, MODEL, audit, begin, kill, left_clean, same, words

tap = Tap()
OPTIONS = ("--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96",
           "--disk-bytes", "4M", "--disk-reserve", "0")
ASK = dict(max_tokens=6, ignore_end=True, temperature=0.8, seed=3)
COUNT = 5
SAID = [[] for _ in range(COUNT)]  # their histories after the second turns
BEGIN = [words(300 + 37 * i) for i in range(COUNT)]
SECOND = [words(20) for _ in range(COUNT)]
THIRD = [words(11) for _ in range(COUNT)]


def start(home=None, *options, model=MODEL, base=OPTIONS):
    return begin(home, *base, *options, model=model)


def stop(daemon):
    left_clean(daemon)


def first(daemon):
    wire = Wire(daemon.endpoint)
    sessions = [wire.open() for _ in range(COUNT)]
    for i, s in enumerate(sessions):
        SAID[i] = BEGIN[i] + wire.turn(s, BEGIN[i], **ASK).ids
    for i, s in enumerate(sessions):
        SAID[i] = SAID[i] + SECOND[i] + wire.turn(s, SECOND[i], **ASK).ids
    return wire, sessions


def came(reply):
    """Tokens that came back: with the turn, or before it, when there was room."""
    return reply.usage["reloaded"] + reply.usage["resident"]


def third(daemon, sessions):
    """The third turns, and what of their prompts came back and what was recomputed."""
    wire = Wire(daemon.endpoint)
    replies = [wire.turn(s, THIRD[i], **ASK) for i, s in enumerate(sessions)]
    return replies, sum(came(r) for r in replies), sum(r.usage["recomputed"] for r in replies)


def right_tokens():
    daemon = start()
    _, sessions = first(daemon)
    replies, _, _ = third(daemon, sessions)
    known = sum(r.usage["prompt"] - r.usage["new"] for r in replies)
    stop(daemon)
    shutil.rmtree(daemon.home)
    return replies, known


def computed(model, *options):
    """The third turns of a daemon that was given the histories as they are, and has nothing of before."""
    daemon = start(None, *options, model=model)
    wire = Wire(daemon.endpoint)
    replies = [wire.turn(wire.open(), SAID[i] + THIRD[i], **ASK) for i in range(COUNT)]
    stop(daemon)
    shutil.rmtree(daemon.home)
    return replies


def all_same(got):
    for a, b in zip(got, RIGHT):
        same(a, b)


def ledger(wire, account):
    return wire.ok("ledger.show")["r"]["accounts"][account]


def there(wire):
    """On disk and device together, when nothing moves: with room, pages come up before they are asked for."""
    deadline = time.time() + 10 * ar1.SLOW
    while True:
        both = [ledger(wire, a) for a in ("device", "disk")]
        if not any(a["moving"] for a in both) or time.time() > deadline:
            return {k: sum(a[k] for a in both) for k in both[0]}
        time.sleep(0.02)


def orderly():
    """All that rests is written down; the next process computes nothing of it again."""
    daemon = start()
    _, sessions = first(daemon)
    stop(daemon)
    for round in range(2):
        daemon = start(daemon.home)
        assert "are sessions' again" in daemon.words(), daemon.words()
        wire = Wire(daemon.endpoint)
        assert there(wire)["retained"] > 0
        wire.close()
        if round == 0:
            stop(daemon)  # nobody asked for anything: all is as it was
    replies, reloaded, recomputed = third(daemon, sessions)
    all_same(replies)
    assert recomputed == 0 and reloaded == KNOWN, (reloaded, recomputed, KNOWN)
    stop(daemon)
    shutil.rmtree(daemon.home)


def killed():
    """Without a word: what was on the disk comes back, the rest is computed again."""
    daemon = start()
    wire, sessions = first(daemon)
    for s in sessions[:3]:
        wire.ok("session.park", {"place": "disk"}, sess=s)
    deadline = time.time() + 10 * ar1.SLOW
    while time.time() < deadline and ledger(wire, "disk")["moving"]:
        time.sleep(0.02)
    time.sleep(0.1 * ar1.SLOW)
    kill(daemon)
    daemon = start(daemon.home)
    replies, reloaded, recomputed = third(daemon, sessions)
    all_same(replies)
    assert reloaded + recomputed == KNOWN and reloaded > 3 * 300 and recomputed > 0, (reloaded, recomputed, KNOWN)
    why = {r.usage["diverged_why"] for r in replies if r.usage["recomputed"]}
    assert why == {"restarted"}, why
    # They are on the device now; what stands behind in the file still proves what it is.
    kill(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    again = [wire.turn(s, words(3), **ASK) for s in sessions]
    assert sum(came(r) for r in again) > 3 * 300
    stop(daemon)
    shutil.rmtree(daemon.home)


def shared():
    """Forks share the pages of their head again, wherever they parted."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    head = wire.open()
    wire.turn(head, BEGIN[0], **ASK)
    tree = [head] + [wire.ok("session.fork", {}, sess=head)["sess"] for _ in range(3)]
    tree.append(wire.ok("session.fork", {"to_tokens": 200}, sess=head)["sess"])
    for i, s in enumerate(tree):
        wire.turn(s, SECOND[i], **ASK)
    tree.append(wire.ok("session.fork", {}, sess=tree[1])["sess"])
    asked = [words(9) for _ in tree]
    copies = [wire.ok("session.fork", {}, sess=s)["sess"] for s in tree]
    for s in copies:
        wire.ok("session.park", {"place": "tokens"}, sess=s)
    right = [wire.turn(s, asked[i], **ASK) for i, s in enumerate(copies)]
    for s in copies:
        wire.ok("session.close", sess=s)
    before = wire.ledger()
    held = sum(before[k] for k in ("retained", "shared"))
    stop(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    disk = there(wire)
    assert disk["shared"] > 0 and disk["shared"] + disk["retained"] <= held, (disk, before)
    for i, s in enumerate(tree):
        reply = wire.turn(s, asked[i], **ASK)
        same(reply, right[i])
        # Full pages are shared; of the last fork's tail, which its parent owns, a page at most is not.
        assert reply.usage["recomputed"] <= 16, (i, reply.usage)
    stop(daemon)
    shutil.rmtree(daemon.home)


def many():
    """Many sessions of a few heads: served soon, and each next turn computes only what is new."""
    daemon = start(None, "--sessions", "400", "--disk-bytes", "8M")
    wire = Wire(daemon.endpoint)
    count = 300 if ar1.SLOW == 1 else 60
    heads = [wire.open() for _ in range(4)]
    for i, s in enumerate(heads):
        wire.turn(s, BEGIN[i], max_tokens=1, ignore_end=True)
    sessions = [wire.ok("session.fork", {}, sess=heads[i % 4])["sess"] for i in range(count)]
    for i, s in enumerate(sessions):
        wire.turn(s, words(9), max_tokens=2, ignore_end=True)
    stop(daemon)
    began = time.time()
    daemon = start(daemon.home, "--sessions", "400", "--disk-bytes", "8M")
    seconds = time.time() - began
    wire = Wire(daemon.endpoint)
    for s in sessions:
        reply = wire.turn(s, words(9), max_tokens=2, ignore_end=True)
        assert reply.usage["recomputed"] == 0 and reply.usage["new"] == 10, reply.usage
    print(f"# {count} sessions: served after {seconds:.2f} s")
    assert seconds < 3 * ar1.SLOW, seconds
    stop(daemon)
    shutil.rmtree(daemon.home)


def running():
    """A turn that ran when the process was killed goes on from what the disk has."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    s, other = wire.open(), wire.open()
    wire.turn(s, BEGIN[2], **ASK)
    wire.ok("session.park", {"place": "disk"}, sess=s)
    time.sleep(0.3 * ar1.SLOW)
    twin = wire.ok("session.fork", {}, sess=s)["sess"]
    wire.ok("session.park", {"place": "tokens"}, sess=twin)
    long = dict(tokens=True, ignore_end=True, max_tokens=200, seed=9, temperature=0.7)
    right = wire.turn(twin, THIRD[0], ignore_end=True, max_tokens=200, seed=9, temperature=0.7)
    channel = wire.begin("session.turn", long, ar1.pack(THIRD[0]), sess=s, detach_ms=60000)
    reply = wire.finish(channel, tokens=4)
    kill(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    wire.channel += 1
    wire.send(ar1.RESUME, wire.channel, {"op": reply.op, "after_seq": 0, "window": 1 << 20})
    whole = wire.finish(wire.channel)
    assert whole.ids == right.ids, (whole.ids, right.ids)
    assert came(whole) >= 300 and whole.usage["recomputed"] <= 32, whole.usage
    stop(daemon)
    shutil.rmtree(daemon.home)


def written():
    """A daemon that ended in order, to be copied and harmed."""
    daemon = start()
    _, sessions = first(daemon)
    stop(daemon)
    return daemon.home, sessions


def harmed(what, harm, *options, said=None, reloaded=None, base=OPTIONS, model=MODEL, logged=None, anew=False):
    def test():
        home = f"{HOME}.{what}"
        shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("rpc.sock*"))
        harm(f"{home}/state/pages")
        daemon = start(home, *options, base=base, model=model)
        replies, back, again = third(daemon, SESSIONS)
        if anew:  # what the new model says to the same history, and no longer what the old one did
            for a, b in zip(replies, computed(model, *options)):
                same(a, b)
                assert a.usage["prompt"] == b.usage["prompt"]
            assert any(a.logprobs != b.logprobs for a, b in zip(replies, RIGHT))
        else:
            all_same(replies)
        assert back + again == KNOWN, (back, again, KNOWN)
        assert reloaded is None or reloaded(back), (back, again)
        if said:
            assert said in daemon.words(), daemon.words()
        left_clean(daemon)
        if logged:
            records = audit(f"{daemon.home}/state", "export" if logged == "config" else "incidents")
            assert any(logged in (r["kind"], r["reason"]) for r in records), records[-20:]
        shutil.rmtree(home)
    return test


def bytes_at(at, count, value):
    def harm(path):
        with open(path, "r+b") as f:
            f.seek(at)
            f.write(bytes([value]) * count)
    return harm


def every_page_bit(path):
    """One bit in each block behind the table of entries."""
    size = os.stat(path).st_size
    with open(path, "r+b") as f:
        for at in range(50 * 4096 + 100, size, 4096):
            f.seek(at)
            byte = f.read(1)
            f.seek(at)
            f.write(bytes([byte[0] ^ 4]))


def cut(path):
    os.truncate(path, os.stat(path).st_size // 2)


def swapped(path):
    """The file of another store."""
    other = start()
    _, _ = first(other)
    left_clean(other)
    shutil.copy(f"{other.home}/state/pages", path)
    shutil.rmtree(other.home)


def vocabulary():
    """The same number of tokens, of which one stands for something else: the sessions are not given to it."""
    other = os.path.join(FOLDER, "vocabulary.gguf")
    with open(MODEL, "rb") as file:
        model = file.read()
    one = b"\x06\0\0\0\0\0\0\0<0x41>"
    text = one if model.count(one) == 1 else None
    if text is None:  # any token of one letter, with its length before it
        text = next(t for t in (b"\x01\0\0\0\0\0\0\0" + bytes([c]) for c in range(97, 123)) if model.count(t) == 1)
    with open(other, "wb") as file:
        file.write(model.replace(text, text[:-1] + b"~"))
    home = f"{HOME}.vocabulary"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("rpc.sock*"))
    daemon = begin(home, *OPTIONS, model=other, wait=False)
    assert daemon.process.wait(30 * ar1.SLOW) == 1, daemon.words()
    said = daemon.words()
    assert "the model file changed" in said and "another vocabulary" in said and "another --state" in said, said
    daemon.log.close()
    # Nothing was changed by that.
    daemon = start(home)
    replies, back, again = third(daemon, SESSIONS)
    all_same(replies)
    assert back == KNOWN and again == 0, (back, again)
    left_clean(daemon)
    shutil.rmtree(home)


def stop_ms():
    """--stop-ms 0: nothing is written at the end, and it ends at once; the next one computes."""
    daemon = start(None, "--stop-ms", "0")
    _, sessions = first(daemon)
    stop(daemon)
    daemon = start(daemon.home)
    replies, reloaded, recomputed = third(daemon, sessions)
    all_same(replies)
    assert recomputed > 0 and reloaded < KNOWN, (reloaded, recomputed)
    stop(daemon)


RIGHT, KNOWN = right_tokens()
tap.run("an orderly stop writes all down, and nothing is computed again", orderly)
tap.run("kill -9: what was on the disk comes back", killed)
tap.run("forks share again", shared)
tap.run("many sessions of a few heads", many)
tap.run("a turn that ran goes on from the disk", running)
HOME, SESSIONS = written()
NONE, SOME, ALL = (lambda n: n == 0), (lambda n: 0 < n < KNOWN), (lambda n: n == KNOWN)
OTHER = os.path.join(FOLDER, "other.gguf")
subprocess.run([f"{BUILD}/tests/make_tiny", OTHER, "8"], check=True)
tap.run("a file that is as it was", harmed("same", lambda path: None, reloaded=ALL))
tap.run("a file that is gone", harmed("gone", os.unlink, reloaded=NONE))
tap.run("a page that was changed", harmed("page", every_page_bit, said="not those that were put", logged="digest"))
tap.run("a cut tail", harmed("cut", cut, said="was cut"))
tap.run("a wrong version", harmed("version", bytes_at(16, 1, 9), said="version", reloaded=NONE, logged="config"))
tap.run("not our file", harmed("magic", bytes_at(0, 4, 88), said="not one of ours", reloaded=NONE))
tap.run("another store's file", harmed("store", swapped, said="another store", reloaded=NONE, logged="config"))
tap.run("the table of entries overwritten", harmed("table", bytes_at(4096, 8192, 255), reloaded=lambda n: n < KNOWN))
tap.run("another precision", harmed("plan", lambda path: None, "--kv", "bf16", "--kv-memory", "1200000", said="void",
                                    reloaded=NONE, logged="config", anew=True))
tap.run("another model file", harmed("model", lambda path: None, said="made by another model file", reloaded=NONE,
                                     model=OTHER, logged="config", anew=True))
tap.run("another vocabulary of the same size", vocabulary)
tap.run("another size of the tier", harmed("size", lambda path: None, base=OPTIONS[:8] + ("--disk-bytes", "3M",
        "--disk-reserve", "0"), said="sizes", reloaded=NONE))
tap.run("no time to write down", stop_ms)
raise SystemExit(tap.done())
