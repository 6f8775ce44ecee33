"""A model as hubs have it: config.json, tokenizer.json, safetensors.

Goal: a folder computes what the GGUF file of the same model does, bit for bit, and every way in which its files can
be wrong has its own refusal. Method: tiny random models of each architecture, without quantised weights, are taken
apart here and written as a folder; then one thing at a time is twisted.
"""
import json
import mmap
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

import reported
from reported import report

BUILD = os.environ["BUILDDIR"]
PROGRAM = os.path.join(BUILD, "holdfastd")
PLAIN_KINDS = {4: "I", 5: "i", 6: "f", 7: "?", 10: "Q"}
SIZES = {0: ("F32", 4), 1: ("F16", 2), 30: ("BF16", 2)}
QWEN_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                r"|\s+(?!\S)|\s+")
NAMES = {"attn_norm.weight": "input_layernorm.weight", "attn_output.weight": "self_attn.o_proj.weight",
         "attn_q_norm.weight": "self_attn.q_norm.weight", "attn_k_norm.weight": "self_attn.k_norm.weight",
         "ffn_gate.weight": "mlp.gate_proj.weight", "ffn_up.weight": "mlp.up_proj.weight",
         "ffn_down.weight": "mlp.down_proj.weight", "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
         "post_attention_norm.weight": "post_attention_layernorm.weight"}
TOP = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
       "output.weight": "lm_head.weight"}


