"""Goal: kill -9 at any moment loses nothing that was promised. Method: a daemon is killed, by a signal at random or by
itself at a named point, while sessions talk to it; after each start every session is there, goes on with the tokens it
would have had, streams go on where they were, and what was asked with a key is answered as it was."""
import json
import os
import random
import signal
import time

import ar1
from ar1 import DATA, END, Refused, Tap, Wire, pack
from daemon_rig import ask, begin, kill, left_clean, more_of_it, resume, unsanitary, words

tap = Tap()
RANDOM = random.Random(11)
ROUNDS = int(os.environ.get("HOLDFAST_KILLS", 3 if ar1.SLOW > 1 else 12))
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96")


def start(home=None, *options):
    return begin(home, *OPTIONS, *options)


def right_tokens(turns):
    """What a daemon that lives says to the same turns."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    session = wire.open()
    replies = [wire.turn(session, ids, ignore_end=True, **more) for ids, more in turns]
    left_clean(daemon)
    return replies


def goes_on():
    """Idle, killed, asked again: the same tokens, and END says that they were computed again."""
    turns = [(words(50), {"max_tokens": 9}), (words(7), {"max_tokens": 12, "temperature": 0.9, "seed": 3}), (words(3), {"max_tokens": 5})]
    right = right_tokens(turns)
    daemon = start()
    session = Wire(daemon.endpoint).open()
    for (ids, more), reply in zip(turns, right):
        wire = Wire(daemon.endpoint)
        got = wire.turn(session, ids, ignore_end=True, **more)
        assert got.ids == reply.ids and got.logprobs == reply.logprobs
        if reply is not right[0]:
            assert got.usage["recomputed"] > 0 and got.usage["diverged_why"] == "restarted", got.usage
        assert got.end["turn"] == reply.end["turn"]
        kill(daemon)
        daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    seen = wire.ok("session.show", sess=session)["r"]
    assert seen["turn"] == 3 and seen["history"] == right[-1].usage["history"], seen
    wire.ok("session.close", sess=session)
    kill(daemon)
    daemon = start(daemon.home)
    try:
        reply = Wire(daemon.endpoint).call("session.show", sess=session)
        assert reply.end["err"]["n"] == "not_found", reply.end
    except Refused as refused:
        assert refused.name == "not_found"
    left_clean(daemon)


def verbs():
    """Fork, rollback, attach, label, template: as they were."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]}}}
    session = wire.open("smollm2", system="You are terse.", tools=[json.dumps(tool)], label="mine")
    first = wire.call("session.turn", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 6}, sess=session)
    fork = wire.ok("session.fork", {}, sess=session)["sess"]
    wire.call("session.turn", {"messages": [{"role": "user", "content": "more"}], "max_tokens": 6}, sess=session)
    wire.ok("session.rollback", {"to_turn": 1}, sess=session)
    epoch = wire.ok("session.attach", sess=session)["epoch"]
    before = [wire.ok("session.show", sess=s)["r"] for s in (session, fork)]
    kill(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    after = [wire.ok("session.show", sess=s)["r"] for s in (session, fork)]
    for a, b in zip(before, after):
        for key in ("turn", "epoch", "history", "label", "principal", "residency", "state"):
            assert a[key] == b[key], (key, a, b)
    assert after[0]["epoch"] == epoch == 2 and after[0]["turn"] == 1
    question = {"messages": [{"role": "user", "content": "and now?"}], "max_tokens": 8, "logprobs": 1, "tool_choice": "required"}
    a, b = (wire.call("session.turn", question, sess=s) for s in (session, fork))
    assert a.ids == b.ids and len(a.ids) == 8, (a.end, b.end)
    assert first.end["turn"] == 1
    left_clean(daemon)


def streams():
    """Killed in the middle of an answer: the stream goes on where it was, without gap or repeat, and the answer is
    what it would have been."""
    given, more = words(60), {"max_tokens": 400, "temperature": 0.7, "seed": 5}
    right = right_tokens([(given, more), (words(4), {"max_tokens": 3})])
    home = None
    for round in range(ROUNDS):
        daemon = start(home)
        home = daemon.home
        wire = Wire(daemon.endpoint)
        session = wire.open()
        a, blob = ask(given, **more)
        channel = wire.begin("session.turn", a, blob, sess=session, detach_ms=60000)
        cut = RANDOM.randrange(1, 120)
        reply = wire.finish(channel, tokens=cut)
        for again in range(RANDOM.randrange(1, 3)):
            if reply.end:
                break
            kill(daemon)
            daemon = start(home)
            wire.close()
            wire = Wire(daemon.endpoint)
            channel = resume(wire, reply.op, reply.seq)
            type, at, seq, body, _ = wire.expect(ar1.ACCEPTED, ar1.REJECT)
            assert type == ar1.ACCEPTED and body["op"] == reply.op and body["dup"], body
            more_of_it(wire, channel, reply, RANDOM.randrange(20, 200))
        if not reply.end:
            more_of_it(wire, channel, reply, None)
        assert reply.ids == right[0].ids and reply.text == right[0].text, f"round {round}"
        assert reply.logprobs == right[0].logprobs
        assert reply.status == "limit" and reply.end["turn"] == 1
        # The answer is on disk: all of it can be had again, after yet another kill.
        kill(daemon)
        daemon = start(home)
        wire = Wire(daemon.endpoint)
        channel = resume(wire, reply.op, 0)
        whole = wire.finish(channel)
        assert whole.ids == reply.ids and whole.end == reply.end, (whole.end, reply.end)
        wire.ok("session.close", sess=session)
        kill(daemon)
    left_clean(start(home))


def keys():
    """A call with a key is done once, whatever happens, and answered the same."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    key, turn_key = os.urandom(16), os.urandom(16)
    session = wire.call("session.open", {"template": "none"}, idem=key).end["sess"]
    a, blob = ask(words(30))
    first = wire.call("session.turn", a, blob, sess=session, idem=turn_key)
    for round in range(3):
        kill(daemon)
        daemon = start(daemon.home)
        wire = Wire(daemon.endpoint)
        again = wire.call("session.open", {"template": "none"}, idem=key)
        assert again.end["sess"] == session, "another session"
        reply = wire.call("session.turn", a, blob, sess=session, idem=turn_key)
        assert reply.op == first.op and reply.ids == first.ids and reply.end == first.end and reply.logprobs == first.logprobs
        other = wire.call("session.turn", a, pack(words(9)), sess=session, idem=turn_key)
        assert other.end["err"]["n"] == "idem_mismatch", other.end
        assert wire.ok("session.show", sess=session)["r"]["turn"] == 1
        assert len(wire.ok("session.list")["r"]) == 1
    left_clean(daemon)


def taken_over():
    """Somebody attaches to a session in the middle of its turn, which writes its row: after a kill the turn is there, and
    its answer is what it would have been."""
    given, more = words(60), {"max_tokens": 400, "temperature": 0.7, "seed": 6}
    right = right_tokens([(given, more)])[0]
    daemon = start()
    wire = Wire(daemon.endpoint)
    session = wire.open()
    a, blob = ask(given, **more)
    reply = wire.finish(wire.begin("session.turn", a, blob, sess=session, detach_ms=60000), tokens=5)
    other = Wire(daemon.endpoint)
    assert other.ok("session.attach", sess=session)["epoch"] == 2
    other.ok("session.residency", {"residency": {"kind": "best_effort"}}, sess=session)
    kill(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    channel = resume(wire, reply.op, reply.seq)
    assert wire.expect(ar1.ACCEPTED, ar1.REJECT)[0] == ar1.ACCEPTED, "the turn is lost"
    more_of_it(wire, channel, reply, None)
    assert reply.ids == right.ids and reply.text == right.text and reply.end["turn"] == 1, reply.end
    left_clean(daemon)


def pieces(wire, channel):
    """What comes until nothing more does: by number, where each DATA ends and what is in it."""
    found = {}
    assert wire.expect(ar1.ACCEPTED)[1] == channel
    try:
        while True:
            type, at, seq, body, blob = wire.receive(0.4)
            assert at == channel and type != ar1.REJECT, body
            found[seq] = (type, body[0] if type == DATA else body["status"], blob)
            if type == END:
                return found
    except TimeoutError:
        return found


def same_pieces():
    """What had no credit when its turn ended is cut later, for whoever comes; after a restart, and in a slot that is not
    its own, the numbers still mean the same."""
    daemon = start()
    wire = Wire(daemon.endpoint)
    session, key = wire.open(), os.urandom(16)
    a, blob = ask(words(20), max_tokens=60)
    channel = wire.begin("session.turn", a, blob, sess=session, idem=key, window=2, detach_ms=60000)
    op = wire.expect(ar1.ACCEPTED)[3]["op"]
    while wire.ok("health")["r"]["turns_running"]:
        time.sleep(0.01)
    seen = {}
    for window in (9, 40):
        wire = Wire(daemon.endpoint)
        found = pieces(wire, resume(wire, op, 0, window))
        assert all(found[seq] == seen[seq] for seq in seen if seq in found), (seen, found)
        seen.update(found)
    assert len(seen) > 3, seen
    kill(daemon)
    daemon = start(daemon.home)
    wire = Wire(daemon.endpoint)
    taken = [wire.call("session.turn", a, blob, sess=wire.open(), idem=os.urandom(16)) for _ in range(3)]
    assert all(reply.status == "limit" for reply in taken)
    whole = pieces(wire, resume(wire, op, 0))
    assert all(whole[seq] == seen[seq] for seq in seen), (seen, whole)
    last = max(seen)
    rest = pieces(wire, resume(wire, op, last))
    assert rest == {seq: piece for seq, piece in whole.items() if seq > last}, (rest, whole)
    assert whole[max(whole)][0] == END and sum(len(piece[2] or b"") for piece in whole.values()) == 60 * 4
    left_clean(daemon)


def cancelled_before_it_is_again():
    """Killed, and cancelled when some of what was sent is computed again but not all: END comes at once, behind what can be
    sent as it was; it does not wait for what cannot come, and nobody is called slow."""
    a, blob = ask(words(20), max_tokens=900)
    daemon = start(None, "--stream-bytes", "1600")
    wire = Wire(daemon.endpoint)
    session = wire.open()
    wire.begin("session.turn", a, blob, sess=session, window=9, detach_ms=600000)
    op = wire.expect(ar1.ACCEPTED)[3]["op"]
    pauses(daemon)
    wire.send(ar1.WINDOW, 0, {"op": op, "max_off": 1 << 20})  # as large pieces as there can be
    seen, counts = {}, []
    while sum(counts) < 500:
        type, at, seq, body, data = wire.expect(DATA)
        seen[seq] = (type, body[0], data)
        counts.append(len(data) // 4)
    kill(daemon)
    daemon = start(daemon.home, "--stream-bytes", "1024", "--stall-ms", "3000")
    again = pauses(daemon)
    ends = [sum(counts[:n]) for n in range(len(counts) + 1)]
    assert again < ends[-1] and again not in ends, (again, ends)
    wire = Wire(daemon.endpoint)
    wire.send(ar1.CANCEL, 0, {"op": op})
    while wire.ok("health")["r"]["turns_running"]:
        time.sleep(0.01)
    end = cancelled(daemon, op, 0, seen)
    assert end["usage"]["sampled"] == again
    assert cancelled(daemon, op, 1, seen) == cancelled(daemon, op, max(seen), seen) == end
    kill(daemon)
    daemon = start(daemon.home)
    assert cancelled(daemon, op, 0, seen) == end, "on the disk it is another"
    wire = Wire(daemon.endpoint)
    assert wire.turn(session, words(3), max_tokens=5, ignore_end=True).usage["prompt"] == end["usage"]["history"] + 3
    left_clean(daemon)


def pauses(daemon):
    """How many tokens are sampled when its one turn goes no further."""
    before, wire = -1, Wire(daemon.endpoint)
    while True:
        now = wire.ok("health")["r"]["tokens_sampled"]
        if now and now == before:
            wire.close()
            return now
        before = now
        time.sleep(0.3 * min(ar1.SLOW, 4))


def cancelled(daemon, op, after, seen):
    """What a RESUME brings of the cancelled turn: what was seen, as it was, up to where it can; then END, at once."""
    wire, began = Wire(daemon.endpoint), time.time()
    channel = resume(wire, op, after)
    assert wire.expect(ar1.ACCEPTED)[1] == channel
    while True:
        after += 1
        type, at, seq, body, blob = wire.receive()
        assert at == channel and seq == after, (at, seq, after)
        if type == END:
            break
        assert (type, body[0], blob) == seen[seq], seq
    assert body["status"] == "cancelled" and "err" not in body and time.time() - began < 2 * ar1.SLOW, body
    wire.close()
    return body


def tool_result():
    """A session that waits for its tool takes the result after a kill."""
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    def play(killed):
        daemon = start()
        wire = Wire(daemon.endpoint)
        session = wire.open("smollm2", system="Count.", tools=[json.dumps(tool)])
        first = wire.call("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 100, "tool_choice": "required"},
                          sess=session)
        assert first.status == "tool_wait" and first.end["durable"], first.end
        if killed:
            kill(daemon)
            daemon = start(daemon.home)
            wire = Wire(daemon.endpoint)
            assert wire.ok("session.show", sess=session)["r"]["state"] == "tool_wait"
        result = {"results": [{"tool_call_id": first.end["next"][0]["id"], "content": "seven"}], "max_tokens": 10,
                  "logprobs": 1, "ignore_end": True}
        reply = wire.call("session.continue", result, sess=session, turn=first.end["turn"], epoch=first.end["epoch"])
        assert len(reply.ids) == 10, reply.end
        left_clean(daemon)
        return reply
    a, b = play(False), play(True)
    assert a.ids == b.ids and a.logprobs == b.logprobs


def points():
    """The process ends itself at named points; whoever asks again with the same keys gets one of everything."""
    given = [(words(25), {"max_tokens": 6, "seed": n}) for n in range(3)]
    right = right_tokens(given)
    home = None
    spots = [(point, n) for point in ("put", "commit", "committed", "step", "batch", "accepted") for n in (1, 2, 3, 5, 9)]
    for point, n in RANDOM.sample(spots, min(len(spots), ROUNDS)):
        daemon = start(home, "--inject", f"{point}@{n}=crash") if point not in ("put", "commit", "committed") or n > 3 else \
            start(home, "--inject", f"{point}@{n + 3}=crash")
        home = daemon.home
        todo = [("session.open", {"template": "none"}, None, os.urandom(16))]
        todo += [("session.turn", *ask(ids, **more), os.urandom(16)) for ids, more in given]
        session, replies, starts = None, [], 0
        wire = Wire(daemon.endpoint, hello=False)
        try:
            wire.send(ar1.HELLO, 0, {"client": "test", "minor": 0, "caps": []})
        except Exception:
            pass
        while todo:
            method, a, blob, key = todo[0]
            try:
                reply = once(wire, method, a, blob, key, session, daemon)
            except Gone:
                starts += 1
                assert starts < 6, "it ends again and again"
                daemon.log.close()
                unsanitary(daemon.words())
                daemon = start(home)
                wire.close()
                wire = Wire(daemon.endpoint)
                continue
            session = session or reply.end["sess"]
            replies.append(reply)
            todo.pop(0)
        if not starts and daemon.process.poll() is None:
            kill(daemon)  # the point lay behind all of it
        if daemon.process.poll() is not None:
            daemon = start(home)
            wire.close()
            wire = Wire(daemon.endpoint)
        for got, reply in zip(replies[1:], right):
            assert got.ids == reply.ids, (point, n)
        shown = wire.ok("session.show", sess=session)["r"]
        assert shown["turn"] == 3 and shown["history"] == right[-1].usage["history"], (point, n, shown)
        assert len(wire.ok("session.list")["r"]) == 1, (point, n)
        wire.ok("session.close", sess=session)
        assert daemon.stop(keep=True) in (0, -signal.SIGKILL)
        unsanitary(daemon.words())
    left_clean(start(home))


class Gone(Exception):
    pass


def once(wire, method, a, blob, key, session, daemon):
    """A call with a key; Gone if the process ends before its END."""
    keys = {"idem": key, "detach_ms": 60000}
    if session:
        keys["sess"] = session
    channel = wire.begin(method, a, blob, **keys)
    wire.process = daemon.process
    while True:
        try:
            return wire.finish(channel, timeout=1 if daemon.process.poll() is None else 0.05)
        except TimeoutError:
            if daemon.process.poll() is not None:
                raise Gone from None


def other_plan():
    """Another precision: a word, sessions stay, a turn that ran ends as restarted."""
    daemon = start(None, "--stream-bytes", "1024")  # who does not read holds his turn: it cannot end before the kill
    wire = Wire(daemon.endpoint)
    session, idle = wire.open(), wire.open()
    wire.turn(idle, words(20), max_tokens=3)
    channel = wire.begin("session.turn", *ask(words(40), max_tokens=900), sess=session, idem=os.urandom(16), detach_ms=60000,
                         window=64)
    reply = wire.finish(channel, tokens=3)
    kill(daemon)
    daemon = start(daemon.home, "--kv", "f32")
    assert "the precision plan changed" in daemon.words(), daemon.words()
    wire = Wire(daemon.endpoint)
    channel = resume(wire, reply.op, 0)
    try:
        ended = wire.finish(channel)
        assert ended.end["err"]["n"] == "restarted", ended.end
    except Refused as refused:
        assert refused.name == "gone", refused
    assert wire.ok("session.show", sess=session)["r"]["turn"] == 0
    assert wire.turn(idle, words(5), max_tokens=3).usage["recomputed"] > 0
    left_clean(daemon)


def many():
    """Kills at random moments while several sessions talk, all with keys: none lost, none done twice."""
    given = [[(words(20 + k), {"max_tokens": 15, "seed": k}) for _ in range(3)] for k in range(4)]
    right = [right_tokens(turns) for turns in given]
    daemon = start()
    home, kills, started = daemon.home, 0, time.time()
    wire = Wire(daemon.endpoint)
    while kills < ROUNDS:
        todo = {k: [("session.open", {"template": "none"}, None, os.urandom(16))] +
                [("session.turn", *ask(ids, **more), os.urandom(16)) for ids, more in given[k]] for k in range(4)}
        session, replies = {}, {k: [] for k in range(4)}
        while any(todo.values()):
            moment = time.time() + RANDOM.random() * 0.4 * min(ar1.SLOW, 4)
            try:
                for k in sorted(todo, key=lambda _: RANDOM.random()):
                    if not todo[k]:
                        continue
                    if time.time() > moment:
                        raise Gone
                    method, a, blob, key = todo[k][0]
                    keys = {"idem": key, "detach_ms": 60000, **({"sess": session[k]} if k in session else {})}
                    channel = wire.begin(method, a, blob, **keys)
                    try:
                        reply = wire.finish(channel, timeout=max(0.001, (moment - time.time()) / ar1.SLOW))
                    except TimeoutError:
                        raise Gone from None
                    session.setdefault(k, reply.end["sess"])
                    replies[k].append(reply)
                    todo[k].pop(0)
            except Gone:
                kill(daemon)
                kills += 1
                daemon = start(home)
                wire.close()
                wire = Wire(daemon.endpoint)
        for k in range(4):
            for got, reply in zip(replies[k][1:], right[k]):
                assert got.ids == reply.ids, k
            shown = wire.ok("session.show", sess=session[k])["r"]
            assert shown["turn"] == 3 and shown["history"] == right[k][-1].usage["history"], shown
        assert len(wire.ok("session.list")["r"]) == 4
        for k in range(4):
            wire.ok("session.close", sess=session[k])
    print(f"# {kills} kills in {time.time() - started:.0f} s")
    left_clean(daemon)


tap.run("an idle session goes on with the same tokens", goes_on)
tap.run("fork, rollback, attach, tools, label are as they were", verbs)
tap.run("a session in tool_wait takes its result", tool_result)
tap.run("a key is answered again, the same", keys)
tap.run("a stream goes on without gap or repeat", streams)
tap.run("a turn that somebody attached to is there after a kill", taken_over)
tap.run("what is cut after the end is cut the same for all", same_pieces)
tap.run("cancelled before it is computed again as far as it was sent: END comes at once", cancelled_before_it_is_again)
tap.run("the process ends at named points", points)
tap.run("kills at random moments", many)
tap.run("another precision plan is said", other_plan)
raise SystemExit(tap.done())
