"""Delivery over connections that break: RESUME, ACK, keys, detach times, fencing, strikes, idle sessions.

Method: a reader's connection is closed without a word (what a kill -9 leaves) at every kind of point, and
another goes on; what both read, put together, must be what an unbroken reader gets, piece for piece.
"""
import os
import subprocess
import sys
import time

import ar1
import daemon_rig
from ar1 import ACCEPTED, ACK, BYE, CALL, CANCEL, DATA, END, NOTE, PING, PONG, REJECT, RESUME, WINDOW, Refused, Tap, Wire, pack
from daemon_rig import RANDOM, MODEL, Daemon, await_message, balanced, left_clean, words

GIVEN = words(24)
ASKED = {"tokens": True, "max_tokens": 400, "ignore_end": True, "logprobs": 2}


class Reader:
    """Reads a stream over any number of connections, and believes nothing."""

    def __init__(self, window=1 << 20):
        self.op = self.end = self.end_seq = None
        self.seq, self.off, self.pieces, self.window, self.granted = 0, 0, [], window, window

    def begin(self, wire, session, **keys):
        self.channel = wire.begin("session.turn", {**ASKED, **keys.pop("asked", {})}, pack(GIVEN), sess=session,
                                  window=self.window, **keys)
        return self

    def resume(self, wire):
        wire.channel += 1
        self.channel = wire.channel
        wire.send(RESUME, self.channel, {"op": self.op, "after_seq": self.seq, "window": self.granted})
        return self

    def read(self, wire, pieces=1 << 30):
        """Up to END, or so many pieces more."""
        while pieces > 0:
            type, at, seq, body, blob = wire.receive()
            if type == REJECT and at == self.channel:
                raise Refused(body["err"])
            if at != self.channel or type in (NOTE, PONG):
                continue
            if type == ACCEPTED:
                assert self.op in (None, body["op"])
                assert body["dup"] == (self.op is not None) or self.seq == 0, body
                self.op = body["op"]
                continue
            assert seq == self.seq + 1, f"seq {seq} after {self.seq}"
            if type == END:
                self.end, self.end_seq = body, seq
                return self
            assert type == DATA, type
            self.seq, pieces = seq, pieces - 1
            assert body[0] == self.off + len((body[2] or "").encode()) and body[0] <= self.granted, (body, self.granted)
            self.off = body[0]
            self.pieces.append((seq, body, blob))
            if self.granted - self.off < self.window // 2:
                self.granted = self.off + self.window
                wire.send(WINDOW, self.channel, {"op": self.op, "max_off": self.granted})
        return self

    @property
    def ids(self):
        return b"".join(p[2] for p in self.pieces)

    @property
    def text(self):
        return "".join(p[1][2] or "" for p in self.pieces)

    @property
    def logprobs(self):
        return [x for p in self.pieces for x in p[1][3]]


def unbroken(wire, **asked):
    return Reader().begin(wire, wire.open(), asked=asked).read(wire)


def like(a, b):
    assert a.text == b.text and a.ids == b.ids and a.logprobs == b.logprobs
    assert a.end["status"] == b.end["status"] and a.end["usage"]["sampled"] == b.end["usage"]["sampled"]


def broken_anywhere(wire):
    whole = unbroken(wire)
    for window in (1 << 20, 200):
        for _ in range(3):
            reader, session = Reader(window), wire.open()
            link = Wire(endpoint)
            reader.begin(link, session, detach_ms=20000)
            for _ in range(RANDOM.randrange(1, 6)):
                reader.read(link, RANDOM.randrange(0, 30))
                if reader.end:
                    break
                if reader.op is None:
                    reader.op = await_message(link, ACCEPTED, reader.channel)["op"]
                link.close()
                link = Wire(endpoint)
                reader.resume(link)
            if not reader.end:
                reader.read(link)
            like(reader, whole)
            link.close()
            assert wire.ok("session.show", sess=session)["r"]["state"] == "idle"
            wire.ok("session.close", sess=session)
    balanced(wire)


