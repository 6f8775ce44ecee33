"""What a folder's JSON may say: each value of each file as other kinds of value, and what newer files say otherwise.

Goal: no value of the wrong kind ends the program, and what would change ids or arithmetic is kept or refused by its name.
Method: test_hub's tiny folder; one value at a time is exchanged for one of another kind (HOLDFAST_LONG=1: of each) in
config.json, tokenizer.json, tokenizer_config.json and the header of the weights. RoPE said as newer files say it
(rope_parameters) gives the logits of the older words.
"""
import copy
import json
import os
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
import test_hub as hub_test
import reported
from reported import report
from test_hub import Folder, Gguf, logits, refused, safetensors

KINDS = [None, True, -1.5, "x", [[3]], {"x": [3]}]
SANITIZED = bool(os.environ.get("HOLDFAST_SANITIZED"))
EACH = len(KINDS) if os.environ.get("HOLDFAST_LONG") else 1


def places(value, depth=0):
    """Paths to what is in a value; of many alike the first two."""
    if depth == 5 or not isinstance(value, (dict, list)) or not value:
        return
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    for key in keys[:2] if len(keys) > 40 or isinstance(value, list) else keys:
        yield [key]
        yield from ([key] + rest for rest in places(value[key], depth + 1))


def exchanged(value, path, other):
    value = copy.deepcopy(value)
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = other
    return value


