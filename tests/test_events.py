"""Events: of sessions, with numbers and a call that plays them again, to those only who may ask for the same; of KV
blocks, read by a decoder written from the public schema, against the pages and sessions that the daemon shows.

Method: the set of blocks is built from the events alone. A block is told by its parent and its tokens, so that a chain of
them is a prefix; the prefixes that must be there follow from what was sent and sampled and from how much of each
session is resident. Both sets must be the same whenever the daemon is at rest.
"""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import ar1
import daemon_rig
from ar1 import Refused, Tap, Wire, msgpack, pack, zmq
from daemon_rig import MODEL, Subscriber, left_clean, words

SPAN = 16
HOME = tempfile.mkdtemp(prefix="hf-events-")
KV, REPLAY = f"ipc://{HOME}/kv.sock", f"ipc://{HOME}/kv-replay.sock"
TEAM = f"ipc://{HOME}/team.sock"


def names(events):
    return [e["event"] for e in events]


def life_of_a_session(wire):
    subscriber = Subscriber(daemon.endpoint + "-events")
    subscriber.settle(wire)
    session = wire.open(label="seen", residency={"kind": "leased", "bytes": 40000, "lease_ms": 60000})
    wire.turn(session, words(60), max_tokens=3, ignore_end=True)
    wire.ok("session.park", {"place": "host"}, sess=session)
    wire.turn(session, words(5), max_tokens=3, ignore_end=True)
    wire.ok("session.park", {"place": "tokens"}, sess=session)
    wire.ok("session.close", sess=session)
    events = subscriber.until("closed", session)
    seen = names(events)
    assert seen[0] == "granted" and seen[-1] == "closed", events
    assert [n for n in seen if n in ("granted", "running", "ended", "lost", "closed")] == [
        "granted", "running", "ended", "running", "ended", "lost", "closed"], events
    assert "demoted" in seen and "restored" in seen and seen.index("demoted") < seen.index("restored"), events
    first = events[0]
    assert first["kind"] == "leased" and first["lease_ms"] == 60000 and first["bytes"] >= 40000 and first["label"] == "seen", first
    lost = events[seen.index("lost")]
    assert lost["why"] == "parked" and lost["to"] == 0 and lost["from"] > 60, lost
    ended = events[seen.index("ended")]
    assert ended["status"] == "limit" and ended["sampled"] == 3 and ended["history"] == 63 and ended["turn"] == 1, ended
    demoted = [e for e in events if e["event"] == "demoted"]
    assert sum(e["pages"] for e in demoted) == 4 and demoted[0]["to"] == "host", demoted
    assert all(abs(e["ms"] / 1000 - time.time()) < 60 * ar1.SLOW and len(e["boot"]) == 16 for e in events)
    subscriber.close()


def tool_wait(wire):
    subscriber = Subscriber(daemon.endpoint + "-events")
    subscriber.settle(wire)
    tool = '{"name":"ls","parameters":{"type":"object","properties":{},"required":[]}}'
    session = wire.open("smollm2", tools=[tool])
    end = wire.call("session.turn", {"messages": [{"role": "user", "content": "ls"}], "tool_choice": "required"}, sess=session).end
    assert end["status"] == "tool_wait", end
    waits = subscriber.until("tool_wait", session)[-1]
    assert waits["status"] == "tool_wait" and waits["turn"] == 1 and waits["sampled"] > 0, waits
    wire.ok("session.close", sess=session)
    subscriber.close()


def played_again(wire):
    """What was missed is asked for; the same bytes; what is older than what is kept shows."""
    subscriber = Subscriber(daemon.endpoint + "-events")
    subscriber.settle(wire)
    session = wire.open()
    wire.ok("session.close", sess=session)
    live = subscriber.until("closed", session)
    again = wire.ok("events.replay", {"first": live[0]["seq"]})["r"]
    assert again["events"][:len(live)] == live and again["last"] >= live[-1]["seq"] and again["first"] == 1, again
    assert wire.ok("events.replay", {"first": again["last"] + 1})["r"]["events"] == []
    assert len(wire.ok("events.replay", {"count": 2})["r"]["events"]) == 2
    for _ in range(20):  # --events-kept 32
        wire.ok("session.close", sess=wire.open())
    again = wire.ok("events.replay", {"count": 1000})["r"]
    assert len(again["events"]) == 32 and again["first"] == again["last"] - 31 == again["events"][0]["seq"], again["first"]
    assert [e["seq"] for e in again["events"]] == list(range(again["first"], again["last"] + 1))
    end = wire.call("events.replay", {"principal": "nobody"}).end
    assert end["err"]["n"] == "not_found", end
    for bad, name in (({"first": -1}, "out_of_range"), ({"count": 0}, "out_of_range"), ({"what": 1}, "unknown_field")):
        try:
            wire.call("events.replay", bad)
            raise AssertionError(bad)
        except Refused as refused:
            assert refused.name == name, (bad, refused.name)
    subscriber.close()


