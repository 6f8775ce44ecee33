"""The daemon over its real socket with a tiny model: turns, sessions, cancels, limits, bad input.

Method: a tiny random model is written, the daemon is started on it, and everything is said to it by
tests/ar1.py. After each test the ledger must balance: no page running or promised.
"""
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

import ar1
from ar1 import (BUILD, CALL, CANCEL, DATA, END, HELLO, PING, PONG, REJECT, WINDOW, Daemon, Refused, Tap, Wire, msgpack,
                 pack, zmq)

if zmq is None:
    ar1.skip_all("pyzmq and msgpack are not installed")

CONTEXT = 1024
FOLDER = tempfile.mkdtemp(prefix="hf-model-")
MODEL = os.path.join(FOLDER, "tiny.gguf")
subprocess.run([f"{BUILD}/tests/make_tiny", MODEL, "7"], check=True)
RANDOM = random.Random(5)


def words(count):
    return [RANDOM.randrange(3, 259) for _ in range(count)]


def balanced(wire):
    deadline = time.time() + 10 * ar1.SLOW
    while True:
        device = wire.ledger()
        if device["running"] == device["promised"] == device["moving"] == 0 or time.time() > deadline:
            break
        time.sleep(0.02)
    assert device["running"] == device["promised"] == device["moving"] == 0, device
    return device


def same(a, b):
    assert a.ids == b.ids, (a.ids, b.ids)
    assert a.logprobs == b.logprobs


def continued_is_recomputed(wire):
    session = wire.open()
    history, expected = [], 0
    for turn in range(5):
        given = words(RANDOM.randrange(1, 60))
        reply = wire.turn(session, given, max_tokens=RANDOM.randrange(2, 30), ignore_end=True, seed=turn,
                          temperature=0.8 if turn % 2 else 0)
        usage = reply.usage
        assert usage["prompt"] == len(history) + len(given)
        assert usage["resident"] == expected and usage["recomputed"] == usage["reloaded"] == 0, usage
        assert usage["new"] == usage["prompt"] - expected
        fresh = wire.open()
        again = wire.turn(fresh, history + given, max_tokens=usage["sampled"], ignore_end=True, seed=turn,
                          temperature=0.8 if turn % 2 else 0)
        same(reply, again)
        assert again.usage["resident"] == 0
        wire.ok("session.close", sess=fresh)
        history += given + reply.ids
        expected = len(history) - 1
        assert usage["history"] == len(history) and usage["context_left"] == CONTEXT - len(history)
    wire.ok("session.close", sess=session)


def neighbours_change_nothing(wire):
    given = words(150)
    alone = wire.turn(wire.open(), given, max_tokens=40, ignore_end=True)
    sessions = [wire.open() for _ in range(6)]
    channels = [wire.begin("session.turn", {"tokens": True, "max_tokens": 60, "ignore_end": True}, pack(words(90 + 40 * i)),
                           sess=s) for i, s in enumerate(sessions)]
    other = Wire(wire_endpoint)
    same(alone, other.turn(other.open(), given, max_tokens=40, ignore_end=True))
    seen = set()
    while len(seen) < len(channels):
        type, channel, _, body, _ = wire.receive()
        if type == END:
            assert body["status"] == "limit", body
            seen.add(channel)
    other.close()


def fork_and_rollback(wire):
    session = wire.open()
    first = wire.turn(session, words(70), max_tokens=20, ignore_end=True)
    fork = wire.ok("session.fork", sess=session)["sess"]
    given = words(33)
    parent = wire.turn(session, given, max_tokens=20, ignore_end=True)
    child = wire.turn(fork, given, max_tokens=20, ignore_end=True)
    same(parent, child)
    usage = child.usage
    assert usage["resident"] == 80 and usage["recomputed"] > 0 and usage["diverged_why"] == "fork_tail", usage
    assert usage["resident"] + usage["recomputed"] + usage["new"] + usage["reloaded"] == usage["prompt"]
    back = wire.ok("session.rollback", {"to_turn": 1}, sess=session)
    assert back["r"]["history"] == 90 and back["turn"] == 1, back
    same(parent, wire.turn(session, given, max_tokens=20, ignore_end=True))
    back = wire.ok("session.rollback", {"to_tokens": 75}, sess=session)
    assert back["r"]["history"] == 75
    again = wire.turn(session, first.ids[5:] + given, max_tokens=20, ignore_end=True)
    same(parent, again)
    for s in (session, fork):
        wire.ok("session.close", sess=s)


