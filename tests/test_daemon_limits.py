"""The daemon at its limits: bad input, too much work, silent clients, wrong starts, the drain."""
import os
import shutil
import signal
import socket
import stat
import struct
import subprocess
import tempfile
import time

import ar1
import daemon_rig
from ar1 import (BUILD, CALL, CANCEL, DATA, END, HELLO, PING, PONG, REJECT, WINDOW, Daemon, Refused, Tap,
    Wire, msgpack, pack, zmq)
from daemon_rig import CONTEXT, MODEL, RANDOM, words, await_message, balanced, left_clean, same, unsanitary


def context_full(wire):
    session = wire.open()
    end = wire.turn(session, words(CONTEXT), max_tokens=5).end
    assert end["err"]["n"] == "context_full" and end["err"]["limit"] == CONTEXT and end["err"]["asked"] == CONTEXT + 1, end
    reply = wire.turn(session, words(CONTEXT - 10), ignore_end=True)
    assert reply.status == "context_full" or reply.status == "limit", reply.end
    assert reply.usage["history"] == CONTEXT and reply.usage["context_left"] == 0 and len(reply.ids) == 10
    end = wire.turn(session, words(1), max_tokens=5).end
    assert end["err"]["n"] == "context_full" and end["err"]["used"] == CONTEXT, end
    wire.ok("session.close", sess=session)


def refused_changes_nothing(wire):
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--turns", "1", "--queue", "1")
    try:
        w = Wire(own.endpoint)
        kept = w.open()
        before = w.turn(kept, words(50), max_tokens=5, ignore_end=True)
        arguments = {"tokens": True, "max_tokens": 900, "ignore_end": True}
        idle = [w.open() for _ in range(2)]  # a reply that is waited for would take an END that comes meanwhile
        busy = [w.begin("session.turn", arguments, pack(words(9)), sess=sess) for sess in idle]
        key = os.urandom(16)
        other = Wire(own.endpoint)
        end = other.call("session.turn", {**arguments, "max_tokens": 5, "keep": 10}, pack(words(5)), sess=kept, idem=key).end
        assert end["err"]["n"] == "overloaded" and end["err"]["r"] == "later", end
        show = other.ok("session.show", sess=kept)["r"]
        assert show["history"] == before.usage["history"] == 55 and show["turn"] == 1, show
        for channel in busy:
            w.send(CANCEL, channel, {"why": "enough"})
        balanced(other)
        end = other.call("session.turn", {**arguments, "max_tokens": 5, "keep": 55}, pack(words(5)), sess=kept, idem=key).end
        assert end["status"] == "limit" and end["usage"]["resident"] == 54, end  # the key was not burned
    finally:
        assert own.stop() == 0


def extremes_harm_no_neighbour(wire):
    session, other = wire.open(), wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 300, "ignore_end": True}, pack(words(20)), sess=session)
    second = Wire(wire_endpoint)
    for extreme in ({"logprobs": 17}, {"min_p": 0.999999, "temperature": 1.0}, {"temperature": 100.0, "top_k": 1048576},
                    {"top_p": 1e-300, "typical": 1e-300, "temperature": 1e-300}, {"typical": 1e-9, "temperature": 5.0}, {"repetition": 100.0,
                    "presence": 100.0, "frequency": -100.0}, {"bias": [[i, 1000.0] for i in reversed(range(200))]}, {"seed": 2**64 - 1}):
        reply = second.turn(other, words(3), max_tokens=3, ignore_end=True, **{"logprobs": 1, **extreme})
        assert reply.status == "limit" and len(reply.ids) == 3, (extreme, reply.end)
    for beyond, name in (({"logprobs": 18}, "out_of_range"), ({"min_p": 1.0}, "out_of_range"),
                         ({"temperature": 101.0}, "out_of_range"), ({"bias": [[1 << 20, 1.0]]}, "out_of_range"),
                         ({"bias": [[5, 1.0], [5, 2.0]]}, "bad_arg")):
        try:
            got = second.turn(other, words(3), max_tokens=3, **{"logprobs": 1, **beyond}).end["err"]["n"]
        except Refused as refused:
            got = refused.name
        assert got == name, (beyond, got)
    while True:
        message = wire.expect(DATA, END, ar1.ACCEPTED)
        if message[0] == END:
            break
    assert message[1] == channel and message[3]["status"] == "limit" and message[3]["usage"]["sampled"] == 300, message
    second.close()