def check_kinds(hub):
    weights = safetensors(hub.tensors)
    size = int.from_bytes(weights[:8], "little")
    header, data = json.loads(weights[8:8 + size]), weights[8 + size:]
    config = dict(hub.config, tie_word_embeddings=False, use_sliding_window=False, mlp_bias=False, layer_types=["full_attention"] * 3,
                  rope_parameters={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
                                   "high_freq_factor": 4.0, "original_max_position_embeddings": 256})
    del config["rope_scaling"]
    files = [("config.json", config, json.dumps),
             ("tokenizer.json", dict(hub.tokenizer, normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}]},
                                     post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "a"}}]}), json.dumps),
             ("tokenizer_config.json", {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False,
                                        "chat_template": [{"name": "default", "template": "x"}]}, json.dumps),
             ("model.safetensors", header, lambda h: (lambda text: len(text).to_bytes(8, "little") + text + data)(json.dumps(h).encode()))]
    for name, value, write in files:
        hub.write()
        hub.put(name, write(value) if isinstance(write(value), bytes) else write(value).encode())
        done = subprocess.run([hub_test.PROGRAM, "inspect", hub.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        wrong, taken, tried = [done.stderr] if done.returncode else [], 0, 0
        for i, path in enumerate(list(places(value))[:: 5 if SANITIZED else 1]):
            for other in (KINDS + KINDS)[i % len(KINDS):][:EACH]:
                content = write(exchanged(value, path, other))
                hub.put(name, content if isinstance(content, bytes) else content.encode())
                done = subprocess.run([hub_test.PROGRAM, "inspect", hub.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
                tried, taken = tried + 1, taken + (done.returncode == 0)
                if done.returncode not in (0, 1) or (done.returncode == 1) != (done.stderr.count(b"\n") == 1):
                    wrong.append((path, other, done.returncode, done.stderr[-300:]))
        report(not wrong and (SANITIZED or tried > taken > 0), f"{name}: each value as other kinds is refused in a line, or is as good",
               f"{tried} tried, {taken} taken, {wrong[:3]}")


def check_windows(hub, tokens, want):
    """The window of one whose layers are all alike: in each, or in none."""
    full, local = ["full_attention"] * 3, ["sliding_attention"] * 3
    seen = {}
    for what, fields in (("none", {}), ("none, by name", {"layer_types": full}), ("all", {"sliding_window": 20}),
                         ("all, by name", {"sliding_window": 20, "layer_types": local})):
        hub.put("config.json", dict(hub.config, **fields))
        seen[what] = logits(hub.path, tokens)
    report(seen["none"] == seen["none, by name"] == want, "llama: layers without a window, by their names")
    hub.put("config.json", dict(hub.config, sliding_window=hub.config["max_position_embeddings"], layer_types=full))
    report(logits(hub.path, tokens) == want, "llama: a window as long as the context is none, whatever the layers are called")
    report(seen["all"] == seen["all, by name"] != want, "llama: a window in all layers, by their names")
    for what, fields, *words in (
            ("a window in some", {"sliding_window": 20, "layer_types": [local[0], full[0], local[0]]}, "layer 2 is not sliding_attention", "sliding_window"),
            ("a window that no layer has", {"sliding_window": 20, "layer_types": full}, "layer 1 is not sliding_attention"),
            ("layers with a window of no size", {"sliding_window": None, "layer_types": local}, "layer 1 is not full_attention", "no sliding_window"),
            ("kinds of too few layers", {"layer_types": full[:2]}, "no list of num_hidden_layers, 3"),
            ("a window that is not used, and has layers", {"model_type": "qwen2", "sliding_window": 20, "layer_types": local},
             "layer 1 is not full_attention", "use_sliding_window")):
        hub.put("config.json", dict(hub.config, **fields))
        refused(hub, f"llama: {what}", *words)


def check_rope(hub, family):
    """The same RoPE in older and newer words."""
    tokens = [3 + (i * i * 13 + i) % 258 for i in range(60)]
    hub.write()
    want = logits(hub.path, tokens)
    old = hub.config
    theta = {"rope_theta": old["rope_theta"], "rope_type": "default"}
    config = {k: v for k, v in old.items() if k not in ("rope_theta", "rope_scaling", "rope_local_base_freq")}
    nested = {"full_attention": theta, "sliding_attention": {"rope_theta": old.get("rope_local_base_freq", 0), "rope_type": "default"}}
    hub.put("config.json", dict(config, rope_parameters=nested if family == "gemma3" else theta))
    report(logits(hub.path, tokens) == want, f"{family}: rope_parameters say what rope_theta and rope_scaling do")
    other = {**theta, "rope_theta": old["rope_theta"] * 7}
    hub.put("config.json", dict(config, rope_parameters={**nested, "full_attention": other} if family == "gemma3" else other))
    report(logits(hub.path, tokens) != want, f"{family}: and another base there is another one")
    linear = dict(theta, rope_type="linear", factor=2.0)
    found = []
    for said in ({"rope_parameters": {**nested, "full_attention": linear} if family == "gemma3" else linear},
                 {"rope_scaling": {"type": "linear", "factor": 2.0}, **{k: old[k] for k in ("rope_theta", "rope_local_base_freq") if k in old}}):
        hub.put("config.json", dict(config, **said))
        found.append(logits(hub.path, tokens))
    report(found[0] == found[1] != want, f"{family}: and so is a linear scale")
    for what, said, *words in (
            ("both", {"rope_parameters": theta, "rope_scaling": {"type": "linear", "factor": 2}}, "one of the two"),
            ("a list", {"rope_parameters": [3]}, "rope_parameters: [3] is no object"),
            ("a text", {"rope_scaling": "linear"}, "rope_scaling: \"linear\" is no object"),
            ("another kind", {"rope_parameters": {"rope_type": "yarn"}}, "rope_parameters: ", "yarn"),
            ("a part of a head", {"rope_parameters": dict(theta, partial_rotary_factor=0.5)}, "partial_rotary_factor: 0.5"),
            ("one kind of layer", {"rope_parameters": {"full_attention": theta}}, "not two objects"),
            ("the window's layers only", {"rope_parameters": {"sliding_attention": theta}}, "not two objects"),
            ("a kind of layer that is not known", {"rope_parameters": {"chunked_attention": theta}}, "not two objects"),
            ("a kind of layer that is a number", {"rope_parameters": {"full_attention": theta, "sliding_attention": 3}}, "not two objects"),
            ("a part of a head in the window", {"rope_parameters": {"full_attention": theta, "sliding_attention": dict(theta, partial_rotary_factor=0.5)}},
             "sliding_attention", "partial_rotary_factor: 0.5"),
            ("a part of a head, said beside it", {"partial_rotary_factor": 0.5}, "config.json: partial_rotary_factor: 0.5"),
            ("a scale in the window", {"rope_parameters": {"full_attention": theta, "sliding_attention": linear}}, "sliding_attention", "\"linear\""),
            ("a kind that is no name", {"rope_scaling": {"rope_type": 3}}, "rope_type: 3 is no name"),
            ("no factor", {"rope_parameters": dict(theta, rope_type="linear")}, "rope_parameters: factor is missing"),
            ("a base that is no number", {"rope_parameters": dict(theta, rope_theta="x")}, "rope_parameters: rope_theta: \"x\"")):
        said = {"rope_theta": old["rope_theta"], **said}
        hub.put("config.json", dict(config, **said))
        refused(hub, f"{family}: RoPE of {what}", *words)
    if family != "gemma3":
        for base, taken in ((old["rope_theta"], True), (old["rope_theta"] * 7, False)):
            hub.put("config.json", dict(config, rope_parameters={"full_attention": theta, "sliding_attention": {**theta, "rope_theta": base}}))
            if taken:
                report(logits(hub.path, tokens) == want, f"{family}: one base for both kinds of layers")
            else:
                refused(hub, f"{family}: another base in the window", "sliding_attention", "rope_theta")
    if family == "llama":
        check_windows(hub, tokens, want)
    if family == "gemma3":
        hub.put("config.json", config)
        refused(hub, "gemma3: no base at all", "rope_theta is missing")
        hub.put("config.json", {k: v for k, v in old.items() if k != "sliding_window"})
        refused(hub, "gemma3: no window", "sliding_window is missing")
        hub.put("config.json", dict(old, layer_types=["sliding_attention"] * 2))
        refused(hub, "gemma3: kinds of too few layers", "layer_types is no list of num_hidden_layers, 3")
        hub.put("config.json", dict(old, layer_types="full"))
        refused(hub, "gemma3: kinds of layers as a text", "layer_types is no list")
    hub.put("config.json", dict(old, use_bidirectional_attention=True))
    refused(hub, f"{family}: attention both ways", "use_bidirectional_attention is not supported")
    for field, value, word in (("tie_word_embeddings", "yes", "neither true nor false"), ("eos_token_id", ["x"], "eos_token_id: \"x\" is no id"),
                               ("bos_token_id", -1, "bos_token_id: -1 is no id"), ("model_type", 7, "model_type: 7 is no string")):
        hub.put("config.json", dict(old, **{field: value}))
        refused(hub, f"{family}: {field} {value}", field, word)


def check_tokenizer(hub):
    def change(**fields):
        return dict(hub.tokenizer, **{k: v for k, v in fields.items() if k != "model"}, model=dict(hub.tokenizer["model"], **fields.get("model", {})))

    hub.write()
    vocab = hub.tokenizer["model"]["vocab"]
    for what, tokenizer, *words in (
            ("a normaliser that lowers", change(normalizer={"type": "Lowercase"}), "normalizer", "Lowercase"),
            ("one of several that strips", change(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}), "Strip"),
            ("a space put before bytes", change(normalizer={"type": "Prepend", "prepend": "\u2581"}), "Prepend"),
            ("another text put before", change(normalizer={"type": "Prepend", "prepend": "x"}, model={"byte_fallback": True}), "Prepend"),
            ("a normaliser that is a number", change(normalizer=3), "normalizer has a step 3"),
            ("spaces that become something else", change(normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "_"},
                                                         model={"byte_fallback": True}), "Replace"),
            ("a suffix of words", change(model={"end_of_word_suffix": "</w>"}), "end_of_word_suffix", "</w>"),
            ("a prefix of words", change(model={"continuing_subword_prefix": "##"}), "continuing_subword_prefix"),
            ("dropout", change(model={"dropout": 0.1}), "dropout 0.1"),
            ("whole words before merges", change(model={"ignore_merges": True}), "ignore_merges true", "llama-bpe and tekken"),
            ("the same as a text", change(model={"ignore_merges": "no"}), "ignore_merges is neither true nor false"),
            *((f"an added token with {flag}", change(added_tokens=[{"id": 3, "content": "<x>", flag: True}]), f"\"<x>\" has {flag} true")
              for flag in ("lstrip", "rstrip", "single_word")),
            ("a type that is a number", change(model={"type": 3}), "no BPE"),
            ("byte fallback that is a text", change(model={"byte_fallback": "yes"}), "byte_fallback is neither true nor false"),
            ("a merge of 400 parts", change(model={"merges": [["a"] * 400]}), "merge 0", "not two parts"),
            ("a merge without a space", change(model={"merges": ["a b", "ab"]}), "merge 1 is \"ab\""),
            ("a merge that is a number", change(model={"merges": [3]}), "merge 0 is 3"),
            ("an added token that is a number", change(added_tokens=[{"id": 3, "content": 4}]), "content is 4"),
            ("an added token of a text", change(added_tokens=["x"]), "added token \"x\""),
            ("an id that is a text", change(model={"vocab": dict(vocab, a="1")}), "the id of \"a\" is \"1\"")):
        hub.put("tokenizer.json", tokenizer)
        refused(hub, what, *words)
    hub.write()
    for field, value, word in (("bos_token", 3, "bos_token is no token's text"), ("eos_token", {"content": 3}, "eos_token is no token's text"),
                               ("unk_token", {}, "unk_token is no token's text"), ("chat_template", 3, "chat_template is no text"),
                               ("chat_template", [], "chat_template is no text"), ("chat_template", [{"name": "default", "template": 3}], "chat_template is no"),
                               ("add_bos_token", "yes", "add_bos_token is neither true nor false")):
        hub.put("tokenizer_config.json", {field: value})
        refused(hub, f"{field} {value}", "tokenizer_config.json", word)
    hub.put("tokenizer_config.json", {"bos_token": None, "pad_token": "<nowhere>", "chat_template": None, "add_bos_token": None})
    same = change(normalizer={"type": "NFC"}, model={"end_of_word_suffix": "", "continuing_subword_prefix": None, "dropout": -0.0e3,
                                                     "ignore_merges": False},
                  added_tokens=[dict(added, lstrip=False, rstrip=False, single_word=None) for added in hub.tokenizer["added_tokens"]])
    hub.put("tokenizer.json", same)
    done = subprocess.run([hub_test.PROGRAM, "inspect", hub.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    report(done.returncode == 0, "NFC, and nothing said of words, is taken", done.stderr.decode())


def check_weights(hub):
    """What the refusals of a header and an index name."""
    first, second = list(hub.tensors)[:2]
    end = len(hub.tensors[first][2])

    def moved(by):
        def twist(header, data):
            header[second]["data_offsets"] = [x + by for x in header[second]["data_offsets"]]
            return header, data + b"\0" * 64
        return twist

    def entry(**fields):
        return lambda header, data: header[first].update(fields)

    for what, twist, *words in (
            ("two that overlap", moved(-4), second, "overlaps", first, f"byte {end - 4} ", f"ends at {end}"),
            ("a hole", moved(32), "a hole before", second, f"byte {end + 32} ", f"ends at {end}"),
            ("offsets that run backwards", entry(data_offsets=[end, 0]), first, "run backwards", f"from {end} to 0"),
            ("offsets that are texts", entry(data_offsets=["0", 3]), first, "[\"0\", 3] are not two numbers"),
            ("a side of nothing", entry(shape=[0, 64]), first, "dimension 0 is not 1 to"),
            ("three sides", entry(shape=[1, 2, 3]), first, "[1, 2, 3] has more than 2")):
        hub.write()
        hub.put("model.safetensors", safetensors(hub.tensors, twist))
        refused(hub, what, *words)
    hub.write()
    index = hub.shards()
    index["weight_map"][first] = "../outside.safetensors"
    hub.put("model.safetensors.index.json", index)
    refused(hub, "a path out of the folder, by its tensor and name", first, "../outside.safetensors", "not a plain name")
    hub.write()
    hub.put("config.json", b"{\"model_type\": \"llama\", }")
    refused(hub, "where a text stops being JSON", "config.json: it is no JSON: byte 24")
    hub.put("config.json", b"{\"model_type\": ")
    refused(hub, "a text that is cut off", "config.json: it is no JSON: byte 15")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for family in ("gemma3", "llama"):
            path = os.path.join(folder, family + ".gguf")
            subprocess.run([os.path.join(hub_test.BUILD, "tests", "make_tiny"), path, "5", family, "plain"], check=True)
            hub = Folder(os.path.join(folder, family), Gguf(path), family)
            check_rope(hub, family)
        check_tokenizer(hub)
        check_weights(hub)
        check_kinds(hub)
    return reported.done()


if __name__ == "__main__":
    sys.exit(main())