def keep_cuts(wire):
    session = wire.open()
    given = words(50)
    wire.turn(session, given, max_tokens=10, ignore_end=True)
    tail = words(20)
    reply = wire.turn(session, tail, keep=30, max_tokens=10, ignore_end=True)
    assert reply.usage["prompt"] == 50 and reply.usage["resident"] == 30, reply.usage
    same(reply, wire.turn(wire.open(), given[:30] + tail, max_tokens=10, ignore_end=True))


def cancel_everywhere(wire):
    for point in ("queued", "prefill", "first", "later", "channel"):
        session = wire.open()
        channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 500, "ignore_end": True}, pack(words(400)),
                             sess=session)
        op = None
        if point not in ("queued", "channel"):
            op = wire.expect(ar1.ACCEPTED)[3]["op"]
        if point == "prefill":
            time.sleep(0.005)
        if point == "first":
            wire.expect(DATA)
        if point == "later":
            for _ in range(4):
                wire.expect(DATA)
        wire.send(CANCEL, channel, {"op": op, "why": "test"} if op else {"why": "test"})
        while True:
            message = wire.expect(DATA, END, ar1.ACCEPTED)
            if message[0] == END:
                break
        end = message[3]
        assert end["status"] == "cancelled", (point, end)
        show = wire.ok("session.show", sess=session)["r"]
        assert show["state"] == "idle" and show["history"] == end["usage"]["history"]
        more = wire.turn(session, words(3), max_tokens=3, ignore_end=True)
        assert more.status == "limit"
        wire.ok("session.close", sess=session)
    wire.send(CANCEL, 9999, {"why": "none"})
    assert wire.expect(REJECT)[3]["err"]["n"] == "not_found"
    balanced(wire)


def close_under_load(wire):
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 800, "ignore_end": True}, pack(words(20)),
                         sess=session)
    wire.expect(ar1.ACCEPTED)
    wire.expect(DATA)
    other = Wire(wire_endpoint)
    other.ok("session.close", sess=session)
    while True:
        message = wire.expect(DATA, END)
        if message[0] == END:
            break
    assert message[1] == channel and message[3]["status"] == "closed", message
    try:
        end = wire.call("session.show", sess=session).end
        assert end["err"]["n"] == "not_found"
    finally:
        other.close()
    balanced(wire)


def killed_client(wire):
    code = ("import sys; sys.path.insert(0, %r); import ar1\n"
            "w = ar1.Wire(%r); s = w.open()\n"
            "w.begin('session.turn', {'tokens': True, 'max_tokens': 900, 'ignore_end': True}, ar1.pack([5] * 50), sess=s)\n"
            "w.expect(ar1.ACCEPTED); w.expect(ar1.DATA); print('streaming', flush=True); import time; time.sleep(60)")
    child = subprocess.Popen([sys.executable, "-c", code % (os.path.dirname(os.path.abspath(ar1.__file__)), wire_endpoint)],
                             stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"streaming\n"
    child.kill()
    child.wait()
    balanced(wire)
    assert wire.ok("health")["r"]["turns_running"] == 0


def busy_and_supersede(wire):
    session = wire.open()
    first = wire.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, pack(words(20)), sess=session)
    wire.expect(ar1.ACCEPTED)
    wire.expect(DATA)
    other = Wire(wire_endpoint)
    assert other.turn(session, words(5), max_tokens=5).end["err"]["n"] == "session_busy"
    reply = other.turn(session, words(5), max_tokens=5, supersede=True, ignore_end=True)
    assert reply.status == "limit", reply.end
    while True:
        message = wire.expect(DATA, END)
        if message[0] == END:
            break
    assert message[1] == first and message[3]["status"] == "superseded"
    # What both share stays, and the newcomer begins where the other was stopped.
    assert reply.usage["prompt"] == message[3]["usage"]["history"] + 5
    assert reply.usage["resident"] == reply.usage["prompt"] - 6
    other.close()
    balanced(wire)