def killed_process(wire):
    """A client that is killed with -9 in the middle; another process goes on from what it had printed."""
    session, whole = wire.open(), unbroken(wire)
    code = ("import sys, json; sys.path.insert(0, %r); sys.argv=['x']; import ar1, struct\n"
            "w = ar1.Wire(%r)\n"
            "c = w.begin('session.turn', %r, bytes.fromhex(%r), sess=bytes.fromhex(%r), detach_ms=20000, window=300)\n"
            "op = w.expect(ar1.ACCEPTED)[3]['op']\n"
            "body = [0]\n"
            "while body[0] < 20:\n"
            "    t, c, seq, body, blob = w.expect(ar1.DATA)\n"
            "    print(json.dumps([op.hex(), seq, body[0], body[2], blob.hex()]), flush=True)\n"
            "import time; time.sleep(600)") % (os.path.dirname(os.path.abspath(ar1.__file__)), endpoint, ASKED,
                                               pack(GIVEN).hex(), session.hex())
    import json
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    got = [[None, 0, 0]]
    while got[-1][2] < 20:  # how many messages that is depends on how far the daemon was ahead
        got.append(json.loads(child.stdout.readline()))
    got = got[1:]
    child.kill()
    child.wait()
    reader = Reader()
    reader.op, reader.seq, reader.off = bytes.fromhex(got[-1][0]), got[-1][1], got[-1][2]
    reader.resume(wire).read(wire)
    assert "".join(g[3] or "" for g in got) + reader.text == whole.text
    assert "".join(g[4] for g in got) + reader.ids.hex() == whole.ids.hex()
    assert reader.end["status"] == "limit", reader.end
    wire.ok("session.close", sess=session)


def end_was_lost(wire):
    """The whole of an ended call can be read again until ACK, or its time is over; never by another."""
    session = wire.open()
    first = Reader().begin(wire, session, detach_ms=15000).read(wire)
    link = Wire(endpoint)
    again = Reader()
    again.op = first.op
    again.resume(link).read(link)
    assert again.pieces == first.pieces and again.end == first.end and again.end_seq == first.end_seq
    tail = Reader()
    tail.op, tail.seq, tail.off = first.op, first.seq, first.off
    assert tail.resume(link).read(link).end == first.end
    link.send(ACK, 0, {"op": first.op, "seq": first.seq})  # END has not been seen: kept
    assert tail.resume(link).read(link).end == first.end
    link.send(ACK, 0, {"op": first.op, "seq": first.end_seq})
    try:
        tail.resume(link).read(link)
        raise AssertionError("an acknowledged call is still there")
    except Refused as refused:
        assert refused.name == "gone", refused
    short = Reader().begin(wire, session, detach_ms=300, asked={"max_tokens": 3}).read(wire)
    time.sleep(0.8)
    try:
        short.resume(link).read(link)
        raise AssertionError("it is still there after its time")
    except Refused as refused:
        assert refused.name == "gone"
    link.close()


def detach_time_ends(wire):
    own = daemon_rig.narrow("--detach-max-ms", "700")
    try:
        watcher = Wire(own.endpoint)
        for asked, bye in ((600000, False), (100, False), (600000, True), (None, False)):
            session = watcher.open()
            link = Wire(own.endpoint)
            keys = {} if asked is None else {"detach_ms": asked}
            link.begin("session.turn", {**ASKED, "max_tokens": 900}, pack(GIVEN), sess=session, window=9, **keys)
            op = link.expect(ACCEPTED)[3]["op"]
            link.expect(DATA)
            if bye:
                link.send(BYE, 0, {})
            link.close()
            gone, began = False, time.time()
            if asked == 600000:
                time.sleep(0.2)
                assert watcher.ok("session.show", sess=session)["r"]["state"] == "running"
            balanced(watcher)  # the limit of the daemon holds, whatever was asked
            assert watcher.ok("session.show", sess=session)["r"]["state"] == "idle"
            reader = Reader()
            reader.op = op
            try:
                reader.resume(watcher).read(watcher)
            except Refused as refused:
                gone = refused.name == "gone"
            assert gone or reader.end["status"] == "cancelled", reader.end
        watcher.close()
    finally:
        assert own.stop() == 0


def keys_run_once(wire):
    session, key = wire.open(), os.urandom(16)
    first = Reader()
    link = Wire(endpoint)
    first.begin(link, session, idem=key).read(link, 3)
    link.close()  # while it runs: the same call again goes on with it
    again = Reader().begin(wire, session, idem=key).read(wire)
    assert again.op == first.op and again.pieces[:3] == first.pieces and again.end["status"] == "limit"
    third = Reader().begin(wire, session, idem=key).read(wire)
    assert third.op == first.op and third.pieces == again.pieces and third.end == again.end
    assert wire.ok("session.show", sess=session)["r"]["turn"] == 1
    end = wire.call("session.turn", {**ASKED, "max_tokens": 9}, pack(GIVEN), sess=session, idem=key).end
    assert end["err"]["n"] == "idem_mismatch", end
    # What is no turn too: a session is opened once.
    key = os.urandom(16)
    opened = [wire.ok("session.open", {"template": "none"}, idem=key)["sess"] for _ in range(3)]
    assert len(set(opened)) == 1
    # A key of a refused call is not burned.
    key = os.urandom(16)
    end = wire.call("session.turn", ASKED, pack(GIVEN), sess=session, turn=9, idem=key).end
    assert end["err"]["n"] == "turn_conflict"
    end = wire.call("session.turn", {**ASKED, "max_tokens": 2}, pack(GIVEN), sess=session, turn=1, idem=key).end
    assert end["status"] == "limit", end
    wire.ok("session.close", sess=session)
    wire.ok("session.close", sess=opened[0])


