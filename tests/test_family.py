"""Goal: a fork that is tied to its parent is closed when that is, in one go and across a kill, and one that is not
outlives it; a session that is touched is not taken for left. Method: trees of forks on a daemon, closed at the root, in
the middle, in a turn, by forget, by time; kill -9 between."""
import signal
import time

import ar1
from ar1 import Tap, Wire
from daemon_rig import MODEL, begin, kill, left_clean, run, finish, start, until, words

ASK = dict(max_tokens=4, ignore_end=True)
tap = Tap()


def fork(wire, session, **arguments):
    return wire.ok("session.fork", arguments, sess=session)["sess"]


def tree(wire):
    """A root with a tied child and grandchild, and a free fork of the child's; and the free one's own tied child."""
    root = wire.open()
    wire.turn(root, words(40), **ASK)
    child = fork(wire, root, tied=True)
    grandchild = fork(wire, child, tied=True, to_tokens=20)
    free = fork(wire, child)
    of_free = fork(wire, free, tied=True)
    return root, child, grandchild, free, of_free


def there(wire, sessions):
    listed = {s["sess"] for s in wire.ok("session.list", {"count": 1000})["r"]}
    return [s in listed for s in sessions]


def gone(wire, session):
    return wire.call("session.show", sess=session).end["err"]["n"] == "not_found"


def closed_together(wire):
    sessions = root, child, grandchild, free, of_free = tree(wire)
    assert wire.ok("session.show", sess=child)["r"]["parent"] == root
    assert wire.ok("session.show", sess=grandchild)["r"]["parent"] == child
    assert "parent" not in wire.ok("session.show", sess=free)["r"]
    wire.ok("session.close", sess=root)
    assert gone(wire, child) and gone(wire, grandchild)
    assert there(wire, sessions) == [False, False, False, True, True]
    wire.turn(free, words(5), **ASK)
    # The slots are others' now, and nobody's child by it.
    others = [wire.open() for _ in range(3)]
    wire.ok("session.close", sess=others[0])
    assert there(wire, others) == [False, True, True]
    for session in (free, *others[1:]):
        wire.ok("session.close", sess=session)
    assert not any(there(wire, (*sessions, *others)))


def from_the_middle(wire):
    sessions = root, child, grandchild, free, of_free = tree(wire)
    wire.ok("session.close", sess=child)
    assert there(wire, sessions) == [True, False, False, True, True]
    wire.ok("session.forget", sess=free)
    assert there(wire, sessions) == [True, False, False, False, False]
    wire.ok("session.close", sess=root)


def in_any_order_of_slots(wire):
    """Children before their parents in the table, and after them, and others between: each has its own end."""
    held = [wire.open() for _ in range(8)]
    wire.ok("session.close", sess=held.pop())
    chain = [wire.open()]
    for tied in (True, True, True, True):
        wire.ok("session.close", sess=held.pop())  # the first free slot is before all others that were made
        chain.append(fork(wire, chain[-1], tied=tied))
    wire.ok("session.close", sess=held.pop())
    free = fork(wire, chain[2])
    last = fork(wire, chain[4], tied=True)
    of_free = fork(wire, free, tied=True)
    sessions = [*chain, last, free, of_free, *held]
    wire.ok("session.close", sess=chain[1])
    assert there(wire, sessions) == [True] + [False] * 5 + [True] * 4, there(wire, sessions)
    for session in (chain[0], free, *held):
        wire.ok("session.close", sess=session)
    assert not any(there(wire, sessions))


def in_a_turn(wire):
    root, child, *rest = tree(wire)
    other = Wire(daemon.endpoint)
    channel = other.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, ar1.pack(words(30)), sess=child)
    until(lambda: wire.ok("session.show", sess=child)["r"]["state"] == "running")
    wire.ok("session.close", sess=root)
    reply = other.finish(channel)
    assert reply.status == "closed" and reply.usage["sampled"] < 900, reply.end
    other.close()
    assert gone(wire, child)
    wire.ok("session.close", sess=rest[1])


def kept_over_a_kill(wire):
    own = begin(None, "--template", "smollm2", "--kv-memory", "600000")
    w = Wire(own.endpoint)
    sessions = root, child, grandchild, free, of_free = tree(w)
    kill(own)
    own = begin(own.home, "--template", "smollm2", "--kv-memory", "600000")
    w = Wire(own.endpoint)
    assert there(w, sessions) == [True] * 5
    assert w.ok("session.show", sess=grandchild)["r"]["parent"] == child
    w.ok("session.close", sess=root)
    assert there(w, sessions) == [False, False, False, True, True]
    kill(own)
    own = begin(own.home, "--template", "smollm2", "--kv-memory", "600000")
    assert there(Wire(own.endpoint), sessions) == [False, False, False, True, True]
    left_clean(own)


def forgotten_over_a_kill(wire):
    """The process ends in the middle of a forget: whose key is written over is gone, and its tied forks with it: not only
    closed, but nowhere."""
    for point in (1, 2):
        own = begin(None, "--template", "smollm2", "--kv-memory", "600000", "--inject", f"forget@{point}=crash")
        w = Wire(own.endpoint)
        sessions = root, child, grandchild, free, of_free = tree(w)
        w.begin("session.forget", sess=root)
        assert own.process.wait(20 * ar1.SLOW) == -signal.SIGKILL
        own = begin(own.home, "--template", "smollm2", "--kv-memory", "600000")
        w = Wire(own.endpoint)
        assert gone(w, root) and gone(w, child) and gone(w, grandchild)
        until(lambda: there(w, sessions) == [False, False, False, True, True])
        with open(f"{own.home}/state/keys", "rb") as file:
            keys = file.read()
        assert [s in keys for s in sessions] == [False, False, False, True, True], point
        w.turn(free, words(5), **ASK)
        left_clean(own)


def touched(wire):
    idle = 600 * ar1.SLOW
    own = begin(None, "--template", "smollm2", "--kv-memory", "600000", "--session-idle-ms", str(idle))
    w = Wire(own.endpoint)
    left, parent = w.open(), w.open(residency={"kind": "leased", "bytes": 40000, "lease_ms": 2 * idle})
    child = fork(w, parent, tied=True)
    deadline = time.time() + 3 * idle / 1000
    while time.time() < deadline:
        w.ok("session.touch", sess=child)  # it works for its parent, which waits for it
        time.sleep(idle / 1000 / 6)
    assert there(w, (left, parent, child)) == [False, True, True]
    # Nobody touched the parent itself: its lease is over.
    assert w.ok("session.show", sess=parent)["r"]["residency"] == "best_effort"
    assert w.ok("session.residency", {"residency": {"kind": "leased", "bytes": 40000, "lease_ms": 2 * idle}}, sess=parent)
    deadline = time.time() + 3 * idle / 1000
    while time.time() < deadline:
        w.ok("session.touch", sess=parent)
        time.sleep(idle / 1000 / 6)
    assert w.ok("session.show", sess=parent)["r"]["residency"] == "leased"
    until(lambda: not any(there(w, (parent, child))))
    left_clean(own)


daemon = start()
wire = Wire(daemon.endpoint)
run(tap, daemon, wire, [
    ("what is tied is closed with it, what is not stays", closed_together),
    ("from the middle of a tree, and forgotten", from_the_middle),
    ("wherever they lie in the table", in_any_order_of_slots),
    ("a turn of a tied one ends as closed", in_a_turn),
    ("over kill -9 what is tied stays tied", kept_over_a_kill),
    ("over kill -9 in a forget they are forgotten with it", forgotten_over_a_kill),
    ("what is touched is not left: its clocks count from then", touched),
])
finish(tap, daemon)
