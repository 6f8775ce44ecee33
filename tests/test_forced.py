#!/usr/bin/env python3
"""Tokens of a form that has no other: computed together, they are those that masks give one by one. Stops by token.

Method: two daemons on one tiny model, one that appends such tokens and one that samples each; the same questions at many
forms, seeds and limits must get the same tokens, and a turn that follows the same log-probabilities, bit for bit: so K and V
are right too. A daemon killed in the middle of such an answer must go on with the same tokens."""
import json
import os

import ar1
import daemon_rig
from ar1 import Daemon, Refused, Tap, Wire
from daemon_rig import MODEL, balanced, left_clean, same, unsanitary, words

TOOL = {"type": "function", "function": {"name": "read_the_file", "parameters": {
    "type": "object", "properties": {"path": {"type": "string", "maxLength": 6}, "kind": {"enum": ["text", "bytes"]}}, "required": ["path", "kind"]}}}
LONG = "what stands here can be said in one way only, and so nothing of it has to be sampled. " * 8
FORMS = [{"schema": json.dumps(s)} for s in (
    {"type": "object", "properties": {"first_name": {"type": "string", "maxLength": 4}, "second_name": {"type": "string", "maxLength": 4}},
     "required": ["first_name", "second_name"]},
    {"type": "object", "properties": {"year_of_birth": {"type": "integer", "minimum": 1990, "maximum": 2020}, "is_it_true": {"type": "boolean"}},
     "required": ["is_it_true"]},
    {"const": {"all": [1, 2, {"of it": None}]}}, {"const": LONG})] + [
    {"choices": ["yes, of course", "yes, but", "no"]}, {"regex": "[ab]{3}-----[cd]{3}-----"}, {"tool_choice": "required"}]
OPTIONS = ("--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96", "--stream-bytes", "4096",
           "--drain-ms", str(10000 * ar1.SLOW), "--strikes", "0")


def start(*options, home=None):
    daemon = Daemon(MODEL, *OPTIONS, *options, home=home)
    return daemon, Wire(daemon.endpoint)


def opened(wire, form):
    return wire.open("smollm2", **({"tools": [json.dumps(TOOL)]} if "tool_choice" in form else {}))


def ask(wire, session, form, seed, **more):
    return wire.call("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 900, "temperature": 1.0, "seed": seed,
                                      **form, **more}, sess=session)


def alike(a, b):
    assert (a.ids, a.text, a.status, a.end.get("next", [{}])[0].get("arguments")) == (
        b.ids, b.text, b.status, b.end.get("next", [{}])[0].get("arguments")), (a.text, b.text, a.end, b.end)
    for key in ("prompt", "sampled", "history", "context_left"):
        assert a.usage[key] == b.usage[key], (key, a.end, b.end)


def one_by_one(appends, steps):
    """The same tokens, whether they are appended or sampled; and what follows has the same log-probabilities."""
    given = words(5)
    for form in FORMS:
        for seed in range(2 if ar1.SLOW > 1 else 5):
            replies = []
            for wire in (appends, steps):
                session = opened(wire, form)
                reply = ask(wire, session, form, seed)
                assert reply.status in ("stop", "tool_wait"), reply.end
                then = wire.turn(session, given, max_tokens=4)
                scored = wire.ok("session.fork", {"to_turn": 0}, sess=session)["sess"]
                known = ask(wire, scored, form, seed, logprobs=1)
                alike(reply, known)
                assert "forced" not in known.usage, "who wants log-probabilities gets one of each token"
                for s in (session, scored):
                    wire.ok("session.close", sess=s)
                replies.append((reply, then))
            (a, after), (b, after_b) = replies
            alike(a, b)
            same(after, after_b)
            assert "forced" not in b.usage and 0 < a.usage["forced"] < a.usage["sampled"], (a.end, b.end)
    assert a.usage["forced"] > 50, "a call's marks and keys are most of it"
    for line in appends.call("metrics").end["r"]["text"].splitlines():
        if line.startswith("holdfast_forced_tokens_total "):
            assert int(line.split()[1]) > 500, line
            break
    else:
        raise AssertionError("no such counter")
    balanced(appends)


def cut(appends, steps):
    """A limit in the middle of what is appended, a stop string in it: as one by one."""
    form = FORMS[0]
    for more in [{"max_tokens": n} for n in (1, 2, 5, 17, 18)] + [{"stop": ["second"]}, {"stop": ["e\": \""]}, {"stop": ["\"}"]}]:
        replies = []
        for wire in (appends, steps):
            session = opened(wire, form)
            replies.append(ask(wire, session, form, 3, **more))
            wire.ok("session.close", sess=session)
        alike(*replies)
        assert replies[0].status == ("limit" if "max_tokens" in more else "stop"), replies[0].end
        assert not any(s in replies[0].text for s in more.get("stop", []))
    balanced(appends)


def neighbours(appends, steps):
    """Several at once, whose rows of one step are single ones and many: each has its own tokens."""
    for wire in (appends, steps):
        wire.alone = []
        for seed, form in enumerate(FORMS):
            session = opened(wire, form)
            wire.alone.append(ask(wire, session, form, seed).ids)
            wire.ok("session.close", sess=session)
    sessions = [opened(appends, form) for form in FORMS]
    channels = [appends.begin("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 900, "temperature": 1.0, "seed": i, **form},
                              sess=s) for i, (form, s) in enumerate(zip(FORMS, sessions))]
    got, ended = {c: [] for c in channels}, set()
    while len(ended) < len(channels):
        type, channel, _, body, blob = appends.receive()
        if type == ar1.DATA:
            got[channel] += ar1.struct.unpack(f"<{body[1]}I", blob)
        if type == ar1.END:
            ended.add(channel)
    assert [got[c] for c in channels] == appends.alone == steps.alone
    for s in sessions:
        appends.ok("session.close", sess=s)
    balanced(appends)