def one_reader(wire):
    """A second RESUME takes the stream; who had it is told, and cannot grant for the new one."""
    session = wire.open()
    a, b = Wire(endpoint), Wire(endpoint)
    first = Reader(40).begin(a, session, detach_ms=20000, asked={"max_tokens": 700}).read(a, 1)
    second = Reader(0)
    second.op, second.granted = first.op, 60
    second.resume(b).read(b, 1)
    message = a.expect(REJECT, DATA)
    while message[0] == DATA:
        message = a.expect(REJECT, DATA)
    assert message[1] == first.channel and message[3]["err"]["n"] == "fenced", message
    a.send(WINDOW, 0, {"op": first.op, "max_off": 1 << 20})
    a.send(PING, 0, {"t": 1})
    a.expect(PONG)
    time.sleep(0.2)
    while b.socket.poll(100):
        type, at, seq, body, _ = b.receive()
        if type == DATA:
            assert body[0] <= 60
            second.seq, second.off = seq, body[0]
    b.send(CANCEL, 0, {"op": first.op})
    assert b.expect(END)[3]["status"] in ("cancelled", "limit")  # or the END that was faster
    a.close()
    b.close()
    wire.ok("session.close", sess=session)
    balanced(wire)


def channel_again(_):
    """A channel's number that was used, while its call runs, is being cancelled or is over: the new CALL or RESUME is refused in words,
    the call that has it goes on to its one END, and what was asked beside it is answered."""
    own = daemon_rig.narrow("--strikes", "0")
    wire = Wire(own.endpoint)
    session, other = wire.open(), wire.open()
    asked = {**ASKED, "max_tokens": 900, "temperature": 1.0}
    for at_once in (False, True):
        link = Wire(own.endpoint)
        link.begin("session.turn", asked, pack(GIVEN), sess=session, window=1, detach_ms=20000, **({"idem": os.urandom(16)} if at_once else {}))
        first = link.channel
        op = None if at_once else await_message(link, ACCEPTED, first)["op"]
        again = {"m": "session.turn", "window": 9, "sess": other, "a": {**ASKED, "max_tokens": 2}}
        if at_once:  # before ACCEPTED, which waits for the disk, and before the END of the cancelled one
            link.send(CALL, first, again, pack(GIVEN))
            link.send(CANCEL, first, {})
        else:
            link.send(CANCEL, 0, {"op": op})
            link.send(RESUME, first, {"op": op, "after_seq": 0, "window": 1 << 20})
        link.send(CALL, first, again, pack(GIVEN))
        link.begin("health")
        seen = []
        while not any(m[:2] == (END, first) for m in seen) or not any(m[:2] == (END, link.channel) for m in seen):
            seen.append(link.receive())
        link.send(CALL, first, again, pack(GIVEN))  # now that it is over
        link.begin("health")
        while not seen[-1][:2] == (END, link.channel):
            seen.append(link.receive())
        refused = [m[3]["err"] for m in seen if m[0] == REJECT]
        assert [m[1] for m in seen if m[0] == REJECT] == [first] * 3, seen
        assert all(e["n"] == "bad_frames" and "channel" in e["why"] for e in refused), refused
        ends = [m[3]["status"] for m in seen if m[:2] == (END, first)]
        assert ends == ["cancelled"], ends
        numbers = [m[2] for m in seen if m[1] == first and m[0] in (DATA, END)]
        assert numbers == list(range(1, len(numbers) + 1)), numbers
        # Nothing of what was refused has happened, and the session is free.
        assert link.ok("session.show", sess=other)["r"]["turn"] == 0
        link.finish(link.begin("session.turn", {**ASKED, "max_tokens": 2}, pack(GIVEN), sess=session))
        link.close()
    for s in (session, other):
        wire.ok("session.close", sess=s)
    balanced(wire)
    assert own.stop() == 0


