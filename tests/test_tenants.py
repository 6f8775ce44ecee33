"""Tenants over ipc and TCP: keys, users, roles, limits, reload and revocation; what would let anybody in refuses to start.

Method: everything is said to the daemon by tests/ar1.py with keys made here. For each way in there is one that must
not be: no key, a key of nobody's, a key of another tenant, a server that is another.
"""
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import ar1
import daemon_rig
from ar1 import ACCEPTED, BUILD, CANCEL, DATA, END, HELLO, PING, PONG, REJECT, WELCOME, Daemon, Refused, Tap, Wire, pack, zmq
from daemon_rig import MODEL, await_message, balanced, left_clean, rests, words
from zmtp import Raw

import zmq.auth
if not zmq.has("curve"):
    ar1.skip_all("this libzmq has no CURVE")

HOME = tempfile.mkdtemp(prefix="hf-tenants-")
KEYS = {name: tuple(k.decode() for k in zmq.curve_keypair()) for name in ("server", "ann", "bob", "gate", "watch", "old", "nobody")}


def port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


TCP, OTHER = f"tcp://127.0.0.1:{port()}", f"tcp://127.0.0.1:{port()}"
CONTROL = f"tcp://127.0.0.1:{port()}"
IPC = f"ipc://{HOME}/local.sock"
FILE = f"{HOME}/tenants"


def key(name):
    return f"key={KEYS[name][0]} name={name}"


LINES = [f"tenant red listen={TCP} control={CONTROL} rate=0 bytes=0", f"tenant blue listen={OTHER} rate=40 calls=3 sessions=2 connections=2",
         f"tenant users listen={IPC} rate=0 bytes=0", f"allow users uid={os.getuid()} name=me",
         f"allow red {key('ann')}", f"allow red {key('gate')} roles=gateway", f"allow red {key('watch')} roles=operator",
         f"allow red {key('old')} until=2001-01-01", f"allow blue {key('bob')}", "# a comment", ""]


def write(lines, path=FILE, mode=0o600):
    with open(path + ".new", "w") as file:
        file.write("\n".join(lines) + "\n")
    os.chmod(path + ".new", mode)
    os.replace(path + ".new", path)


class Curve(Wire):
    """A Wire with a key; hello False: only the handshake."""

    def __init__(self, endpoint, who=None, server="server", hello=True, act_as=None, routing=None):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.IMMEDIATE, 1)
        if routing:
            self.socket.setsockopt(zmq.ROUTING_ID, routing)
        if who:
            self.socket.setsockopt(zmq.CURVE_PUBLICKEY, KEYS[who][0].encode())
            self.socket.setsockopt(zmq.CURVE_SECRETKEY, KEYS[who][1].encode())
            self.socket.setsockopt(zmq.CURVE_SERVERKEY, KEYS[server][0].encode())
        self.socket.connect(endpoint)
        self.channel = 0
        if hello:
            body = {"client": "test", "minor": 0, "caps": []}
            if act_as:
                body["act_as"] = act_as
            self.send(HELLO, 0, body)
            type, _, _, self.welcome, _ = self.receive()
            if type == REJECT:
                raise Refused(self.welcome["err"])


def let_in(*arguments):
    """Who is to come in does, however long a busy machine takes."""
    return comes_in(*arguments, seconds=20)


def comes_in(*arguments, seconds=0.7):
    """Whether the handshake succeeds and HELLO is answered, soon."""
    wire = Curve(*arguments, hello=False)
    try:
        if not wire.socket.poll(int(seconds * 1000 * min(ar1.SLOW, 3)), zmq.POLLOUT):
            return False
        wire.send(HELLO, 0, {"client": "x", "minor": 0, "caps": []})
        return bool(wire.socket.poll(int(seconds * 1000)))
    finally:
        wire.close()


