"""Gemma's vocabulary as a hub has it.

Goal: a folder with a tokenizer.json of Gemma 3's kind gives the ids of the reference: a BPE model with byte fallback that was made of
a SentencePiece vocabulary. Method: that file is made here, of the real model's tokens and scores, as the program that hubs use makes it;
tests/test_tokenizer_models, which compares ids, takes the folder for the model's file.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile

import reported
import test_hub
from test_hub import BUILD, Gguf


def gemma_tokenizer(gguf):
    """tokenizer.json as hubs have Gemma 3's: a space is U+2581 in every token; byte fallback; tokens that the user defined (runs of
    spaces, line ends and tabs, tags) are added ones and stand in the vocabulary too; and for each token there are the merges of all two
    tokens that make it, those of the added ones first, then in the order of the scores."""
    kinds, scores = gguf.keys["tokenizer.ggml.token_type"], gguf.keys["tokenizer.ggml.scores"]
    tokens = [t.replace(" ", "\u2581") if kinds[i] == 4 else t for i, t in enumerate(gguf.keys["tokenizer.ggml.tokens"])]
    vocab = {t: i for i, t in enumerate(tokens)}
    merges = []
    for t in tokens:
        merges += [(1.0 if kinds[vocab[t]] == 4 else scores[vocab[t]], i, len(t) - i, t) for i in range(1, len(t)) if t[:i] in vocab and t[i:] in vocab]
    merges = [[t[:i], t[i:]] for _, i, _, t in sorted(merges, reverse=True)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": kinds[i] in (2, 3)} for i, t in enumerate(tokens) if kinds[i] in (2, 3, 4)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [], "special_tokens": {"<bos>": {"id": "<bos>", "ids": [2], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                                                     {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": True, "byte_fallback": True, "ignore_merges": False, "vocab": vocab,
                  "merges": merges}}


def main():
    path = os.path.join(os.environ.get("HOLDFAST_MODELS", ""), "gemma3-270m.gguf")
    if not os.path.isfile(path) or os.environ.get("HOLDFAST_SANITIZED"):
        print("1..0 # SKIP ./bootstrap model gemma3-270m fetches it; not with sanitizers")
        return 0
    tokenizer = gemma_tokenizer(Gguf(path, keys_only=True))
    rows = len(tokenizer["model"]["vocab"])
    with tempfile.TemporaryDirectory() as folder:
        hub, _ = test_hub.check_family(folder, "gemma3")
        kind, (_, width), _ = hub.tensors["model.embed_tokens.weight"]
        size = {name: size for name, size in test_hub.SIZES.values()}[kind]
        hub.tensors["model.embed_tokens.weight"] = (kind, [rows, width], bytes(rows * width * size))
        hub.tokenizer = tokenizer
        hub.config["vocab_size"] = rows
        hub.write()
        hub.put("tokenizer_config.json", {"bos_token": "<bos>", "eos_token": "<eos>", "unk_token": "<unk>", "pad_token": "<pad>"})
        home = os.path.join(folder, "models")
        os.mkdir(home)
        shutil.move(hub.path, os.path.join(home, "gemma3-270m.gguf"))
        done = subprocess.run([os.path.join(BUILD, "tests", "test_tokenizer_models")], stdout=subprocess.PIPE, check=False, text=True,
                              env=dict(os.environ, HOLDFAST_MODELS=home, HOLDFAST_MODEL=""))
    compared = [line for line in done.stdout.splitlines() if line.startswith("ok") and "reference" in line and "SKIP" not in line]
    test_hub.report(done.returncode == 0 and len(compared) > 0, f"{rows} tokens, {len(tokenizer['model']['merges'])} merges: the reference's ids",
                    "\n#   ".join(line for line in done.stdout.splitlines() if not line.startswith("ok")))
    return reported.done()


sys.exit(main())
