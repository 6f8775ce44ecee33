#!/usr/bin/env python3
"""How near each line and each kernel is to what this machine can do, as tables for kernels/README.md.

usage: bounds.py MODEL [--isa avx2] [--plain] [--build DIR] [--threads 2] [--seconds 4] [--rounds 2]

Runs `holdfastd bench MODEL --roofline` for each figure alone, so that memory and registers are measured in the same
seconds, and prints the best round of each: what the bytes of a step (weights, K and V) and its multiply-adds allow, and
what share of either is reached. Then of each part of a step which bound is the nearer, the share of it that is reached,
and the part's share of the step. More than 100 % of the bytes' bound means that a cache held them. --plain: AVX2 without
AVX-VNNI, as Zen 2 and 3 and Haswell have it. Only figures of a machine that has nothing else to do mean something.
"""
import argparse
import json
import os
import subprocess

LINES = ["decode_b1_c128", "decode_b8_c128", "decode_b32_c128", "prefill_512", "decode_b1_c2048", "decode_b1_c8000"]
PARTS = ["qkv", "rope_write", "attend", "output", "gate_up", "down", "head", "sample"]
OF_PARTS = LINES[:4]


def bench(args, name):
    environment = dict(os.environ, **({"HOLDFAST_AVX_VNNI": "off"} if args.plain else {}))
    done = subprocess.run([f"{args.build}/holdfastd", "bench", args.model, "--roofline", "--json", "--threads", args.threads,
                           "--isa", args.isa, "--seconds", args.seconds, "--only", name],
                          stdout=subprocess.PIPE, check=True, text=True, env=environment)
    return json.loads(done.stdout)


def best(args, name):
    return max((bench(args, name) for _ in range(args.rounds)), key=lambda found: found[name] or 0)


def row(*cells):
    print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model"), parser.add_argument("--build", default="build"), parser.add_argument("--threads", default="2")
    parser.add_argument("--isa", default="auto"), parser.add_argument("--plain", action="store_true")
    parser.add_argument("--seconds", default="4"), parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    found = {name: best(args, name) for name in LINES}
    found = {name: one for name, one in found.items() if one[name]}
    any_of = next(iter(found.values()))
    print(f"{any_of['isa']} {any_of['isa_beside']}".strip() + f", {any_of['threads']} threads\n")
    row("line", "tokens/s", "GB/s of memory", "G/s in 8 bits, f32", "bound by bytes", "by sums", "of the bytes' bound", "of the sums'")
    row(*["---"] * 8)
    for name, one in found.items():
        bound, speed = one["roofline"][name], one[name]
        sums = one["tile_per_s"] if one["tile_per_s"] and name in ("decode_b32_c128", "prefill_512") else one["macs_per_s"]
        row(name, f"{speed:.0f}", f"{one['bytes_per_s'] / 1e9:.1f}", f"{sums / 1e9:.0f}, {one['f32_per_s'] / 1e9:.0f}",
            f"{bound['bytes']:.0f}", f"{bound['macs']:.0f}", f"{100 * speed / bound['bytes']:.0f} %",
            f"{100 * speed / bound['macs']:.0f} %")
    print()
    row("part: of the step, reached of its bound", *OF_PARTS)
    row(*["---"] * (1 + len(OF_PARTS)))
    for part in PARTS:
        cells = []
        for name in OF_PARTS:
            parts = found[name]["roofline"][name]["parts"]
            one, whole = parts[part], sum(p["us"] for p in parts.values())
            near = f", {100 * one['bound_us'] / one['us']:.0f} % of {one['by']}" if one["bound_us"] and one["us"] else ""
            cells.append(f"{100 * one['us'] / whole:.0f} %" + near)
        row(part, *cells)


if __name__ == "__main__":
    main()
