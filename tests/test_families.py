"""Tiny random models of every architecture against an independent forward pass.

Goal: that each architecture is computed as it is defined: biases, norms of q and k, norms after, windows in all
layers or in some, two bases of RoPE, factors of its frequencies, softcaps, GELU, heads of 16 to 256, tied heads and
others. tests/data/logits-tiny.json is what reference.py found for the same files.
"""
import functools
import hashlib
import json
import os
import subprocess
import sys
import tempfile

import reported

BUILD, SOURCE = os.environ["BUILDDIR"], os.environ["SRCDIR"]
TOLERANCE = 0.0005
# What the CPU says that it has; elsewhere the file is not there, and AVX2 neither.
CPU = set(open("/proc/cpuinfo").read().split()) if os.path.isfile("/proc/cpuinfo") else set()
report = functools.partial(reported.report, always=True)


def logits(model, case, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"name": "", "tokens": case["tokens"], "generate": len(case["greedy"])}], file)
        file.flush()
        done = subprocess.run([os.path.join(BUILD, "holdfastd"), "logits", model, "--tokens", file.name, *options],
                              stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)[0]


def compare(case, found, what):
    worst = 0.0
    for at, want in zip(case["at"], case["top"]):
        got = dict(map(tuple, found["rows"][at]["top"]))
        worst = max([worst] + [abs(got.get(token, -1e9) - value) for token, value in want])
    good = worst < TOLERANCE and abs(found["logprob"] - case["logprob"]) < 0.01 and found["greedy"] == case["greedy"]
    report(good, what, f"largest difference of a logit {worst:.6f}, log-probability {found['logprob']} for {case['logprob']}")


def main():
    with open(os.path.join(SOURCE, "tests", "data", "logits-tiny.json"), encoding="utf-8") as file:
        cases = json.load(file)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            model = os.path.join(folder, case["family"] + ".gguf")
            subprocess.run([os.path.join(BUILD, "tests", "make_tiny"), model, str(case["seed"]), case["family"]], check=True)
            with open(model, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            report(digest == case["sha256"], f"{case['family']}: the file is the one that the figures are of")
            plan = ("--kv", "f32", "--act", "f32")
            compare(case, logits(model, case, *plan, "--isa", "scalar"), f"{case['family']}, scalar path")
            compare(case, logits(model, case, *plan, "--chunk", "37"), f"{case['family']}, fastest path")
            if not {"avx2", "avx512f"} <= CPU:
                report(True, f"{case['family']}, AVX2 # SKIP not here, or it is the fastest path")
            else:
                compare(case, logits(model, case, *plan, "--chunk", "37", "--isa", "avx2"), f"{case['family']}, AVX2")
    return reported.done()


sys.exit(main())