class Gguf:
    """Just enough of the format for what make_tiny writes, and for the keys of others."""

    def __init__(self, path, keys_only=False):
        with open(path, "rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if keys_only else file.read()
        self.at = 8
        tensors, keys = self.take("<QQ")
        self.keys = {}
        for _ in range(keys):
            name = self.text()
            self.keys[name] = self.value(self.take("<I")[0])
        self.keys_raw = self.data[24:self.at]
        if keys_only:
            return
        directory = []
        for _ in range(tensors):
            name = self.text()
            sides = self.take("<" + "Q" * self.take("<I")[0])
            directory.append((name, sides, *self.take("<IQ")))
        start = (self.at + 31) // 32 * 32
        self.tensors = {}
        for name, sides, kind, offset in directory:
            size = SIZES[kind][1]
            for side in sides:
                size *= side
            self.tensors[name] = (SIZES[kind][0], list(reversed(sides)), self.data[start + offset:start + offset + size])

    def take(self, form):
        out = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return out

    def text(self):
        n = self.take("<Q")[0]
        self.at += n
        return self.data[self.at - n:self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            item, n = self.take("<IQ")
            return list(self.take(f"<{n}{PLAIN_KINDS[item]}")) if item in PLAIN_KINDS else [self.value(item) for _ in range(n)]
        return self.take("<" + PLAIN_KINDS[kind])[0]


def halves(entry, heads):
    """Rows of q or k from pairs side by side to halves apart, as hubs keep llama's."""
    kind, shape, data = entry
    row, head = len(data) // shape[0], shape[0] // heads
    rows = [data[i * row:(i + 1) * row] for i in range(shape[0])]
    order = [h * head + i for h in range(heads) for part in (0, 1) for i in range(part, head, 2)]
    return kind, shape, b"".join(rows[i] for i in order)


def lowered(entry):
    """Gemma's norms are stored less one; what is left of the last bits is lost, so they are made exact first."""
    _, shape, data = entry
    return "F32", shape, b"".join(struct.pack("<f", x - 1) for x, in struct.iter_unpack("<f", data))


def hub_tensors(gguf, family):
    out = {}
    arch = gguf.keys["general.architecture"]
    gemma = arch == "gemma3"
    for name, entry in gguf.tensors.items():
        if name == "rope_freqs.weight":
            continue
        if gemma and name.endswith("norm.weight"):
            entry = lowered(entry)
        if name in TOP:
            out[TOP[name]] = entry
            continue
        _, layer, rest = name.split(".", 2)
        if arch == "llama" and rest in ("attn_q.weight", "attn_k.weight"):
            entry = halves(entry, gguf.keys["llama.attention.head_count" + ("_kv" if rest == "attn_k.weight" else "")])
        if rest == "ffn_norm.weight":
            own = "pre_feedforward_layernorm.weight" if gemma else "post_attention_layernorm.weight"
        elif rest in NAMES:
            own = NAMES[rest]
        else:
            own = f"self_attn.{rest[5]}_proj.{rest.rsplit('.', 1)[1]}"
        out[f"model.layers.{layer}.{own}"] = entry
    return out


def hub_config(gguf, family):
    arch = gguf.keys["general.architecture"]
    key = lambda name, default=None: gguf.keys.get(f"{arch}.{name}", default)
    config = {
        "model_type": {"llama3": "llama", "gemma3": "gemma3_text"}.get(family, family),
        "num_hidden_layers": key("block_count"), "hidden_size": key("embedding_length"),
        "intermediate_size": key("feed_forward_length"), "max_position_embeddings": key("context_length"),
        "num_attention_heads": key("attention.head_count"), "num_key_value_heads": key("attention.head_count_kv"),
        "rms_norm_eps": 1e-5, "rope_theta": key("rope.freq_base", 10000.0), "rope_scaling": None,
        "head_dim": key("rope.dimension_count"), "sliding_window": key("attention.sliding_window"),
        "tie_word_embeddings": "output.weight" not in gguf.tensors, "bos_token_id": 1, "eos_token_id": [2, 0],
        "vocab_size": len(gguf.keys["tokenizer.ggml.tokens"]), "torch_dtype": "bfloat16",
    }
    if arch == "gemma3":
        config |= {"rope_local_base_freq": 10000.0, "query_pre_attn_scalar": config["head_dim"],
                   "sliding_window_pattern": key("attention.sliding_window_pattern"),
                   "final_logit_softcapping": key("final_logit_softcapping"),
                   "attn_logit_softcapping": key("attn_logit_softcapping"),
                   "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]}
    else:
        config["hidden_act"] = "silu"
    return config


def hub_tokenizer(gguf):
    tokens, kinds = gguf.keys["tokenizer.ggml.tokens"], gguf.keys["tokenizer.ggml.token_type"]
    added = [{"id": i, "content": t, "special": True} for i, t in enumerate(tokens) if kinds[i] == 3]
    return {"added_tokens": added, "normalizer": None,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]},
            "model": {"type": "BPE", "vocab": {t: i for i, t in enumerate(tokens) if kinds[i] != 3},
                      "merges": gguf.keys["tokenizer.ggml.merges"]}}


def safetensors(tensors, twist=None):
    """twist may change the header before it is written."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (kind, shape, bytes_) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + len(bytes_)]}
        data += bytes_
    if twist:
        header, data = twist(header, data) or (header, data)
    text = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(text)) + text + data


class Folder:
    """A whole folder; twist() writes it with one thing changed, refused() looks at what is said."""

    def __init__(self, path, gguf, family):
        self.path, self.gguf, self.family = path, gguf, family
        self.tensors, self.config = hub_tensors(gguf, family), hub_config(gguf, family)
        self.tokenizer = hub_tokenizer(gguf)

    def put(self, name, content):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        with open(os.path.join(self.path, name), "wb") as file:
            file.write(content)

    def write(self):
        shutil.rmtree(self.path, ignore_errors=True)
        os.mkdir(self.path)
        self.put("config.json", self.config)
        self.put("tokenizer.json", self.tokenizer)
        self.put("tokenizer_config.json", {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"},
                                           "add_bos_token": False, "chat_template": [{"name": "default", "template": "x"}]})
        self.put("model.safetensors", safetensors(self.tensors))

    def shards(self, count=2):
        """The same in several files with an index."""
        os.unlink(os.path.join(self.path, "model.safetensors"))
        names = list(self.tensors)
        index = {"metadata": {}, "weight_map": {}}
        for i in range(count):
            file = f"model-{i + 1:05}-of-{count:05}.safetensors"
            self.put(file, safetensors({n: self.tensors[n] for n in names[i::count]}))
            index["weight_map"].update({n: file for n in names[i::count]})
        self.put("model.safetensors.index.json", index)
        return index


def logits(model, tokens):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump([{"name": "", "tokens": tokens, "generate": 8}], file)
        file.flush()
        done = subprocess.run([PROGRAM, "logits", model, "--tokens", file.name, "--kv", "f32", "--act", "f32"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.decode())
    return json.loads(done.stdout)[0]


def close(a, b):
    worst = max(abs(dict(map(tuple, y["top"])).get(t, -1e9) - v) for x, y in zip(a["rows"], b["rows"]) for t, v in x["top"])
    return worst < 2e-4 and a["greedy"] == b["greedy"]


def gguf_factors():
    """Llama 3.1's: what tests/data holds for the tiny one is random, so the formula is looked at by itself."""
    import math
    out = []
    for i in range(8):
        length = 2 * math.pi * 500000.0 ** (2 * i / 16)
        smooth = (256 / length - 1) / (4 - 1)
        out.append(1.0 if length < 256 / 4 else 8.0 if length > 256 / 1 else 1 / ((1 - smooth) / 8 + smooth))
    return out


def check_family(folder, family):
    path = os.path.join(folder, family + ".gguf")
    subprocess.run([os.path.join(BUILD, "tests", "make_tiny"), path, "5", family, "plain"], check=True)
    hub = Folder(os.path.join(folder, family), Gguf(path), family)
    if family == "llama3":
        hub.config["rope_scaling"] = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                      "original_max_position_embeddings": 256}
        _, _, old = hub.gguf.tensors["rope_freqs.weight"]
        new = b"".join(struct.pack("<f", x) for x in gguf_factors())
        with open(path, "wb") as file:
            assert hub.gguf.data.count(old) == 1
            file.write(hub.gguf.data.replace(old, new))
    if family == "gemma3":
        # Norms on a grid, so that less one and one more is what it was.
        data = hub.gguf.data
        for name, (_, shape, old) in list(hub.gguf.tensors.items()):
            if name.endswith("norm.weight"):
                new = b"".join(struct.pack("<f", round(x * 1024) / 1024) for x, in struct.iter_unpack("<f", old))
                data = data.replace(old, new)
                hub.gguf.tensors[name] = ("F32", shape, new)
        with open(path, "wb") as file:
            file.write(data)
        hub.tensors = hub_tensors(hub.gguf, family)
    hub.write()
    tokens = [3 + (i * i * 13 + i) % 258 for i in range(90)]
    want, got = logits(path, tokens), logits(hub.path, tokens)
    same = close(want, got) if hub.gguf.keys["general.architecture"] == "llama" else want == got
    report(same, f"{family}: a folder computes what the file does")
    hub.shards(3)
    report(logits(os.path.join(hub.path, "config.json"), tokens) == got, f"{family}: in three files, and by the path of config.json")
    return hub, path


