"""Sessions that move between daemons, and the metrics, over the real socket with a tiny model."""
import os
import re
import struct
import sys

import ar1
import daemon_rig
from ar1 import Refused, Tap, Wire, pack
from daemon_rig import MODEL, Daemon, balanced, left_clean, same, words

TOOL = ('{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": '
        '{"deep": {"type": "boolean"}}, "required": ["deep"]}}}')


def move(wire, session, other):
    reply = wire.call("session.export", sess=session)
    assert reply.end["status"] == "ok", reply.end
    return reply, other.ok("session.import", reply.end["r"], reply.blob)["sess"]


def moved_says_the_same(wire):
    """A conversation with tools is moved in the middle; both ends go on with the same words."""
    own = daemon_rig.start()
    try:
        other = Wire(own.endpoint)
        here = wire.open(template="smollm2", system="Be brief.", tools=[TOOL], label="moved")
        asked = {"messages": [{"role": "user", "content": "go"}], "tool_choice": "required", "max_tokens": 200,
                 "temperature": 1.0, "seed": 3}
        first = wire.call("session.turn", asked, sess=here)
        assert first.status == "tool_wait", first.end
        exported, there = move(wire, here, other)
        assert len(exported.blob) == 4 * first.usage["history"]
        show = other.ok("session.show", sess=there)["r"]
        assert (show["state"], show["turn"], show["label"], show["history"]) == ("tool_wait", 1, "moved", first.usage["history"])
        results = {"results": [{"tool_call_id": c["id"], "content": "x"} for c in first.end["next"]], "max_tokens": 200,
                   "tool_choice": "required", "logprobs": 1, "temperature": 1.0, "seed": 5}
        one = wire.call("session.continue", results, sess=here)
        two = other.call("session.continue", results, sess=there)
        same(one, two)
        assert [c["arguments"] for c in one.end["next"]] == [c["arguments"] for c in two.end["next"]]
        assert two.usage["resident"] == 0 and two.end["turn"] == one.end["turn"] == 2
        # Its turns came along: both go back to the same places.
        for turn in (1, 0):
            assert (wire.ok("session.rollback", {"to_turn": turn}, sess=here)["r"]["history"]
                    == other.ok("session.rollback", {"to_turn": turn}, sess=there)["r"]["history"])
        raw = wire.open()
        wire.turn(raw, words(50), max_tokens=9, ignore_end=True)
        _, there = move(wire, raw, other)
        given = words(7)
        same(wire.turn(raw, given, max_tokens=20, ignore_end=True), other.turn(there, given, max_tokens=20, ignore_end=True))
        other.close()
    finally:
        assert own.stop() == 0


def wrong_ones(wire):
    session = wire.open()
    wire.turn(session, words(30), max_tokens=5, ignore_end=True)
    reply = wire.call("session.export", sess=session)
    good, blob = reply.end["r"], reply.blob
    mark = list(struct.unpack("<8I", good["course"]))
    assert mark[4] == mark[5] == 35 and len(blob) == 140, mark

    def course(at, value):
        changed = list(mark)
        changed[at] = value
        return struct.pack("<8I", *changed)

    before = len(wire.ok("session.list")["r"])
    for arguments, data, name in (
            (good, None, "bad_arg"), (good, b"", "bad_arg"), (good, blob[:-1], "bad_arg"),
            (good, blob[:-4], "out_of_range"), (good, pack([1 << 30] * 35), "out_of_range"),
            (good, pack([5] * 1024), "context_full"), ({**good, "course": b""}, blob, "bad_arg"),
            ({**good, "course": good["course"][:-1]}, blob, "bad_arg"),
            ({**good, "course": course(0, 36)}, blob, "out_of_range"), ({**good, "course": course(1, 36)}, blob, "out_of_range"),
            ({**good, "course": course(5, 1 << 31)}, blob, "out_of_range"), ({**good, "course": course(3, 1 << 20)}, blob, "bad_arg"),
            ({**good, "course": course(2, 1 << 31)}, blob, "out_of_range"), ({**good, "course": course(7, 1 << 21)}, blob, "bad_arg"),
            ({**good, "waits": True, "course": course(7, 17 << 16)}, blob, "out_of_range"), ({**good, "course": course(3, 2 << 16)}, blob, "bad_arg"), ({**good, "template": "none", "tools": [TOOL]}, blob, "bad_arg"),
            ({**good, "template": "nobody"}, blob, "bad_arg"), ({**good, "course": "text"}, blob, "bad_arg"),
            ({k: v for k, v in good.items() if k != "course"}, blob, "bad_arg"), ({**good, "pages": b"x"}, blob, "unknown_field"),
            ({**good, "course": good["course"][:16] * 2000 + good["course"][16:]}, blob, "limit")):
        try:
            got = wire.call("session.import", arguments, data).end["err"]["n"]
        except Refused as refused:
            got = refused.name
        assert got == name, (got, name, arguments)
    assert len(wire.ok("session.list")["r"]) == before
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 900, "temperature": 1.0, "ignore_end": True}, pack(words(9)),
                         sess=session, window=1)  # and 1,024 bytes unread: it stands in its middle
    wire.expect(ar1.ACCEPTED)
    other = Wire(endpoint)
    assert other.call("session.export", sess=session).end["err"]["n"] == "session_busy"
    assert other.call("session.export", sess=os.urandom(16)).end["err"]["n"] == "not_found"
    other.close()
    wire.send(ar1.CANCEL, channel, {})
    balanced(wire)


