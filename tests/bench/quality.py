#!/usr/bin/env python3
"""Perplexity and divergence over a whole text, against the figures of an independent float32 forward pass.

usage: quality.py NAME MODEL TEXT [--build DIR] [--threads N]

NAME is smollm2-135m, qwen2.5-coder-0.5b or gemma3-270m, TEXT the reference text that the figures are of. Perplexity
with f32 KV and activations is held within 0.3 % of the reference's, the default path within 1 % of it, and so with given tokens in
bf16; divergence of each KV kind from f32 on the same path at most 1.3 times the reference's, near and far,
on the reference's windows. Exit code 1 if one is beyond its bound. Takes some minutes.
"""
import argparse
import json
import subprocess
import sys

# Perplexity and its windows; the distance between the starts of the
# divergence's windows; and {(kind, first position): (windows, mean divergence in thousandths)}. kv_precision.py left out
# what it did not measure. Gemma's perplexity is that of the reference's forward pass on the windows that are measured here, a
# start token and 1,023 tokens each, the first ten: 4.92400137. (An older note of it says 5.0043, which no cut of the text into
# windows gives back; window by window the two passes agree.)
MODELS = {
    "smollm2-135m": (4.7628, 19, 9690, {
        ("bf16", 0): (2, 0.03), ("int8", 0): (2, 0.82), ("fp8", 0): (2, 8.2),
        ("bf16", 7000): (2, 0.05), ("int8", 7000): (2, 0.64), ("fp8", 7000): (2, 15.3)}),
    "qwen2.5-coder-0.5b": (3.3961, 8, 8096, {
        ("bf16", 0): (2, 0.10), ("int8", 0): (2, 0.81), ("fp8", 0): (2, 15.9),
        ("bf16", 20000): (1, 0.10), ("int8", 20000): (1, 1.13), ("fp8", 20000): (1, 13.4)}),
    "gemma3-270m": (4.9240, 10, 9599, {
        ("bf16", 0): (2, 0.03), ("int8", 0): (2, 0.41), ("fp8", 0): (2, 13.0),
        ("int8", 20000): (1, 0.46), ("fp8", 20000): (1, 6.5)}),
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("name", choices=MODELS), parser.add_argument("model"), parser.add_argument("text")
parser.add_argument("--build", default="build"), parser.add_argument("--threads", default="2")
args = parser.parse_args()
perplexity, windows, stride, divergence = MODELS[args.name]
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
    print(f"{what:48} {found:12} {bound:30} {'' if good else 'BEYOND'}", flush=True)


print(args.name)
for (kv, shift), (count, reference) in divergence.items():
    found = run("--kv", kv, "--against", "f32", "--windows", str(count), "--stride", str(stride), "--shift", str(shift))["kl_mean"]
    line(f"divergence of {kv} from f32, windows from {shift}", f"{1e3 * found:.3f} e-3", f"{reference:.2f} e-3 x 1.3",
         1e3 * found <= 1.3 * reference)
for what, most, options in (("perplexity, f32 KV and activations", 0.003, ("--kv", "f32", "--act", "f32")),
                            ("perplexity, default path", 0.01, ()),
                            ("perplexity, given tokens with the copy in bf16", 0.01, ("--prefill-weights", "bf16"))):
    found = run("--windows", str(windows), *options)["perplexity"]
    line(what, f"{found:.4f} {100 * (found / perplexity - 1):+.2f} %", f"{perplexity:.4f} +- {100 * most:.1f} %",
         abs(found / perplexity - 1) <= most)
sys.exit(failed)