def deadline(wire):
    own = daemon_rig.narrow()
    try:
        w = Wire(own.endpoint)
        channel = w.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(20)), sess=w.open(),
                          window=1, deadline_ms=200)
        op = await_message(w, ar1.ACCEPTED, channel)["op"]
        time.sleep(0.4)
        w.send(WINDOW, 0, {"op": op, "max_off": 1 << 20})
        end = await_message(w, END, channel)
        assert end["status"] == "deadline" and end["err"]["n"] == "deadline" and end["usage"]["sampled"] < 900, end
        balanced(w)
    finally:
        assert own.stop() == 0


def cancelled_without_credit(wire):
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 100, "ignore_end": True}, pack(words(20)), sess=session,
                         window=1)
    wire.expect(ar1.ACCEPTED)
    time.sleep(0.5)
    start = time.time()
    wire.send(CANCEL, channel, {"why": "unread"})
    message = wire.expect(DATA, END)
    while message[0] != END:
        message = wire.expect(DATA, END)
    assert message[3]["status"] in ("cancelled", "limit") and time.time() - start < 3 * ar1.SLOW, message


def audit_log_keeps_up(wire):
    for _ in range(3000 // ar1.SLOW):  # each leaves a record without a page; all must become durable
        session = wire.open()
        wire.ok("session.close", sess=session)
    assert wire.ok("health")["r"]["state"] == "serving"


def bad_frames(wire):
    raw = Wire(wire_endpoint, hello=False)
    raw.send(CALL, 1, {"m": "health", "window": 1, "a": {}})
    assert raw.expect(REJECT)[3]["err"]["n"] == "unauthenticated"
    raw.send(HELLO, 0, {"client": "x", "minor": 0, "caps": [], "act_as": "root"})
    assert raw.expect(REJECT)[3]["err"]["n"] == "forbidden"
    raw.send(HELLO, 0, {"client": "x", "minor": 0, "caps": []})
    raw.expect(ar1.WELCOME)
    good = raw.header(CALL, 1)
    body = msgpack.packb({"m": "health", "window": 1, "a": {}})
    cases = [([b""], "bad_frames"), ([b"", b"", b"", b"", b""], "bad_frames"), ([good], "bad_frames"),
             ([good, body, b"blob"], "bad_frames"), ([b"XX" + good[2:], body], "bad_frames"),
             ([raw.header(CALL, 1, major=2), body], "version"), ([raw.header(CALL, 1, reserved=1), body], "bad_frames"),
             ([raw.header(CALL, 1, flags=2), body], "bad_frames"), ([raw.header(0x42, 1), body], "bad_type"),
             ([good, b"\xdd\xff\xff\xff\xff"], "bad_body"), ([good, b"\xc1"], "bad_body"), ([good, b""], "bad_body"),
             ([good, b"\x91" * 200], "too_big"), ([good, body[:-1]], "bad_body"), ([good, body + b"\xc0"], "bad_body"),
             ([good, msgpack.packb({"m": "health", "window": 1, "a": {"zzz": 1}})], "unknown_field"),
             ([good, msgpack.packb({"m": "no.such", "window": 1, "a": {}})], "bad_arg"),
             ([raw.header(CALL, 0), body], "bad_frames"), ([good] + [b"x"] * 40, "bad_frames"),
             ([raw.header(PING, 0), msgpack.packb({"t": "x"})], None), ([raw.header(WINDOW, 0), b"\x80"], None)]
    session = wire.open()
    for frames, name in cases:
        raw.channel += 1
        head = frames[0]
        if head[8:16] == good[8:16]:  # a new channel each time, so that only what is meant is wrong
            head = head[:8] + struct.pack(">Q", raw.channel) + head[16:]
        raw.socket.send_multipart([head] + frames[1:])
        got = raw.expect(REJECT)[3]["err"]["n"]
        assert name is None or got == name, (frames[0][:4], frames[1:][:1], got, name)
        raw.send(PING, 0, {"t": 77})
        assert raw.expect(PONG)[3]["t"] == 77
        # What is right is served at once, as if nothing had been.
        assert raw.ok("health")["r"]["state"] == "serving"
        reply = raw.turn(session, [5, 6, 7], keep=0, max_tokens=2, ignore_end=True)
        assert reply.status == "limit" and len(reply.ids) == 2, (name, reply.end)
    raw.ok("session.close", sess=session)
    raw.socket.send_multipart([good, body])  # a channel that was used
    assert raw.expect(REJECT)[3]["err"]["n"] == "bad_frames"
    raw.close()


def bad_arguments(wire):
    session = wire.open()
    cases = [({"tokens": True, "max_tokens": -1}, pack([5])), ({"tokens": True, "temperature": float("nan")}, pack([5])),
             ({"tokens": True, "top_p": 0.0}, pack([5])), ({"tokens": True}, b"abc"), ({"tokens": True}, pack([1 << 31])),
             ({"tokens": True, "keep": 99}, pack([5])), ({"tokens": True, "stop": [""]}, pack([5])), ({}, None),
             ({"messages": [{"role": "emperor", "content": "x"}]}, None), ({"tokens": True, "seed": -1}, pack([5])),
             ({"tokens": True}, b""), ({"tokens": True, "stop": ["x"] * 17}, pack([5]))]
    for arguments, blob in cases:
        try:
            end = wire.call("session.turn", arguments, blob, sess=session).end
            assert end["status"] == "error", (arguments, end)
            assert blob != b"" or end["err"]["why"] == "the session would have no token", end
        except Refused:
            assert blob != b""
        assert wire.ok("session.show", sess=session)["r"]["history"] == 0
    balanced(wire)


def random_bytes(wire):
    raw = Wire(wire_endpoint)
    session = raw.open()
    body = msgpack.packb({"m": "session.turn", "window": 99, "sess": session, "a": {"tokens": True, "max_tokens": 3, "keep": 0}})
    for i in range(400):
        mutated = bytearray(body)
        for _ in range(RANDOM.randrange(1, 6)):
            mutated[RANDOM.randrange(len(mutated))] = RANDOM.randrange(256)
        raw.socket.send_multipart([raw.header(RANDOM.choice([1, 2, 2, 2, 3, 4, 5, 6, 7]), 10 + i), bytes(mutated)])
    raw.send(PING, 0, {"t": 1})
    while raw.receive()[0] != PONG:
        pass
    raw.close()
    balanced(wire)
    assert wire.ok("health")["r"]["state"] == "serving"


def raw_sockets(wire):
    path = wire_endpoint[6:]
    held = []
    for payload in (b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(500), b"\xff" + b"\x00" * 8 + b"\x7f"):
        s = socket.socket(socket.AF_UNIX)
        s.connect(path)
        s.sendall(payload)
        held.append(s)
    assert wire.ok("health")["r"]["state"] == "serving"
    for s in held:
        s.close()


def descriptors_run_out(wire):
    """Ten times more connections than descriptors: no abort, who is connected is served, others come later."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", descriptors=200)
    try:
        inside = Wire(own.endpoint)
        held = []
        for _ in range(2000):
            s = socket.socket(socket.AF_UNIX)
            s.setblocking(False)
            try:
                s.connect(own.endpoint[6:])
                held.append(s)
            except OSError:
                s.close()
        assert inside.ok("health")["r"]["state"] == "serving"
        time.sleep(0.2)
        assert len(os.listdir(f"/proc/{own.process.pid}/fd")) <= 161
        daemon_rig.rests(own)
        for s in held:
            s.close()
        late = Wire(own.endpoint)
        assert late.ok("health")["r"]["state"] == "serving"
    finally:
        assert own.stop() == 0


def notes_and_queue(wire):
    """A long prompt is never silent; who waits is told the place and what is short."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "200000", "--note-ms", "50", "--turns", "2", "--chunk", "16",
                 "--batch-rows", "16")
    try:
        w = Wire(own.endpoint)
        arguments = {"tokens": True, "max_tokens": 500, "ignore_end": True}
        sessions = [w.open() for _ in range(3)]
        channels = [w.begin("session.turn", arguments, pack(words(400)), sess=s) for s in sessions]
        states, ends = {}, {}
        while len(ends) < 3:
            type, channel, _, body, _ = w.receive()
            if type == ar1.NOTE:
                states.setdefault(channel, []).append(body)
            elif type == END:
                ends[channel] = body
        queued = [n for n in states.get(channels[2], []) if n["state"] == "queued"]
        assert queued and all(n["place"] >= 1 for n in queued) and any(n["short_by"] > 0 for n in queued), queued[:3]
        assert all(n["done"] <= n["total"] for notes in states.values() for n in notes)
        assert all(e["status"] in ("limit", "context_full") for e in ends.values()), ends
        assert ends[channels[2]]["usage"]["queue_us"] > 0
        never = w.turn(w.open(), words(1000), max_tokens=20).end
        assert never["err"]["n"] == "no_pages" and never["err"]["asked"] > never["err"]["limit"] > 0, never
    finally:
        assert own.stop() == 0