def metrics(wire):
    """Every line is of Prometheus' form; histograms add up; what was done is counted."""
    def read():
        text = wire.ok("metrics")["r"]["text"]
        found, kinds = {}, {}
        for line in text.splitlines():
            if line.startswith("# "):
                mark, name, rest = re.fullmatch(r"# (HELP|TYPE) (holdfast_[a-z_]+) (.+)", line).groups()
                if mark == "TYPE":
                    assert name not in kinds and rest in ("counter", "gauge", "histogram")
                    kinds[name] = rest
                continue
            name, labels, value = re.fullmatch(
                r'(holdfast_[a-z_]+)((?:\{[a-z]+="[^"\\\n]*"(?:,[a-z]+="[^"\\\n]*")*\})?) ([0-9.e+]+)', line).groups()
            base = re.sub("_(bucket|sum|count)$", "", name) if name not in kinds else name
            assert kinds[base] and (kinds[base] != "counter" or name.endswith("_total")), line
            found[name + labels] = float(value)
        return found

    session = wire.open()
    before = read()
    wire.turn(session, words(40), max_tokens=11, ignore_end=True)
    wire.turn(session, words(5), max_tokens=1, ignore_end=True)
    after = read()
    grown = {k: after[k] - before.get(k, 0) for k in after}
    assert grown["holdfast_generation_tokens_total"] == 12
    assert grown['holdfast_prompt_tokens_total{origin="new"}'] >= 45 and grown['holdfast_prompt_tokens_total{origin="resident"}'] == 50
    assert grown['holdfast_turns_total{status="limit"}'] == 2
    for name, count in (("time_to_first_token_seconds", 2), ("time_per_output_token_seconds", 10), ("queue_time_seconds", 2)):
        assert grown[f"holdfast_{name}_count"] == count, (name, grown[f"holdfast_{name}_count"])
        buckets = [v for k, v in after.items() if k.startswith(f"holdfast_{name}_bucket")]
        assert buckets == sorted(buckets) and buckets[-1] == after[f"holdfast_{name}_count"] and len(buckets) == 16
    assert after['holdfast_ledger_bytes{account="device",column="retained"}'] > 0
    assert grown["holdfast_calls_total"] == 3 and grown["holdfast_data_messages_total"] >= 2
    me = 'principal="uid:%d"' % os.getuid()
    assert grown["holdfast_principal_generation_tokens_total{%s}" % me] == 12
    assert grown["holdfast_principal_prompt_tokens_total{%s}" % me] == sum(
        v for k, v in grown.items() if k.startswith("holdfast_prompt_tokens_total")) >= 95
    for column in ("free", "running", "promised", "retained", "shared", "moving", "doomed"):
        pages = after['holdfast_pages{group="0",place="device",column="%s"}' % column]
        assert pages * after["holdfast_page_bytes"] == after['holdfast_ledger_bytes{account="device",column="%s"}' % column], column
    # Of a turn that runs too, and each token once.
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 20, "ignore_end": True}, ar1.pack(words(5)), sess=session, window=4)
    name = "holdfast_principal_generation_tokens_total{%s}" % me
    daemon_rig.until(lambda: read()[name] > after[name])
    wire.send(ar1.CANCEL, channel, {})
    sampled = daemon_rig.await_message(wire, ar1.END, channel)["usage"]["sampled"]
    assert sampled > 0 and read()[name] - after[name] == sampled
    mine = [k for k in after if k.startswith("holdfast_principal_sessions")]
    assert mine == ['holdfast_principal_sessions{principal="uid:%d"}' % os.getuid()], mine


daemon = daemon_rig.start("--stream-bytes", "1024")
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("a session that moved says what it would have said", moved_says_the_same),
    ("wrong imports are refused and leave nothing", wrong_ones),
    ("metrics in Prometheus' form add up", metrics)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
