"""The daemon over its real socket with a tiny model: turns, sessions, forks, cancels, credit, tools.

Method: everything is said to it by tests/ar1.py. After a test that ends in the middle of work the
ledger must balance: no page running or promised.
"""
import os
import pty
import subprocess
import sys
import tempfile
import time

import ar1
import daemon_rig
from ar1 import BUILD, CANCEL, DATA, END, REJECT, WINDOW, Tap, Wire, pack
from daemon_rig import CONTEXT, MODEL, RANDOM, words, balanced, left_clean, same


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
    """Its turn would never end: it waits for its reader, and the stall time is long."""
    code = ("import sys; sys.path.insert(0, %r); import ar1\n"
            "w = ar1.Wire(%r); s = w.open()\n"
            "w.begin('session.turn', {'tokens': True, 'max_tokens': 900, 'ignore_end': True}, ar1.pack([5] * 50), sess=s, window=9)\n"
            "w.expect(ar1.ACCEPTED); w.expect(ar1.DATA); print('streaming', flush=True); import time; time.sleep(600)")
    own = daemon_rig.narrow()
    try:
        child = subprocess.Popen([sys.executable, "-c", code % (os.path.dirname(os.path.abspath(ar1.__file__)), own.endpoint)],
                                 stdout=subprocess.PIPE)
        assert child.stdout.readline() == b"streaming\n"
        watcher = Wire(own.endpoint)
        assert watcher.ledger()["running"] > 0
        child.kill()
        child.wait()
        balanced(watcher)
        assert watcher.ok("health")["r"]["turns_running"] == 0
        watcher.close()
    finally:
        assert own.stop() == 0


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
            type, _, _, body, _ = wire.receive(timeout=0.3 * min(ar1.SLOW, 2) / ar1.SLOW)
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


def cut_in_a_character(wire):
    """A turn that its limit ends inside a character: all tokens are there, and as text whole characters only; of the cut one
    the mark for what is missing, at the end and nowhere else."""
    written = "a\u00e9\u20ac\U0001f600b"
    whole = written.encode()
    ids = wire.tokenize(written)
    assert len(ids) == len(whole), "the tiny model's tokens are bytes"
    for most in range(1, len(ids) + 1):
        session = wire.open()
        channel = wire.begin("session.turn", {"tokens": True, "max_tokens": most, "regex": written, "ignore_end": True, "logprobs": 1},
                             pack(words(4)), sess=session)
        got, pieces, end = b"", [], None
        while end is None:
            type, _, _, body, blob = wire.receive()
            if type == DATA:
                pieces.append(body[2] or "")  # unpacked strictly: bytes that are no character would not come so far
                got += blob
            elif type == END:
                end = body
        assert got == pack(ids[:most]) and end["usage"]["sampled"] == most, (most, got, end)
        assert "".join(pieces) == whole[:most].decode(errors="replace"), (most, pieces)
        left = wire.call("detokenize", {}, got).end["r"]["text"]
        assert left == whole[:most], (most, left)
        # The half that was shown as missing is in the history as it was made: what follows completes it.
        if most < len(ids):
            rest = wire.turn(session, ids[most:], max_tokens=1, ignore_end=True)
            assert rest.usage["history"] == 4 + len(ids) + 1, rest.usage
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
    first = wire.call("session.turn", {"tokens": True, "max_tokens": 4, "ignore_end": True}, given, sess=session, idem=key)
    again = wire.call("session.turn", {"tokens": True, "max_tokens": 4, "ignore_end": True}, given, sess=session, idem=key)
    assert again.op == first.op and again.ids == first.ids and again.end == first.end, again.end
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
    # A name that no call could have is refused at once, also behind a tool of which no form can be made.
    strange = '{"name": "x", "parameters": {"required": ["p"]}}'
    wire.ok("session.open", {"template": "smollm2", "tools": [strange]})
    for name in ('""', r'"a\"b"', '"%s"' % ("n" * 65), "7"):
        end = wire.call("session.open", {"template": "smollm2", "tools": [strange, '{"name": %s}' % name]}).end
        assert end["status"] == "error" and end["err"]["n"] == "bad_arg", (name, end)
    wire.ok("session.open", {"template": "smollm2", "tools": ['{"name": "%s"}' % ("n" * 64)]})


