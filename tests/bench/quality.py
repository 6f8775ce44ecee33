#!/usr/bin/env python3
"""Perplexity and divergence over a whole text, against the figures of an independent float32 forward pass.

usage: quality.py NAME MODEL TEXT [--build DIR] [--threads N]

NAME is smollm2-135m, qwen2.5-coder-0.5b or gemma3-270m, TEXT the reference text that the figures are of. Perplexity
with f32 KV and activations is held within 0.01 % of the reference's, the default path within 1 % of it, and with a copy in bf16 within 1 % of that; divergence of each KV kind
from f32 on the same path at most 1.3 times the reference's, near and far, on the reference's windows. Exit code 1 if one is beyond
its bound. What has no figure beside it is told: how often the first choice is another one, and what 8-bit activations cost.
Takes some minutes.
"""
import argparse
import json
import subprocess
import sys

# [(windows, perplexity)] from the text's beginning; the distance between the starts of the divergence's windows; and
# {(kind, first position): (windows, mean divergence in thousandths)}. All are the reference's forward pass's on these very
# windows: a start token first where the model wants one, 1,024 tokens in all, the second half scored.
MODELS = {
    "smollm2-135m": ([(19, 4.7628)], 9690, {
        ("bf16", 0): (2, 0.03), ("int8", 0): (2, 0.82), ("fp8", 0): (2, 8.2),
        ("bf16", 7000): (2, 0.05), ("int8", 7000): (2, 0.64), ("fp8", 7000): (2, 15.3)}),
    "qwen2.5-coder-0.5b": ([(8, 3.3961)], 8096, {
        ("bf16", 0): (2, 0.10), ("int8", 0): (2, 0.81), ("fp8", 0): (2, 15.9),
        ("bf16", 20000): (1, 0.10), ("int8", 20000): (1, 1.13), ("fp8", 20000): (1, 13.4)}),
    "gemma3-270m": ([(10, 4.9240), (19, 4.9874)], 9599, {
        ("bf16", 0): (2, 0.03), ("int8", 0): (2, 0.41), ("fp8", 0): (2, 13.0),
        ("bf16", 20000): (1, 0.03), ("int8", 20000): (1, 0.46), ("fp8", 20000): (1, 6.5)}),
}

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("name", choices=MODELS), parser.add_argument("model"), parser.add_argument("text")
parser.add_argument("--build", default="build"), parser.add_argument("--threads", default="2")
args = parser.parse_args()
cuts, stride, divergence = MODELS[args.name]
failed = False


def run(*options):
    p = subprocess.run([f"{args.build}/holdfastd", "perplexity", args.model, "--text", args.text, "--window", "1024", "--threads",
                        args.threads, "--json", *options], stdout=subprocess.PIPE, text=True)
    if p.returncode:
        sys.exit(f"perplexity failed with {p.returncode}")
    return json.loads(p.stdout)


def line(what, found, bound="", good=True):
    global failed
    failed |= not good
    print(f"{what:48} {found:24} {bound:30} {'' if good else 'BEYOND'}".rstrip(), flush=True)


print(args.name)
other = {}
for (kv, shift), (count, reference) in divergence.items():
    found = run("--kv", kv, "--against", "f32", "--windows", str(count), "--stride", str(stride), "--shift", str(shift))
    mean = 1e3 * found["kl_mean"]
    line(f"divergence of {kv} from f32, windows from {shift}", f"{mean:.3f} e-3", f"{reference:.2f} e-3 x 1.3", mean <= 1.3 * reference)
    other.setdefault(kv, []).append((found["tokens"], (1 - found["same_top1"]) * found["tokens"]))
for kv, counts in other.items():
    tokens, differ = map(sum, zip(*counts))
    line(f"first choice of {kv} is another", f"1 in {tokens / max(differ, 1):.0f} ({differ:.0f} of {tokens})")
for windows, perplexity in cuts:
    found = run("--windows", str(windows), "--kv", "f32", "--act", "f32")["perplexity"]
    line(f"perplexity, f32 KV and activations, {windows} windows", f"{found:.4f} {100 * (found / perplexity - 1):+.3f} %",
         f"{perplexity:.4f} +- 0.01 %", abs(found / perplexity - 1) <= 0.0001)
windows, perplexity = cuts[0]
plain = run("--windows", str(windows), "--kv", "f32")["perplexity"]
line("perplexity, f32 KV, 8-bit activations", f"{plain:.4f} {100 * (plain / perplexity - 1):+.2f} %")
default = run("--windows", str(windows))["perplexity"]
copied = run("--windows", str(windows), "--prefill-weights", "bf16")["perplexity"]
for what, found, of in (("default path", default, perplexity), ("given tokens with a copy in bf16", copied, default)):
    line(f"perplexity, {what}", f"{found:.4f} {100 * (found / of - 1):+.2f} %", f"{of:.4f} +- 1.0 %", abs(found / of - 1) <= 0.01)
sys.exit(failed)
