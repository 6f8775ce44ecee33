"""What is known to hurt a ROUTER at a hostile edge (runtime/README.md, "The edge"), done to the daemon; a neighbour is served throughout.

Method: ZMTP by hand over the real socket, so that nothing of a library stands between. After each attack, and during it
where it lasts, another client's stream must be whole and the daemon answer in time.
"""
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import ar1
import daemon_rig
from ar1 import ACCEPTED, CALL, DATA, END, HELLO, PING, PONG, REJECT, WELCOME, Tap, Wire, msgpack, pack, zmq
from daemon_rig import await_message, balanced, left_clean, same, words
from zmtp import Raw

GIVEN = words(40)
ASKED = {"max_tokens": 120, "ignore_end": True}


def neighbour():
    """A stream of somebody's who has nothing to do with it, whole and in time."""
    began = time.time()
    w = Wire(endpoint)
    session = w.open()
    reply = w.turn(session, GIVEN, **ASKED)
    same(reply, whole)
    w.ok("session.close", sess=session)
    w.send(ar1.BYE, 0, {})
    w.close()
    assert time.time() - began < 10 * ar1.SLOW


def guessed_ids(wire):
    """H1: ids that the library itself would give next make an unlucky server abort."""
    held = []
    # From what an unseeded counter starts with, and from what a few others would.
    for start in (0x6b8b4567, 1, 0, 0xffffffff):
        held += [Raw(endpoint, identity=b"\0" + struct.pack(">I", (start + i) & 0xffffffff)) for i in range(25)]
    for _ in range(60):
        held.append(Raw(endpoint))
    assert held[-1].hello() == WELCOME
    neighbour()
    for raw in held:
        raw.close()


def the_same_id_twice(wire):
    """H4: who takes another's id gets nothing of the other's, also when the other has gone. One that is not of the library's
    kind is refused: there would be no telling whom it is by then."""
    for identity in (b"same", b"\0two", b"\0" + b"longer"):
        own = Raw(endpoint, identity=identity)
        assert own.hello() == REJECT, identity
        own.close()
    first, second = Raw(endpoint, identity=b"\0same"), None
    assert first.hello() == WELCOME
    session = wire.open()
    first.message(CALL, 1, {"m": "session.turn", "sess": session, "window": 9, "detach_ms": 500,
                            "a": {"tokens": True, "max_tokens": 3}})
    second = Raw(endpoint, identity=b"\0same")
    second.s.settimeout(1)
    first.close()
    time.sleep(0.3)
    try:
        got = second.receive()
    except (socket.timeout, ConnectionError):
        got = []
    # The same user's at most: another principal on the id is a new peer without rights.
    assert not got or got[0][3] == REJECT, got
    second.close()
    third = Raw(endpoint, identity=b"\0same")
    assert third.hello() == WELCOME
    third.close()
    wire.ok("session.close", sess=session)
    neighbour()


def resident():
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return int([l for l in file if l.startswith("VmRSS")][0].split()[1]) >> 10


def unfinished(wire):
    """H3: frames that all say that more follows. They are counted: the connection ends at the bound, its memory with it,
    and the neighbours wait for nothing meanwhile. From many at once, the same."""
    before = resident()
    for crowd in (1, 4):
        raws, sent = [Raw(endpoint) for _ in range(crowd)], [0] * crowd

        def flood(i):
            block = bytes(60000)
            try:
                while sent[i] < 96 << 20:
                    raws[i].send(block, more=True)
                    sent[i] += len(block)
            except OSError:
                pass
        threads = [threading.Thread(target=flood, args=(i,)) for i in range(crowd)]
        for thread in threads:
            thread.start()
        neighbour()
        for thread in threads:
            thread.join()
        assert all(1 << 20 < n < 40 << 20 for n in sent), f"{[n >> 20 for n in sent]} MiB were taken"
        for raw in raws:
            assert raw.closed()
            raw.close()
    neighbour()
    assert resident() - before < 48 * ar1.SLOW, "what was sent is still held"
    # Tiny frames cost more than their bytes, and are counted so.
    raw = Raw(endpoint)
    raw.s.settimeout(10 * ar1.SLOW)
    try:
        for _ in range(400000):
            raw.s.sendall(b"\x01\x10" + bytes(16) * 1)
    except OSError:
        pass
    else:
        raise AssertionError("7 MB of tiny frames that do not end were taken, and 400,000 of them")
    raw.close()
    # The largest whole messages, one after another, are no debt.
    big = Wire(endpoint)
    for _ in range(24):
        reply = big.call("tokenize", {}, bytes(1 << 20))
        assert reply.end["status"] == "ok", reply.end
    big.close()
    neighbour()


