#!/usr/bin/env python3
"""Answers of a form, and DRY, on the wire: a daemon on a tiny model, whose own choices say nothing.

Method: whatever it is asked, at many seeds, the answer is of the form; the same seed gives it again; what is
no form is refused with a fixed reason that has nothing of the client's in it, and the session is as it was."""
import json
import re

import daemon_rig
from ar1 import Refused, Tap, Wire
from daemon_rig import balanced, left_clean

SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                                           "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
                                           "id": {"type": "string", "pattern": "^[A-F0-9]{4}$"}}, "required": ["name", "age", "id"]}


TWO = "of schema, regex, choices and a required tool_choice one at most"
NAME = "a tool's name is empty, longer than 64 bytes or has escapes"


def ask(wire, session, seed, **form):
    return wire.call("session.turn", {"messages": [{"role": "user", "content": "go"}], "max_tokens": 500, "temperature": 1.0,
                                      "seed": seed, **form}, sess=session)


def refusal(wire, session, **form):
    """The error, by END or, where the message itself is wrong, by REJECT."""
    try:
        return ask(wire, session, 1, **form).end["err"]
    except Refused as refused:
        return refused.args[0]


def answers(wire):
    for seed in range(6):
        session = wire.open(template="smollm2")
        reply = ask(wire, session, seed, schema=json.dumps(SCHEMA))
        assert reply.status == "stop", (reply.end, reply.text)
        value = json.loads(reply.text)
        assert list(value) in (["name", "age", "id"], ["name", "age", "tags", "id"]), reply.text
        assert len(value["name"]) <= 12 and 0 <= value["age"] <= 150 and re.fullmatch("[A-F0-9]{4}", value["id"]), reply.text
        assert set(value.get("tags", [])) <= {"a", "b"} and len(value.get("tags", [])) <= 3, reply.text
        reply = ask(wire, session, seed, regex="[0-9]{3}(-[0-9]{4})?")
        assert reply.status == "stop" and re.fullmatch("[0-9]{3}(-[0-9]{4})?", reply.text), reply.text
        first = ask(wire, session, seed, choices=["yes", "no", "yes, but"], logprobs=3)
        assert first.status == "stop" and first.text in ("yes", "no", "yes, but"), first.text
        wire.ok("session.close", sess=session)
        session = wire.open(template="smollm2")
        again = ask(wire, session, seed, schema=json.dumps(SCHEMA))
        assert json.loads(again.text) == value
        wire.ok("session.close", sess=session)
    balanced(wire)


def several_at_once(wire):
    """Forms of different turns in one batch do not meet."""
    sessions = [wire.open(template="smollm2") for _ in range(3)]
    forms = [{"regex": "a{40}"}, {"choices": ["b" * 50]}, {"schema": '{"const": "%s"}' % ("c" * 45)}]
    channels = [wire.begin("session.turn", {"messages": [{"role": "user", "content": "x"}], **form}, sess=s)
                for s, form in zip(sessions, forms)]
    got, ended = {c: "" for c in channels}, set()
    while len(ended) < 3:
        type, channel, _, body, _ = wire.receive()
        if type == daemon_rig.ar1.DATA:
            got[channel] += body[2] or ""
        if type == daemon_rig.ar1.END:
            assert body["status"] == "stop", body
            ended.add(channel)
    assert [got[c] for c in channels] == ["a" * 40, "b" * 50, '"' + "c" * 45 + '"'], got
    for s in sessions:
        wire.ok("session.close", sess=s)


