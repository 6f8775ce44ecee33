#!/usr/bin/env python3
"""What a busy neighbour on one core costs: rows one by one and in chunks, alone and beside a process that spins.

usage: hog.py MODEL [--build DIR] [--threads 2] [--rounds 3]

The time is that of a fixed piece of work, `holdfastd perplexity` over this repository's README, less that of a
shorter one, so that loading does not count; the best of some rounds. Not the best of short slices, as `holdfastd
bench` has it: in the best slice the neighbour sleeps. With n threads on n cores the neighbour takes half of one
core, so (n - 0.5) / n is what an even division leaves; a collapse would show as far less. Only figures of a
machine that has nothing else to do mean something.
"""
import argparse
import multiprocessing
import os
import pathlib
import subprocess
import time

TEXT = pathlib.Path(__file__).resolve().parents[2] / "README.md"
WORK = {"rows one by one": ("1", "128", 1, 9), "in chunks of 8": ("8", "256", 1, 9), "in chunks of 512": ("512", "512", 1, 9)}


def hog():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    while True:
        pass


def seconds(args, chunk, window, windows):
    best = 1e9
    for _ in range(args.rounds):
        start = time.monotonic()
        subprocess.run([f"{args.build}/holdfastd", "perplexity", args.model, "--text", TEXT, "--threads", args.threads,
                        "--chunk", chunk, "--window", window, "--windows", str(windows)],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        best = min(best, time.monotonic() - start)
    return best


def rate(args, chunk, window, few, many):
    return (many - few) * int(window) / (seconds(args, chunk, window, many) - seconds(args, chunk, window, few))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--build", default="build")
    parser.add_argument("--threads", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    threads = int(args.threads)
    print(f"{'rows a second':18} {'alone':>9} {'beside':>9} {'share':>7}   (even: {(threads - 0.5) / threads:.2f})")
    for name, work in WORK.items():
        alone = rate(args, *work)
        neighbour = multiprocessing.Process(target=hog, daemon=True)
        neighbour.start()
        try:
            beside = rate(args, *work)
        finally:
            neighbour.kill()
            neighbour.join()
        print(f"{name:18} {alone:9.1f} {beside:9.1f} {beside / alone:7.2f}", flush=True)


if __name__ == "__main__":
    main()
