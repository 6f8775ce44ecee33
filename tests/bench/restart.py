#!/usr/bin/env python3
"""What a restart costs with many sessions on the disk tier: time until it serves, and what each session's next turn
computes.

usage: restart.py MODEL [--build DIR] [--sessions 1000] [--heads 20] [--tokens 4000] [--new 30] [--kill]

Sessions are forked from a few long heads and have a turn of their own. The daemon stops in order, which writes all that
rests to the disk (--kill: they are parked there, and it is killed with SIGKILL). Then it is started again, and each
session has one more turn; of a sample the answer is compared with the one that a twin gave before the restart.
"""
import argparse
import json
import os
import pathlib
import random
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build")
parser.add_argument("--sessions", type=int, default=1000), parser.add_argument("--heads", type=int, default=20)
parser.add_argument("--tokens", type=int, default=4000), parser.add_argument("--new", type=int, default=30)
parser.add_argument("--kill", action="store_true"), parser.add_argument("--kv-memory", default="1G")
parser.add_argument("--disk-bytes", default="10G"), parser.add_argument("--folder", default=None)
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here), str(here.parent)]
import ar1  # noqa: E402
from players import side_by_side  # noqa: E402

rng = random.Random(1)
OPTIONS = ("--kv-memory", args.kv_memory, "--disk-bytes", args.disk_bytes, "--sessions", str(args.sessions + args.heads + 64),
           "--stop-ms", "300000", "--share", "no")
SAMPLE = 20


def words(count):
    return [rng.randrange(100, 40000) for _ in range(count)]


def turns(sessions, ids, most=2):
    """One turn of each, side by side. Returns the ends and the answers, in the order of the sessions."""
    ask = {"tokens": True, "max_tokens": most, "ignore_end": True}
    jobs = ((i, "session.turn", ask, ar1.pack(ids[i]), {"sess": s}) for i, s in enumerate(sessions))
    played = dict(side_by_side(wire, jobs))
    for i in range(len(sessions)):
        assert played[i].end["status"] == "limit", played[i].end
    return [played[i] for i in range(len(sessions))]


def opened(jobs):
    played = dict(side_by_side(wire, ((i, *job) for i, job in enumerate(jobs))))
    return [played[i].end["sess"] for i in range(len(played))]


began = time.time()
daemon = ar1.Daemon(args.model, *OPTIONS, home=args.folder)
wire = ar1.Wire(daemon.endpoint)
heads = [wire.open() for _ in range(args.heads)]
turns(heads, [words(args.tokens - args.new) for _ in heads], most=1)
sessions = opened([("session.fork", {}, None, {"sess": heads[i % args.heads]}) for i in range(args.sessions)])
turns(sessions, [words(args.new) for _ in sessions])
print(f"# {len(sessions)} sessions in {time.time() - began:.0f} s", flush=True)
asked = [words(args.new) for _ in sessions]
sample = rng.sample(range(len(sessions)), min(SAMPLE, len(sessions)))
twins = opened([("session.fork", {}, None, {"sess": sessions[i]}) for i in sample])
right = dict(zip(sample, turns(twins, [asked[i] for i in sample])))
for twin in twins:
    wire.ok("session.close", sess=twin)
if args.kill:
    for s in sessions + heads:
        wire.ok("session.park", {"place": "disk"}, sess=s)
    while wire.ok("ledger.show")["r"]["accounts"]["disk"]["moving"]:
        time.sleep(0.05)
    time.sleep(1)
stopping = time.time()
wire.close()
if args.kill:
    daemon.process.kill()
    daemon.process.wait()
else:
    assert daemon.stop(keep=True, timeout=300) == 0, daemon.words()[-500:]
stop_s = time.time() - stopping
os.rename(f"{daemon.home}/log", f"{daemon.home}/log.0")
with open(args.model, "rb") as file:  # a warm file cache
    while file.read(1 << 24):
        pass
started = time.time()
daemon = ar1.Daemon(args.model, *OPTIONS, home=daemon.home)
wire = ar1.Wire(daemon.endpoint)
wire.ok("health")
serving_s = time.time() - started
print("# " + daemon.words().replace("\n", "\n# ").rstrip("# "), flush=True)
disk = wire.ok("ledger.show")["r"]["accounts"]["disk"]
one = time.time()
first = wire.finish(wire.begin("session.turn", {"tokens": True, "max_tokens": 2, "ignore_end": True}, ar1.pack(asked[0]),
                               sess=sessions[0]))
first_ms = (first.first - one) * 1e3
began = time.time()
played = [None] + turns(sessions[1:], asked[1:])
turns_s = time.time() - began
usage = [first.end["usage"]] + [p.end["usage"] for p in played[1:]]
count = {key: sum(u[key] for u in usage) for key in ("prompt", "resident", "reloaded", "recomputed", "new")}
wrong = sum(list(right[i].ids) != list(first.ids if i == 0 else played[i].ids) for i in sample)
only_new = sum(u["recomputed"] == 0 and u["new"] == args.new + 1 for u in usage)
daemon.stop()
print(json.dumps({"sessions": len(sessions), "tokens_each": usage[0]["prompt"], "disk_bytes": disk["retained"] + disk["shared"],
                  "stop_s": round(stop_s, 1), "serving_s": round(serving_s, 2), "first_turn_ms": round(first_ms, 1),
                  "turns_s": round(turns_s, 1), "only_new": only_new, **{f"tokens_{k}": v for k, v in count.items()},
                  "sample": len(sample), "wrong": wrong}))
sys.exit(0 if wrong == 0 and only_new == len(sessions) else 1)