def config_file(wire):
    folder = tempfile.mkdtemp(prefix="hf-")
    path = f"{folder}/holdfast.conf"
    with open(path, "w") as file:
        file.write("# a comment\n\nturns = 3\n kv-memory = 300K \ntemplate = smollm2\ncalls-principal = 2\n")
    own = Daemon(MODEL, "--config", path, "--turns", "2")
    try:
        w = Wire(own.endpoint)
        assert w.welcome["limits"]["inflight"] == 2
        assert w.ok("ledger.show")["r"]["accounts"]["device"]["free"] <= 300 * 1024
    finally:
        assert own.stop() == 0
    for line, word in (("nonsense = 1", "no such option"), ("turns", "name = value"), ("turns = many", "number from")):
        with open(path, "w") as file:
            file.write(line + "\n")
        p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--config", path], capture_output=True, text=True)
        assert p.returncode == 2 and ":1:" in p.stderr and word in p.stderr, p
    # Times that would keep everything from beginning are refused with their numbers.
    for given, numbers in ((("--audit-stall-ms", "150", "--audit-commit-ms", "150"), ("150", "150 ms")),
                           (("--audit-stall-ms", "200", "--audit-pace-ms", "250"), ("200", "250 ms")),
                           (("--audit-stall-ms", "500", "--audit-abort-ms", "400"), ("400", "500"))):
        p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--check", *given], capture_output=True, text=True)
        assert p.returncode == 2 and all(n in p.stderr for n in numbers) and p.stderr.count("\n") == 1, p
    for stall, abort in (("101", "0"), ("60000", "60000"), ("3600000", None)):
        given = ["--audit-stall-ms", stall] + (["--audit-abort-ms", abort] if abort else [])
        p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--check", *given], capture_output=True, text=True)
        assert p.returncode == 0, p


