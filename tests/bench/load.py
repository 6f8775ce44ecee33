#!/usr/bin/env python3
"""A daemon's start against what it cannot do without: reading the model's file and packing its weights once.

usage: load.py MODEL [--build DIR] [--rounds 5]

The bound is bench_load's, which has none of the loading code: a plain read of the file, and the public operation that packs a
tensor, once for each. Both are taken with the file dropped from the cache before and with the file in it, all four in turns in one
run; the least of each is told, since noise only adds. Exit code 1 if a start takes more than 1.5 times as long. The start is from
the process to "serving": tables of the tokenizer, the index of forms and the audit log are in it.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build"), parser.add_argument("--rounds", type=int, default=5)
args = parser.parse_args()


def drop():
    """The file's pages leave the cache: what was not written yet could not, so it is written first."""
    with open(args.model, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def bound():
    done = subprocess.run([f"{args.build}/tests/bench/bench_load", args.model], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def start():
    with tempfile.TemporaryDirectory() as home:
        socket = pathlib.Path(home, "rpc.sock")
        began = time.monotonic()
        process = subprocess.Popen([f"{args.build}/holdfastd", "--model", args.model, "--listen", f"ipc://{socket}",
                                    "--state", f"{home}/state", "--kv-memory", "64M"], stderr=subprocess.PIPE, text=True)
        taken = next((time.monotonic() - began for line in process.stderr if "serving" in line), None)
        process.terminate()
        process.communicate()
        return taken


bounds, starts = {"cold": [], "warm": []}, {"cold": [], "warm": []}
for _ in range(args.rounds):
    for way in ("cold", "warm"):
        for run, out in ((bound, bounds), (start, starts)):
            if way == "cold":
                drop()
            out[way].append(run())
beyond = False
for way in ("cold", "warm"):
    least = min(bounds[way], key=lambda b: b["read_s"] + b["pack_s"])
    whole = least["read_s"] + least["pack_s"]
    ratio = min(starts[way]) / whole
    beyond |= ratio > 1.5
    print(f"{way}: {least['bytes'] / 1e6:.0f} MB read in {least['read_s']:.2f} s, packed in {least['pack_s']:.2f} s; the daemon serves "
          f"after {min(starts[way]):.2f} s: {ratio:.2f} times {whole:.2f} s", flush=True)
sys.exit(beyond)