def tool_result_is_recomputed(wire):
    """After a tool call: the session's next turn against a fork that computes all of it from nothing."""
    tool = ('{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": '
            '{"n": {"type": "integer"}}, "required": ["n"]}}}')
    # What a call of it ends with, and the mark behind it: the most that can be known at its end without being computed.
    tail = len(wire.tokenize("}}\n</tool_call>")) + 1
    for scored in ({}, {"logprobs": 1}):  # with them each token is sampled
        session = wire.open(template="smollm2", system="Count.", tools=[tool])
        for round in range(2):
            asked = wire.call("session.turn", {"messages": [{"role": "user", "content": f"again {round}"}], "max_tokens": 300,
                                               "tool_choice": "required", "temperature": 0.9, "seed": round, **scored}, sess=session)
            assert asked.status == "tool_wait", asked.end
            twin = wire.ok("session.fork", sess=session)["sess"]
            wire.ok("session.park", {"place": "tokens"}, sess=twin)
            results = {"results": [{"tool_call_id": c["id"], "content": f"result {c['arguments']} <|im_end|>"}
                                   for c in asked.end["next"]], "max_tokens": 20, "ignore_end": True, "logprobs": 1}
            resident, nothing = (wire.call("session.continue", results, sess=s) for s in (session, twin))
            same(resident, nothing)
            # The call's last token is the history's, and not yet computed; nor are those before it that had to come.
            left = asked.usage["history"] - resident.usage["resident"]
            assert left == 1 if scored else 1 < left <= 1 + tail, (left, tail, asked.usage)
            assert resident.usage["recomputed"] == 0, resident.usage
            assert nothing.usage["resident"] == 0 and nothing.usage["prompt"] == resident.usage["prompt"], nothing.usage
            wire.ok("session.close", sess=twin)
        wire.ok("session.close", sess=session)


def looks(wire):
    session = wire.open(label="seen")
    wire.turn(session, words(40), max_tokens=3, ignore_end=True)
    model = wire.ok("model.show")["r"]
    assert model["layers"] == 3 and model["kv"] == "fp8" and model["page_tokens"] == 16
    listed = wire.ok("session.list")["r"]
    assert [s["label"] for s in listed if s["sess"] == session] == ["seen"]
    pages = [p for p in wire.ok("pages.show", {"count": 1000})["r"] if p.get("sess") == session]
    assert sorted(p["position"] for p in pages) == [0, 16, 32] and all(p["state"] == "owned" and p["owners"] == 1 for p in pages)
    assert len({p["tag"] for p in pages}) == 3
    ids = wire.tokenize("ab<|im_end|>c")
    assert wire.call("detokenize", {}, pack(ids)).end["r"]["text"] == b"ab<|im_end|>c"
    assert len(wire.tokenize("ab<|im_end|>c", special=True)) < len(ids)
    assert wire.call("detokenize", {}, pack([1 << 30])).end["err"]["n"] == "out_of_range"
    wire.ok("session.hint", {"returns_in_ms": 5, "tool": "grep"}, sess=session)
    assert wire.call("session.park", {"place": "host"}, sess=session).end["err"]["n"] == "bad_arg"
    wire.ok("session.park", {"place": "tokens"}, sess=session)
    show = wire.ok("session.show", sess=session)["r"]
    assert show["resident"] == 0 and show["bytes"] == 0 and show["history"] == 43, show
    assert wire.turn(session, words(1), max_tokens=1).usage["diverged_why"] == "parked"
    wire.ok("session.close", sess=session)