def refusals(wire):
    session = wire.open(template="smollm2")
    mark = "q7q7q7"
    cases = [({"schema": "{" + mark}, "the schema is not JSON"), ({"schema": json.dumps({"type": mark})}, "a type is none of null, boolean, integer, number, string, array and object"),
             ({"schema": json.dumps({"not": {"const": mark}})}, "the schema has \"not\", which is not supported"), ({"schema": "false"}, "no answer can be of this form"),
             ({"regex": f"({mark}"}, "a pattern's group is not closed"), ({"regex": f"(?={mark})"}, "a pattern looks ahead or behind, or sets flags, which is not supported"),
             ({"regex": "(a|b)*a(a|b){20}"}, "a pattern has more than 16384 states: shorten its counted repetitions"), ({"schema": "1", "regex": "a"}, TWO), ({"choices": ["a"], "regex": "a"}, TWO),
             ({"choices": []}, "choices is empty"), ({"choices": [""]}, "choices"), ({"choices": mark}, "choices"), ({"choices": ["a"], "tool_choice": "required"}, TWO),
             ({"schema": json.dumps({"type": "integer", "minimum": 10**30})}, "a number's bounds leave only numbers of more digits than are written (integers 18, others 15)"),
             ({"schema": "[" * 65 + f"\"{mark}\"" + "]" * 65}, "the schema's JSON is nested deeper than 64"), ({"schema": 3}, "schema"),
             ({"tool_choice": "required"}, "the session has no tools"), ({"tool_choice": mark}, "tool_choice"), ({"keep": 3}, "keep without tokens"),
             ({"tokens": True}, "either messages or tokens")]
    for form, why in cases:
        err = refusal(wire, session, **form)
        assert err["n"] in ("bad_arg", "out_of_range") and err.get("why") == why, (form, err)
        assert mark not in repr(err), err
    for tools, why in [([f"{{\"{mark}\": 1}}"], "a tool has no name"), (["[1]"], "a tool is no JSON object"), (["{\"name\": \"\"}"], NAME), ([f"{{\"name\": \"{mark * 20}\"}}"], NAME),
                       (["{\"name\": \"t\", \"x\": " + "[" * 64 + "]" * 64 + "}"], "a tool's JSON is nested deeper than 64"), (["{\"name\": \"t\"}"] * 2, "two tools have one name"),
                       (["{\"name\": \"t\", \"parameters\": []}"], "a tool's parameters are no schema, which is an object"), (mark, "tools")]:
        try:
            err = wire.call("session.open", {"template": "smollm2", "tools": tools}).end["err"]
        except Refused as refused:
            err = refused.args[0]
        assert err["n"] == "bad_arg" and err.get("why") == why and mark not in repr(err), (tools, err)
    # A tool that no form can be made of may be offered; a call of it cannot be forced, and it is said why.
    other = wire.ok("session.open", {"template": "smollm2", "tools": ["{\"name\": \"t\", \"parameters\": {\"properties\": {\"a\": {\"not\": {}}}}}"]})["sess"]
    fork = wire.ok("session.fork", sess=other)["sess"]
    for one in (other, fork):
        err = refusal(wire, one, tool_choice="required")
        assert err["n"] == "bad_arg" and err.get("why") == "the schema has \"not\", which is not supported", err
        wire.ok("session.close", sess=one)
    for form, name in [({"regex": "a" * 20000}, "out_of_range"), ({"schema": "x" * 270000}, "out_of_range"), ({"choices": ["a"] * 300}, "out_of_range"),
                       ({"dry": 101}, "out_of_range"), ({"dry_base": 0.5}, "out_of_range"), ({"dry_allowed": 0}, "out_of_range"),
                       ({"schema": 3}, "bad_arg"), ({"dry": "x"}, "bad_arg")]:
        err = refusal(wire, session, **form)
        assert err["n"] in (name, "too_big"), (list(form), err)
    assert wire.ok("session.show", sess=session)["r"]["turn"] == 0
    assert ask(wire, session, 1, regex="ok").text == "ok"
    balanced(wire)


def no_run_comes_again(wire):
    """With a large DRY no three tokens in a row come twice, where no token of the first two breaks a run."""
    breakers = {wire.tokenize(c)[0] for c in '\n:"*'}
    given = daemon_rig.words(20)

    def repeats(**options):
        session = wire.open()
        out = wire.turn(session, given, max_tokens=200, ignore_end=True, **options).ids
        wire.ok("session.close", sess=session)
        tokens, seen, count = given + list(out), set(), 0
        for i in range(2, len(tokens)):
            three = tuple(tokens[i - 2:i + 1])
            count += three in seen and i >= len(given) and not breakers & set(three[:2]) and min(three) > 2
            seen.add(three)
        return count
    assert repeats(dry=100, dry_allowed=2) == 0
    assert repeats(dry=100, dry_allowed=2, bias=[[5, 1.0], [300, -1.0]][:1]) == 0
    assert repeats() > 0, "the tiny model repeats itself; else this shows nothing"


daemon = daemon_rig.start()
wire = Wire(daemon.endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("answers are of the form that was asked, and come again", answers),
    ("forms of turns in one batch", several_at_once),
    ("what is no form is refused with a reason, and nothing has changed", refusals),
    ("with DRY no run of tokens comes again", no_run_comes_again)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
