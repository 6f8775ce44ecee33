#!/usr/bin/env python3
"""Time to the first token of a session that begins as another one does, with shared pages and without.

usage: share.py MODEL [--build DIR] [--system 2000] [--own 40] [--sessions 5] [--json]

Opens one session with a system prompt of so many tokens and takes a token of it, then others with the same system
prompt and words of their own. The same on a daemon with --share no. Prints medians, and the tokens that were computed.
"""
import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build")
parser.add_argument("--system", type=int, default=2000), parser.add_argument("--own", type=int, default=40)
parser.add_argument("--sessions", type=int, default=5), parser.add_argument("--json", action="store_true")
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ar1  # noqa: E402

rng = random.Random(3)
system = [rng.randrange(100, 40000) for _ in range(args.system)]
own = [[rng.randrange(100, 40000) for _ in range(args.own)] for _ in range(args.sessions + 1)]
result = {}
for share in ("no", "yes"):
    daemon = ar1.Daemon(args.model, "--share", share, "--threads", "2")
    try:
        wire = ar1.Wire(daemon.endpoint)
        times, computed, ids = [], [], []
        for words in own:
            session = wire.open()
            start = time.time()
            reply = wire.turn(session, system + words, max_tokens=4, ignore_end=True)
            times.append(reply.first - start)
            computed.append(reply.usage["new"])
            ids.append(reply.ids)
        result[share] = {"first_ms": round(times[0] * 1000, 1), "others_ms": round(statistics.median(times[1:]) * 1000, 1),
                         "computed": computed[1], "ids": [list(i) for i in ids]}
    finally:
        daemon.stop()
assert result["no"].pop("ids") == result["yes"].pop("ids"), "an answer differs"
if args.json:
    print(json.dumps(result))
else:
    for share, r in result.items():
        print(f"--share {share}: first token of the first session after {r['first_ms']} ms, of the others after "
              f"{r['others_ms']} ms, with {r['computed']} tokens computed")