def drain_deadline(wire):
    """What does not finish in the drain's time ends as suspended; asked twice, by SIGTERM or from the keyboard, the daemon goes
    at once."""
    both = (signal.SIGTERM, signal.SIGINT)
    for first, twice in [(signal.SIGTERM, None), (signal.SIGINT, None)] + [(a, b) for a in both for b in both]:
        own = daemon_rig.narrow("--drain-ms", "60000" if twice else "50")
        w = Wire(own.endpoint)
        channel = w.begin("session.turn", {"tokens": True, "max_tokens": 100000, "ignore_end": True}, pack(words(3)), sess=w.open(), window=1)
        w.expect(ar1.ACCEPTED)
        own.process.send_signal(first)
        if twice:
            while w.receive()[0] != ar1.GOAWAY:
                pass
            start = time.time()
            own.process.send_signal(twice)
        else:
            end = await_message(w, END, channel)
            assert end["status"] == "suspended" and end["usage"]["sampled"] < 900, end
        code = own.process.wait(20 * ar1.SLOW)
        assert code == 0 and (not twice or time.time() - start < 5 * ar1.SLOW), (code, own.words())
        own.stop()


def nobody_locks_others_out(wire):
    """Unread turns leave places for those who look; costly calls of one peer leave the loop to others; no file is lost."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--calls-principal", "4", "--stall-ms", "1000",
                 "--drain-ms", str(10000 * ar1.SLOW))
    try:
        holder, other = Wire(own.endpoint), Wire(own.endpoint)
        arguments = {"tokens": True, "max_tokens": 3, "ignore_end": True}
        channels = [holder.begin("session.turn", arguments, pack(words(3)), sess=holder.open(), window=0) for _ in range(4)]
        time.sleep(0.2)
        assert other.ok("health")["r"]["state"] == "serving"
        try:
            other.turn(other.open(), words(3), max_tokens=1)
            raise AssertionError("a fifth turn was taken")
        except Refused as refused:
            assert refused.name == "limit"
        ends = {}
        while len(ends) < 4:
            type, channel, _, body, _ = holder.receive()
            if type == END:
                ends[channel] = body
        # What was not read is said, beside what the turn came to.
        assert sorted(ends) == channels and all(e["status"] == "limit" and e["err"]["n"] == "slow_consumer" and
                                                e["usage"]["sampled"] == 3 for e in ends.values()), ends
        for _ in range(8):
            holder.begin("tokenize", {"special": False}, os.urandom(100000).hex().encode() * 5)
        start = time.time()
        assert other.ok("health")["r"]["state"] == "serving"
        assert time.time() - start < 5 * ar1.SLOW
    finally:
        assert own.stop() == 0
    folder = tempfile.mkdtemp(prefix="hf-")
    with open(f"{folder}/precious", "w") as file:
        file.write("kept")
    p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--template", "smollm2", "--listen", f"ipc://{folder}/precious",
                        "--state", f"{folder}/s"], capture_output=True, text=True, timeout=60 * ar1.SLOW)
    assert p.returncode == 1 and "not a socket" in p.stderr and open(f"{folder}/precious").read() == "kept", p


def too_much(wire):
    """More work than there are pages: everyone waits in turn and everyone is answered."""
    sessions = [wire.open() for _ in range(12)]
    channels = [wire.begin("session.turn", {"tokens": True, "max_tokens": 100, "ignore_end": True}, pack(words(300)), sess=s)
                for s in sessions]
    ends = {}
    while len(ends) < len(channels):
        type, channel, _, body, _ = wire.receive()
        if type == END:
            ends[channel] = body
    assert all(e["status"] == "limit" for e in ends.values()), ends
    balanced(wire)
    # Pages of idle sessions were given up for others: the next turn says so and is the same.
    given = words(4)
    replies = [wire.turn(s, given, max_tokens=4, ignore_end=True) for s in sessions]
    lost = [r.usage for r in replies if r.usage["recomputed"]]
    assert lost and all(u["diverged_why"] == "evicted" for u in lost), [r.usage for r in replies]
    for u in (r.usage for r in replies):
        assert u["resident"] + u["recomputed"] + u["reloaded"] + u["new"] == u["prompt"]
    for s in sessions:
        wire.ok("session.close", sess=s)


def ten_thousand_at_once(wire):
    """Each of 10,000 calls that are sent before an answer is read gets one END, or one refusal, and nothing after it."""
    count = 10000 // ar1.SLOW
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--calls", str(count), "--calls-principal", str(count))
    try:
        for limit in ("high", "low"):
            link = Wire(own.endpoint if limit == "high" else wire_endpoint, hello=False)
            link.socket.close()
            link.socket = zmq.Context.instance().socket(zmq.DEALER)
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                link.socket.setsockopt(option, 0)
            link.socket.connect(own.endpoint if limit == "high" else wire_endpoint)
            link.send(HELLO, 0, {"client": "many", "minor": 0, "caps": []})
            link.expect(ar1.WELCOME)
            sessions = [link.open() for _ in range(8)]
            turn = {"tokens": True, "max_tokens": 2, "ignore_end": True}
            sent = {}
            for i in range(count):
                sess = sessions[i // 4 % 8]
                sent[link.begin(*[("health",), ("session.turn", turn, pack([5, 6])), ("session.show",), ("no.such",)][i % 4],
                                **({"sess": sess} if i % 2 else {}))] = i % 4
            accepted, ended, refused, turns = set(), {}, {}, 0
            while len(ended) + len(refused) < count:
                type, channel, _, body, _ = link.receive()
                if type in (DATA, ar1.NOTE):
                    assert channel in accepted and channel not in ended
                    continue
                assert channel in sent and channel not in ended and channel not in refused, (type, channel)
                if type == ar1.ACCEPTED:
                    assert channel not in accepted
                    accepted.add(channel)
                elif type == END:
                    assert channel in accepted
                    ended[channel] = body
                    turns += sent[channel] == 1 and body["status"] == "limit"
                else:
                    assert type == REJECT and channel not in accepted
                    refused[channel] = body["err"]["n"]
            assert turns > 0 and set(refused.values()) <= {"limit", "bad_arg", "unknown_field"}, set(refused.values())
            assert limit == "low" or "limit" not in refused.values(), "more are allowed at once than were sent"
            link.send(PING, 0, {"t": 3})
            assert link.expect(PONG)[3]["t"] == 3, "something came after the last END"
            for sess in sessions:
                link.ok("session.close", sess=sess)
            link.close()
        assert Wire(own.endpoint).ok("health")["r"]["turns_running"] == 0
    finally:
        assert own.stop() == 0


def modes_under_any_umask(wire):
    """Whatever umask it is started with: sockets, locks and what it keeps are its user's alone."""
    for mask in (0, 0o077):
        home = tempfile.mkdtemp(prefix="hf-")
        before = os.umask(0o022)
        try:
            with open(f"{home}/log", "wb"):
                pass
            os.umask(mask)
            own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "100000", "--host-memory", "100000", "--disk-bytes", "1000000",
                         "--events", f"ipc://{home}/events.sock", "--trace", f"{home}/trace", "--anchor", f"{home}/anchor", home=home)
        finally:
            os.umask(before)
        try:
            for name in ("rpc.sock", "events.sock"):
                mode = os.lstat(f"{home}/{name}").st_mode
                assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600, (mask, name, oct(mode))
            w = Wire(own.endpoint)
            for _ in range(4):
                assert w.turn(w.open(), words(300), max_tokens=3, ignore_end=True).status == "limit"
            w.close()
        finally:
            assert own.stop(keep=True) == 0
        seen = set()
        for top, folders, files in os.walk(home):
            for name in folders + files:
                path = os.path.join(top, name)
                mode = os.lstat(path).st_mode
                seen.add(os.path.relpath(path, home))
                wanted = 0o700 if stat.S_ISDIR(mode) else 0o400 if name.endswith(".key") and top.endswith("anchor") else 0o600
                if name != "log":
                    assert stat.S_IMODE(mode) == wanted, (mask, path, oct(mode))
        assert {"state/data.mdb", "state/lock.mdb", "rpc.sock.lock", "trace", "anchor"} <= seen, seen
        shutil.rmtree(home)


