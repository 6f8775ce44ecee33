#!/usr/bin/env python3
"""A daemon's start against what it cannot do without: reading the model's file and packing its weights once.

usage: load.py MODEL [--build DIR] [--rounds 5]

Alternating in one run; the least of each is told, since noise only adds. Exit code 1 if the start takes more than 1.5 times as
long. The start is from the process to "serving": tables of the tokenizer, the index of forms and the audit log are in it.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build"), parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()
bound, start, parts = [], [], None
for _ in range(args.rounds):
    found = json.loads(subprocess.run([f"{args.build}/tests/bench/bench_load", args.model], stdout=subprocess.PIPE, check=True).stdout)
    if not bound or found["read_s"] + found["pack_s"] < min(bound):
        parts = found
    bound.append(found["read_s"] + found["pack_s"])
    with tempfile.TemporaryDirectory() as home:
        socket = pathlib.Path(home, "rpc.sock")
        began = time.monotonic()
        process = subprocess.Popen([f"{args.build}/holdfastd", "--model", args.model, "--listen", f"ipc://{socket}", "--state", f"{home}/state",
                                    "--kv-memory", "64M"], stderr=subprocess.PIPE, text=True)
        for line in process.stderr:
            if "serving" in line:
                start.append(time.monotonic() - began)
                break
        process.terminate()
        process.communicate()
ratio = min(start) / min(bound)
print(f"{parts['bytes'] / 1e6:.0f} MB: read {parts['read_s']:.2f} s, packed {parts['pack_s']:.2f} s; the daemon serves after {min(start):.2f} s: {ratio:.2f} times")
sys.exit(ratio > 1.5)