def only_keys_come_in(wire):
    assert let_in(TCP, "ann") and let_in(OTHER, "bob")
    for endpoint, who in ((TCP, None), (TCP, "nobody"), (TCP, "bob"), (OTHER, "ann"), (TCP, "old"), (OTHER, None)):
        assert not comes_in(endpoint, who), (endpoint, who)
    assert not comes_in(TCP, "ann", "nobody"), "a server of another key was believed"
    assert let_in(IPC) and let_in(wire_endpoint)
    assert Curve(TCP, "ann").welcome["principal"] == "red/ann"
    assert Curve(IPC).welcome["principal"] == "users/me"


def other_users(wire):
    """The kernel says who it is: another user is not let in, whatever it says of itself."""
    if os.getuid() != 0:
        return "skip only root can be another user"
    doors = [IPC, f"{IPC}-control", wire_endpoint]
    code = f"""
import os, struct, sys, zmq, msgpack
os.setgid(65534); os.setuid(65534)
for door in {doors!r}:
    s = zmq.Context.instance().socket(zmq.DEALER); s.setsockopt(zmq.LINGER, 0); s.setsockopt(zmq.IMMEDIATE, 1)
    s.connect(door)
    if not s.poll({500 * min(ar1.SLOW, 3)}, zmq.POLLOUT):
        print("-")
        continue
    s.send_multipart([b"AR" + struct.pack(">BBHHQQ", 1, 1, 0, 0, 0, 0), msgpack.packb(dict(client="x", minor=0, caps=[]))])
    print(msgpack.unpackb(s.recv_multipart()[1]).get("principal"))
"""
    os.chmod(HOME, 0o755)

    def seen():
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout.split()
    assert seen() == ["-", "-", "-"]
    write(LINES + ["allow users uid=65534 name=other"])
    again(wire)
    # By the kernel's word, at this tenant's doors; the daemon's own is in a folder of its user's.
    assert seen() == ["users/other", "users/other", "-"]
    assert os.stat(wire_endpoint[6:]).st_mode & 0o777 == 0o600
    write(LINES)
    again(wire)


def again(wire):
    before = daemon.words().count("tenants read again")
    daemon.process.send_signal(signal.SIGHUP)
    deadline = time.time() + 10 * ar1.SLOW
    while daemon.words().count("tenants read again") == before and time.time() < deadline:
        time.sleep(0.02)
    assert daemon.words().count("tenants read again") > before


def tenants_are_apart(wire):
    ann, bob = Curve(TCP, "ann"), Curve(OTHER, "bob")
    session = ann.open()
    assert bob.call("session.show", sess=session).end["err"]["n"] == "not_found"
    assert wire.call("session.show", sess=session).end["err"]["n"] == "not_found"
    assert session not in [s["sess"] for s in bob.ok("session.list")["r"]]
    channel = ann.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(9)), sess=session, window=9,
                        detach_ms=60000)
    op = await_message(ann, ACCEPTED, channel)["op"]
    for other in (bob, wire):
        other.send(CANCEL, 0, {"op": op})
        assert other.expect(REJECT)[3]["err"]["n"] == "not_found"
        other.channel += 1
        other.send(ar1.RESUME, other.channel, {"op": op, "after_seq": 0, "window": 100})
        assert other.expect(REJECT)[3]["err"]["n"] == "gone"
    control = Curve(CONTROL, "ann")
    control.send(CANCEL, 0, {"op": op})
    assert await_message(ann, END, channel)["status"] in ("cancelled", "limit")
    try:
        control.call("session.open", {"template": "none"})
        raise AssertionError("a session was opened on a control socket")
    except Refused as refused:
        assert refused.name == "forbidden"
    assert control.ok("health")["r"]["state"] == "serving"
    ann.ok("session.close", sess=session)