def expired(wire):
    own = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--session-idle-ms", "300")
    other = Wire(own.endpoint)
    subscriber = Subscriber(own.endpoint + "-events")
    subscriber.settle(other)
    session = other.open()
    events = subscriber.until("closed", session)
    assert names(events) == ["granted", "expired", "closed"] and events[1]["idle_ms"] >= 300, events
    subscriber.close()
    other.close()
    assert own.stop() == 0


def restarted(wire):
    own = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000")
    other = Wire(own.endpoint)
    session = other.open()
    other.turn(session, words(40), max_tokens=3, ignore_end=True)
    boot = other.welcome["boot"]
    other.close()
    own.process.kill()
    own.process.wait()
    again = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", home=own.home)
    other = Wire(again.endpoint)
    events = other.ok("events.replay")["r"]["events"]
    assert names(events) == ["granted", "lost"] and events[1]["why"] == "restarted", events
    assert events[1]["from"] == 42 and events[1]["to"] == 0 and events[1]["sess"] == session
    assert all(e["boot"] == other.welcome["boot"] != boot for e in events)
    other.close()
    assert again.stop() == 0


def who_hears(wire):
    """A tenant's socket tells each what he might ask for; another user's connection is not let in."""
    if os.getuid() != 0:
        return "skip only root can be another user"
    code = f"""
import os, sys, time; os.setgid(65534); os.setuid(65534)
sys.path.insert(0, {os.path.dirname(os.path.abspath(ar1.__file__))!r})
import zmq, msgpack
c = zmq.Context.instance(); s = c.socket(zmq.SUB); s.setsockopt(zmq.LINGER, 0); s.connect({TEAM + "-events"!r})
s.setsockopt(zmq.SUBSCRIBE, b''); s.setsockopt(zmq.SUBSCRIBE, b'team/me'); s.setsockopt(zmq.SUBSCRIBE, b'team/')
k = c.socket(zmq.SUB); k.setsockopt(zmq.LINGER, 0); k.connect({f"ipc://{HOME}/team-kv.sock"!r}); k.setsockopt(zmq.SUBSCRIBE, b'')
print('ready', flush=True)
end = time.time() + 4 * {ar1.SLOW}
while time.time() < end:
    if s.poll(100): print(msgpack.unpackb(s.recv_multipart()[2])['principal'], flush=True)
    if k.poll(0): print('blocks', flush=True)
"""
    os.chmod(HOME, 0o755)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    mine, all_of_it = Wire(TEAM), Subscriber(daemon.endpoint + "-events")
    operator, blocks = Subscriber(TEAM + "-events"), Blocks(f"ipc://{HOME}/team-kv.sock", b"kv@here")
    operator.settle(mine)
    all_of_it.settle(mine)
    session = mine.open()
    mine.turn(session, words(60), max_tokens=3, ignore_end=True)
    wire.ok("session.close", sess=wire.open())
    mine.ok("session.close", sess=session)
    assert {e["principal"] for e in operator.until("closed", session)} == {"team/me"}
    heard = all_of_it.until("closed") + all_of_it.until("closed")
    assert {e["principal"] for e in heard} == {"team/me", f"uid:{os.getuid()}"}, heard
    blocks.take(0.5)
    assert blocks.batches, "an operator hears of blocks"
    # The other one is let in and opens a session of his own.
    own = f"""
import os, sys; os.setgid(65534); os.setuid(65534)
sys.path.insert(0, {os.path.dirname(os.path.abspath(ar1.__file__))!r})
import ar1
w = ar1.Wire({TEAM!r}); s = w.open(); w.turn(s, [5] * 40, max_tokens=3); w.ok('session.close', sess=s)
try: w.call('events.replay', dict(principal='team/me')).end['err']['n'] == 'not_found' or sys.exit(3)
except ar1.Refused: sys.exit(4)
sys.exit(0 if w.ok('events.replay')['r']['events'] else 5)
"""
    done = subprocess.run([sys.executable, "-c", own], capture_output=True, text=True)
    assert done.returncode == 0, done
    told = child.communicate()[0].splitlines()
    assert set(told) == {"team/other"}, told
    for s in (operator, all_of_it, blocks):
        s.close()
    mine.close()


