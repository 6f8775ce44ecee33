#!/usr/bin/env python3
"""What a resident session is worth: time to first token of a turn with 300 new tokens on 6,000 resident
ones, against the same tokens computed from nothing, and against the operations of those rows alone, as
`holdfastd bench` times them. Also: start-up time.

usage: resume.py MODEL [--build DIR] [--rounds 3] [--resident 6000] [--new 300]

Speaks to a daemon of its own through tests/ar1.py. Best of the rounds on each side.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build")
parser.add_argument("--rounds", type=int, default=3)
parser.add_argument("--resident", type=int, default=6000), parser.add_argument("--new", type=int, default=300)
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ar1  # noqa: E402

KV = 512 << 20


def first_token(wire, session, ids):
    start = time.time()
    reply = wire.finish(wire.begin("session.turn", {"tokens": True, "max_tokens": 2, "ignore_end": True}, ar1.pack(ids),
                                   sess=session), timeout=600)
    return reply.first - start, reply


with open(args.model, "rb") as file:  # a warm file cache
    while file.read(1 << 24):
        pass
start = time.time()
daemon = ar1.Daemon(args.model, "--kv-memory", str(KV), "--threads", "2",
                    "--share", "no")  # or what is computed from nothing would be found
serving_s = time.time() - start
wire = ar1.Wire(daemon.endpoint)
rng = random.Random(1)
best_resident = best_nothing = 1e9
for _ in range(args.rounds):
    base = [rng.randrange(100, 40000) for _ in range(args.resident)]
    new = [rng.randrange(100, 40000) for _ in range(args.new)]
    session, fresh = wire.open(), wire.open()
    first_token(wire, session, base)
    history = wire.ok("session.show", sess=session)["r"]["history"]
    wire.ok("session.rollback", {"to_tokens": args.resident}, sess=session)
    seconds, reply = first_token(wire, session, new)
    assert reply.usage["resident"] == args.resident, reply.usage
    best_resident = min(best_resident, seconds)
    seconds, again = first_token(wire, fresh, base + new)
    assert again.ids == reply.ids, "resident and recomputed differ"
    best_nothing = min(best_nothing, seconds)
    for s in (session, fresh):
        wire.ok("session.close", sess=s)
daemon.stop()
alone = {}
if (args.resident, args.new) == (6000, 300):  # the figure that bench has
    run = subprocess.run([f"{args.build}/holdfastd", "bench", args.model, "--threads", "2", "--only", "turn_300_c6000", "--json",
                          "--seconds", "6"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows_s = args.new / json.loads(run.stdout)["turn_300_c6000"]
    alone = {"rows_alone_ms": round(rows_s * 1e3, 1), "of_rows_alone": round(best_resident / rows_s, 3)}
print(json.dumps({"resident_tokens": args.resident, "new_tokens": args.new, "first_token_resident_ms": round(best_resident * 1e3, 1),
                  "first_token_from_nothing_ms": round(best_nothing * 1e3, 1), "ratio": round(best_nothing / best_resident, 2),
                  "serving_after_s": round(serving_s, 2), **alone}))