def chosen_routing_ids(wire):
    """What a client names itself, another can name itself too, and is then sent what is still on its way to the one who left.
    So nothing begins under such a name, at any door."""
    wanted = {"tokens": True, "max_tokens": 200, "ignore_end": True}
    for endpoint, who in ((TCP, "ann"), (CONTROL, "ann"), (IPC, None), (wire_endpoint, None)):
        for routing in (b"ann's own", b"a", b"\1abcd", b"\0abc", b"\0abcde", b"\0" + b"x" * 254):
            own = Curve(endpoint, who, hello=False, routing=routing)
            own.send(HELLO, 0, {"client": "x", "minor": 0, "caps": []})
            type, _, _, body, _ = own.receive()
            assert type == REJECT and body["err"]["n"] == "routing_id" and body["err"]["c"] == 203, (routing, type, body)
            channel = own.begin("session.open", {"template": "none"})
            own.send(ar1.RESUME, channel + 1, {"op": bytes(16), "after_seq": 0, "window": 9})
            own.send(PING, 0, {"t": 1})
            refused = [own.receive() for _ in range(3)]
            assert [r[0] for r in refused] == [REJECT] * 3 and {r[3]["err"]["n"] for r in refused} == {"routing_id"}, refused
            assert not own.socket.poll(0)
            own.close()
    ann = Curve(TCP, "ann")
    session = ann.open()
    assert len(ann.call("session.turn", wanted, pack(words(9)), sess=session).ids) == 200
    ann.ok("session.close", sess=session)
    ann.close()
    balanced(wire)


def anothers_routing_id(wire):
    """H4 with keys: a key does not bind the routing id. Who takes another's, of the library's kind, gets nothing of his, neither
    while he is there nor when he has gone; the holder's stream is whole, and he goes on with it over a new connection."""
    arguments, given = {"tokens": True, "max_tokens": 200, "ignore_end": True}, words(9)
    ann = Curve(TCP, "ann", routing=b"\0own.")
    first, second = ann.open(), ann.open()
    whole = ann.call("session.turn", arguments, pack(given), sess=first)
    channel = ann.begin("session.turn", arguments, pack(given), sess=second, window=9, detach_ms=60000)
    op = await_message(ann, ACCEPTED, channel)["op"]
    thief = Curve(TCP, "gate", hello=False, routing=b"\0own.")
    assert thief.socket.poll(5000 * ar1.SLOW, zmq.POLLOUT), "its key is good"
    thief.send(HELLO, 0, {"client": "x", "minor": 0, "caps": []})
    thief.send(CANCEL, 0, {"op": op})
    ann.send(PING, 0, {"t": 1})
    await_message(ann, PONG, 0)
    again = ann.call("session.turn", {**arguments, "keep": 0}, pack(given), sess=first)
    assert again.ids == whole.ids and again.status == "limit", again.end
    assert not thief.socket.poll(300), thief.receive()
    thief.close()
    balanced(wire)
    ann.close()
    deadline = time.time() + 10 * ar1.SLOW
    while True:  # until the library has let the id go, who claims it is not heard
        thief = Curve(TCP, "gate", hello=False, routing=b"\0own.")
        thief.send(HELLO, 0, {"client": "x", "minor": 0, "caps": []})
        if thief.socket.poll(300 * min(ar1.SLOW, 3)):
            break
        assert time.time() < deadline, "the id is never free again"
        thief.close()
    type, _, _, body, _ = thief.receive()
    assert type == WELCOME and body["principal"] == "red/gate", (type, body)
    thief.send(CANCEL, 0, {"op": op})
    thief.send(ar1.WINDOW, 0, {"op": op, "max_off": 1 << 20})
    thief.send(PING, 0, {"t": 2})
    kinds = []
    while PONG not in kinds:
        type, _, _, body, _ = thief.receive()
        kinds.append(type)
        assert type in (PONG, REJECT) and (type == PONG or body["err"]["n"] == "not_found"), (type, body)
    back = Curve(TCP, "ann")
    back.channel += 1
    back.send(ar1.RESUME, back.channel, {"op": op, "after_seq": 0, "window": 1 << 20})
    reply = back.finish(back.channel)
    assert reply.ids == whole.ids and reply.status == "limit", reply.end
    assert not thief.socket.poll(200), thief.receive()
    thief.close()
    for session in (first, second):
        back.ok("session.close", sess=session)
    back.close()
    balanced(wire)