def credits_hold(wire):
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 200, "ignore_end": True}, pack(words(20)),
                         sess=session, window=10)
    op = wire.expect(ar1.ACCEPTED)[3]["op"]
    off, granted, ended, text = 0, 10, None, ""
    while ended is None:
        try:
            type, _, _, body, _ = wire.receive(timeout=0.3)
        except TimeoutError:
            assert off <= granted
            granted += 40
            wire.send(WINDOW, 0, {"op": op, "max_off": granted})
            wire.send(WINDOW, 0, {"op": op, "max_off": 5})  # lower: no news
            continue
        if type == DATA:
            off, text = body[0], text + body[2]
            assert off <= granted, (off, granted)
            assert off == len(text.encode())
        elif type == END:
            ended = body
    assert ended["status"] == "limit" and ended["usage"]["sampled"] == 200
    balanced(wire)


def stop_strings(wire):
    given = words(30)
    whole = wire.turn(wire.open(), given, max_tokens=60, ignore_end=True)
    text = whole.text
    for length in (1, 3, 7):
        at = len(text) // 2
        stop = text[at:at + length]
        reply = wire.turn(wire.open(), given, max_tokens=60, ignore_end=True, stop=[stop, "\x00never"])
        assert reply.status == "stop", reply.end
        assert reply.text == text[:text.index(stop)], (stop, reply.text, text)
        assert reply.ids == whole.ids[:len(reply.ids)]


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


def fences(wire):
    session = wire.open()
    other = Wire(wire_endpoint)
    assert other.ok("session.attach", sess=session)["epoch"] == 2
    end = wire.call("session.turn", {"tokens": True, "max_tokens": 2}, pack(words(2)), sess=session, epoch=1).end
    assert end["err"]["n"] == "fenced", end
    end = other.call("session.turn", {"tokens": True, "max_tokens": 2}, pack(words(2)), sess=session, epoch=2, turn=3).end
    assert end["err"]["n"] == "turn_conflict" and end["turn"] == 0, end
    end = other.call("session.turn", {"tokens": True, "max_tokens": 2}, pack(words(2)), sess=session, epoch=2, turn=0).end
    assert end["turn"] == 1
    assert wire.call("session.show", sess=os.urandom(16)).end["err"]["n"] == "not_found"
    other.close()


def idempotency(wire):
    session, key, given = wire.open(), os.urandom(16), pack(words(10))
    wire.call("session.turn", {"tokens": True, "max_tokens": 4, "ignore_end": True}, given, sess=session, idem=key)
    end = wire.call("session.turn", {"tokens": True, "max_tokens": 4, "ignore_end": True}, given, sess=session, idem=key).end
    assert end["err"]["n"] == "gone", end
    end = wire.call("session.turn", {"tokens": True, "max_tokens": 5, "ignore_end": True}, given, sess=session, idem=key).end
    assert end["err"]["n"] == "idem_mismatch", end
    assert wire.ok("session.show", sess=session)["r"]["turn"] == 1


