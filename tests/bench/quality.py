#!/usr/bin/env python3
"""Perplexity and divergence over a whole text, against the figures of an independent float32 forward pass.

usage: quality.py MODEL TEXT [--build DIR] [--threads N]

With the default model and the reference text (windows of 1,024, 19 of them): perplexity with f32 KV and
activations within 0.3 % of 4.7628, the default path within 1 %; divergence of fp8 and int8 from f32 on
the same path at most 1.3 times the reference's, near and far. Exit code 1 if one is beyond its bound.
Takes some minutes.
"""
import argparse
import json
import subprocess
import sys

PERPLEXITY = 4.7628
DIVERGENCE = {("fp8", 0): 8.2e-3, ("fp8", 7000): 15.3e-3, ("int8", 0): 0.82e-3, ("int8", 7000): 0.64e-3}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("text")
parser.add_argument("--build", default="build"), parser.add_argument("--threads", default="2")
args = parser.parse_args()
failed = False


def run(*options):
    p = subprocess.run([f"{args.build}/holdfastd", "perplexity", args.model, "--text", args.text, "--window", "1024", "--threads",
                        args.threads, "--json", *options], stdout=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"perplexity failed with {p.returncode}")
    return json.loads(p.stdout)


def line(what, found, bound, good):
    global failed
    failed |= not good
    print(f"{what:48} {found:12} {bound:24} {'' if good else 'BEYOND'}", flush=True)


for what, share, options in (("perplexity, f32 KV and activations", 0.003, ("--kv", "f32", "--act", "f32")),
                             ("perplexity, default path", 0.01, ())):
    found = run(*options)["perplexity"]
    line(what, f"{found:.4f}", f"{PERPLEXITY} within {100 * share:.1f} %", abs(found / PERPLEXITY - 1) <= share)
for (kv, shift), reference in DIVERGENCE.items():
    found = run("--kv", kv, "--against", "f32", "--windows", "2", "--shift", str(shift))["kl_mean"]
    line(f"divergence of {kv} from f32, windows from {shift}", f"{1e3 * found:.2f} e-3", f"{1e3 * reference:.2f} e-3 x 1.3",
         found <= 1.3 * reference)
sys.exit(failed)
