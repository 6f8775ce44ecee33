"""The forward pass against figures that an independent implementation gave (numpy, f32, weights as stored).

Goal: that the numbers are those the model file means, and that a precision of K and V costs what it must and
no more. tests/data/logits-smollm2-135m.json holds the reference's logits at chosen positions ("at") and its
greedy continuation; the perplexities and divergences below are the same implementation's for these very
windows, or the bounds that are promised. Needs the model: HOLDFAST_MODEL is its path.
"""
import json
import os
import subprocess
import sys
import tempfile

BUILD, SOURCE = os.environ["BUILDDIR"], os.environ["SRCDIR"]
MODEL = os.environ.get("HOLDFAST_MODEL", "")
PROGRAM = os.path.join(BUILD, "holdfastd")
TEXT = os.path.join(SOURCE, "tests", "data", "eval-head.txt")

# kv_precision.py's Model.window_logprobs(ids, lambda layer, k, v: (k, v)) over the first two windows of 1,024 ids
# of the text: mean negative log-probability of ids 512 .. 1023 of each, 1.5495171 (1.4860356 and 1.6129983).
NLL = 1.5495171
# Promised divergence, in thousandths: 1.3 times what that implementation measured, near and at 7,000.
BOUND = {("fp8", 0): 1.3 * 8.2, ("fp8", 7000): 1.3 * 15.3, ("int8", 0): 1.3 * 0.82, ("int8", 7000): 1.3 * 0.64}
TOP_TOLERANCE, CLOSE = 0.01, 0.02

count = failed = 0


def report(good, what, detail=""):
    global count, failed
    count += 1
    failed += not good
    if detail:
        print("#", detail)
    print("ok" if good else "not ok", count, "-", what, flush=True)


def run(*arguments):
    done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, env=ENVIRONMENT, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{arguments[0]} ended with {done.returncode}")
    return json.loads(done.stdout)


def logits(cases, *options):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        return run("logits", MODEL, "--tokens", file.name, "--kv", "f32", *options)


def greedy_agrees(case, found, options):
    """Equal, or apart where the two best are so close that rounding decides."""
    for i, (want, got) in enumerate(zip(case["greedy"], found["greedy"])):
        if want != got:
            tokens = case["tokens"] + case["greedy"][:i]
            best = logits([{"name": "", "tokens": tokens}], *options)[0]["rows"][-1]["top"]
            return {want, got} == {best[0][0], best[1][0]} and best[0][1] - best[1][1] < CLOSE
    return len(case["greedy"]) == len(found["greedy"])


def check_logits(cases, what, *options):
    results = logits(cases, *options)
    worst, good = 0.0, len(results) == len(cases)
    for case, found in zip(cases, results):
        good &= found["name"] == case["name"] and found["tokens"] == case["tokens"]
        good &= len(found["rows"]) == len(case["tokens"])
        for at, want in zip(case["at"], case["rows"]):
            top = found["rows"][at]["top"]
            got = dict(map(tuple, top))
            close = want["top"][0][1] - want["top"][1][1] < CLOSE
            good &= close or found["rows"][at]["argmax"] == want["argmax"]
            last = top[-1][1]
            for token, value in want["top"]:
                # What is not among ours must be as close to our last as the tolerance.
                worst = max(worst, abs(got.get(token, last) - value))
        good &= abs(found["logprob"] - case["logprob"]) < 0.01 * len(case["tokens"]) ** 0.5
        good &= greedy_agrees(case, found, options)
    report(good and worst < TOP_TOLERANCE, what, f"largest difference of a logit: {worst:.5f}")


def check_default():
    # Over 19 windows (tests/bench/quality.py) the default path is within 1 %. Two windows carry more noise:
    # with f32 activations, nearer to the reference, fp8 KV alone moves these two by 1.9 %.
    found = run("perplexity", MODEL, "--text", TEXT, "--windows", "2", "--json")
    report(found["tokens"] == 1024 and abs(found["nll"] - NLL) < 0.015, "perplexity of the default path",
           f"nll {found['nll']:.5f}, reference {NLL:.5f}")


def check_divergence(kv, shift):
    # A few tokens make up most of what fp8 costs, so its smaller figure takes two windows.
    near_fp8 = (kv, shift) == ("fp8", 0)
    windows = 2 if near_fp8 else 1
    found = run("perplexity", MODEL, "--text", TEXT, "--windows", str(windows), "--json", "--kv", kv,
                "--against", "f32", "--shift", str(shift))
    mean = 1e3 * found["kl_mean"]
    good = found["tokens"] == 512 * windows and 0 < mean < BOUND[kv, shift] and found["same_top1"] > 0.9
    report(good and found["kl_p99"] > found["kl_mean"], f"what {kv} costs at position {shift}",
           f"KL {mean:.3f}e-3, at most {BOUND[kv, shift]:.3f}e-3; same first {found['same_top1']:.4f}")
    if near_fp8:
        # What it is compared with is f32 KV and activations: the reference's own plan, on the same windows.
        report(abs(found["against_nll"] - NLL) < 0.0005, "perplexity with f32 KV and activations",
               f"nll {found['against_nll']:.5f}, reference {NLL:.5f}")


def sanitized(cases):
    """With sanitizers the memory is looked at; the figures are those of the plain build, so little will do."""
    brief = min(cases, key=lambda c: len(c["tokens"]))
    check_logits([brief], "logits of the fastest path with f32 activations", "--act", "f32", "--chunk", "5")
    # int8 would first measure its smoothing vector, over 2,048 tokens.
    found = run("perplexity", MODEL, "--text", TEXT, "--window", "64", "--windows", "1", "--json", "--kv", "fp8",
                "--against", "f32")
    report(found["tokens"] == 32 and 0 < found["kl_mean"] < 0.1, "what fp8 costs in a short window", str(found))


def main():
    with open(os.path.join(SOURCE, "tests", "data", "logits-smollm2-135m.json"), encoding="utf-8") as file:
        cases = json.load(file)
    if os.environ.get("HOLDFAST_SANITIZED"):
        sanitized(cases)
        print(f"1..{count}")
        return 1 if failed else 0
    short = [c for c in cases if len(c["tokens"]) < 300]
    long = [c for c in cases if len(c["tokens"]) >= 300]
    check_logits(short, "logits of the scalar path", "--isa", "scalar")
    check_logits(long, "logits of the fastest path with f32 activations", "--act", "f32", "--chunk", "100")
    check_default()
    for kv, shift in BOUND:
        check_divergence(kv, shift)
    print(f"1..{count}")
    return 1 if failed else 0


if not MODEL:
    print("1..0 # SKIP HOLDFAST_MODEL is not set")
    sys.exit(0)
with tempfile.TemporaryDirectory() as cache:
    ENVIRONMENT = dict(os.environ, XDG_CACHE_HOME=cache)
    sys.exit(main())
