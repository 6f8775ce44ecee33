#!/usr/bin/env python3
"""Resident memory under load: every KV page written and as many turns running at once as the daemon lets.

usage: memory.py MODEL [--build DIR] [--kv-memory 256M] [--turns 32] [--new 128] [--idle 0] [--json]

Opens one session for each turn, sized so that together they hold every page, and lets the turns run
together. Reads /proc/PID/status after the start, all along the turns, and when all sessions are closed.
--idle N has N more sessions wait beside them, with a history of a few tokens each.
The bound is what the daemon may hold: weights as they lie in memory, all of the KV memory, 64 MiB for
the rest (workspace, histories, vocabulary, audit log, code). Exit code 1 if the peak is beyond it, or if
fewer than half of the turns ran at once.
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
parser.add_argument("--kv-memory", default="256M"), parser.add_argument("--turns", type=int, default=32)
parser.add_argument("--new", type=int, default=128), parser.add_argument("--idle", type=int, default=0)
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import ar1  # noqa: E402

REST = 64 << 20
NAMES = ["VmRSS", "RssAnon", "RssFile", "VmHWM"]


def status(pid):
    with open(f"/proc/{pid}/status") as file:
        lines = dict(line.split(":", 1) for line in file)
    return {name: int(lines[name].split()[0]) * 1024 for name in NAMES}


def mib(count):
    return round(count / (1 << 20), 1)


daemon = ar1.Daemon(args.model, "--kv-memory", args.kv_memory, "--turns", str(args.turns), "--threads", "2")
try:
    pid = daemon.process.pid
    watcher = ar1.Wire(daemon.endpoint)
    model = watcher.ok("model.show")["r"]
    ledger = watcher.ok("ledger.show")["r"]["accounts"]
    weights, kv = ledger["weights"]["running"], ledger["device"]["free"]
    pages = kv // model["page_bytes"]
    idle = peak = status(pid)

    rng = random.Random(1)
    for _ in range(args.idle):
        watcher.call("session.turn", {"tokens": True, "max_tokens": 1, "ignore_end": True},
                     ar1.pack([rng.randrange(100, 40000) for _ in range(8)]), sess=watcher.open())
    wires = [ar1.Wire(daemon.endpoint) for _ in range(args.turns)]  # each reads its own turn
    sessions = [wire.open() for wire in wires]
    channels = []
    for i, wire in enumerate(wires):
        positions = (pages // args.turns + (i < pages % args.turns)) * model["page_tokens"]
        prompt = [rng.randrange(100, 40000) for _ in range(min(positions, model["context"]) - args.new)]
        channels.append(wire.begin("session.turn", {"tokens": True, "max_tokens": args.new, "ignore_end": True}, ar1.pack(prompt),
                                   sess=sessions[i]))
    at_once, started, pinged = 0, False, time.time()
    while True:
        health = watcher.ok("health")["r"]
        at_once = max(at_once, health["turns_running"])
        peak = max(peak, status(pid), key=lambda s: s["VmRSS"])
        started = started or health["turns_running"] > 0
        if started and not health["turns_running"] and not health["turns_waiting"]:
            break
        if time.time() > pinged + 5:  # the daemon drops who is silent for too long
            pinged = time.time()
            for wire in wires:
                wire.send(ar1.PING, 0, {"t": 1})
        time.sleep(0.05)
    for wire, channel in zip(wires, channels):
        reply = wire.finish(channel)
        assert reply.status == "limit" and len(reply.ids) == args.new, reply.end
    free = watcher.ledger()["free"]
    peak = max(peak, status(pid), key=lambda s: s["VmRSS"])
    for wire, session in zip(wires, sessions):
        wire.ok("session.close", sess=session)
        wire.close()
    closed = status(pid)
finally:
    daemon.stop()
high = closed["VmHWM"]
bound = weights + kv + REST
good = high <= bound and at_once >= args.turns / 2
result = {"weights_mib": mib(weights), "kv_mib": mib(kv), "kv_touched_mib": mib(kv - free), "turns_at_once": at_once,
          "idle_mib": {name: mib(idle[name]) for name in NAMES}, "peak_mib": {name: mib(peak[name]) for name in NAMES},
          "closed_mib": {name: mib(closed[name]) for name in NAMES}, "rest_idle_mib": mib(idle["VmRSS"] - weights),
          "rest_peak_mib": mib(high - weights - (kv - free)), "bound_mib": mib(bound), "within": high <= bound}
if args.json:
    print(json.dumps(result))
else:
    print(f"{'MiB':22}" + "".join(f"{name:>10}" for name in NAMES))
    for name, when in (("idle_mib", "after the start"), ("peak_mib", "peak"), ("closed_mib", "all sessions closed")):
        print(f"{when:22}" + "".join(f"{result[name][n]:10.1f}" for n in NAMES))
    print(f"{at_once} turns at once, {mib(kv - free)} of {mib(kv)} MiB KV pages held, weights {mib(weights)}, beside both "
          f"{result['rest_peak_mib']} at the peak and {result['rest_idle_mib']} after the start")
    print(f"highest {mib(high)} MiB, bound {mib(bound)} = weights + KV + 64{'' if high <= bound else ': BEYOND'}")
sys.exit(not good)