def tokenize(model, text):
    return subprocess.run([PROGRAM, "tokenize", model, "--special"], input=text, stdout=subprocess.PIPE, check=True).stdout


# Root may read what nobody may; not so without this.
PLAIN = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


def refused(hub, what, *words, path=None, before=()):
    done = subprocess.run([*before, PROGRAM, "inspect", path or hub.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    said = done.stderr.decode(errors="replace")
    report(done.returncode == 1 and all(w in said for w in words) and said.count("\n") == 1, f"refused: {what}",
           f"{done.returncode}: {said}")


def check_headers(hub):
    first, second = list(hub.tensors)[:2]

    def entry(name, **fields):
        def twist(header, data):
            header[name].update(fields)
        return twist

    def text(content):
        return lambda header, data: (content, data)

    def move(header, data):
        header[second]["data_offsets"] = header[first]["data_offsets"]
        header[second].update(shape=header[first]["shape"], dtype=header[first]["dtype"])

    def gap(header, data):
        return header, data + b"\0" * 64

    def drop(name):
        def twist(header, data):
            del header[name]["data_offsets"]
        return twist

    end = len(hub.tensors[first][2])
    cases = [
        ("a header that is no JSON", text(b"{"), "header is no JSON"),
        ("a header that is nested too deep", text(b"{\"a\":" + b"[" * 64 + b"]" * 64 + b"}"), "header is nested deeper than 64"),
        ("a header that is no object", text(b"[1]"), "no JSON object"),
        ("an unknown dtype", entry(first, dtype="F8_E4M3"), "F8_E4M3"),
        ("a dtype of another size", entry(first, dtype="F32" if hub.tensors[first][0] != "F32" else "F16"), "bytes for"),
        ("no dtype", entry(first, dtype=None), "no dtype"),
        ("a shape that is no list", entry(first, shape=3), "no shape"),
        ("a shape of nothing", entry(first, shape=[]), "no dimensions"),
        ("a shape of three sides", entry(first, shape=[1, 2, 3]), "more than 2 dimensions"),
        ("a negative side", entry(first, shape=[-1, 64]), "is not 1 to 4294967295"),
        ("a fraction for a side", entry(first, shape=[1.5, 64]), "is not 1 to 4294967295"),
        ("sides whose product overflows", entry(first, shape=[4294967295, 4294967295]), "overflow 64 bits"),
        ("a shape that does not fit its bytes", entry(first, shape=[1, 64]), "bytes for"),
        ("another shape than the model's", entry(first, shape=list(reversed(hub.tensors[first][1]))), "token_embd.weight: it has"),
        ("offsets beyond the file", entry(first, data_offsets=[1 << 40, (1 << 40) + end]), "cut off"),
        ("offsets that run backwards", entry(first, data_offsets=[end, 0]), "run backwards"),
        ("negative offsets", entry(first, data_offsets=[-end, 0]), "not two numbers"),
        ("three offsets", entry(first, data_offsets=[0, end, end]), "not two numbers"),
        ("one offset", entry(first, data_offsets=[0]), "not two numbers"),
        ("no offsets", drop(first), "no data_offsets"),
        ("two tensors in one place", move, "overlaps"),
        ("data that no tensor has", gap, "bytes of data"),
        ("a tensor that is not described", lambda h, d: h.update({first: 1}), "not described"),
        ("an empty name", lambda h, d: h.update({"": h.pop(first)}), "tensor's name"),
        ("a name of 300 bytes", lambda h, d: h.update({"x" * 300: h.pop(first)}), "tensor's name"),
        ("a missing tensor", lambda h, d: h.update({"model.extra": h.pop(first)}), "token_embd.weight: the tensor is missing"),
        ("a layer too many", lambda h, d: h.update({"model.layers.9.input_layernorm.weight": h.pop("model.norm.weight")}),
         "output_norm.weight"),
    ]
    for what, twist, word in cases:
        hub.write()
        hub.put("model.safetensors", safetensors(hub.tensors, twist))
        refused(hub, what, word)
    hub.write()
    hub.put("model.safetensors", safetensors(dict(hub.tensors, stray=("F32", [1], b"abcd"))))
    refused(hub, "a stray tensor", "stray", "no such tensor")
    whole = safetensors(hub.tensors)
    for what, content, word in (("a file of 7 bytes", whole[:7], "a header needs 8"), ("an empty file", b"", "a header needs 8"),
                                ("a length beyond the file", struct.pack("<Q", 1 << 62) + whole[8:], "a header of"),
                                ("a length beyond the limit", struct.pack("<Q", (64 << 20) + 1) + whole[8:], "a header of"),
                                ("a file that is cut off", whole[:-1], "cut off"),
                                ("two tensors of one name", whole.replace(b"layers.1.input", b"layers.0.input"), "twice")):
        hub.put("model.safetensors", content)
        refused(hub, what, word)
    os.unlink(os.path.join(hub.path, "model.safetensors"))
    refused(hub, "no weights", "model.safetensors: there is no such file")
    os.mkfifo(os.path.join(hub.path, "model.safetensors"))
    refused(hub, "a pipe for weights", "not a regular file")


def check_index(hub):
    outside = os.path.join(os.path.dirname(hub.path), "outside.safetensors")
    for what, change, word in (
            ("a path out of the folder", lambda m, n: m.update({n: "../outside.safetensors"}), "plain name"),
            ("an absolute path", lambda m, n: m.update({n: outside}), "plain name"),
            ("a hidden file", lambda m, n: m.update({n: ".safetensors"}), "plain name"),
            ("another kind of file", lambda m, n: m.update({n: "config.json"}), "plain name"),
            ("a NUL in a file's name", lambda m, n: m.update({n: "a\0.safetensors"}), "plain name"),
            ("a number for a file", lambda m, n: m.update({n: 3}), "plain name"),
            ("a file that is not there", lambda m, n: m.update({n: "other.safetensors"}), "other.safetensors: there is no"),
            ("a tensor in another file than it says", lambda m, n: m.update({n: "model-00002-of-00002.safetensors"}), "is not in"),
            ("a tensor that no file has", lambda m, n: m.update({"model.extra": m[n]}), "model.extra is not in")):
        hub.write()
        with open(outside, "wb") as file:
            file.write(safetensors(hub.tensors))
        index = hub.shards()
        change(index["weight_map"], list(hub.tensors)[0])
        hub.put("model.safetensors.index.json", index)
        refused(hub, what, word)
    hub.put("model.safetensors.index.json", {"weight_map": []})
    refused(hub, "a weight_map that is no object", "no weight_map")
    hub.put("model.safetensors.index.json", b"[")
    refused(hub, "an index that is no JSON", "no JSON")


def check_config(hub):
    cases = [("model_type", "mamba", "mamba"), ("model_type", None, "model_type is missing"), ("model_type", 7, "model_type"),
             ("num_hidden_layers", None, "num_hidden_layers is missing"), ("num_hidden_layers", 0, "num_hidden_layers"),
             ("num_hidden_layers", 1e9, "num_hidden_layers"), ("num_hidden_layers", 513, "block_count: 513"),
             ("hidden_size", "64", "hidden_size"), ("num_attention_heads", 5, "divide"), ("head_dim", 7, "odd"),
             ("rms_norm_eps", None, "rms_norm_eps is missing"), ("rms_norm_eps", "a", "rms_norm_eps"),
             ("rms_norm_eps", -1, "epsilon"), ("rope_theta", 0, "freq_base"), ("rope_theta", 1e300, "freq_base"),
             ("rope_scaling", {"rope_type": "yarn"}, "yarn"), ("rope_scaling", {"rope_type": 3}, "rope_type"),
             ("rope_scaling", {"rope_type": "linear"}, "factor is missing"),
             ("rope_scaling", {"rope_type": "llama3", "factor": 8}, "low_freq_factor"),
             ("rope_scaling", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4,
                               "original_max_position_embeddings": 64}, "not above"),
             ("hidden_act", "gelu", "gelu"), ("quantization_config", {}, "quantization_config"), ("num_experts", 8, "num_experts"),
             ("mlp_bias", True, "mlp_bias"), ("vocab_size", 5, "vocab_size"), ("use_sliding_window", True, "window of 64"),
             ("tie_word_embeddings", True, "lm_head")]
    old = dict(hub.config)
    hub.config["sliding_window"] = 64  # of no effect unless it is used
    for field, value, word in cases:
        config = dict(hub.config)
        if value is None:
            del config[field]
        else:
            config[field] = value
        hub.write()
        hub.put("config.json", config)
        if (field, value) == ("tie_word_embeddings", True):
            done = subprocess.run([PROGRAM, "inspect", hub.path, "--json"], stdout=subprocess.PIPE, check=False)
            report(done.returncode == 0, "a head that is the embedding again is passed over")
        else:
            refused(hub, f"config.json: {field} {value}"[:60], word)
    hub.config = old
    hub.write()
    hub.put("config.json", [1])
    refused(hub, "config.json that is a list", "config.json: it is no object")
    refused(hub, "a folder that is not there", "there is no such", path=hub.path + "-none/")
    for name in ("config.json", "tokenizer.json"):
        hub.write()
        hub.put(name, b"nonsense")
        refused(hub, f"{name} that is no JSON", name, "no JSON")
        hub.put(name, b"[" * 65 + b"]" * 65)
        refused(hub, f"{name} that is nested too deep", name, "it is nested deeper than 64")
        os.unlink(os.path.join(hub.path, name))
        refused(hub, f"no {name}", name, "no such file")


def check_gemma(hub):
    """What only its config.json says."""
    for field, value, word in (("sliding_window_pattern", 0, "no number from 1 to 512"), ("sliding_window_pattern", "3", "no number from 1 to 512"),
                               ("layer_types", ["full_attention"] * 3, "layer 1 is not sliding_attention"),
                               ("query_pre_attn_scalar", 0, "query_pre_attn_scalar"), ("query_pre_attn_scalar", "x", "query_pre_attn_scalar")):
        hub.write()
        hub.put("config.json", dict(hub.config, **{field: value}))
        refused(hub, f"config.json: {field} {value}"[:60], word)
    hub.write()
    hub.put("chat_template.jinja", b"x" * (1 << 20))
    refused(hub, "a template of 1 MiB", "chat_template.jinja", "1048576 bytes")


def check_norms(hub):
    """In 16 bits they are raised as in 32."""
    tokens = list(range(3, 40))
    whole = dict(hub.tensors)
    for kind, bits in (("BF16", lambda x: struct.pack("<f", x)[2:]), ("F16", lambda x: struct.pack("<e", x))):
        def rounded(entry, to):
            def back(two):
                return struct.unpack("<e", two)[0] if kind == "F16" else struct.unpack("<f", b"\0\0" + two)[0]
            values = [bits(x) for x, in struct.iter_unpack("<f", entry[2])]
            return (kind, entry[1], b"".join(values)) if to else ("F32", entry[1], b"".join(struct.pack("<f", back(v)) for v in values))
        found = []
        for to in (False, True):
            hub.tensors = {n: rounded(e, to) if n.endswith("norm.weight") else e for n, e in whole.items()}
            hub.write()
            found.append(logits(hub.path, tokens))
        report(found[0] == found[1], f"norms in {kind} are what they are in F32")
    hub.tensors = dict(whole, **{"model.norm.weight": ("F32", [2, 2], b"\0" * 16)})
    hub.write()
    refused(hub, "a norm of another shape", "output_norm.weight")
    hub.tensors = whole
    hub.write()


def check_tokenizer(hub):
    def change(**fields):
        tokenizer = json.loads(json.dumps(hub.tokenizer))
        for where, value in fields.items():
            if where.startswith("model_"):
                tokenizer["model"][where[6:]] = value
            else:
                tokenizer[where] = value
        return tokenizer

    vocab = hub.tokenizer["model"]["vocab"]
    for what, tokenizer, word in (
            ("another kind of model", change(model_type="Unigram"), "no BPE"),
            ("no model", {"added_tokens": []}, "no BPE"),
            ("an unknown pre-tokenizer", change(pre_tokenizer={"type": "Whitespace"}), "pre_tokenizer"),
            ("an unknown pattern", change(pre_tokenizer={"type": "Split", "pattern": {"Regex": "."}}), "pre_tokenizer"),
            ("a vocab that is a list", change(model_vocab=[]), "no vocab"),
            ("a vocab of nothing", dict(change(model_vocab={}), added_tokens=[]), "the vocab is empty"),
            ("more merges than are taken", change(model_merges=["a b"] * ((1 << 21) + 1)), "are taken"),
            ("an id below 0", change(model_vocab=dict(vocab, a=-1)), "not 0 to 1048575"),
            ("an id beyond the limit", change(model_vocab=dict(vocab, a=1 << 20)), "not 0 to 1048575"),
            ("one id for two tokens", change(model_vocab=dict(vocab, **{"aaa": vocab["a"]})), "twice"),
            ("merges that are missing", change(model_merges=None), "no merges"),
            ("a merge of one part", change(model_merges=["ab"]), "not two parts"),
            ("a merge of three parts", change(model_merges=[["a", "b", "c"]]), "two parts"),
            ("an added token without id", change(added_tokens=[{"content": "x"}]), "added token"),
            ("byte fallback without bytes", change(model_byte_fallback=True), "byte 0x00 has no token"),
            ("a token of 5,000 bytes", change(model_vocab=dict(vocab, **{"y" * 5000: 400})), "bytes")):
        hub.write()
        hub.put("tokenizer.json", tokenizer)
        refused(hub, what, word)
    hub.write()
    plain = json.loads(json.dumps(hub.tokenizer))
    plain["model"]["merges"] = [m.split(" ") for m in plain["model"]["merges"]]
    before = tokenize(hub.path, b"the thing<|im_end|> 12 bath\n")
    hub.put("tokenizer.json", plain)
    report(tokenize(hub.path, b"the thing<|im_end|> 12 bath\n") == before, "merges as pairs are the same")
    plain["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": QWEN_PATTERN}, "behavior": "Isolated"}, {"type": "ByteLevel", "use_regex": False}]}
    hub.put("tokenizer.json", plain)
    report(json.loads(tokenize(hub.path, b"the")) == json.loads(before)[:1], "Qwen's pattern is known")


