#!/usr/bin/env python3
"""Perplexity from a program that gives log-probabilities of prompts: the cut into windows made outside of it.

usage: windows.py IDS.json CASES.json [--window 1024] [--windows 10] [--first N]
       windows.py --of OUT.json

IDS.json is a list of a text's ids that begins with the start token. CASES.json gets each window twice, whole and its first
half alone. `holdfastd logits MODEL --tokens CASES.json --kv f32 --act f32 --top 1 > OUT.json` and the reference's forward.py
read it, and give for each the sum of the log-probabilities of its tokens after the first; of a window's two sums the
difference is its second half's. --of prints the perplexity of all second halves, and each window's.
"""
import argparse
import json
import math

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("ids", nargs="?"), parser.add_argument("cases", nargs="?"), parser.add_argument("--of")
parser.add_argument("--window", type=int, default=1024), parser.add_argument("--windows", type=int, default=10)
parser.add_argument("--first", type=int, default=0, help="the first window's number")
args = parser.parse_args()
if args.of:
    with open(args.of, encoding="utf-8") as file:
        out = json.load(file)
    lost = [half["logprob"] - whole["logprob"] for whole, half in zip(out[::2], out[1::2])]
    counts = [int(whole["name"].split()[1]) for whole in out[::2]]
    for one, count, whole in zip(lost, counts, out[::2]):
        print(f"{whole['name'].split()[0]:>4} {math.exp(one / count):.4f}")
    print(f" all {math.exp(sum(lost) / sum(counts)):.6f} of {sum(counts)} tokens")
else:
    with open(args.ids, encoding="utf-8") as file:
        start, *body = json.load(file)
    cases, size = [], args.window - 1
    for i in range(args.first, args.first + args.windows):
        whole = [start, *body[i * size:(i + 1) * size]]
        half = whole[:len(whole) // 2]
        for tokens in whole, half:
            cases.append({"name": f"{i + 1} {len(whole) - len(half)}", "tokens": tokens, "generate": 0})
    with open(args.cases, "w", encoding="utf-8") as file:
        json.dump(cases, file)