def what_is_no_subscription(wire):
    """XSUB peers may send anything up: the socket is made anew, and who may hear what stays as it was."""
    good = Subscriber(daemon.endpoint + "-events")
    good.settle(wire)
    bad = Subscriber(daemon.endpoint + "-events", kind=zmq.XSUB)
    for junk in (b"\x02hello", b"\x01" + b"x" * 60, b"\xff"):
        bad.socket.send(junk)
    bad.socket.send_multipart([b"\x01a", b"b"])
    deadline = time.time() + 10 * ar1.SLOW
    while "made anew" not in daemon.words() and time.time() < deadline:
        time.sleep(0.02)
    assert "what is no subscription" in daemon.words()
    bad.close()
    good.last = {}
    deadline = time.time() + 20 * ar1.SLOW
    while time.time() < deadline:
        wire.ok("session.close", sess=wire.open())
        if good.take(0.2):
            break
    assert good.last, "who had subscribed hears again"
    good.close()
    # Subscriptions without end cost no memory without end.
    flood = Subscriber(daemon.endpoint + "-events")
    for i in range(700):
        flood.socket.setsockopt(zmq.SUBSCRIBE, b"t%d" % i)
    deadline = time.time() + 10 * ar1.SLOW
    while "too many subscriptions" not in daemon.words() and time.time() < deadline:
        time.sleep(0.02)
    assert "too many subscriptions" in daemon.words()
    flood.close()
    fresh = Subscriber(daemon.endpoint + "-events")
    fresh.settle(wire)
    fresh.close()


# --- Events of blocks. ---

class Blocks:
    """A reader of kv_events as the public schema has them: frames topic, number, payload; payload [ts, events, rank];
    events are arrays with their name first, or maps with their name in `type`. What is stored, by hash and medium."""
    FIELDS = {"BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name"),
              "BlockRemoved": ("block_hashes", "medium"), "AllBlocksCleared": ()}

    def __init__(self, endpoint, topic=b"", live=True):
        self.stored, self.known, self.next, self.batches = {}, {}, None, 0
        self.maps = self.again = False  # again: what is told may be known, or of before
        if live:
            self.socket = zmq.Context.instance().socket(zmq.SUB)
            self.socket.setsockopt(zmq.LINGER, 0)
            self.socket.setsockopt(zmq.RCVHWM, 0)
            self.socket.connect(endpoint)
            self.socket.setsockopt(zmq.SUBSCRIBE, topic)
        self.topic = topic

    def event(self, value):
        if isinstance(value, dict):
            self.maps = True
            kind = value.pop("type")
            assert set(value) == set(self.FIELDS[kind]), value
            return kind, value
        kind = value[0]
        assert len(value) == len(self.FIELDS[kind]) + 1, value
        return kind, dict(zip(self.FIELDS[kind], value[1:]))

    def apply(self, payload):
        ts, events, rank = msgpack.unpackb(payload)  # an array, whatever its events are
        assert isinstance(ts, float) and abs(ts - time.time()) < 300 * ar1.SLOW and rank == 0 and events
        for kind, e in map(self.event, events):
            if kind == "AllBlocksCleared":
                self.stored = {}
                continue
            assert e["medium"] in ("GPU", "CPU", "DISK") and all(0 <= h < 1 << 64 for h in e["block_hashes"])
            parent = e.get("parent_block_hash")
            for i, h in enumerate(e["block_hashes"]):
                if kind == "BlockRemoved":
                    assert (e["medium"], h) in self.stored or self.again, "it was never told of"
                    self.stored.pop((e["medium"], h), None)
                    continue
                assert e["block_size"] == SPAN and len(e["token_ids"]) == SPAN * len(e["block_hashes"])
                assert (e["medium"], h) not in self.stored or self.again, "told twice"
                self.stored[e["medium"], h] = (parent, tuple(e["token_ids"][i * SPAN:(i + 1) * SPAN]))
                self.known[h] = self.stored[e["medium"], h]
                parent = h

    def take(self, seconds=0.3):
        while self.socket.poll(int(seconds * 1000)):
            topic, number, payload = self.socket.recv_multipart()
            seq = struct.unpack(">Q", number)[0]
            assert topic == self.topic
            if self.next is not None and seq < self.next:
                continue  # it was played again already
            assert self.next in (None, seq), (self.next, seq)
            self.next, self.batches = seq + 1, self.batches + 1
            self.apply(payload)
        return self

    def replay(self, endpoint, first, delimiter=True):
        socket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        socket.send_multipart(([b""] if delimiter else []) + [struct.pack(">Q", first)])
        numbers = []
        while True:
            assert socket.poll(10000 * ar1.SLOW), "no end of what is played again"
            frames = socket.recv_multipart()
            assert not delimiter or frames.pop(0) == b""
            number = struct.unpack(">q", frames[0])[0]
            if number == -1:
                assert frames[1] == b""
                socket.close()
                return numbers
            numbers.append(number)
            self.apply(frames[1])

    def prefixes(self, *media):
        """The token prefixes that are resident: each block, and the chain of its parents."""
        out = set()
        for medium, h in self.stored:
            if medium in media:
                tokens = ()
                while h is not None:
                    h, part = self.known[h]
                    tokens = part + tokens
                out.add(tokens)
        return out

    def close(self):
        self.socket.close()