def frames(wire):
    """The next message as it lies on the wire."""
    assert wire.socket.poll(10000 * ar1.SLOW)
    return wire.socket.recv_multipart()


def steering_what_is_not_ones_own(wire):
    """CANCEL of what has not come yet, has ended, is another's, or is nobody's: not_found, byte for byte the same, and nothing else
    happens. A WINDOW for such a call is dropped, since a grant may cross END: there is nothing to tell them apart by either."""
    asked = {"tokens": True, "max_tokens": 900, "ignore_end": True}
    ann, second, bob, mine = Curve(TCP, "ann"), Curve(TCP, "ann"), Curve(OTHER, "bob"), Curve(IPC)
    session, other = ann.open(), ann.open()
    for link in (ann, second):  # the call that it will be is not there yet: on its own connection, and from another
        link.send(CANCEL, ann.channel + 1, {})
        assert link.expect(REJECT)[3]["err"]["n"] == "not_found"
    channel = ann.begin("session.turn", asked, pack(words(9)), sess=session, window=9, detach_ms=60000)
    op = await_message(ann, ACCEPTED, channel)["op"]
    over = ann.call("session.turn", {**asked, "max_tokens": 3}, pack(words(9)), sess=other)
    assert over.status == "limit"
    said = set()
    for link in (ann, second, bob, mine, wire):
        for target in (over.op, os.urandom(16)) if link in (ann, second) else (over.op, os.urandom(16), op):
            link.send(CANCEL, 0, {"op": target})
            link.send(ar1.WINDOW, 0, {"op": target, "max_off": 1 << 20})
            link.send(PING, 0, {"t": 3})
            got = []
            while not got or got[-1][0][3] != PONG:
                got.append(frames(link))
                if got[-1][0][3] in (DATA, ar1.NOTE):
                    got.pop()
            assert len(got) == 2 and got[0][0][3] == REJECT, got
            said.add(tuple(got[0]))
    assert len(said) == 1, said
    second.send(CANCEL, channel, {})  # a channel belongs to its connection
    assert second.expect(REJECT)[3]["err"]["n"] == "not_found"
    assert ann.ok("session.show", sess=session)["r"]["state"] == "running"
    ann.send(CANCEL, channel, {})
    ann.send(CANCEL, channel, {})
    end = await_message(ann, END, channel)
    assert end["status"] in ("cancelled", "limit"), end
    for gone in (session, other):
        ann.ok("session.close", sess=gone)
    for link in (ann, second, bob, mine):
        link.close()
    balanced(wire)


def to_end(wire, op):
    """The ids that come while as much is granted as the daemon takes, and END."""
    ids, end = b"", None
    while end is None:
        wire.send(ar1.WINDOW, 0, {"op": op, "max_off": 1 << 40})
        while wire.socket.poll(20):
            type, _, _, body, blob = wire.receive()
            ids += blob if type == DATA else b""
            end = body if type == END else end
    return ids, end