def stops_by_token(appends, steps):
    """The turn ends with the token; it is the history's last and not in the text."""
    for wire in (appends, steps):
        session = wire.open()
        free = wire.turn(session, words(9), max_tokens=30, ignore_end=True)
        at = next(i for i, t in enumerate(free.ids) if t not in free.ids[:i] and i > 3)
        fork = wire.ok("session.fork", {"to_turn": 0}, sess=session)["sess"]
        given = list(wire.turn(session, [], max_tokens=1, keep=9).ids)
        reply = wire.turn(session, [], max_tokens=30, keep=9, ignore_end=True, stop_tokens=[free.ids[at], 7 if free.ids[at] != 7 else 8])
        assert given == free.ids[:1]
        assert reply.status == "stop" and reply.ids == free.ids[:at + 1], (reply.ids, free.ids)
        assert reply.usage["history"] == 9 + at + 1 and reply.usage["sampled"] == at + 1
        assert reply.text == wire.turn(session, [], max_tokens=at, keep=9, ignore_end=True).text
        for bad, name in ([1 << 20], "out_of_range"), ([-1], "bad_arg"), (["a"], "bad_arg"), ([1] * 17, "out_of_range"), (3, "bad_arg"):
            try:
                err = wire.turn(session, [], keep=9, stop_tokens=bad).end["err"]
            except Refused as refused:
                err = refused.args[0]
            assert err["n"] == name, (bad, err)
        for s in (session, fork):
            wire.ok("session.close", sess=s)
    # In a form: nothing more is forced behind it.
    first = appends.tokenize("f")
    session = opened(appends, FORMS[0])
    reply = ask(appends, session, FORMS[0], 1, stop_tokens=first)
    assert (reply.status, reply.text) == ("stop", '{"'), reply.end
    appends.ok("session.close", sess=session)
    balanced(appends)


def alternatives(appends, steps):
    """The best others beside each token: sorted, each once, and greedy is the best of them, form or not."""
    for form in ({}, FORMS[0]):
        session = opened(appends, form)
        reply = appends.call("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 40, "logprobs": 6, **form}, sess=session)
        assert len(reply.logprobs) == len(reply.alternatives) == len(reply.ids) > 5
        for token, p, top in zip(reply.ids, reply.logprobs, reply.alternatives):
            own = ar1.struct.unpack("<f", p)[0]
            assert len(top) == 5 and len({t for t, _ in top}) == 5, top
            values = [q for _, q in top]
            assert values == sorted(values, reverse=True) and values[0] <= 0, top
            assert sum(2.718281828459045 ** q for q in values) <= 1.0001
            assert all(abs(q - own) < 1e-6 for t, q in top if t == token), (token, own, top)
            if not form:
                assert top[0][0] == token, (token, own, top)
        appends.ok("session.close", sess=session)


def killed(appends, steps):
    """Killed in the middle of an answer of a form: its form is back, and it goes on with the same tokens."""
    form = {"schema": json.dumps({"type": "array", "items": {"type": "object", "properties": {"key_of_it": {"type": "string", "maxLength": 3}},
                                                             "required": ["key_of_it"]}, "minItems": 12, "maxItems": 12})}
    session = opened(appends, form)
    right = ask(appends, session, form, 4)
    assert right.status == "stop" and len(json.loads(right.text)) == 12, right.end
    appends.ok("session.close", sess=session)
    daemon, wire = start()
    session = opened(wire, form)
    channel = wire.begin("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 900, "temperature": 1.0, "seed": 4, **form},
                         sess=session, detach_ms=60000)
    reply = wire.finish(channel, tokens=60)
    for options in ((), ("--forced", "step")):
        assert not reply.end
        daemon.process.kill()
        daemon.process.wait()
        daemon.log.close()
        unsanitary(daemon.words())
        os.rename(f"{daemon.home}/log", f"{daemon.home}/log{len(options)}")
        wire.close()
        daemon, wire = start(*options, home=daemon.home)
        wire.channel += 1
        channel = wire.channel
        wire.send(ar1.RESUME, channel, {"op": reply.op, "after_seq": reply.seq, "window": 1 << 20})
        type, _, _, body, _ = wire.expect(ar1.ACCEPTED, ar1.REJECT)
        assert type == ar1.ACCEPTED, body
        had = len(reply.ids)
        while not reply.end and (options or len(reply.ids) < had + 30):
            type, _, _, body, blob = wire.receive()
            if type == ar1.END:
                reply.end = body
            if type == ar1.DATA:
                reply.seq += 1
                reply.ids += ar1.struct.unpack(f"<{body[1]}I", blob)
                reply.text += body[2] or ""
    assert reply.ids == right.ids and reply.text == right.text and reply.status == "stop", (reply.text, right.text)
    balanced(wire)
    left_clean(daemon)


tap = Tap()
first, appends = start()
second, steps = start("--forced", "step")
for what, test in [("forced tokens, appended and one by one", one_by_one), ("limits and stop strings in what is appended", cut),
                   ("turns beside each other", neighbours), ("stops by token", stops_by_token), ("alternatives", alternatives),
                   ("killed in an answer of a form", killed)]:
    tap.run(what, test, appends, steps)
for daemon in first, second:
    tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, first)