def resident(wire, histories):
    """What must be there, by the sessions as the daemon shows them."""
    out = set()
    for s in wire.ok("session.list", {"count": 1024})["r"]:
        tokens = histories[s["sess"]]
        assert s["history"] >= len(tokens) - 1
        out |= {tuple(tokens[:n]) for n in range(SPAN, s["resident"] + 1, SPAN)}
    return out


def device_pages(wire):
    states = [p["state"] for p in wire.ok("pages.show", {"count": 1024})["r"]]
    return sum(s in ("owned", "shared") for s in states)


def same_blocks(wire, blocks, histories, *media):
    blocks.take()
    there, told = resident(wire, histories), blocks.prefixes(*media)
    assert told == there, (len(told), len(there), [len(x) for x in told ^ there])
    return there


def blocks_of_sessions(wire):
    """Turns, forks, rollbacks, moves, closes, in an order drawn by a seed; after each the sets are compared."""
    blocks, histories, open_sessions = Blocks(KV, b"kv@here"), {}, []
    rng, turns = daemon_rig.RANDOM, 0
    # From the start, as one does who comes late: what there is by now.
    time.sleep(0.3)
    blocks.again = True
    blocks.next = blocks.replay(REPLAY, 0)[-1] + 1
    for s in wire.ok("session.list", {"count": 1024})["r"]:
        wire.ok("session.close", sess=s["sess"])
    for step in range(70 if not os.environ.get("HOLDFAST_SANITIZED") else 30):
        what = rng.choice("oootttttffrrphkc" if open_sessions else "o")
        session = rng.choice(open_sessions) if open_sessions else None
        if what == "o" and len(open_sessions) < 6:
            session = wire.open()
            histories[session] = []
            open_sessions.append(session)
            # A prefix that others have too: two pages of one hash.
            what = "s"
        if what in ("t", "s"):
            given = [7] * 40 + words(3) if what == "s" else words(rng.randrange(1, 70))
            keep = rng.choice((None, None, rng.randrange(len(histories[session]) + 1)))
            if len(histories[session]) + len(given) > 300:
                keep = 10
            reply = wire.turn(session, given, keep=keep, max_tokens=rng.randrange(1, 20), ignore_end=True)
            assert reply.status in ("limit", "context_full"), reply.end
            kept = histories[session] if keep is None else histories[session][:keep]
            histories[session] = kept + given + list(reply.ids)
            turns += 1
        elif what == "f" and len(open_sessions) < 6:
            child = wire.ok("session.fork", {}, sess=session)["sess"]
            histories[child] = list(histories[session])
            open_sessions.append(child)
        elif what == "r":
            to = rng.randrange(len(histories[session]) + 1)
            wire.ok("session.rollback", {"to_tokens": to}, sess=session)
            histories[session] = histories[session][:to]
        elif what in "ph":
            try:
                wire.ok("session.park", {"place": "tokens" if what == "p" else "host"}, sess=session)
            except AssertionError as error:  # no room there
                assert "no_pages" in str(error) or "overloaded" in str(error), error
            time.sleep(0.05)
        elif what == "c":
            wire.ok("session.close", sess=session)
            open_sessions.remove(session)
        same_blocks(wire, blocks, histories, "GPU", "CPU")
        blocks.again = False
    assert turns > 5 and blocks.batches > 10
    on_device = len(blocks.prefixes("GPU"))
    assert on_device <= device_pages(wire)
    for session in open_sessions:
        wire.ok("session.close", sess=session)
    assert same_blocks(wire, blocks, histories, "GPU", "CPU") == set()
    # Who was there from the start and who asks for everything again have the same.
    late = Blocks(KV, live=False)
    late.again = True
    first = late.replay(REPLAY, blocks.next - 1)
    assert first == [blocks.next - 1], first
    session = wire.open()
    histories[session] = [9] * 50
    wire.turn(session, histories[session], max_tokens=1)
    late = Blocks(KV, live=False)
    late.again = True
    numbers = late.replay(REPLAY, 0, delimiter=False)
    there = same_blocks(wire, blocks, {**histories, session: [9] * 50 + [0]}, "GPU")
    assert len(there) == 3 and late.prefixes("GPU") == there and numbers, (there, numbers)
    wire.ok("session.close", sess=session)
    blocks.close()