def too_large(wire):
    """H10: frames beyond the limit, and of nearly all that there is, end the connection and nothing else."""
    for size in (1 << 30, (1 << 64) - 1, (1 << 20) + 1):
        raw = Raw(endpoint)
        assert raw.hello() == WELCOME
        raw.s.sendall(b"\x02" + struct.pack(">Q", size) + bytes(100))
        assert raw.closed(), size
        raw.close()
    for junk in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00", os.urandom(300), b"\xff" + bytes(8) + b"\x7f\x01\x00"):
        raw = Raw(endpoint, greet=False)
        raw.s.sendall(junk)
        raw.close()
    raw = Raw(endpoint)
    raw.s.sendall(bytes([4, 9]) + b"\x08NONSENSE"[:9])
    raw.close()
    neighbour()


def short_ping(wire):
    """H7: a PING without its time to live; what comes back is none of others' bytes."""
    neighbour()  # leaves bytes behind that would be worth having
    raw = Raw(endpoint)
    assert raw.hello() == WELCOME
    raw.s.sendall(bytes([4, 5]) + b"\x04PING")
    raw.s.settimeout(1)
    try:
        flags, body = raw.frame()
        assert flags & 4 and len(body) <= 32, body
    except (socket.timeout, ConnectionError):
        pass
    raw.close()
    neighbour()


def pings(wire):
    """PINGs with times to live that do not fit the library's 16 bits (a tenth of a second each, as milliseconds): such a peer is served,
    or its own connection ends. And a flood of PINGs, read or not: bounded, and neighbours wait for nothing."""
    def ping(ttl, context=b""):
        return bytes([4, 7 + len(context)]) + b"\x04PING" + struct.pack(">H", ttl) + context

    def pong(raw):
        while True:
            flags, body = raw.frame()
            if flags & 4:
                return body
    for ttl in (0xffff, 0x8000, 656, 1, 0):  # 656 becomes 64 ms
        raw = Raw(endpoint)
        assert raw.hello() == WELCOME
        raw.s.sendall(ping(ttl, b"abc"))
        assert pong(raw) == b"\x04PONGabc", ttl
        neighbour()
        try:
            raw.message(PING, 0, {"t": 1})
            alive = raw.receive()[0][3] == PONG
        except (ConnectionError, socket.timeout):
            alive = False
        assert alive or ttl in (656, 1), ttl
        raw.close()
    before = resident()
    for reads in (False, True):
        raw, sent, over = Raw(endpoint), [0], threading.Event()
        assert raw.hello() == WELCOME
        block = ping(0xffff, b"0123456789abcdef") * 1000

        def flood():
            try:
                while not over.is_set():
                    raw.s.sendall(block)
                    sent[0] += len(block)
                    if reads:
                        raw.s.recv(1 << 16)
            except OSError:
                pass
        thread = threading.Thread(target=flood)
        thread.start()
        neighbour()
        neighbour()
        over.set()
        thread.join()
        assert sent[0] > 0 and resident() - before < 48 * ar1.SLOW, (sent, resident() - before)
        raw.close()
    neighbour()


def other_sockets(wire):
    """Peers of other kinds, and of none."""
    for kind in (b"ROUTER", b"REQ", b"SUB", b"PUB", b"PUSH", b"X" * 200):
        try:
            raw = Raw(endpoint, kind=kind)
            raw.send(b"\x01topic")
            raw.send(b"", True)
            raw.send(b"x")
            raw.close()
        except (ConnectionError, socket.timeout):
            pass
    neighbour()


