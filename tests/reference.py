#!/usr/bin/env python3
"""An independent forward pass in numpy (float32, weights as stored) of the tiny models of tests/tiny.h.

usage: reference.py MAKE_TINY OUT.json

Not part of the tests' run: it made tests/data/logits-tiny.json, with which test_families.py compares. Written
from the architectures' descriptions (transformers' modeling files), knowing nothing of runtime/ and kernels/.
Needs: pip install gguf numpy.
"""
import hashlib
import json
import math
import subprocess
import sys
import tempfile

import numpy as np
from gguf import GGUFReader, dequantize

FAMILIES = ["llama", "llama3", "mistral", "qwen2", "qwen3", "gemma3"]
LENGTH, GREEDY, SEED = 150, 12, 7
ROWS = [0, 1, 7, 39, 40, 41, 79, 100, 149]


def rms(x, weight, epsilon):
    mean = (x.astype(np.float64) ** 2).mean(-1, keepdims=True)
    return (x / np.sqrt(mean + epsilon)).astype(np.float32) * weight


class Tiny:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.fields = {k: f.contents() for k, f in reader.fields.items()}
        self.w = {t.name: np.asarray(dequantize(t.data, t.tensor_type), np.float32) for t in reader.tensors}
        self.arch = self.fields["general.architecture"]
        self.gemma = self.arch == "gemma3"
        self.layers, self.width = self.key("block_count"), self.key("embedding_length")
        self.heads, self.kv = self.key("attention.head_count"), self.key("attention.head_count_kv")
        self.head = self.key("attention.key_length", self.width // self.heads)
        self.epsilon = self.key("attention.layer_norm_rms_epsilon")
        self.window, self.period = self.key("attention.sliding_window", 0), self.key("attention.sliding_window_pattern", 0)
        self.past = [[] for _ in range(self.layers)]

    def key(self, name, default=None):
        return self.fields.get(f"{self.arch}.{name}", default)

    def local(self, layer):
        return self.window > 0 and (self.period == 0 or (layer + 1) % self.period != 0)

    def turn(self, x, at, base):
        """x: heads x head, at one position."""
        half = self.head // 2
        angle = at * base ** (-np.arange(half) * 2.0 / self.head)
        if "rope_freqs.weight" in self.w:
            angle = angle / self.w["rope_freqs.weight"]
        c, s = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        first, second = (slice(0, None, 2), slice(1, None, 2)) if self.arch == "llama" else (slice(0, half), slice(half, None))
        a, b = x[:, first], x[:, second]
        out[:, first], out[:, second] = a * c - b * s, b * c + a * s
        return out

    def attention(self, layer, x, at):
        w = lambda name: self.w[f"blk.{layer}.{name}"]
        parts = {}
        for which, heads in (("q", self.heads), ("k", self.kv), ("v", self.kv)):
            y = w(f"attn_{which}.weight") @ x
            if f"blk.{layer}.attn_{which}.bias" in self.w:
                y = y + w(f"attn_{which}.bias")
            parts[which] = y.reshape(heads, self.head)
        for which in "qk":
            if f"blk.{layer}.attn_{which}_norm.weight" in self.w:
                parts[which] = rms(parts[which], w(f"attn_{which}_norm.weight"), self.epsilon)
        base = 10000.0 if self.gemma and self.local(layer) else self.key("rope.freq_base", 10000.0)
        q, k = self.turn(parts["q"], at, base), self.turn(parts["k"], at, base)
        self.past[layer].append((k, parts["v"]))
        seen = self.past[layer][-self.window:] if self.local(layer) else self.past[layer]
        out = []
        for h in range(self.heads):
            own = h * self.kv // self.heads
            score = np.array([q[h] @ k[own] for k, _ in seen], np.float64) / math.sqrt(self.head)
            cap = self.key("attn_logit_softcapping", 0.0)
            if cap:
                score = cap * np.tanh(score / cap)
            p = np.exp(score - score.max())
            p /= p.sum()
            out.append(sum(weight * v[own] for weight, (_, v) in zip(p, seen)))
        return w("attn_output.weight") @ np.concatenate(out).astype(np.float32)

    def feed(self, layer, x):
        w = lambda name: self.w[f"blk.{layer}.ffn_{name}.weight"]
        gate, up = (w("gate") @ x).astype(np.float64), w("up") @ x
        if self.gemma:
            act = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)))
        else:
            act = gate / (1 + np.exp(-gate))
        return w("down") @ (act * up).astype(np.float32)

    def token(self, token, at):
        x = self.w["token_embd.weight"][token] * np.float32(math.sqrt(self.width) if self.gemma else 1)
        for layer in range(self.layers):
            norm = lambda y, name: rms(y, self.w[f"blk.{layer}.{name}.weight"], self.epsilon)
            post = norm if self.gemma else lambda y, name: y
            x = x + post(self.attention(layer, norm(x, "attn_norm"), at), "post_attention_norm")
            x = x + post(self.feed(layer, norm(x, "ffn_norm")), "post_ffw_norm")
        head = self.w.get("output.weight", self.w["token_embd.weight"])
        logits = head @ rms(x, self.w["output_norm.weight"], self.epsilon)
        cap = self.key("final_logit_softcapping", 0.0)
        return cap * np.tanh(logits / cap) if cap else logits


def best(row):
    order = np.argsort(-row, kind="stable")[:5]
    return [[int(i), round(float(row[i]), 5)] for i in order]


def main():
    make, out = sys.argv[1:]
    results = []
    for family in FAMILIES:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            subprocess.run([make, file.name, str(SEED), family], check=True)
            digest = hashlib.sha256(open(file.name, "rb").read()).hexdigest()
            model = Tiny(file.name)
        tokens = [3 + (i * i * 17 + i * 5 + 1) % 258 for i in range(LENGTH)]
        rows = [model.token(t, i) for i, t in enumerate(tokens)]
        logprob = 0.0
        for row, t in zip(rows, tokens[1:]):
            row = row.astype(np.float64)
            logprob += row[t] - row.max() - math.log(np.exp(row - row.max()).sum())
        greedy, row = [], rows[-1]
        for i in range(GREEDY):
            greedy.append(int(row.argmax()))
            row = model.token(greedy[-1], LENGTH + i)
        results.append({"family": family, "seed": SEED, "sha256": digest, "tokens": tokens, "at": ROWS,
                        "top": [best(rows[i]) for i in ROWS], "logprob": round(logprob, 4), "greedy": greedy})
        print(family, round(logprob, 3), file=sys.stderr)
    with open(out, "w", encoding="utf-8") as file:
        file.write("[\n" + ",\n".join(json.dumps(r, separators=(",", ":")) for r in results) + "\n]\n")


if __name__ == "__main__":
    main()