def asked_wrongly(wire):
    socket = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.LINGER, 0)
    socket.connect(REPLAY)
    for frames in ([b"x"], [b"", b"1234567"], [b"", b"", bytes(8)], [b"a"] * 9, [b"", b"123456789"], [b"z" * 60]):
        socket.send_multipart(frames)
    socket.send_multipart([b"", bytes(8)])
    while True:
        assert socket.poll(10000 * ar1.SLOW)
        if socket.recv_multipart()[1] == b"\xff" * 8:
            break
    socket.close()
    assert wire.ok("health")["r"]["state"] == "serving"


def as_maps(wire):
    own = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--kv-events", f"ipc://{HOME}/maps.sock", "--kv-form", "map",
                     "--kv-replay", f"ipc://{HOME}/maps-replay.sock", "--kv-events-kept", "65536", "--host-memory", "100000")
    other, late = Wire(own.endpoint), Blocks("", live=False)
    session = other.open()
    other.turn(session, words(600), max_tokens=2, ignore_end=True)
    numbers = late.replay(f"ipc://{HOME}/maps-replay.sock", 0)
    assert numbers == list(range(len(numbers))) and late.maps and len(late.prefixes("GPU")) == 601 // SPAN
    # More than is kept: then all that is there, and nothing of what was.
    for _ in range(70):
        other.turn(session, words(600), keep=0, max_tokens=2, ignore_end=True)
    late = Blocks("", live=False)
    numbers = late.replay(f"ipc://{HOME}/maps-replay.sock", 0)
    assert len(set(numbers)) == 1 and numbers[0] > 100 and len(late.prefixes("GPU")) == 601 // SPAN, numbers
    other.close()
    assert own.stop() == 0


def python_hears(wire):
    """The package: events in order, what was missed fetched, blocks kept as a router keeps them."""
    sys.dont_write_bytecode = True
    sys.path.insert(0, os.path.join(os.environ.get("SRCDIR", "."), "clients", "python"))
    import asyncio
    import holdfast
    with holdfast.Client(daemon.endpoint) as client, client.events() as events, holdfast.KvBlocks(KV, REPLAY, topic="kv@here") as blocks:
        while True:  # until it is heard
            client.open(template="none").close()
            if events.next_event(0.2):
                break
        while events.next_event(0.2):
            pass
        session = client.open(template="none", label="py")
        given = words(50)
        session.turn_tokens(given, max_tokens=2, ignore_end=True).wait()
        kinds = [events.next_event(5 * ar1.SLOW) for _ in range(3)]
        assert [e.kind for e in kinds] == ["granted", "running", "ended"] and kinds[2].detail["status"] == "limit", kinds
        assert all(e.session == session.id and e.label == "py" and e.boot == client.boot for e in kinds)
        # As if some had been lost on the way.
        events._order._last[kinds[0].principal] = (client.boot, kinds[0].seq)
        session.close()
        again = [events.next_event(5 * ar1.SLOW) for _ in range(3)]
        assert again[:2] == kinds[1:] and again[2].kind == "closed" and events.lost == 0, again
        # And more than is kept.
        events._order._last[kinds[0].principal] = (client.boot, 1)
        for _ in range(20):
            client.open(template="none").close()
        assert events.next_event(5 * ar1.SLOW).kind in ("granted", "closed") and events.lost > 0
        session = client.open(template="none")
        session.turn_tokens(given, max_tokens=2, ignore_end=True).wait()
        blocks.sync()
        while blocks.longest(given) < 48:
            assert blocks.update(5 * ar1.SLOW), "the blocks are not told"
        assert blocks.longest(given + words(40)) == 48 and blocks.longest(words(60)) == 0 and blocks.lost == 0
        session.close()

    async def go():
        async with holdfast.AsyncClient(daemon.endpoint) as client:
            heard, stop = [], asyncio.Event()

            async def hear():
                async for event in client.events():
                    heard.append(event)
                    if event.kind == "closed" and event.label == "last":
                        return
            task = asyncio.ensure_future(hear())
            while not heard:
                async with await client.open(template="none"):
                    await asyncio.sleep(0.1)
            session = await client.open(template="none", label="last")
            await session.close()
            await asyncio.wait_for(task, 10 * ar1.SLOW)
            assert [e.kind for e in heard[-2:]] == ["granted", "closed"], heard
            stop.set()
    asyncio.run(go())