def wrong_resumes(wire):
    session = wire.open()
    link = Wire(endpoint)
    reader = Reader().begin(link, session, detach_ms=20000, asked={"max_tokens": 20}).read(link)
    for change, name in (({"op": os.urandom(16)}, "gone"), ({"after_seq": 1 << 40}, "out_of_range"),
                         ({"after_seq": reader.end_seq}, "out_of_range"), ({"after_seq": -1}, "out_of_range"),
                         ({"window": None}, "bad_arg"), ({"x": 1}, "unknown_field")):
        link.channel += 1
        link.send(RESUME, link.channel, {"op": reader.op, "after_seq": 0, "window": 1000, **change})
        assert link.expect(REJECT)[3]["err"]["n"] == name, (change, name)
    link.send(RESUME, 1, {"op": reader.op, "after_seq": 0, "window": 1000})
    assert link.expect(REJECT)[3]["err"]["n"] == "bad_frames"
    link.send(RESUME, 0, {"op": reader.op, "after_seq": 0, "window": 1000})
    assert link.expect(REJECT)[3]["err"]["n"] == "bad_frames"
    assert reader.resume(link) and link.expect(ACCEPTED)[3]["dup"]
    link.close()
    wire.ok("session.close", sess=session)


def kept_ones_give_way(wire):
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--calls", "12", "--calls-principal", "6",
                 "--stream-bytes", "1024")  # who does not read holds his turn
    try:
        w = Wire(own.endpoint)
        for _ in range(60):
            w.ok("health", idem=os.urandom(16))
            w.ok("ledger.show", detach_ms=50000)
        session = w.open()
        idle = [w.open() for _ in range(6)]
        for i, sess in enumerate(idle):  # at random: 900 tokens of it are more text than the stream holds
            w.begin("session.turn", {**ASKED, "max_tokens": 900, "temperature": 1.0, "seed": i}, pack(GIVEN), sess=sess,
                    detach_ms=50000, window=1)
        try:
            w.call("session.turn", ASKED, pack(GIVEN), sess=session)
            raise AssertionError("more turns than a principal may have")
        except Refused as refused:
            assert refused.name == "limit"
        health = w.ok("health")["r"]
        assert health["turns_running"] + health["turns_waiting"] == 6, health
    finally:
        assert own.stop() == 0


def strikes(wire):
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--mute-ms", "1500")
    try:
        good, bad = Wire(own.endpoint), Wire(own.endpoint)
        names = []
        for _ in range(3):
            bad.socket.send_multipart([bad.header(CALL, 0), b"\xc1"])
            names.append(bad.expect(REJECT)[3]["err"]["n"])
        assert names == ["bad_body", "bad_body", "limit"], names
        bad.send(PING, 0, {"t": 1})
        for i in range(200):
            bad.socket.send_multipart([bad.header(CALL, 0), b"\xc1"])
        assert good.ok("health")["r"]["state"] == "serving"
        assert not bad.socket.poll(500), "a muted peer is answered"
        time.sleep(1.5)
        bad.send(PING, 0, {"t": 2})
        assert bad.expect(PONG)[3]["t"] == 2
        for _ in range(9):  # what is only wrong is no strike
            assert good.call("session.show", sess=os.urandom(16)).end["err"]["n"] == "not_found"
    finally:
        assert own.stop() == 0


def idle_sessions(wire):
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--session-idle-ms", "900")
    try:
        w = Wire(own.endpoint)
        idle, kept = w.open(), w.open()
        w.turn(idle, words(40), max_tokens=2, ignore_end=True)
        deadline = time.time() + 10 * ar1.SLOW
        while len(w.ok("session.list")["r"]) > 1 and time.time() < deadline:
            w.ok("session.hint", {"returns_in_ms": 10}, sess=kept)
            time.sleep(0.1)
        assert [s["sess"] for s in w.ok("session.list")["r"]] == [kept]
        assert w.call("session.show", sess=idle).end["err"]["n"] == "expired"
        assert balanced(w)["retained"] == 0
    finally:
        assert own.stop() == 0


TOOL = ('{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": '
        '{"n": {"type": "boolean"}}, "required": ["n"]}}}')


def waiting_for_a_tool(wire):
    session = wire.open(template="smollm2", system="Look.", tools=[TOOL])
    asked = wire.call("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 200, "seed": 3,
                                       "tool_choice": "required", "temperature": 1.0}, sess=session)
    assert asked.status == "tool_wait", asked.end
    return session, asked.end["next"][0]["id"]


def given(wire, session, call, content, **arguments):
    return wire.call("session.continue", {"results": [{"tool_call_id": call, "content": content}], "max_tokens": 3,
                                          "ignore_end": True, **arguments}, sess=session)