def residency(wire):
    first = wire.ok("session.open", {"residency": {"kind": "pinned", "tokens": 64}})
    assert first["r"]["granted"]["kind"] == "pinned" and first["r"]["granted"]["bytes"] > 0, first
    try:
        end = wire.call("session.open", {"residency": {"kind": "pinned", "bytes": 1 << 40}}).end
        granted = end.get("r", {}).get("granted", {})
        assert end["status"] == "error" or granted["bytes"] < 1 << 40, end
        if end["status"] == "ok":
            wire.ok("session.close", sess=end["sess"])
    finally:
        wire.ok("session.close", sess=first["sess"])


def idle_costs_nothing(daemon):
    def cpu():
        with open(f"/proc/{daemon.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return int(fields[11]) + int(fields[12])
    looks, others = Wire(daemon.endpoint), [Wire(daemon.endpoint) for _ in range(200)]

    def turns():
        return looks.ok("health")["r"]["loop_turns"]
    time.sleep(0.5)
    before, turned = cpu(), turns()
    time.sleep(2)
    turned = turns() - turned
    assert cpu() - before <= 2, cpu() - before
    assert 1 <= turned <= 20, f"{turned} turns of the loop while nobody asked for anything"
    for w in [looks, *others]:
        w.close()


def short_before_long(wire):
    """Once the rate is measured, a short prompt passes long ones that began earlier, and need far more than a quarter
    of that time."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--turns", "8", "--chunk", "16",
                 "--batch-rows", "16")
    w = Wire(own.endpoint)
    one = {"tokens": True, "max_tokens": 1, "ignore_end": True}
    assert w.turn(w.open(), words(100), max_tokens=1, ignore_end=True).status == "limit"
    sessions = [w.open() for _ in range(4)]
    for sess in sessions[:3]:
        w.begin("session.turn", one, pack(words(900)), sess=sess)
    time.sleep(0.01)
    short = w.begin("session.turn", one, pack(words(20)), sess=sessions[3])
    ended = []
    while len(ended) < 4:
        message = w.receive()
        if message[0] == END:
            assert message[3]["status"] == "limit", message
            ended.append(message[1])
    assert ended.index(short) <= 1, (ended, short)  # a quick machine may have ended the first
    w.close()
    left_clean(own)


def quiet_clients(daemon):
    """A reader that takes no text is told so after the stall time, whatever its turn had come to; then it is let go."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--heartbeat-ms", "100", "--stall-ms", "700",
                 "--note-ms", "50", "--stream-bytes", "1024")
    try:
        watcher, reader = Wire(own.endpoint), Wire(own.endpoint)
        # More text than may lie unread: the turn pauses, and ends where it paused.
        session = reader.open()
        arguments = {"tokens": True, "max_tokens": 900, "ignore_end": True}
        channel = reader.begin("session.turn", arguments, pack(words(20)), sess=session, window=1)
        reader.expect(ar1.ACCEPTED)
        for i in range(20 * min(ar1.SLOW, 2)):  # well beyond what silence is allowed, but pinging
            time.sleep(0.1)
            reader.send(PING, 0, {"t": i})
        assert watcher.ok("session.list")["r"][0]["sess"] == session
        end = await_message(reader, END, channel)
        assert end["status"] == "slow_consumer" and end["err"]["n"] == "slow_consumer", end
        assert 0 < end["usage"]["sampled"] < 900, end
        # Less: the turn had ended before anybody could know, and keeps its own status.
        channel = reader.begin("session.turn", {**arguments, "max_tokens": 5}, pack(words(3)), sess=session, window=0)
        await_message(reader, ar1.ACCEPTED, channel)
        start = time.time()
        end = await_message(reader, END, channel)
        assert end["status"] == "limit" and end["err"]["n"] == "slow_consumer" and end["usage"]["sampled"] == 5, end
        assert time.time() - start >= 0.5
        # Silent with a turn that does not end by itself: gone with it.
        await_message(reader, ar1.ACCEPTED, reader.begin("session.turn", arguments, pack(words(20)), sess=session, window=1))
        daemon_rig.until(lambda: watcher.ok("session.show", sess=session)["r"]["state"] == "idle")
        balanced(watcher)
    finally:
        assert own.stop() == 0


