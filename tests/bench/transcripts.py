#!/usr/bin/env python3
"""Real transcripts of agents, played by many sessions at once on a slab that holds a part of their contexts.

usage: transcripts.py MODEL FOLDER [--build DIR] [--sessions 32] [--context 2048] [--times 3] [--answer 24]
                      [--policies cost,lru,cost+disk] [--pace 1] [--seed 1]

FOLDER has *.json files: {"messages": [...], "turns": [{"completion_tokens", "tool_ms"}, ...]}. A session begins with the
system and user messages of its transcript; each turn samples an answer as long as the transcript's was (--answer tokens
at most), pauses as long as its tool ran, and goes on with its tool's output, until --context is full. The slab holds
1 / --times of all contexts. First each session is played alone; then all of them at once under each policy: every token
must be the same. `cost+disk` and `cost+host` have room below the device for all of it.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--build", default="build"), parser.add_argument("--sessions", type=int, default=32)
parser.add_argument("--context", type=int, default=2048), parser.add_argument("--times", type=float, default=3)
parser.add_argument("--answer", type=int, default=24), parser.add_argument("--pace", type=float, default=1)
parser.add_argument("--policies", default="cost,lru,cost+disk"), parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--turn", type=int, default=0, help="tokens of one message at most; 0: a quarter of the context")
parser.add_argument("--alone", type=int, default=0, help="sessions that are also played alone; 0: all")
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parent)]
import ar1  # noqa: E402
from players import side_by_side  # noqa: E402

ASK = {"tokens": True, "logprobs": 1, "ignore_end": True, "temperature": 0.7}
MESSAGE_MAX = args.turn or args.context // 4


class Player:
    """What one session says, turn by turn, whatever it is answered."""

    def __init__(self, index, transcript, tokenize):
        self.index, self.turns, history = index, [], 0
        messages, said, at = transcript["messages"], [], 0
        # Two that play one transcript are not one: each is told who it is.
        text = f"<|im_start|>system\nYou are agent {index}. "
        for message in messages:
            if message["role"] == "assistant":
                given = tokenize(text + "<|im_start|>assistant\n")[-MESSAGE_MAX:]
                turn = transcript["turns"][at] if at < len(transcript["turns"]) else {}
                at += 1
                sample = max(1, min(args.answer, turn.get("completion_tokens", args.answer)))
                if history + len(given) + sample >= args.context:
                    break
                self.turns.append((given, sample, turn.get("tool_ms", 0) / 1000 * args.pace))
                history += len(given) + sample
                text = "<|im_end|>\n"
            else:
                role = "user" if message["role"] == "tool" else message["role"]
                text += ("" if role == "system" else f"<|im_start|>{role}\n") + str(message.get("content") or "") + "<|im_end|>\n"
        self.tokens = history
        self.restart()

    def restart(self):
        self.at, self.ready, self.busy, self.said, self.usage, self.first = 0, 0, False, [], [], []


def jobs(players, sessions):
    """What is ready, whoever has waited longest first; None: nobody is."""
    while any(p.at < len(p.turns) or p.busy for p in players):
        ready = [p for p in players if not p.busy and p.at < len(p.turns) and p.ready <= time.time()]
        if not ready:
            yield None
            continue
        p = min(ready, key=lambda p: p.ready)
        given, sample, _ = p.turns[p.at]
        p.busy = True
        yield (p.index, "session.turn", {**ASK, "max_tokens": sample, "seed": args.seed + p.index}, ar1.pack(given),
               {"sess": sessions[p.index]})


def play(wire, players, width):
    sessions = {p.index: wire.open() for p in players}
    of = {p.index: p for p in players}
    errors = 0
    for index, played in side_by_side(wire, jobs(players, sessions), width):
        p = of[index]
        errors += played.end["status"] != "limit"
        if played.end["status"] != "limit":
            print(f"# session {index}, turn {p.at}: {played.end}", flush=True)
        p.said.append(played.ids)
        p.usage.append(played.end.get("usage") or {})
        p.first.append((played.first or time.time()) - played.began)
        p.ready, p.busy = time.time() + p.turns[p.at][2], False
        p.at += 1
    lost = 0
    for p in players:
        shown = wire.call("session.show", sess=sessions[p.index]).end
        lost += shown["status"] != "ok" or shown["r"]["history"] != p.tokens
        wire.ok("session.close", sess=sessions[p.index])
    return errors, lost


def start(*options):
    return ar1.Daemon(args.model, "--context", str(args.context), "--sessions", str(args.sessions + 8),
                      "--share", "no", *options)  # some play one text: they are to be contexts of their own


def quantile(values, q):
    values = sorted(values)
    return values[min(len(values) - 1, int(q * len(values)))] if values else 0


files = sorted(args.folder.glob("*.json"))
assert files, "there is no transcript"
probe = start("--kv-memory", "64M")
wire = ar1.Wire(probe.endpoint)
texts = [json.loads(f.read_text()) for f in files]
texts = [t for t in texts if isinstance(t, dict) and "messages" in t]
players = [Player(i, texts[i % len(texts)], lambda text: wire.tokenize(text, special=True)) for i in range(args.sessions)]
metrics = wire.ok("metrics")["r"]["text"]
page_bytes = next(int(line.split()[1]) for line in metrics.splitlines() if line.startswith("holdfast_page_bytes "))
wire.close()
probe.stop()
total = sum(-(-p.tokens // 16) * page_bytes for p in players)
slab = max(int(total / args.times), -(-args.context // 16) * page_bytes)
print(f"# {len(players)} sessions of {len(texts)} transcripts, {sum(len(p.turns) for p in players)} turns, "
      f"{sum(p.tokens for p in players)} tokens in all; slab of {slab >> 20} MiB for {total >> 20} MiB", flush=True)

daemon = start("--kv-memory", str(slab))
wire = ar1.Wire(daemon.endpoint)
began, right, alone = time.time(), {}, players[:args.alone or len(players)]
for p in alone:
    pace, p.turns = p.turns, [(given, sample, 0) for given, sample, _ in p.turns]
    errors, lost = play(wire, [p], 1)
    assert errors == lost == 0
    right[p.index] = p.said
    p.turns = pace
daemon.stop()
print(f"# alone: {time.time() - began:.0f} s", flush=True)

failed, result = 0, {"sessions": len(players), "context": args.context, "slab_bytes": slab, "wanted_bytes": total}
for policy in args.policies.split(","):
    name, _, below = policy.partition("+")
    more = {"disk": ["--disk-bytes", str(2 * total)], "host": ["--host-memory", str(2 * total)], "": []}[below]
    daemon = start("--kv-memory", str(slab), "--policy", name, *more)
    wire = ar1.Wire(daemon.endpoint)
    for p in players:
        p.restart()
    began = time.time()
    errors, lost = play(wire, players, len(players))
    seconds = time.time() - began
    code = daemon.stop()
    usage = [u for p in players for u in p.usage[1:]]
    count = {k: sum(u.get(k, 0) for u in usage) for k in ("resident", "reloaded", "recomputed", "new")}
    kept = count["resident"] + count["reloaded"] + count["recomputed"]
    wrong = sum(a != b for p in alone for a, b in zip(p.said, right[p.index]))
    wait = [f for p in players for f in p.first[1:]]
    result[policy] = {"seconds": round(seconds, 1), "errors": errors, "sessions_lost": lost, "turns_wrong": wrong,
                      "exit": code, **{f"tokens_{k}": v for k, v in count.items()},
                      "recomputed_percent": round(100 * count["recomputed"] / max(1, kept), 2),
                      "ttft_p50_s": round(quantile(wait, .5), 3), "ttft_p99_s": round(quantile(wait, .99), 3)}
    failed += errors + lost + wrong + code
    print(f"# {policy}: {result[policy]}", flush=True)
print(json.dumps(result))
sys.exit(1 if failed else 0)