def results_too_late_or_too_large(wire):
    """A tool's result for a session that was closed or has expired, and one of 15 MiB: a clear refusal, which changes nothing;
    neighbours are served."""
    own = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--session-idle-ms", "1500", "--strikes", "0")
    wide = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--strikes", "0", "--body-bytes", "16M",
                  "--blob-bytes", "16M", "--unread-bytes", "80M")
    try:
        w, watcher = Wire(own.endpoint), Wire(own.endpoint)
        closed, call = waiting_for_a_tool(w)
        w.ok("session.close", sess=closed)
        assert given(w, closed, call, "42").end["err"]["n"] == "not_found"
        expired, call = waiting_for_a_tool(w)
        tied = w.ok("session.fork", {"tied": True}, sess=expired)["sess"]
        daemon_rig.until(lambda: not watcher.ok("session.list")["r"])
        end = given(w, expired, call, "42").end
        assert end["status"] == "error" and end["err"]["n"] == "expired" and end["err"]["r"] == "no", end
        # Whatever is asked of it, and of what ended with it; what was closed or never was is another thing.
        for session, name in ((expired, "expired"), (tied, "expired"), (closed, "not_found"), (b"x" * 16, "not_found")):
            for method in ("session.show", "session.close", "session.attach"):
                assert w.call(method, sess=session).end["err"]["n"] == name, (method, session)
        assert balanced(watcher)["retained"] == 0
        w.close()
        large = "x" * (15 << 20)
        # Beyond what one message may have, where nothing else was asked for: its connection ends, and the session stays.
        w = Wire(own.endpoint)
        session, call = waiting_for_a_tool(w)
        channel = w.begin("session.continue", {"results": [{"tool_call_id": call, "content": large}]}, sess=session)
        while watcher.socket.poll(0):
            watcher.receive()
        for _ in range(3):
            assert watcher.turn(watcher.open(), GIVEN, max_tokens=3, ignore_end=True).status == "limit"
        assert not w.socket.poll(200), w.receive()
        w.close()
        back = Wire(own.endpoint)
        assert back.ok("session.show", sess=session)["r"]["state"] == "tool_wait"
        assert given(back, session, call, "42").status == "limit"
        # Where it may be so large it does not fit the context, and the numbers say so.
        w, watcher = Wire(wide.endpoint), Wire(wide.endpoint)
        session, call = waiting_for_a_tool(w)
        channel = w.begin("session.continue", {"results": [{"tool_call_id": call, "content": large}]}, sess=session)
        began = time.time()
        assert watcher.turn(watcher.open(), GIVEN, max_tokens=3, ignore_end=True).status == "limit"
        assert time.time() - began < 5 * ar1.SLOW
        try:
            end = w.finish(channel).end
            assert end["status"] == "error", end
            name = end["err"]["n"]
        except Refused as refused:
            name = refused.name
        assert name in ("context_full", "too_big"), name
        assert w.ok("session.show", sess=session)["r"]["state"] == "tool_wait"
        assert given(w, session, call, "42").status == "limit"
    finally:
        assert own.stop() == 0 and wide.stop() == 0


def drain_with_nobody_there(wire):
    own = daemon_rig.narrow("--drain-ms", "500")
    w = Wire(own.endpoint)
    session = w.open()
    w.begin("session.turn", {**ASKED, "max_tokens": 900}, pack(GIVEN), sess=session, window=9, detach_ms=600000)
    w.expect(ACCEPTED)
    w.expect(DATA)
    w.close()
    began = time.time()
    assert own.stop() == 0
    assert time.time() - began < 8 * ar1.SLOW


daemon = daemon_rig.start()
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("broken anywhere and resumed: no gap, no repeat", broken_anywhere),
    ("a killed process's stream goes on in another", killed_process),
    ("END is kept until it is acknowledged or its time is over", end_was_lost),
    ("without a reader a turn ends after its detach time, which the daemon bounds", detach_time_ends),
    ("a key runs once; the same call again is the same stream", keys_run_once),
    ("a stream has one reader", one_reader),
    ("a channel's number is used once", channel_again),
    ("wrong RESUMEs are told so", wrong_resumes),
    ("calls that are only kept give way", kept_ones_give_way),
    ("malformed messages are strikes, and others are served", strikes),
    ("idle sessions are closed by an option", idle_sessions),
    ("results too late or too large are refused", results_too_late_or_too_large),
    ("a drain does not wait for who is gone", drain_with_nobody_there)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