def superseded_in_a_burst(wire):
    """The newest of several turns wins; a client that leaves, or a session that is closed, takes its waiting turn along."""
    session = wire.open()
    arguments = {"tokens": True, "max_tokens": 900, "ignore_end": True}
    # Often, and not all at once: the last may come when the one that ran has ended and who waited for it has yet to begin.
    for i in range(20 if ar1.SLOW == 1 else 10):
        wire.begin("session.turn", arguments, pack(words(20)), sess=session)
        for most in (900, 900, 5):
            time.sleep(RANDOM.random() / 500)
            wire.begin("session.turn", {**arguments, "max_tokens": most, "supersede": True, "keep": 0}, pack(words(5)), sess=session)
        ends = {}
        while len(ends) < 4:
            type, channel, _, body, _ = wire.receive()
            if type == END:
                ends[channel] = body["status"]
        assert [ends[c] for c in sorted(ends)] == ["superseded"] * 3 + ["limit"], (i, ends)
    gone = Wire(wire_endpoint)
    gone.begin("session.turn", arguments, pack(words(20)), sess=session)
    gone.begin("session.turn", {**arguments, "supersede": True}, pack(words(5)), sess=session)
    gone.send(ar1.BYE, 0, {})
    gone.close()
    balanced(wire)
    first = wire.begin("session.turn", arguments, pack(words(20)), sess=session)
    second = wire.begin("session.turn", {**arguments, "supersede": True}, pack(words(5)), sess=session)
    closing = wire.begin("session.close", sess=session)
    opening = wire.begin("session.open", {"template": "none"})
    ends = {}
    while len(ends) < 4:
        type, channel, _, body, _ = wire.receive()
        if type == END:
            ends[channel] = body
    # The second may have begun when the session was closed, or not: the loop may look up between any two messages.
    fate = ends[second]["status"] if "err" not in ends[second] else ends[second]["err"]["n"]
    assert ends[first]["status"] in ("superseded", "closed") and fate in ("closed", "not_found"), ends
    assert ends[closing]["status"] == "ok" and ends[opening]["status"] == "ok"
    assert wire.ok("session.show", sess=ends[opening]["sess"])["r"]["history"] == 0
    balanced(wire)


def load_shows_a_bar(daemon):
    """The load is watched at a terminal, to its end, and nowhere else."""
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = pty.openpty()
        own = subprocess.Popen([f"{BUILD}/holdfastd", "--model", MODEL, "--template", "smollm2", "--listen", f"ipc://{folder}/x",
                                "--state", f"{folder}/s", "--cache", f"{folder}/c", "--kv-memory", "600000"], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=theirs)
        os.close(theirs)
        said = b""
        try:
            while b"serving" not in said:
                said += os.read(ours, 4096)  # fails when the daemon ends
        finally:
            own.terminate()
            assert own.wait(20 * ar1.SLOW) == 0, said
            os.close(ours)
    assert b"\rweights      [" + b"#" * 40 + b"] 100 %" in said, said
    assert "100 %" not in daemon.words()


daemon = daemon_rig.start()
wire_endpoint = daemon.endpoint
wire = Wire(wire_endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
        ("neighbours in the batch change nothing", neighbours_change_nothing),
        ("keep cuts the history where it diverges", keep_cuts),
        ("a turn is cancelled at any point, and its session goes on", cancel_everywhere),
        ("a session is closed under its turn", close_under_load),
        ("a killed client's pages come back", killed_client),
        ("one turn a session, unless it supersedes", busy_and_supersede),
        ("no text beyond the credit", credits_hold),
        ("stop strings cut exactly", stop_strings),
        ("a turn cut inside a character gives whole ones", cut_in_a_character),
        ("old epochs are fenced, wrong turns conflict", fences),
        ("an idempotency key runs once", idempotency),
        ("messages, a forced tool call, its result", messages_and_tools),
        ("sessions, pages, model and tokens can be looked at", looks),
        ("of superseding turns the newest wins; none outlives its client or session", superseded_in_a_burst)])
# Where a history is computed from nothing: with --share, the same tokens of another session would be found.
alone = daemon_rig.start("--share", "no")
daemon_rig.run(tap, alone, Wire(alone.endpoint), [
        ("a continued session gives what its history computed from nothing gives", continued_is_recomputed),
        ("fork and rollback share what they can and change nothing", fork_and_rollback),
        ("after a tool's result: resident and recomputed agree bit for bit", tool_result_is_recomputed)])
tap.run("a load shows a bar at a terminal", load_shows_a_bar, daemon)
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
tap.run("so does the other", left_clean, alone)
daemon_rig.finish(tap, daemon)