def quota_of_bytes(daemon):
    """A turn that names no limit samples as much as its principal's quota has room for; one that names more is told the numbers."""
    own = daemon_rig.narrow("--principal-bytes", "60000")
    try:
        wire = Wire(own.endpoint)
        session = wire.open()
        reply = wire.call("session.turn", {"tokens": True, "ignore_end": True}, pack(words(100)), sess=session)
        assert reply.status == "limit" and 100 < reply.usage["sampled"] < 300, reply.end
        end = wire.call("session.turn", {"tokens": True, "max_tokens": 500, "keep": 0}, pack(words(100)), sess=session).end
        assert end["err"]["n"] == "no_pages" and end["err"]["asked"] > end["err"]["limit"] == 60000, end
    finally:
        assert own.stop() == 0


def silent_in_the_queue(daemon):
    """Who waits, takes notes and says nothing at all for three heartbeats and the stall time is gone, and so is the turn."""
    own = daemon_rig.narrow("--turns", "1", "--heartbeat-ms", "100", "--stall-ms", "700")
    try:
        reader, silent, watcher = Wire(own.endpoint), Wire(own.endpoint), Wire(own.endpoint)
        arguments = {"tokens": True, "max_tokens": 900, "ignore_end": True}
        channel = reader.begin("session.turn", arguments, pack(words(20)), sess=reader.open(), window=1)
        op = await_message(reader, ar1.ACCEPTED, channel)["op"]
        await_message(silent, ar1.ACCEPTED, silent.begin("session.turn", arguments, pack(words(20)), sess=silent.open()))
        assert watcher.ok("health")["r"]["turns_waiting"] == 1
        granted, deadline = 1, time.time() + 8 * ar1.SLOW
        while watcher.ok("health")["r"]["turns_waiting"] and time.time() < deadline:
            granted += 8  # slow, but it reads: its turn goes on
            reader.send(WINDOW, 0, {"op": op, "max_off": granted})
            time.sleep(0.05)
        health = watcher.ok("health")["r"]
        assert health["turns_waiting"] == 0 and health["turns_running"] == 1, health
    finally:
        assert own.stop() == 0