def check_scores(hub):
    """A vocabulary with byte fallback: merges in order are what scores are."""
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + ["\u2581", "a", "b", "c", "ab", "bc", "abc", "\u2581a", "\u2581\u2581"]
    vocab = {t: i for i, t in enumerate(pieces)}
    hub.write()
    hub.put("tokenizer.json", {
        "added_tokens": [{"id": i, "content": pieces[i], "special": i < 3} for i in (0, 1, 2, vocab["\u2581\u2581"])],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"},
                                                           {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "model": {"type": "BPE", "vocab": vocab, "byte_fallback": True, "merges": ["b c", "a b", "a bc", "\u2581 a"]}})
    hub.put("config.json", dict(hub.config, vocab_size=hub.config["vocab_size"]))
    subset = {k: v for k, v in hub.tensors.items()}
    rows = len(pieces)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in subset:
            kind, shape, data = subset[name]
            data = (data * (1 + rows // shape[0]))[:rows * (len(data) // shape[0])]
            subset[name] = (kind, [rows, shape[1]], data)
    hub.put("config.json", dict(hub.config, vocab_size=rows))
    hub.put("model.safetensors", safetensors(subset))
    got = json.loads(tokenize(hub.path, "abc ab\u00e9".encode()))
    # With the space before: "\u2581 a bc" is "\u2581" "abc"; then " ab" is "\u2581" "ab" since "a b" goes before "\u2581 a".
    want = [vocab[t] for t in ("\u2581", "abc", "\u2581", "ab", "<0xC3>", "<0xA9>")]
    report(got == want, "merges of a vocabulary with byte fallback keep their order", f"{got} for {want}")
    got = json.loads(tokenize(hub.path, b"a  b"))
    report(got[:2] == [vocab["\u2581a"], vocab["\u2581\u2581"]], "an added token of two spaces is found", str(got))


def check_limits(hub):
    """What is too much: each thing that is counted."""
    one = ("F32", [1], b"abcd")
    hub.write()
    hub.put("model.safetensors", safetensors({f"t{i}": one for i in range(65537)}))
    refused(hub, "a file of 65,537 tensors", "model.safetensors", "more than 65536 tensors")
    index = {"weight_map": {f"t{i}": "model-1.safetensors" for i in range(65537)}}
    hub.put("model-1.safetensors", safetensors({}))
    hub.put("model.safetensors.index.json", index)
    refused(hub, "an index of 65,537 tensors", "weight_map", "more than 65536 tensors")
    index = {"weight_map": {}}
    for k in (1, 2):
        names = {f"model.layers.{i}.self_attn.{n}_proj.{end}": one for i in range(200 * k - 200, 200 * k) for n in "qkvo"
                 for end in ("weight", "bias")}
        names |= {f"model.layers.{i}.self_attn.q_proj.bias": one for i in range(40000 * k, 40000 * k + 34000)}
        hub.put(f"model-{k}.safetensors", safetensors(names))
        index["weight_map"].update({n: f"model-{k}.safetensors" for n in names})
    index["weight_map"] = dict(list(index["weight_map"].items())[:30000] + list(index["weight_map"].items())[-30000:])
    hub.put("model.safetensors.index.json", index)
    refused(hub, "two files of 70,000 tensors", "more than 65536 tensors")
    hub.put("model.safetensors.index.json", {"weight_map": {f"t{i}": f"m{i}.safetensors" for i in range(257)}})
    for i in range(257):
        hub.put(f"m{i}.safetensors", safetensors({}))
    refused(hub, "257 files of weights", "more than 256 files")
    for name, most in (("config.json", 64 << 20), ("tokenizer.json", 64 << 20), ("tokenizer_config.json", 64 << 20)):
        hub.write()
        with open(os.path.join(hub.path, name), "r+b") as file:
            file.truncate(most + 1)
        refused(hub, f"{name} of 64 MiB and a byte", name, f"{most + 1} bytes")


def check_faults(what, kind):
    """Everything that can fail while reading, at each place."""
    done = subprocess.run([os.path.join(BUILD, "tests", "load_faults"), what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    said = done.stdout.decode(errors="replace")
    report(done.returncode == 0 and min(v for k, v in json.loads(said).items() if k != "wrong") > 0,
           "memory, reads and descriptors fail at each place, of " + kind, said + done.stderr.decode(errors="replace")[:2000])


def split(gguf, folder):
    """The same model in two files; the path of the first."""
    kinds = {name: (number, size) for number, (name, size) in SIZES.items()}
    names = list(gguf.tensors)
    text = lambda t: struct.pack("<Q", len(t)) + t.encode()
    for part, own in enumerate((names[::2], names[1::2])):
        keys = gguf.keys_raw if part == 0 else text("general.architecture") + struct.pack("<I", 8) + text(gguf.keys["general.architecture"])
        keys += text("split.no") + struct.pack("<IH", 2, part) + text("split.count") + struct.pack("<IH", 2, 2)
        head, data = b"", b""
        for name in own:
            kind, shape, content = gguf.tensors[name]
            head += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), kinds[kind][0], len(data))
            data += content + bytes(-len(content) % 32)
        out = b"GGUF" + struct.pack("<IQQ", 3, len(own), (len(gguf.keys) if part == 0 else 1) + 2) + keys + head
        with open(os.path.join(folder, f"two-{part + 1:05}-of-00002.gguf"), "wb") as file:
            file.write(out + bytes(-len(out) % 32) + data)
    return os.path.join(folder, "two-00001-of-00002.gguf")


def check_world(hub, path):
    """Files that may not be read, or are none; and what can fail while reading."""
    files = [name for name in sorted(os.listdir(hub.path))]
    for name in files:
        os.chmod(os.path.join(hub.path, name), 0)
        refused(hub, f"{name} that may not be read", f"{name} may not be read", before=PLAIN)
        os.chmod(os.path.join(hub.path, name), 0o600)
    os.chmod(hub.path, 0)
    refused(hub, "a folder that may not be read", "folder may not be read", before=PLAIN)
    os.chmod(hub.path, 0o700)
    os.chmod(path, 0)
    refused(hub, "a file that may not be read", "may not be read", path=path, before=PLAIN)
    os.chmod(path, 0o600)
    check_faults(path, "a file")
    check_faults(hub.path, "a folder")
    for name in files:
        at = os.path.join(hub.path, name)
        os.rename(at, at + "-")
        os.mkfifo(at)
        refused(hub, f"a pipe for {name}", name, "not a regular file")
        os.unlink(at)
        os.rename(at + "-", at)


def check_mutations(hub):
    """Whatever the bytes are, the answer is a description or a refusal."""
    draw = random.Random(1)
    rounds = 30 if os.environ.get("HOLDFAST_SANITIZED") else 300
    taken, wrong = 0, []
    for _ in range(rounds):
        hub.write()
        name = draw.choice(["config.json", "tokenizer.json", "model.safetensors", "tokenizer_config.json"])
        with open(os.path.join(hub.path, name), "rb") as file:
            data = bytearray(file.read())
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(min(len(data), 6000))
            if draw.random() < 0.5:
                data[at] = draw.choice(b'{}[]",:0129-.eE\\ \xff\x00')
            else:
                data[at:at + draw.randint(1, 9)] = draw.choice([b"", b"99999999999999999999", b"null", b"-1", b'"\\u0000"', b"[" * 70])
        hub.put(name, bytes(data))
        done = subprocess.run([PROGRAM, "inspect", hub.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
        taken += done.returncode == 0
        if done.returncode not in (0, 1) or (done.returncode == 1) != (done.stderr.count(b"\n") == 1):
            wrong.append((name, done.returncode, done.stderr[-400:]))
    report(not wrong and 0 < taken < rounds, f"{rounds} mutations are taken or refused, nothing else", f"{taken} taken, {wrong[:2]}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        for family in ("llama", "llama3", "mistral", "qwen3", "gemma3", "qwen2"):
            hub, path = check_family(folder, family)
            if family == "llama3":
                hub.write()
                check_faults(hub.path, "a folder with factors of RoPE and a template")
                check_faults(split(hub.gguf, folder), "a split file")
            if family == "gemma3":
                hub.put("chat_template.jinja", b"x")
                check_world(hub, path)
                check_gemma(hub)
                check_norms(hub)
        hub.write()
        text = "the bath of 12 things\n<|im_start|>user \u00e9\u4e2d".encode()
        report(tokenize(path, text) == tokenize(hub.path, text), "the same tokens")
        check_headers(hub)
        check_index(hub)
        check_config(hub)
        check_tokenizer(hub)
        check_scores(hub)
        check_limits(hub)
        check_mutations(hub)
    return reported.done()


if __name__ == "__main__":
    sys.exit(main())
