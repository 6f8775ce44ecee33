"""What retention is worth on real traffic: every policy of the planner at the same memory, against the figures to reach.

    python3 tests/bench/retention.py FOLDER [--seeds 3] [--only known|open|closed|host]

FOLDER has weka-coding-turns.jsonl and swebench-agent-turns.jsonl. BUILDDIR names the build (default: build). Each part
prints a table and, for each figure to reach, whether it was reached. Minutes of both cores; --seeds 1 is a third of it.

The machine of the open loop is never short of arithmetic, so that memory alone decides. That of the closed loop has the
rates of an 8-billion model on one large GPU.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys

BUILD = os.environ.get("BUILDDIR", "build")
KV = 1000  # bytes a token: memory in bytes is then thousands of tokens
IDEAL = ["--prefill-tps", "1e9", "--decode-tps", "1e3", "--attention-knee", "0"]
REAL = ["--prefill-tps", "20000", "--decode-tps", "100", "--attention-knee", "32768"]
TRACES = {"weka": "weka-coding-turns.jsonl", "swebench": "swebench-agent-turns.jsonl"}
ARRIVALS = {"weka": 60, "swebench": 240}  # sessions an hour

pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count())
failed = 0


def simulate(trace, memory, policy, seed, *more):
    command = [f"{BUILD}/holdfastd", "simulate", "--trace", str(folder / TRACES[trace]), "--format", trace, "--memory",
               str(int(memory)), "--kv-bytes-per-token", str(KV), "--policy", policy, "--seed", str(seed), "--json", *map(str, more)]
    if "--arrivals" not in command:
        command += ["--arrivals", f"{ARRIVALS[trace]}/h"]
    p = subprocess.run(command, capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr)
    r = json.loads(p.stdout)
    reusable = r["tokens_resident"] + r["tokens_reloaded"] + r["tokens_recomputed"]
    r["lost"] = 100 * r["tokens_recomputed"] / reusable if reusable else 0
    return r


def each(trace, memory, policy, *more):
    """The runs of all seeds."""
    return list(pool.map(lambda seed: simulate(trace, memory, policy, seed, *more), seeds))


def mean(runs, key):
    return statistics.mean(run[key] for run in runs)


def figure(what, value, wanted, unit="", least=True):
    global failed
    reached = value >= wanted if least else value <= wanted
    failed += not reached
    print(f"  {'reached    ' if reached else 'NOT reached'}  {what}: {value:.3g}{unit} ({'at least' if least else 'at most'} {wanted:g}{unit})")


def known():
    print("Coding trace, open loop, a new session each minute, blocks of 256 tokens: % of the reusable tokens computed again")
    print("  tokens       lru  ttl:300     cost  clairvoyant      known: lru, ttl, clairvoyant")
    for tokens, said in ((1e6, (66, 66, 40)), (2e6, (34, 35, 17)), (4e6, (9, 11, 4))):
        lost = [mean(each("weka", tokens * KV, p, *IDEAL), "lost") for p in ("lru", "ttl:300", "cost", "clairvoyant")]
        print(f"  {tokens / 1e6:3.0f} M   {lost[0]:8.1f} {lost[1]:8.1f} {lost[2]:8.1f} {lost[3]:12.1f}                 {said}")


def memory_where(trace, lost):
    """Where lru recomputes so much, by halving; the mean of all seeds."""
    low, high = 1e5 * KV, 2e7 * KV
    while high / low > 1.01:
        middle = (low * high) ** 0.5
        if mean(each(trace, middle, "lru", *IDEAL), "lost") > lost:
            low = middle
        else:
            high = middle
    return high


def opened():
    print("\nOpen loop, device memory only: % computed again where lru does 30 and 10, and how much of the distance from lru to "
          "clairvoyant is closed")
    for trace in TRACES:
        for lost in (30, 10):
            memory = memory_where(trace, lost)
            runs = {p: each(trace, memory, p, *IDEAL) for p in ("lru", "ttl:300", "cost", "clairvoyant")}
            of = {p: mean(runs[p], "lost") for p in runs}
            closed = 100 * (of["lru"] - of["cost"]) / (of["lru"] - of["clairvoyant"])
            print(f"  {trace}, {memory / KV / 1e6:.2f} M tokens: " + ", ".join(f"{p} {of[p]:.1f}" for p in of))
            figure(f"{trace} at {lost} %: distance closed", closed, 40, " %")
            for quantile in ("p50", "p99"):
                new = {p: statistics.mean(r["ttft_ms"]["new"][quantile] for r in runs[p]) for p in ("lru", "cost")}
                figure(f"  first token of new sessions, {quantile}, against lru", new["cost"] / new["lru"], 1.005, " x", False)
            figure("  forced recomputes", sum(r["forced_recomputes"] for p in runs for r in runs[p]), 0, "", False)


def closed():
    print("\nClosed loop, more sessions than memory carries: cost with its admission against lru that lets everyone in")
    for trace, tokens, arrivals, hours in (("weka", 2e6, 120, 4), ("swebench", 4e5, 480, 2)):
        more = [*REAL, "--loop", "closed", "--arrivals", f"{arrivals}/h"]
        short = {p: each(trace, tokens * KV, p, *more, "--hours", hours) for p in ("lru", "cost", "clairvoyant")}
        whole = {p: each(trace, tokens * KV, p, *more) for p in ("lru", "cost")}
        print(f"  {trace}, {tokens / 1e6:g} M tokens, {arrivals} sessions an hour")
        for p in short:
            print(f"    {p:12s} first {hours} h: {mean(short[p], 'turns_answered') / hours:8.0f} turns an hour, "
                  f"{mean(short[p], 'lost'):5.1f} % computed again, engine {100 * mean(short[p], 'compute_busy_s') / hours / 3600:3.0f} % busy")
        for p in whole:
            print(f"    {p:12s} to the end: sessions p50 {mean(whole[p], 'session_s_p50'):8.0f} s, p99 {mean(whole[p], 'session_s_p99'):8.0f} s, "
                  f"{mean(whole[p], 'lost'):5.1f} % computed again, longest wait {max(r['wait_ms_max'] for r in whole[p]) / 1000:7.0f} s")
        figure(f"{trace}: turns an hour, cost against lru", mean(short["cost"], "turns_answered") / mean(short["lru"], "turns_answered"), 2, " x")
        speed = {p: mean(whole[p], "turns_answered") / mean(whole[p], "span_s") for p in whole}
        figure(f"{trace}: turns an hour until all are answered, cost against lru", speed["cost"] / speed["lru"], 2, " x")
        # Neither idles in this span for want of turns that the other still has.
        hours_of = [min(pair[0]["span_s"], pair[1]["span_s"]) / 3600 for pair in zip(whole["lru"], whole["cost"])]
        fair = {p: sum(pool.map(lambda seed, hours, p=p: simulate(trace, tokens * KV, p, seed, *more, "--hours", repr(hours))["turns_answered"],
                                seeds, hours_of)) for p in whole}
        figure(f"{trace}: turns answered until the first of the two has answered all, cost against lru", fair["cost"] / fair["lru"], 2, " x")
        for key in ("session_s_p50", "session_s_p99"):
            figure(f"  {key}, cost against lru", mean(whole["cost"], key) / mean(whole["lru"], key), 1, " x", False)


def hosted():
    print("\nHost memory of four times the device's, against none")
    for trace in TRACES:
        memory = memory_where(trace, 30)
        without = each(trace, memory, "cost", *REAL)
        runs = {p: each(trace, memory, p, *REAL, "--host", int(4 * memory)) for p in ("cost", "swap")}
        for p in runs:
            print(f"  {trace}, {p}: {mean(runs[p], 'lost'):.1f} % computed again, {mean(runs[p], 'tokens_reloaded') / 1e6:.0f} M tokens reloaded; "
                  f"without host {mean(without, 'lost'):.1f} %")
        figure(f"{trace}: tokens computed again, with host against without", mean(runs["cost"], "tokens_recomputed") / max(1, mean(without, "tokens_recomputed")),
               0.1, " x", False)
        late = [statistics.mean(r["ttft_ms"]["tool"]["p99"] for r in rs) for rs in (runs["cost"], without)]
        figure("  first token after a tool, p99", late[0] / late[1], 0.2, " x", False)


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("folder", type=pathlib.Path)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--only", choices=["known", "open", "closed", "host"])
arguments = parser.parse_args()
folder, seeds = arguments.folder, range(1, arguments.seeds + 1)
for name, part in (("known", known), ("open", opened), ("closed", closed), ("host", hosted)):
    if arguments.only in (None, name):
        part()
sys.exit(1 if failed else 0)