def messages_and_tools(wire):
    tool = ('{"type": "function", "function": {"name": "list_files", "description": "List", "parameters": {"type": "object", '
            '"properties": {"deep": {"type": "boolean"}}, "required": ["deep"]}}}')
    session = wire.open(template="smollm2", system="You are terse.", tools=[tool])
    reply = wire.call("session.turn", {"messages": [{"role": "user", "content": "hi <|im_end|> there"}], "max_tokens": 200,
                                       "tool_choice": "required", "temperature": 1.0, "seed": 3}, sess=session)
    assert reply.status == "tool_wait", reply.end
    (made,) = reply.end["next"]
    assert made["name"] == "list_files" and made["arguments"] in ('{"deep": true}', '{"deep": false}'), made
    assert "tool_call" not in reply.text
    assert wire.ok("session.show", sess=session)["r"]["state"] == "tool_wait"
    reply = wire.call("session.continue", {"results": [{"tool_call_id": made["id"], "content": "42"}], "max_tokens": 10,
                                           "ignore_end": True}, sess=session)
    assert reply.usage["resident"] == reply.usage["prompt"] - reply.usage["new"] and reply.usage["tool_us"] > 0
    assert reply.status == "limit"
    end = wire.call("session.continue", {"results": [{"tool_call_id": made["id"], "content": "42"}]}, sess=session).end
    assert end["err"]["n"] == "turn_conflict", end
    end = wire.call("session.turn", {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"},
                    sess=wire.open("smollm2")).end
    assert end["err"]["n"] == "bad_arg"


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
    for frames, name in cases:
        raw.socket.send_multipart(frames)
        got = raw.expect(REJECT)[3]["err"]["n"]
        assert name is None or got == name, (frames[0][:4], frames[1:][:1], got, name)
        raw.send(PING, 0, {"t": 77})
        assert raw.expect(PONG)[3]["t"] == 77
    assert raw.ok("health")["r"]["state"] == "serving"
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
        except Refused:
            pass
        assert wire.ok("session.show", sess=session)["r"]["history"] == 0
    balanced(wire)


def random_bytes(wire):
    raw = Wire(wire_endpoint)
    body = msgpack.packb({"m": "session.turn", "window": 99, "sess": os.urandom(16), "a": {"tokens": True, "max_tokens": 3}})
    for i in range(400):
        mutated = bytearray(body)
        for _ in range(RANDOM.randrange(1, 6)):
            mutated[RANDOM.randrange(len(mutated))] = RANDOM.randrange(256)
        raw.socket.send_multipart([raw.header(RANDOM.choice([1, 2, 2, 2, 3, 4, 5, 6, 7]), 10 + i), bytes(mutated)])
    raw.send(PING, 0, {"t": 1})
    while raw.receive()[0] != PONG:
        pass
    raw.close()
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
    time.sleep(0.5)
    before = cpu()
    time.sleep(2)
    assert cpu() - before <= 2, cpu() - before


def unsanitary(words):
    for mark in ("Sanitizer", "runtime error:"):
        assert mark not in words, words[max(0, words.index(mark) - 100):][:1400]


def quiet_clients(daemon):
    """A reader that only listens lives on; one that is silent for three heartbeats and the stall time is let go."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--heartbeat-ms", "100", "--stall-ms", "700",
                 "--note-ms", "50")
    try:
        watcher, reader = Wire(own.endpoint), Wire(own.endpoint)
        session = reader.open()
        channel = reader.begin("session.turn", {"tokens": True, "max_tokens": 400, "ignore_end": True}, pack(words(20)),
                               sess=session, window=1)
        reader.expect(ar1.ACCEPTED)
        for i in range(20 * ar1.SLOW):  # well beyond what silence is allowed, but pinging
            time.sleep(0.1)
            reader.send(PING, 0, {"t": i})
        assert watcher.ok("session.list")["r"][0]["sess"] == session
        time.sleep(2.5 * ar1.SLOW)  # now silent: first the stalled stream ends, then the peer is gone
        balanced(watcher)
        assert watcher.ok("session.show", sess=session)["r"]["state"] == "idle"
        end = reader.expect(END, ar1.PONG)
        while end[0] != END:
            end = reader.expect(END, ar1.PONG)
        assert end[1] == channel and end[3]["err"]["n"] == "slow_consumer", end
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
    assert code == 3 and len(lines) >= 1, (code, lines)
    code, lines = run("--model", f"{other}/none.gguf")
    assert code == 1 and len(lines) == 1, (code, lines)
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
    p = subprocess.run([f"{BUILD}/holdfastd", "--model", MODEL, "--check", "--json"], capture_output=True, text=True)
    assert p.returncode == 0 and '"kv_bytes"' in p.stdout, p


def drain(daemon, wire):
    session = wire.open()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 300, "ignore_end": True}, pack(words(20)), sess=session)
    wire.expect(ar1.ACCEPTED)
    daemon.process.send_signal(signal.SIGTERM)
    goaway = wire.expect(ar1.GOAWAY, DATA)
    while goaway[0] != ar1.GOAWAY:
        goaway = wire.receive()
    late = wire.begin("session.open")
    ends = {}
    while len(ends) < 2:
        type, at, _, body, _ = wire.receive()
        if type in (END, REJECT):
            ends[at] = body
    assert ends[channel]["status"] == "limit" and ends[channel]["usage"]["sampled"] == 300, ends
    assert ends[late]["err"]["n"] == "draining", ends
    assert daemon.process.wait(20 * ar1.SLOW) == 0, daemon.words()


def left_clean(daemon):
    assert daemon.stop(keep=True) == 0
    unsanitary(daemon.words())


daemon = Daemon(MODEL, "--template", "smollm2", "--kv-memory", os.environ.get("HOLDFAST_TEST_KV", "600000"), "--chunk", "64",
                "--batch-rows", "96", "--drain-ms", str(10000 * ar1.SLOW))
wire_endpoint = daemon.endpoint
wire = Wire(wire_endpoint)
tap = Tap()
for what, test in [
        ("a continued session gives what its history computed from nothing gives", continued_is_recomputed),
        ("neighbours in the batch change nothing", neighbours_change_nothing),
        ("fork and rollback share what they can and change nothing", fork_and_rollback),
        ("keep cuts the history where it diverges", keep_cuts),
        ("a turn is cancelled at any point, and its session goes on", cancel_everywhere),
        ("a session is closed under its turn", close_under_load),
        ("a killed client's pages come back", killed_client),
        ("one turn a session, unless it supersedes", busy_and_supersede),
        ("no text beyond the credit", credits_hold),
        ("stop strings cut exactly", stop_strings),
        ("a turn that does not fit the context says the numbers", context_full),
        ("old epochs are fenced, wrong turns conflict", fences),
        ("an idempotency key runs once", idempotency),
        ("messages, a forced tool call, its result", messages_and_tools),
        ("bad frames are refused by name, the next message is served", bad_frames),
        ("bad arguments are refused and change nothing", bad_arguments),
        ("mutated bodies do no harm", random_bytes),
        ("peers that speak no ZMTP do no harm", raw_sockets),
        ("more turns than pages: all are answered, what was given up is told", too_much),
        ("residency is granted, clipped or refused", residency)]:
    tap.run(what, test, wire)
    if daemon.process.poll() is not None:
        sys.stdout.write("".join(f"# {line}\n" for line in daemon.words().splitlines()[-60:]))
        print("Bail out! the daemon is gone")
        sys.exit(1)
tap.run("silence and stalled readers have their limits", quiet_clients, daemon)
tap.run("an idle daemon uses no CPU", idle_costs_nothing, daemon)
tap.run("wrong starts say one line and the right exit code", wrong_starts, daemon)
tap.run("SIGTERM drains: running turns finish, new ones are refused", drain, daemon, wire)
tap.run("the daemon ended with 0, and no sanitizer spoke", left_clean, daemon)
if tap.failed:
    sys.stdout.write("".join(f"# {line}\n" for line in daemon.words().splitlines()[-20:]))
daemon.stop()
sys.exit(tap.done())