def odd_messages(wire):
    """A thousand frames, a PING of 64 KB in either protocol, a REQ's delimiter before what is right otherwise: refused or
    ignored, and the next request is served."""
    def served(raw):
        raw.message(PING, 0, {"t": 77})
        while True:
            parts = raw.receive()
            if parts[0][3] == PONG and msgpack.unpackb(parts[1])["t"] == 77:
                return
    raw = Raw(endpoint)
    assert raw.hello() == WELCOME
    whole_one = [b"AR" + struct.pack(">BBHHQQ", 1, CALL, 1, 0, 1, 0), msgpack.packb({"m": "tokenize", "window": 9, "a": {}}), b"abc"]
    for size in (0, 1, 24):
        for i in range(1000):  # the first three would be a message
            raw.send(whole_one[i] if i < 3 else bytes(size), more=i < 999)
        kind, body = raw.receive()
        assert kind[3] == REJECT and msgpack.unpackb(body)["err"]["n"] == "bad_frames", (size, body)
        served(raw)
    raw.message(PING, 0, {"t": 5, "x-more": "y" * 65536})
    raw.message(PING, 0, {"t": 5, "more": "y" * 65536})
    names = []
    for _ in range(2):
        kind, body = raw.receive()
        names.append(msgpack.unpackb(body)["err"]["n"] if kind[3] == REJECT else kind[3])
    assert names[0] in (PONG, "too_big", "bad_body", "unknown_field") and names[1] in ("too_big", "bad_body", "unknown_field"), names
    served(raw)
    raw.close()
    raw = Raw(endpoint)
    assert raw.hello() == WELCOME
    context = b"\x04PING\0\x0a" + b"z" * 65536
    raw.s.sendall(bytes([6]) + struct.pack(">Q", len(context)) + context)
    try:
        flags, body = raw.frame()
        assert flags & 4 and len(body) <= 5 + 65536 and body.strip(b"z") == b"\x04PONG", body[:40]
        served(raw)
    except (ConnectionError, socket.timeout):
        pass  # more context than a PING may have
    raw.close()
    req = Raw(endpoint, kind=b"REQ")
    for kind, body in ((HELLO, {"client": "req", "minor": 0, "caps": []}), (CALL, {"m": "health", "window": 1, "a": {}})):
        req.send(b"", True)
        req.message(kind, kind == CALL, body)
        kind, body = [part for part in req.receive() if part]
        assert kind[3] == REJECT and msgpack.unpackb(body)["err"]["n"] == "bad_frames", body
    assert req.hello() == WELCOME
    served(req)
    req.close()
    neighbour()


def does_not_read(wire):
    """H6: who reads nothing costs a bounded number of bytes, no device time, and nobody's latency."""
    raw = Raw(endpoint)
    raw.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    assert raw.hello() == WELCOME
    before, deadline = resident(), time.time() + 3
    raw.s.settimeout(0.5)
    try:
        for i in range(40000):
            raw.message(PING, 0, {"t": i})
            if time.time() > deadline:
                break
    except socket.timeout:
        pass
    neighbour()
    grown = resident() - before
    assert grown < 64 * ar1.SLOW, f"{grown} MiB for one that does not read"
    raw.close()
    neighbour()


def full_and_gone(wire):
    """A peer whose pipe is full to the last message, and who goes while more is sent: the loop waits for nothing, and his turns go
    on from where another connection takes them up."""
    watcher, asked = Wire(endpoint), {"tokens": True, "max_tokens": 800, "ignore_end": True}
    session = wire.open()
    right = wire.turn(session, GIVEN, **{**asked, "logprobs": 0})
    for way in ("closed", "shut", "stays"):
        raw = Raw(endpoint)
        raw.s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        assert raw.hello() == WELCOME
        raw.s.settimeout(0.3)
        t = 0
        try:
            while t < 60000:  # PONGs that nobody takes fill what there is between
                raw.message(PING, 0, {"t": t})
                t += 1
        except socket.timeout:
            pass
        slowest, ops = 0, []
        link = Wire(endpoint)
        for i in range(4):
            link.begin("session.turn", asked, pack(GIVEN), sess=link.open(), window=1, detach_ms=60000)
            ops.append(await_message(link, ACCEPTED, link.channel)["op"])
        raw.s.settimeout(1)
        try:  # his from here on: nothing of it can be sent
            for i, op in enumerate(ops):
                raw.message(ar1.RESUME, i + 1, {"op": op, "after_seq": 0, "window": 1 << 20})
        except socket.timeout:
            pass
        for i in range(60):
            if i == 20 and way != "stays":
                raw.close() if way == "closed" else raw.s.shutdown(socket.SHUT_RDWR)
            began = time.time()
            assert watcher.ok("health")["r"]["state"] == "serving"
            slowest = max(slowest, time.time() - began)
        assert slowest < 0.1 * ar1.SLOW, f"the loop was held for {slowest} s"
        for op in ops:
            link.channel += 1
            link.send(ar1.RESUME, link.channel, {"op": op, "after_seq": 0, "window": 1 << 20})
            same_ids = link.finish(link.channel)
            assert same_ids.ids == right.ids and same_ids.status == right.status, same_ids.end
        link.close()
        raw.close()
        neighbour()
    wire.ok("session.close", sess=session)
    balanced(watcher)
    watcher.close()