def grants(wire):
    """A WINDOW again, lower, from another, or larger than any: what is sent stays within the largest that its own client gave, and
    what is beyond the daemon's bound is cut to it."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--window-max", "64", "--strikes", "0")
    try:
        w, thief = Wire(own.endpoint), Wire(own.endpoint)
        session, given = w.open(), words(9)
        asked = {"tokens": True, "max_tokens": 900, "ignore_end": True, "temperature": 1.0, "seed": 5}
        reader = w.begin("session.turn", asked, pack(given), sess=w.open())
        op = await_message(w, ACCEPTED, reader)["op"]
        whole, end = to_end(w, op)
        channel = w.begin("session.turn", asked, pack(given), sess=session, window=9, detach_ms=60000)
        op, off, ids = None, 0, b""

        def comes(most):
            """What comes while nothing is granted: up to there, and not beyond."""
            nonlocal op, off, ids
            while w.socket.poll(300 * min(ar1.SLOW, 4)):
                type, at, _, body, blob = w.receive()
                if type == ACCEPTED:
                    op = body["op"]
                if type == DATA:
                    off, ids = body[0], ids + blob
                    assert off <= most, (off, most)
                assert type != END, body
            return off
        before = comes(9)
        for link, grant in ((w, 9), (w, 1), (w, 0), (thief, 1 << 20)):
            link.send(ar1.WINDOW, 0, {"op": op, "max_off": grant})
            assert comes(9) == before, (grant, off)
        for wrong in ((1 << 64) - 1, 1 << 63, -1):
            w.send(ar1.WINDOW, 0, {"op": op, "max_off": wrong})
            assert w.expect(REJECT)[3]["err"]["n"] == "out_of_range"
        assert comes(9) == before
        w.send(ar1.WINDOW, 0, {"op": op, "max_off": (1 << 63) - 1})  # as much as there is: cut to what was sent and 64 bytes
        after = comes(before + 64)
        assert before < after <= before + 64, (before, after)
        w.send(ar1.WINDOW, 0, {"op": op, "max_off": before + 64})  # again
        assert comes(before + 64) == after
        rest, end = to_end(w, op)
        assert ids + rest == whole and end["status"] == "limit", end
    finally:
        assert own.stop() == 0


def one_tenant_floods(wire):
    """H3: a tenant's messages without an end take their connection along, and another tenant's stream does not wait for it."""
    ann = Curve(TCP, "ann")
    session = ann.open()
    right = ann.call("session.turn", {"tokens": True, "max_tokens": 200, "ignore_end": True}, pack([5] * 9), sess=session)
    raws, sent = [Raw(IPC) for _ in range(3)], [0] * 3

    def flood(i):
        try:
            while sent[i] < 96 << 20:
                raws[i].send(bytes(60000), more=True)
                sent[i] += 60000
        except OSError:
            pass
    threads = [threading.Thread(target=flood, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    began = time.time()
    for _ in range(3):
        reply = ann.call("session.turn", {"tokens": True, "max_tokens": 200, "ignore_end": True, "keep": 0}, pack([5] * 9), sess=session)
        assert reply.ids == right.ids and reply.status == "limit", reply.end
    assert time.time() - began < 15 * ar1.SLOW
    for thread in threads:
        thread.join()
    assert all(1 << 20 < n < 40 << 20 for n in sent), [n >> 20 for n in sent]
    for raw in raws:
        raw.close()
    assert Curve(IPC).ok("health")["r"]["state"] == "serving"
    ann.ok("session.close", sess=session)
    ann.close()


def descriptors_run_out_over_tcp(wire):
    """Ten times more connections by TCP than there are descriptors: no abort, no core lost to trying, who is in is served, and
    others come in afterwards."""
    at = f"tcp://127.0.0.1:{port()}"
    write([f"tenant red listen={at}", f"allow red {key('ann')}"], f"{HOME}/few")
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--tenants", f"{HOME}/few", "--curve-key",
                 f"{HOME}/server.key_secret", descriptors=200)
    try:
        inside, held = Curve(at, "ann"), []
        where = ("127.0.0.1", int(at.rsplit(":", 1)[1]))
        for _ in range(2000):
            s = socket.socket()
            s.setblocking(False)
            try:
                s.connect(where)
            except BlockingIOError:
                pass
            except OSError:
                s.close()
                continue
            held.append(s)
        assert inside.ok("health")["r"]["state"] == "serving"
        time.sleep(0.3)
        assert len(os.listdir(f"/proc/{own.process.pid}/fd")) <= 161
        rests(own)
        for s in held:
            s.close()
        assert Curve(at, "ann").ok("health")["r"]["state"] == "serving"
    finally:
        assert own.stop() == 0


def silence_on_the_line(wire):
    """A host that is gone without a word answers nothing: whether it was told something or not, its connection ends after four
    heartbeats, not when the kernel gives up to send it again, which takes a quarter of an hour."""
    at, beat = f"tcp://127.0.0.1:{port()}", 1
    write([f"tenant red listen={at}", f"allow red {key('ann')}"], f"{HOME}/silent")
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--tenants", f"{HOME}/silent", "--curve-key",
                 f"{HOME}/server.key_secret", "--heartbeat-ms", str(1000 * beat))

    def connections():
        return len(os.listdir(f"/proc/{own.process.pid}/fd"))
    try:
        none, links = connections(), [Curve(at, "ann"), Curve(at, "ann")]
        assert daemon_rig.deafen(int(at.rsplit(":", 1)[1])) == 2
        links[1].send(PING, 0, {"t": 3})  # what comes back is on its way for good
        links.append(Curve(at, "ann"))
        assert connections() == none + 3
        began = time.time()
        daemon_rig.until(lambda: connections() == none + 1, 12 * beat)
        assert time.time() - began > 2 * beat, "too soon for one that is only slow"
        time.sleep(2 * beat)
        assert connections() == none + 1 and links[2].ok("health")["r"]["state"] == "serving"
        for link in links:
            link.close()
    finally:
        assert own.stop() == 0


def roles(wire):
    for who, act_as in (("ann", "x"), ("watch", "x")):
        try:
            Curve(TCP, who, act_as=act_as)
            raise AssertionError("act_as without the role")
        except Refused as refused:
            assert refused.name == "forbidden"
    for name in ("a/b", "x" * 60):
        try:
            Curve(TCP, "gate", act_as=name)
            raise AssertionError(name)
        except Refused as refused:
            assert refused.name == "out_of_range"
    carl, dora = Curve(TCP, "gate", act_as="carl"), Curve(TCP, "gate", act_as="dora")
    assert carl.welcome["principal"] == "red/gate/carl"
    session = carl.open()
    assert len(carl.turn(session, [5, 6, 7], max_tokens=4, ignore_end=True).ids) == 4
    assert dora.call("session.show", sess=session).end["err"]["n"] == "not_found"
    assert Curve(TCP, "gate").call("session.show", sess=session).end["err"]["n"] == "not_found"
    watch = Curve(TCP, "watch")
    try:
        watch.open()
        raise AssertionError("an operator opened a session")
    except Refused as refused:
        assert refused.name == "forbidden"
    assert session in [s["sess"] for s in watch.ok("session.list")["r"]]
    seen = {p["principal"] for p in watch.ok("ledger.show")["r"]["principals"]}
    assert "red/gate/carl" in seen and not any(p.startswith(("blue", "uid")) for p in seen), seen
    assert [p["principal"] for p in dora.ok("ledger.show")["r"]["principals"]] == ["red/gate/dora"]
    seen = watch.ok("metrics")["r"]["text"]
    assert 'holdfast_principal_sessions{principal="red/gate/carl"}' in seen and 'principal="blue' not in seen, seen
    assert 'holdfast_principal_generation_tokens_total{principal="red/gate/carl"} 4\n' in seen, seen
    assert 'holdfast_principal_prompt_tokens_total{principal="red/gate/carl"} 3\n' in seen, seen
    assert "carl" not in dora.ok("metrics")["r"]["text"]
    # The daemon's own user sees all.
    assert session in [s["sess"] for s in wire.ok("session.list")["r"]]
    carl.ok("session.close", sess=session)


def limits(wire):
    bob = Curve(OTHER, "bob")
    time.sleep(1.2)
    opened = [bob.open() for _ in range(2)]
    assert bob.call("session.open", {"template": "none"}).end["err"]["n"] == "overloaded"
    for _ in range(3):
        bob.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(9)), sess=opened[0], window=1, supersede=True)
    second = Curve(OTHER, "bob")
    try:
        Curve(OTHER, "bob")
        raise AssertionError("a third connection")
    except Refused as refused:
        assert refused.name == "limit"
    for session in opened:
        second.ok("session.close", sess=session)
    time.sleep(1.2)
    refused = answered = 0
    for i in range(300):
        second.channel += 1
        second.send(ar1.CALL, second.channel, {"m": "health"})
    began = time.time()
    assert wire.ok("health")["r"]["state"] == "serving" and time.time() - began < 2 * ar1.SLOW
    while second.socket.poll(600):
        type, _, _, body, _ = second.receive()
        if type in (ACCEPTED, PONG):
            continue
        answered += type == END
        if type == REJECT:
            assert body["err"]["n"] == "limit" and body["err"]["after_ms"] in (100, 1000)  # calls in flight, or the rate
            refused += 1
    assert answered + refused == 300 and 1 <= answered <= 90 * ar1.SLOW and refused > 0, (answered, refused)
    time.sleep(1.3)
    assert second.ok("health")["r"]["state"] == "serving"


def revocation(wire):
    """At the next message: a key that was taken out is refused though it is connected; its turn ends; others go on."""
    ann, gate = Curve(TCP, "ann"), Curve(TCP, "gate", act_as="eve")
    session = ann.open()
    channel = ann.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(9)), sess=session, window=9,
                        detach_ms=60000)
    await_message(ann, ACCEPTED, channel)
    write([l for l in LINES if KEYS["ann"][0] not in l] + [f"allow blue {key('nobody')}"])
    again(wire)
    ann.send(PING, 0, {"t": 1})
    while True:
        type, _, _, body, _ = ann.receive()
        if type == REJECT:
            break
    assert body["err"]["n"] == "key_revoked", body
    balanced(wire)
    assert not comes_in(TCP, "ann") and let_in(OTHER, "nobody")
    assert gate.ok("health")["r"]["state"] == "serving"
    # A file that is wrong, or open to others, changes nothing.
    for lines, mode in ((["allow red key=short name=x"], 0o600), (LINES, 0o666), (["tenant x"], 0o600)):
        write(lines, mode=mode)
        told = daemon.words().count("as they were")
        daemon.process.send_signal(signal.SIGHUP)
        deadline = time.time() + 10 * ar1.SLOW
        while daemon.words().count("as they were") == told and time.time() < deadline:
            time.sleep(0.02)
        assert daemon.words().count("as they were") == told + 1
        assert gate.ok("health")["r"]["state"] == "serving" and not comes_in(TCP, "ann")
    write(LINES)
    again(wire)
    assert let_in(TCP, "ann") and not comes_in(OTHER, "nobody")
    Curve(TCP, "ann").ok("session.close", sess=session)


def clients_with_keys(wire):
    """keygen, and the three clients over TCP with what it made."""
    name = f"{HOME}/carol"
    done = subprocess.run([f"{BUILD}/holdfast", "keygen", name], capture_output=True, text=True)
    public = done.stdout.strip()
    assert done.returncode == 0 and len(public) == 40, done
    assert os.stat(name + ".key_secret").st_mode & 0o777 == 0o600
    assert subprocess.run([f"{BUILD}/holdfast", "keygen", name], capture_output=True).returncode == 1, "a key was written over"
    assert zmq.auth.load_certificate(name + ".key_secret")[0].decode() == public
    write(LINES + [f"allow red key={public} name=carol"])
    again(wire)
    cli = [f"{BUILD}/holdfast", "health", "--json", "--endpoint", TCP, "--timeout", str(2000 * ar1.SLOW)]
    with_key = ["--key", name + ".key_secret", "--server-key", KEYS["server"][0]]
    done = subprocess.run(cli + with_key, capture_output=True, text=True)
    assert done.returncode == 0 and '"serving"' in done.stdout, done
    cli[-1] = "400"
    assert subprocess.run(cli, capture_output=True).returncode != 0
    assert subprocess.run(cli + with_key[:2], capture_output=True).returncode == 2
    assert subprocess.run(cli + [*with_key[:3], KEYS["nobody"][0]], capture_output=True).returncode != 0
    sys.path.insert(0, os.path.join(os.environ.get("SRCDIR", "."), "clients", "python"))
    import asyncio
    import holdfast
    keys = {"key": name + ".key_secret", "server_key": KEYS["server"][0]}
    with holdfast.Client(TCP, **keys) as client:
        assert client.principal == "red/carol"

    async def go():
        async with holdfast.AsyncClient(TCP, **keys) as client:
            assert client.principal == "red/carol" and (await client.health())["state"] == "serving"
    asyncio.run(go())
    try:
        holdfast.Client(TCP, timeout=0.3)
        raise AssertionError("without a key")
    except holdfast.LinkError:
        pass


def wrong_starts(wire):
    secret = f"{HOME}/secret"
    write([KEYS["server"][1]], secret)
    base = [f"tenant red listen=tcp://127.0.0.1:{port()}", f"allow red {key('ann')}"]
    for lines, more, mode, word in (
            (base, [], 0o600, "with keys only"), (base, ["--curve-key", f"{HOME}/none"], 0o600, "cannot be read"),
            (base, ["--curve-key", secret], 0o666, "open to others"), (base[:1], ["--listen", "tcp://127.0.0.1:1"], 0o600, "tenants with keys"),
            (["tenant red listen=udp://x"], [], 0o600, "no setting"), (["allow red uid=1"], [], 0o600, "not named above"),
            (base + ["allow red"], [], 0o600, "expected"), (base + [f"allow red key={KEYS['ann'][0]}"], [], 0o600, "needs name="),
            (base + ["allow red uid=1 key=" + KEYS["ann"][0]], [], 0o600, "by key= or by uid="),
            (base + [base[0]], [], 0o600, "name of its own"), (base + ["allow red uid=1 roles=king"], [], 0o600, "no part of a grant")):
        write(lines, f"{HOME}/wrong", mode)
        home = tempfile.mkdtemp(prefix="hf-")
        command = [f"{BUILD}/holdfastd", "--model", MODEL, "--listen", f"ipc://{home}/s", "--state", f"{home}/state", "--cache", f"{home}/c",
                   "--kv-memory", "600000", "--tenants", f"{HOME}/wrong", *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30 * ar1.SLOW)
        assert done.returncode in (1, 2) and word in done.stderr, (lines, more, done)
        assert KEYS["ann"][0] not in done.stderr and KEYS["server"][1] not in done.stderr
        shutil.rmtree(home)
    os.chmod(secret, 0o644)
    write(base, f"{HOME}/wrong")
    done = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--listen", f"ipc://{HOME}/s", "--state", f"{HOME}/st", "--cache", f"{HOME}/c",
                           "--kv-memory", "600000", "--tenants", f"{HOME}/wrong", "--curve-key", secret], capture_output=True, text=True)
    assert done.returncode == 1 and "chmod 600" in done.stderr, done


write(LINES)
write([KEYS["server"][1]], f"{HOME}/server.key_secret")
daemon = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96", "--strikes", "0",
                "--stream-bytes", "1024",  # who does not read holds his turn
                "--tenants", FILE, "--curve-key", f"{HOME}/server.key_secret")
wire_endpoint = daemon.endpoint
wire = Wire(wire_endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("only keys and users that are allowed come in", only_keys_come_in),
    ("another user is not let in", other_users),
    ("tenants do not see or steer each other", tenants_are_apart),
    ("a routing id that a client chose is refused, with all that it says", chosen_routing_ids),
    ("another's routing id gives nothing of his", anothers_routing_id),
    ("steering what is not there or another's is not_found, alike", steering_what_is_not_ones_own),
    ("grants again, lower, another's, and beyond all bounds", grants),
    ("a tenant that floods holds up no other", one_tenant_floods),
    ("descriptors run out over TCP", descriptors_run_out_over_tcp),
    ("who is silent on the line is gone in four heartbeats", silence_on_the_line),
    ("roles: gateways act for others, operators look", roles),
    ("limits of a tenant are its own", limits),
    ("revocation at the next message, and reloads that are wrong", revocation),
    ("keygen, and the clients with keys", clients_with_keys),
    ("starts that would let anybody in are refused", wrong_starts)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
shutil.rmtree(HOME, ignore_errors=True)
daemon_rig.finish(tap, daemon)