def wrong_starts(daemon):
    def run(*arguments):
        p = subprocess.run([f"{BUILD}/holdfastd", *arguments], capture_output=True, text=True, timeout=60 * ar1.SLOW)
        unsanitary(p.stderr)
        return p.returncode, p.stderr.strip().splitlines()
    other = tempfile.mkdtemp(prefix="hf-")
    code, lines = run("--model", MODEL, "--listen", daemon.endpoint, "--state", f"{other}/s")
    assert code == 3 and "another daemon" in lines[-1], (code, lines)
    code, lines = run("--model", MODEL, "--listen", f"ipc://{other}/x.sock", "--state", f"{daemon.home}/state")
    assert code == 3 and f"{daemon.home}/state" in lines[-1], (code, lines)
    code, lines = run("--model", f"{other}/none.gguf")
    assert code == 1 and len(lines) == 1 and f"{other}/none.gguf" in lines[0], (code, lines)
    assert run("--model", MODEL, "--check=maybe")[0] == 2
    assert run("bench", MODEL, "--only", "decode")[0] == 2
    for program in ("logits", "perplexity", "bench", "inspect", "tokenize", "simulate", "selftest", "audit"):
        p = subprocess.run([f"{BUILD}/holdfastd", program, "--help"], capture_output=True, text=True)
        assert p.returncode == 0 and program in p.stdout.splitlines()[0] and not p.stderr, (program, p)
    for program in (("--model", MODEL, "--check"), ("inspect", MODEL)):
        with open("/dev/full", "w", encoding="utf-8") as full:
            p = subprocess.run([f"{BUILD}/holdfastd", *program], stdout=full, stderr=subprocess.PIPE, text=True)
        assert p.returncode == 1 and "writing to stdout failed" in p.stderr, (program, p)
    assert run()[0] == 2
    assert run("--nonsense")[0] == 2
    assert run("--model", MODEL, "--kv", "fp7")[0] == 2
    assert run("--model", MODEL, "--page-tokens", "17")[0] == 2
    code, lines = run("--model", MODEL, "--listen", "tcp://127.0.0.1:1", "--state", f"{other}/s")
    assert code != 0 and "ipc" in lines[-1], (code, lines)
    code, lines = run("--model", MODEL, "--listen", f"ipc://{other}/y.sock", "--state", f"{other}/s", "--kv-memory", "10")
    assert code != 0 and "page" in lines[-1], (code, lines)
    code, lines = run("--model", MODEL, "--listen", f"ipc://{other}/y.sock", "--state", f"{other}/s", "--kv-memory",
                      "40000G", "--kv", "f32", "--sessions", "100000")
    assert code != 0 and len(lines) >= 1, (code, lines)
    code, lines = run("--model", MODEL, "--state", "")
    assert code == 2 and lines == ["holdfastd: --state is empty"], (code, lines)
    assert run("--model=", "--state", f"{other}/s")[0] == 2
    code, lines = run("--model", MODEL, "--listen", f"ipc://{other}/none/x.sock", "--state", f"{other}/s")
    assert code == 1 and "does not exist" in lines[-1] and not os.path.exists(f"{other}/none"), (code, lines)
    code, lines = run("perplexity", MODEL, "--text", other)
    assert code == 1 and lines == [f"holdfastd: perplexity: {other}: is a folder"], (code, lines)
    p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--check", "--kv-memory", "600000"], capture_output=True, text=True)
    (planned,) = [line.split()[2] for line in p.stdout.splitlines() if line.startswith("KV")]
    assert f"KV {planned} MiB" in daemon.words(), (planned, daemon.words())
    p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--check", "--json"], capture_output=True, text=True)
    assert p.returncode == 0 and '"kv_bytes"' in p.stdout, p