def stopped(wire):
    """H8: a client that is stopped in its stream: the others go on, and it goes on too when it wakes, or is gone."""
    code = ("import sys; sys.path.insert(0, %r); import ar1\n"
            "w = ar1.Wire(%r); s = w.open()\n"
            "c = w.begin('session.turn', {'tokens': True, 'max_tokens': 900, 'ignore_end': True}, ar1.pack([5] * 50), sess=s, window=1)\n"
            "w.expect(ar1.ACCEPTED); print('here', flush=True); import time; time.sleep(600)")
    child = subprocess.Popen([sys.executable, "-c", code % (os.path.dirname(os.path.abspath(ar1.__file__)), endpoint)],
                             stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"here\n"
    child.send_signal(19)
    neighbour()
    child.kill()
    child.wait()
    neighbour()


WAKES = """
import json, os, signal, struct, sys
sys.path.insert(0, sys.argv[1])
import ar1
endpoint, given, window, anew = sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4]), sys.argv[5] == "anew"
asked = {"tokens": True, "max_tokens": 120, "ignore_end": True}
link = ar1.Wire(endpoint)
at = link.begin("session.turn", asked, ar1.pack(given), sess=link.open(), window=window, detach_ms=60000)
op = link.expect(ar1.ACCEPTED)[3]["op"]
ids, last, end = [], 0, None
while len(ids) < 5:
    _, _, seq, body, blob = link.expect(ar1.DATA)
    ids, last = ids + list(struct.unpack(f"<{len(blob) // 4}I", blob)), seq
os.kill(os.getpid(), signal.SIGSTOP)
if anew:
    link = ar1.Wire(endpoint)
at = link.channel = link.channel + 1
link.send(ar1.RESUME, at, {"op": op, "after_seq": last, "window": 1 << 20})
while end is None:
    type, channel, seq, body, blob = link.receive()
    if channel != at or type in (ar1.NOTE, ar1.ACCEPTED):
        continue
    assert seq == last + 1, (type, seq, last)
    last = seq
    if type == ar1.END:
        end = body["status"]
    else:
        assert type == ar1.DATA, (type, body)
        ids += struct.unpack(f"<{len(blob) // 4}I", blob)
print(json.dumps([end, ids]))
"""


def stopped_and_woken(wire):
    """H8: stopped in its stream, with credit for all of it or for little, it wakes up and goes on from what it has, over the
    same connection or a new one: nothing is missing, nothing comes twice, and nobody has waited meanwhile."""
    for window in (1 << 20, 12):
        for link in ("same", "anew"):
            child = subprocess.Popen([sys.executable, "-c", WAKES, os.path.dirname(os.path.abspath(ar1.__file__)), endpoint,
                                      json.dumps(GIVEN), str(window), link], stdout=subprocess.PIPE)
            try:
                assert os.WIFSTOPPED(os.waitpid(child.pid, os.WUNTRACED)[1]), "it was to stop in its stream"
                neighbour()
                child.send_signal(signal.SIGCONT)
                out, _ = child.communicate(timeout=30 * ar1.SLOW)
            finally:
                child.kill()
            assert json.loads(out) == [whole.status, list(whole.ids)], (window, link, out)
    balanced(wire)


daemon = daemon_rig.start()
endpoint = daemon.endpoint
wire = Wire(endpoint)
whole = wire.turn(wire.open(), GIVEN, **ASKED)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("ids that the library would give next", guessed_ids),
    ("one id, twice", the_same_id_twice),
    ("messages without an end", unfinished),
    ("frames and bytes that are none", too_large),
    ("a short PING", short_ping),
    ("long times to live, and a flood of PINGs", pings),
    ("sockets of other kinds", other_sockets),
    ("many frames, long PINGs, a REQ", odd_messages),
    ("who does not read", does_not_read),
    ("who is full, and goes", full_and_gone),
    ("who is stopped", stopped),
    ("who is stopped in its stream, and woken", stopped_and_woken)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
