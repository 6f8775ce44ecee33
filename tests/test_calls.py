#!/usr/bin/env python3
"""Calls, texts that only look like calls, and stop strings, on the wire, in words that are known beforehand.

Goal: what a model writes ends as calls or as text, whole, and never as half a call, wherever its tokens are cut. Method: a
model made here that can say only what is written below: each token has a direction of its own, which the head maps to the next
token of its text; all between is zero. A bias picks the text's first token."""
import json
import os
import struct

import ar1
import daemon_rig
from ar1 import Daemon, Tap, Wire
from daemon_rig import balanced, left_clean

WIDTH, HEADS, FF = 512, 8, 32
LOOK = '{"name": "look", "arguments": {"at": "%s"}}'
TOOL = '{"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}'


def call(at):
    return "<tool_call>\n" + LOOK % at + "\n</tool_call>"


CHARACTERS, ACCENT = "A\u00e9 \U0001f642".encode(), call("\u00e9").encode()  # cut within characters below


def cut(text, size):
    """Pieces of a size; each becomes a token of its own."""
    return [text[i:i + size] for i in range(0, len(text), size)]


# What is written, by name: its pieces, each a token. A list's last token goes on to the end.
TEXTS = {
    "two": cut("Both. " + call("a") + "\n" + call("b"), 9), "three": cut(call("x") + call("y") + "\nso " + call("z"), 17),
    "bare": cut(LOOK % "bare", 6), "fence": ["```js", "on\n" + LOOK % "f", "\n``", "`"], "behind": ["<tool_call>no", call("c")],
    "open": [call("o"), "<tool_call>{\"na"],
    "halves": [CHARACTERS[:2], CHARACTERS[2:5], CHARACTERS[5:] + ACCENT[:40], ACCENT[40:51], ACCENT[51:]],
    "comma": ["Hm. <tool", "_call>\n{\"name\": \"look\", \"argu", "ments\": {\"at\": ", "}}\n</tool_ca", "ll>"],
    "no arguments": ["<tool_call>\n{\"name\": \"look\"", "}\n</tool_call", "> so."], "cut off": ["So: <tool_call>\n{\"name\"", ": \"look\", \"arg"],
    "a list": ["<tool_call>[1]", "</tool_call>!"], "talk": ["See ", LOOK % "t"], "more": [LOOK % "m", " it", " says"],
    "a part": ["x <tool", "_cal", "m"], "stop": ["Hel", "lo wor", "ld. G", "o on", " and on"], "done": ["Do", "ne."],
    "list": ["Well. ", "[TOOL_CALLS]", "[{\"name\": \"look\", \"arguments\": {\"at\": \"l\"}, \"id\": \"abcdefgh1\"}, ",
             "{\"name\": \"look\", \"arg", "uments\": {\"at\": \"m\"}, \"id\": \"abcdefgh2\"}]"],
}
# Behind so much that the first of it is sent while the rest is still written.
COUNTED = [f"{i} " for i in range(100)]
TEXTS["counted stop"] = COUNTED + TEXTS["stop"]
TEXTS["counted calls"] = COUNTED + cut("Both. " + call("a") + "\n" + call("b"), 7)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "</s>"]


def printable(data):
    own, out = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)], ""
    others = [b for b in range(256) if b not in own]
    for b in data:
        out += chr(b) if b in own else chr(0x100 + others.index(b))
    return out