def drain(daemon, wire):
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 300, "ignore_end": True}, pack(words(20)), sess=session,
                         window=64)  # so it waits, and is not over before GOAWAY
    op = wire.expect(ar1.ACCEPTED)[3]["op"]
    daemon.process.send_signal(signal.SIGTERM)
    goaway = wire.expect(ar1.GOAWAY, DATA)
    while goaway[0] != ar1.GOAWAY:
        goaway = wire.receive()
    assert goaway[1:] == (0, 0, {"why": "shutdown", "deadline_ms": 10000 * ar1.SLOW, "retry_ms": 1000}, None), goaway
    late = wire.begin("session.open")
    wire.send(WINDOW, 0, {"op": op, "max_off": 1 << 20})
    ends = {}
    while len(ends) < 2:
        type, at, _, body, _ = wire.receive()
        if type in (END, REJECT):
            ends[at] = body
    assert ends[channel]["status"] == "limit" and ends[channel]["usage"]["sampled"] == 300, ends
    assert ends[late]["err"]["n"] == "draining", ends
    assert daemon.process.wait(20 * ar1.SLOW) == 0, daemon.words()


daemon = daemon_rig.start()
wire_endpoint = daemon.endpoint
wire = Wire(wire_endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
        ("a turn that does not fit the context says the numbers", context_full),
        ("extreme sampling harms no neighbour", extremes_harm_no_neighbour),
        ("a refused turn changes nothing and burns no key", refused_changes_nothing),
        ("a deadline ends a turn", deadline),
        ("END needs no credit after a cancel", cancelled_without_credit),
        ("records without pages become durable too", audit_log_keeps_up),
        ("bad frames are refused by name, the next message is served", bad_frames),
        ("bad arguments are refused and change nothing", bad_arguments),
        ("mutated bodies do no harm", random_bytes),
        ("peers that speak no ZMTP do no harm", raw_sockets),
        ("descriptors run out", descriptors_run_out),
        ("nobody locks others out", nobody_locks_others_out),
        ("notes say what is done, and what is waited for", notes_and_queue),
        ("the config file", config_file),
        ("the drain has its deadline", drain_deadline),
        ("more turns than pages: all are answered, what was given up is told", too_much),
        ("a short prompt passes long ones", short_before_long),
        ("ten thousand calls at once: each ends once", ten_thousand_at_once),
        ("nothing is open to others, whatever the umask", modes_under_any_umask),
        ("residency is granted, clipped or refused", residency)])
tap.run("silence and stalled readers have their limits", quiet_clients, daemon)
tap.run("a quota of bytes is what a turn without a limit of its own has", quota_of_bytes, daemon)
tap.run("who is silent in the queue is let go", silent_in_the_queue, daemon)
tap.run("an idle daemon uses no CPU", idle_costs_nothing, daemon)
tap.run("wrong starts say one line and the right exit code", wrong_starts, daemon)
tap.run("SIGTERM drains: running turns finish, new ones are refused", drain, daemon, wire)
tap.run("the daemon ended with 0, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