def library_hears(wire):
    """The C library through the command line, with the daemon's life in between: numbers that begin again."""
    own = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000")
    watcher = subprocess.Popen([f"{ar1.BUILD}/holdfast", "watch", "--json", "--endpoint", own.endpoint, "--timeout", str(20000 * ar1.SLOW)],
                               stdout=open(f"{HOME}/watched", "wb"))
    other, told = Wire(own.endpoint), []

    def until(label):
        deadline = time.time() + 20 * ar1.SLOW
        while time.time() < deadline:
            session = other.open(label=label)
            other.ok("session.close", sess=session)
            time.sleep(0.1)
            with open(f"{HOME}/watched") as file:
                told[:] = [json.loads(l) for l in file if l.endswith("\n")]
            if any(t["label"] == label and t["event"] == "closed" for t in told):
                return
        raise AssertionError(f"{label} was not heard: {told}")
    until("first")
    other.close()
    own.process.terminate()
    own.process.wait()
    again = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", home=own.home)
    other = Wire(again.endpoint)
    until("second")
    for label in ("first", "second"):
        seqs = [t["seq"] for t in told if t["label"] == label]
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs))), told
    # What was told before it was connected again is fetched.
    assert [t["seq"] for t in told if t["label"] == "second"][0] == 1, told
    watcher.terminate()
    watcher.wait()
    other.close()
    assert again.stop() == 0


def wrong_starts(wire):
    for options, code, word in ((["--kv-replay", f"ipc://{HOME}/x"], 2, "beside --kv-events"), (["--kv-events", "tcp://127.0.0.1:5557"], 1, "told to tenants"),
                                (["--kv-events", f"ipc://{HOME}/" + "x" * 120], 1, "107 bytes"), (["--events", "udp://x"], 1, "events are told at"),
                                (["--kv-events", KV], 3, "another daemon"), (["--kv-form", "json"], 2, "one of")):
        home = tempfile.mkdtemp(prefix="hf-")
        done = subprocess.run([f"{ar1.BUILD}/holdfastd", "--model", MODEL, "--listen", f"ipc://{home}/s", "--state", f"{home}/state", "--cache",
                               f"{home}/c", "--kv-memory", "600000", *options], capture_output=True, text=True, timeout=30 * ar1.SLOW)
        assert done.returncode == code and word in done.stderr, (options, done)
        shutil.rmtree(home)


FILE = f"{HOME}/tenants"
with open(FILE, "w") as file:
    file.write(f"tenant team listen={TEAM} rate=0 bytes=0 kv-events=ipc://{HOME}/team-kv.sock\n"
               f"allow team uid={os.getuid()} name=me roles=agent,operator\nallow team uid=65534 name=other\n")
os.chmod(FILE, 0o600)
daemon = ar1.Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--host-memory", "200000", "--chunk", "64", "--batch-rows", "96",
                    "--strikes", "0", "--events-kept", "32", "--kv-events", KV, "--kv-replay", REPLAY, "--kv-topic", "kv@here",
                    "--subscriptions", "600", "--tenants", FILE)
wire = Wire(daemon.endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("the life of a session is told", life_of_a_session),
    ("a tool is waited for", tool_wait),
    ("what was missed is played again", played_again),
    ("an idle session expires", expired),
    ("what a restart lost is told", restarted),
    ("each hears what he may ask for", who_hears),
    ("the blocks that are told are those that are there", blocks_of_sessions),
    ("what is no subscription, and too many", what_is_no_subscription),
    ("requests to play again that are none", asked_wrongly),
    ("blocks as maps, and more than is kept", as_maps),
    ("the Python package hears", python_hears),
    ("the C library hears, over a restart", library_hears),
    ("starts that are refused", wrong_starts)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
shutil.rmtree(HOME, ignore_errors=True)
daemon_rig.finish(tap, daemon)