def make(path):
    """Writes the model; the first token of each text, and its whole text."""
    tokens, first, whole, then = CONTROLS + [printable([b]) for b in range(256)], {}, {}, {}
    for name, pieces in TEXTS.items():
        last, whole[name] = None, b""
        for piece in pieces:
            data = piece if isinstance(piece, bytes) else piece.encode()
            whole[name] += data
            at = CONTROLS.index(piece) if piece in CONTROLS else len(tokens)
            if at == len(tokens):
                tokens.append(printable(data))
            first.setdefault(name, at)
            if last is not None:
                then[last] = at
            last = at
        then[last] = CONTROLS.index("</s>" if name == "list" else "<|im_end|>")
        whole[name] = whole[name].decode()
    axis = {t: 1 + i for i, t in enumerate(sorted(then))}
    assert len(axis) < WIDTH and len(set(then)) == len(axis)
    embedding, head = ([bytearray(4 * WIDTH) for _ in tokens] for _ in range(2))
    for t in range(len(tokens)):
        struct.pack_into("<f", embedding[t], 4 * axis.get(t, 0), 1.0)
    for t, n in then.items():
        struct.pack_into("<f", head[n], 4 * axis[t], 60.0)
    ones = struct.pack("<f", 1.0) * WIDTH
    kv = WIDTH // HEADS
    tensors = {"token_embd.weight": (WIDTH, len(tokens), b"".join(embedding)), "output.weight": (WIDTH, len(tokens), b"".join(head)),
               "output_norm.weight": (WIDTH, 0, ones), "blk.0.attn_norm.weight": (WIDTH, 0, ones), "blk.0.ffn_norm.weight": (WIDTH, 0, ones)}
    for name, columns, rows in (("attn_q", WIDTH, WIDTH), ("attn_k", WIDTH, kv), ("attn_v", WIDTH, kv), ("attn_output", WIDTH, WIDTH),
                                ("ffn_gate", WIDTH, FF), ("ffn_up", WIDTH, FF), ("ffn_down", FF, WIDTH)):
        tensors[f"blk.0.{name}.weight"] = (columns, rows, bytes(4 * columns * rows))

    def text(s):
        return struct.pack("<Q", len(s.encode())) + s.encode()

    keys = [text(k) + struct.pack("<I", 8) + text(v) for k, v in (("general.architecture", "llama"), ("general.name", "a parrot"),
                                                                 ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm"))]
    keys += [text(k) + struct.pack("<II", 4, v) for k, v in (
        ("llama.block_count", 1), ("llama.context_length", 4096), ("llama.embedding_length", WIDTH), ("llama.feed_forward_length", FF),
        ("llama.attention.head_count", HEADS), ("llama.attention.head_count_kv", 1), ("tokenizer.ggml.eos_token_id", CONTROLS.index("</s>")))]
    keys.append(text("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5))
    keys.append(text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, len(tokens)) + b"".join(map(text, tokens)))
    keys.append(text("tokenizer.ggml.token_type") + struct.pack("<IIQ", 9, 5, len(tokens)) +
                b"".join(struct.pack("<i", 3 if t in CONTROLS else 1) for t in tokens))
    keys.append(text("tokenizer.ggml.merges") + struct.pack("<IIQ", 9, 8, 0))
    out, at, data = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys), 0, b""
    for name, (columns, rows, values) in tensors.items():
        sides = (columns, rows) if rows else (columns,)
        out += text(name) + struct.pack(f"<I{len(sides)}QIQ", len(sides), *sides, 0, at)
        data += values + bytes(-len(values) % 32)
        at = len(data)
    with open(path, "wb") as file:
        file.write(out + bytes(-len(out) % 32) + data)
    return first, whole


def says(wire, name, session=None, method="session.turn", **options):
    session = session or wire.ok("session.open", {"system": "x", "tools": [TOOL], **options.pop("open", {})})["sess"]
    given = options.pop("given", {"messages": [{"role": "user", "content": "go"}]})
    return session, wire.call(method, {**given, "bias": [[FIRST[name], 100.0]], **options}, sess=session)


def calls_of(reply):
    calls = reply.end.get("next") or []
    assert all(c["name"] == "look" for c in calls) and len({c["id"] for c in calls}) == len(calls), calls
    return [json.loads(c["arguments"])["at"] for c in calls]


def finds(wire, cases):
    for name, shown, at in cases:
        session, reply = says(wire, name)
        assert (reply.status, calls_of(reply), reply.text) == ("tool_wait", at, shown), (name, reply.text, reply.end)
        assert "r" not in reply.end and wire.ok("session.show", sess=session)["r"]["state"] == "tool_wait", reply.end
        results = {"results": [{"tool_call_id": c["id"], "content": f"seen {i}"} for i, c in enumerate(reply.end["next"])]}
        _, after = says(wire, "done", session, "session.continue", given=results)
        assert (after.status, after.text, after.usage["recomputed"]) == ("stop", "Done.", 0), after.end
        wire.ok("session.close", sess=session)
    balanced(wire)


def found(wire):
    finds(wire, [("two", "Both. ", ["a", "b"]), ("three", "", ["x", "y", "z"]), ("bare", "", ["bare"]), ("fence", "", ["f"]),
                 ("behind", "<tool_call>no", ["c"]), ("open", "", ["o"]), ("halves", "A\u00e9 \U0001f642", ["\u00e9"]),
                 ("counted calls", "".join(COUNTED) + "Both. ", ["a", "b"])])


def broken(wire):
    for name, why in [("comma", True), ("no arguments", True), ("cut off", True), ("a list", True), ("talk", False), ("more", False),
                      ("a part", False)]:
        session, reply = says(wire, name)
        assert (reply.status, calls_of(reply), reply.text) == ("stop", [], WHOLE[name]), (name, reply.text, reply.end)
        assert bool((reply.end.get("r") or {}).get("no_call")) == why, (name, reply.end)
        assert wire.ok("session.show", sess=session)["r"]["state"] != "tool_wait"
        _, after = says(wire, "done", session)
        assert (after.status, after.text) == ("stop", "Done."), after.end
        wire.ok("session.close", sess=session)
    balanced(wire)


def limited(wire):
    """However early the turn is ended, a call is there whole or not at all, and no text is lost or shown twice."""
    for name in ("two", "bare", "halves"):
        ids = len(TEXTS[name])
        for most in range(1, ids + 1, 3 if ar1.SLOW > 1 else 1):
            session, reply = says(wire, name, max_tokens=most)
            data = b"".join(p if isinstance(p, bytes) else p.encode() for p in TEXTS[name][:most])
            whole = data.decode(errors="replace")
            at = calls_of(reply)
            assert reply.status == ("tool_wait" if at else "limit"), (name, most, reply.end)
            if at:
                assert at == ["a", "b"][:len(at)] or most == ids, (name, most, at)
                assert whole.startswith(reply.text) and "tool_call" not in reply.text, (name, most, reply.text)
            else:
                assert reply.text == whole, (name, most, reply.text, whole)
            wire.ok("session.close", sess=session)
    balanced(wire)


def not_offered(wire):
    """Without tools nobody looks: the text is text."""
    for more in ({"open": {"tools": []}}, {"tool_choice": "none"}):
        session, reply = says(wire, "two", **more)
        assert (reply.status, reply.text) == ("stop", WHOLE["two"]) and not reply.end.get("next") and "r" not in reply.end, reply.end
        wire.ok("session.close", sess=session)


def stops(wire):
    """A stop string may begin and end anywhere in tokens, and be over many; what is only its beginning is sent in the end."""
    whole = WHOLE["stop"]
    assert whole == "Hello world. Go on and on"
    cases = [[whole[i:k]] for i in range(len(whole)) for k in (i + 1, i + 4, i + 9, i + 16) if k <= len(whole)]
    for stop in cases[::8 if ar1.SLOW > 1 else 1] + [["ld. Goose"], ["on!", " and o"]]:
        session, reply = says(wire, "stop", stop=stop)
        at = min([whole.index(s) for s in stop if s in whole] or [len(whole)])
        assert (reply.status, reply.text) == ("stop", whole[:at]), (stop, reply.text, reply.end)
        wire.ok("session.close", sess=session)
    streamed = 0
    for stop in ("llo", "lo world. Go o", "9 Hel", "on and on!", "o w", "lo wor", "orld", "ld. Goose")[:4 if ar1.SLOW > 1 else 8]:
        session, reply = says(wire, "counted stop", stop=[stop])
        assert (reply.status, reply.text) == ("stop", WHOLE["counted stop"].split(stop)[0]), (stop, reply.text, reply.end)
        streamed += reply.seq > 2  # two DATA and more, before END
        wire.ok("session.close", sess=session)
    assert streamed > 0
    session, reply = says(wire, "two", stop=["\"at\": \"b\""])  # in the second call: the first is there
    assert (reply.status, calls_of(reply), reply.text) == ("tool_wait", ["a"], "Both. "), reply.end
    session, reply = says(wire, "two", stop=["\"at\": \"a\""])
    assert (reply.status, calls_of(reply)) == ("stop", []) and reply.text == WHOLE["two"].split("\"at\"")[0], (reply.text, reply.end)
    balanced(wire)


def results_of_some(wire):
    """Each call of a turn has its result, once: fewer, more, one twice, or one of no call is refused with the numbers and changes nothing; in a
    fork, in another process, and in another daemon too."""
    def goes_on(at, session, given):
        return says(at, "done", session, "session.continue", given={"results": [{"tool_call_id": i, "content": "x"} for i in given]})[1]

    def refused(at, session):
        for given in (ids[:1], ids + ["more"], ids[:1] * 2, ids + ids[:1], [ids[0], "more"], [ids[1], "x"], [ids[0], ids[1] + "0"]):
            end = goes_on(at, session, given).end
            assert end["status"] == "error" and end["err"]["n"] == "bad_arg" and "result" in end["err"]["why"], end
            assert (end["err"]["asked"], end["err"]["limit"]) == (len(given), 2), end
            assert at.ok("session.show", sess=session)["r"]["state"] == "tool_wait"

    own = daemon_rig.begin(None, "--template", "smollm2", "--kv-memory", "1M", model=PATH)
    try:
        first = Wire(own.endpoint)
        session, reply = says(first, "two")
        ids = [c["id"] for c in reply.end["next"]]
        refused(first, session)
        refused(first, first.ok("session.fork", sess=session)["sess"])
        before = first.ok("session.fork", {"to_turn": 0}, sess=session)["sess"]
        assert goes_on(first, before, ids).end["err"]["n"] == "turn_conflict", "nothing is waited for there"
        daemon_rig.kill(own)
        own = daemon_rig.begin(own.home, "--template", "smollm2", "--kv-memory", "1M", model=PATH)
        again = Wire(own.endpoint)
        refused(again, session)
        exported = again.call("session.export", sess=session)
        moved = wire.ok("session.import", exported.end["r"], exported.blob)["sess"]
        refused(wire, moved)
        for at, there in ((again, session), (wire, moved)):
            after = goes_on(at, there, ids[::-1])
            assert (after.status, after.text) == ("stop", "Done."), after.end
            assert goes_on(at, there, ids).end["err"]["n"] == "turn_conflict"
        wire.ok("session.close", sess=moved)
        first.close()
        again.close()
    finally:
        assert own.stop() == 0
    balanced(wire)


def lists(_):
    """Mistral's mark is a token of its own that is no text elsewhere."""
    own = Daemon(PATH, "--template", "mistral", "--kv-memory", "1M")
    wire = Wire(own.endpoint)
    finds(wire, [("list", "Well. ", ["l", "m"])])
    _, reply = says(wire, "list", max_tokens=4)
    assert (reply.status, calls_of(reply), reply.text) == ("tool_wait", ["l"], "Well. "), (reply.text, reply.end)
    # A template that this vocabulary lacks a mark of is taken, and it is said.
    assert "no control token <s>, which the template mistral writes" in own.words(), own.words()
    wire.close()
    assert own.stop() == 0


def unknown(_):
    """A file with a template that nobody knows: raw tokens and their text are served, messages are refused."""
    own = Daemon(PATH, "--kv-memory", "1M")
    wire = Wire(own.endpoint)
    assert "--template" in own.words() and "raw tokens" in own.words(), own.words()
    why = "this daemon has no template: name none (raw tokens), or leave it away; --template names one at its start"
    for method, arguments in ("session.open", {}), ("session.import", {"course": bytes(24), "turn": 0, "waits": False}):
        end = wire.call(method, {"template": "smollm2", **arguments}, *([bytes(8)] if arguments else [])).end
        assert (end["err"]["n"], end["err"].get("why")) == ("bad_arg", why), (method, end)
    end = wire.call("session.open", {"system": "Be brief."}).end
    assert end["err"]["why"] == "without a template there is neither a system prompt nor a tool", end
    session = wire.open()
    reply = wire.turn(session, wire.tokenize("go"), bias=[[FIRST["stop"], 100.0]])
    assert (reply.status, reply.text) == ("stop", WHOLE["stop"]), reply.end
    try:
        end = wire.call("session.turn", {"messages": [{"role": "user", "content": "x"}]}, sess=session).end
    except ar1.Refused as refused:
        end = {"status": "error", "err": refused.args[0]}
    assert (end["status"], end["err"]["why"]) == ("error", "without a template there are no messages: send tokens"), end
    wire.close()
    assert own.stop() == 0


def named(wire):
    """A template that nobody knows is refused with those that are known; what a template cannot write with the reason."""
    names = "smollm2, chatml, qwen2, qwen2.5, qwen3, llama-3, llama-3.1, mistral, gemma"
    own = Daemon(PATH, "--template", "smolm2", wait=False)
    assert own.process.wait(20 * ar1.SLOW) == 1
    assert f"there is no chat template of that name (--template); known: {names}\n" in own.words(), own.words()
    own.stop()
    for name in ("smollm", "qwen2.5", "x" * 64):
        end = wire.call("session.open", {"template": name}).end
        assert (end["err"]["n"], end["err"].get("why")) == (
            "bad_arg", "this daemon's template is smollm2: name that one, none (raw tokens), or leave it away"), end
    session, deep = wire.open(template="smollm2"), "{\"a\": " + "[" * 64 + "]" * 64 + "}"
    for arguments in ("[1]", "{", "3", "{\"a\": nothing}", deep):
        messages = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [{"id": "1", "name": "look", "arguments": arguments}]}]
        end = wire.call("session.turn", {"messages": messages}, sess=session).end
        assert (end["err"]["n"], end["err"].get("why")) == (
            "bad_arg", "a call's arguments are no JSON object, or nested deeper than 64"), (arguments, end)
    wire.ok("session.close", sess=session)
    balanced(wire)


PATH = os.path.join(daemon_rig.FOLDER, "parrot.gguf")
FIRST, WHOLE = make(PATH)
daemon = Daemon(PATH, "--template", "smollm2", "--kv-memory", "1M", "--strikes", "0")
wire = Wire(daemon.endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("calls are found, also side by side, bare, and across tokens", found),
    ("what only looks like a call is text, whole, with a reason", broken),
    ("a call is there whole or not at all, wherever a turn ends", limited),
    ("where no tools are offered text is text", not_offered),
    ("stop strings over tokens", stops),
    ("each call has one result", results_of_some),
    ("Mistral's list behind its mark", lists),
    ("without a known template", unknown),
    ("templates that nobody knows, and what one cannot write", named)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
