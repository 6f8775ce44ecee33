"""The planner. Goal: its figures are the scheduler's own and right where they can be worked out by hand; the same
run twice is the same; what is wrong is refused. Method: holdfastd simulate on made traces and on excerpts of real
ones (tests/data).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

from ar1 import BUILD, SLOW, Tap

DATA = pathlib.Path(__file__).resolve().parent / "data"
FAST = ["--kv-bytes-per-token", "1000", "--prefill-tps", "1e9", "--decode-tps", "1e6", "--attention-knee", "0"]
KEYS = ("policy memory_bytes turns turns_answered turns_refused tokens_new tokens_recomputed tokens_reloaded ttft_ms_p50 "
        "ttft_ms_p99 forced_recomputes held_byte_seconds span_s hash").split()
folder = pathlib.Path(tempfile.mkdtemp(prefix="hf-"))


def run(*arguments, code=0):
    p = subprocess.run([f"{BUILD}/holdfastd", "simulate", *map(str, arguments)], capture_output=True, text=True,
                       timeout=60 * SLOW)
    assert p.returncode == code, (arguments, p.returncode, p.stdout[-300:], p.stderr)
    return p


def figures(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def made(lines):
    path = folder / "made.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def real(name, *arguments):
    return figures("--trace", DATA / f"trace-{name}.jsonl", "--format", name, *FAST, *arguments)


def by_hand():
    # Two sessions with 1,024 tokens each and room for one and a half: the second takes 512 of the first's, from its end.
    trace = made([{"t_ms": 0, "session": 1, "prompt": 1023, "kept": 0, "completion": 1, "stop": "tool", "answer_ms": 0},
                  {"t_ms": 1000, "session": 2, "prompt": 1023, "kept": 0, "completion": 1, "stop": "end", "answer_ms": 0},
                  {"t_ms": 5000, "session": 1, "prompt": 1034, "kept": 1023, "completion": 1, "stop": "end",
                   "answer_ms": 0}])
    base = ["--trace", trace, "--format", "holdfast", *FAST, "--max-tokens", 0]
    r = figures(*base, "--memory", 6 * 256 * 1000, "--policy", "lru")
    assert (r["turns"], r["turns_answered"], r["turns_refused"]) == (3, 3, 0), r
    assert r["tokens_recomputed"] == 1023 - 512, r
    assert r["tokens_resident"] == 512 and r["tokens_new"] == 2 * 1023 + 11, r
    assert 5.0 <= r["span_s"] < 5.1, r
    held = 4 * 1 + 6 * 4  # pages by seconds: the first alone for one, then all
    assert abs(r["held_byte_seconds"] / (held * 256000) - 1) < 0.02, (r["held_byte_seconds"], held)
    # A third of the same size, and room for two and a half: one that never returns should give way.
    three = [json.loads(line) for line in open(trace)]
    three.insert(2, {**three[1], "t_ms": 2000, "session": 3})
    for policy, recomputed in (("lru", 1023 - 512), ("clairvoyant", 0)):
        r = figures("--trace", made(three), *base[2:], "--memory", 10 * 256 * 1000, "--policy", policy)
        assert r["tokens_recomputed"] == recomputed, (policy, r)
    made([three[0], three[1], three[3]])
    r = figures(*base, "--memory", 6 * 256 * 1000, "--policy", "none")
    assert r["tokens_recomputed"] == 1023, r
    r = figures(*base, "--memory", 3 * 256 * 1000, "--policy", "lru")
    assert (r["turns_answered"], r["turns_refused"]) == (0, 3), r
    # A pause of four seconds, and a time-out before and behind it.
    for seconds, recomputed in ((3, 1023), (5, 0)):
        r = figures(*base, "--memory", 1 << 30, "--policy", f"ttl:{seconds}")
        assert r["tokens_recomputed"] == recomputed, (seconds, r)


def windows():
    """Of layers with a window only what it shows is held: of 32 pages the last 3, where 512 tokens are kept."""
    turn = {"prompt": 8191, "kept": 0, "completion": 1, "answer_ms": 0}
    two = [{**turn, "t_ms": 0, "session": 1, "stop": "tool"}, {**turn, "t_ms": 1000, "session": 2, "stop": "end"},
           {**turn, "t_ms": 10000, "session": 1, "stop": "end", "kept": 8191, "prompt": 8200}]
    base = ["--format", "holdfast", *FAST, "--max-tokens", 0, "--chunk", 256, "--policy", "lru"]
    window = ["--window", 256, "--window-kv-bytes", 400]
    one = made([two[0], two[2]])
    for options, page in (([], 32 * 1000), (window, 32 * 600 + 3 * 400)):
        r = figures("--trace", one, *base, "--memory", "1G", *options)
        assert abs(r["held_byte_seconds"] / (10 * 256 * page) - 1) < 0.02, (r["held_byte_seconds"], page)
    for options, recomputed in (([], True), (window, False)):
        r = figures("--trace", made(two), *base, "--memory", 14000000, *options)
        assert r["turns_answered"] == 3 and (r["tokens_recomputed"] > 0) == recomputed, r
    # A context that is shorter than what is kept has all its pages in one group.
    short = [{**t, "prompt": min(t["prompt"], 700), "kept": min(t["kept"], 690)} for t in two]
    hashes = {figures("--trace", made(short), *base, "--memory", 14000000, *o)["hash"] for o in ([], window)}
    assert len(hashes) == 1


def closed():
    lines = [{"t_ms": 0, "session": 1, "prompt": 1000, "kept": 0, "completion": 1000, "stop": "tool", "answer_ms": 500},
             {"t_ms": 1500, "session": 1, "prompt": 2100, "kept": 2000, "completion": 10, "stop": "end", "answer_ms": 0}]
    base = ["--trace", made(lines), "--format", "holdfast", *FAST, "--decode-tps", "100", "--memory", "1G"]
    r = figures(*base)  # ten seconds of answer: the second turn is late, and comes at once
    assert 10.0 < r["span_s"] < 10.3, r
    r = figures(*base, "--loop", "closed")
    assert 11.0 < r["span_s"] < 11.3, r
    assert r["ttft_ms"]["tool"]["turns"] == 1 and r["ttft_ms"]["new"]["turns"] == 1, r
    r = figures(*base, "--hours", 9 / 3600)
    assert r["turns_answered"] == 0 and r["turns"] == 1, r


def machine():
    # One prompt of 1,000 tokens at 1,000 a second, without and with a knee of 500: each token at p costs 1 + p / 500.
    lines = [{"t_ms": 0, "session": 1, "prompt": 1000, "kept": 0, "completion": 1, "stop": "end", "answer_ms": 0}]
    base = ["--trace", made(lines), "--format", "holdfast", "--memory", "1G", "--prefill-tps", "1000", "--decode-tps", 1000]
    assert abs(figures(*base, "--attention-knee", 0)["ttft_ms_p50"] - 1000) < 2
    assert abs(figures(*base, "--attention-knee", 500)["ttft_ms_p50"] - 2000) < 3


def shared():
    # The second begins with a block of the first's, and is another session.
    trace = made([{"timestamp": 0, "input_length": 1100, "output_length": 1, "hash_ids": [1, 2, 3]},
                  {"timestamp": 60000, "input_length": 1100, "output_length": 1, "hash_ids": [1, 5, 6]}])
    base = ["--trace", trace, "--format", "mooncake", *FAST, "--memory", 20 * 256 * 1000]
    r, apart = figures(*base), figures(*base, "--no-share")
    assert r["tokens_shared"] == r["tokens_resident"] == 512 and r["tokens_new"] == 2200 - 512, r
    assert apart["tokens_shared"] == apart["tokens_resident"] == 0 and apart["tokens_new"] == 2200, apart
    assert r["byte_seconds"]["device"]["shared"] > 0 == apart["byte_seconds"]["device"]["shared"], r
    assert "found in other sessions" in run(*base).stdout


def policies(name, memory):
    order = []
    for policy in ("clairvoyant", "cost", "lru", "ttl:300", "swap", "none"):
        r = real(name, "--memory", memory, "--policy", policy)
        assert all(key in r for key in KEYS), r
        assert r["policy"] == policy and r["memory_bytes"] == memory, r
        assert r["turns_answered"] + r["turns_refused"] == r["turns"], r
        assert r["turns_answered"] > 0 and r["forced_recomputes"] == 0, r
        columns = r["byte_seconds"]["device"]
        pages = memory // 256000 * 256000
        assert abs(sum(columns.values()) / (pages * r["span_s"]) - 1) < 1e-3, r
        assert r["held_byte_seconds"] <= sum(columns.values()), r
        order.append(r["tokens_recomputed"])
    clairvoyant, cost, lru, none = order[0], order[1], order[2], order[5]
    assert clairvoyant <= cost and clairvoyant <= lru <= none, order
    assert clairvoyant < lru, order  # at this memory there is something to lose


def host():
    base = ["--trace", DATA / "trace-swebench.jsonl", "--format", "swebench", "--arrivals", "240/h", "--memory", "8G"]
    without, with_host = figures(*base), figures(*base, "--host", "32G")
    assert without["tokens_reloaded"] == 0 and with_host["tokens_reloaded"] > 0, with_host
    assert with_host["tokens_recomputed"] * 10 <= without["tokens_recomputed"], (without, with_host)
    assert with_host["ttft_ms"]["tool"]["p99"] * 5 <= without["ttft_ms"]["tool"]["p99"], (without, with_host)
    assert with_host["host_busy_s"] > 0 and sum(with_host["byte_seconds"]["host"].values()) > 0, with_host


def repeats():
    for loop in ("open", "closed"):
        one = run("--trace", DATA / "trace-weka.jsonl", "--format", "weka", "--memory", "1G", "--json", "--loop", loop)
        two = run("--trace", DATA / "trace-weka.jsonl", "--format", "weka", "--memory", "1G", "--json", "--loop", loop)
        assert one.stdout == two.stdout
    assert real("weka", "--memory", 10**9, "--seed", 1)["hash"] != real("weka", "--memory", 10**9, "--seed", 2)["hash"]


def searches():
    base = ["--policy", "lru", "--loop", "open"]
    least = real("swebench", "--memory", 10**8, *base, "--search")["memory_bytes_no_recompute"]
    assert real("swebench", "--memory", least, *base)["tokens_recomputed"] == 0
    assert real("swebench", "--memory", int(least * 0.95), *base)["tokens_recomputed"] > 0


def pictures():
    path = folder / "run.svg"
    table = run("--trace", DATA / "trace-swebench.jsonl", "--format", "swebench", *FAST, "--memory", "200M", "--svg", path)
    for words in ("what gives out first", "recomputed", "retained", "time to first token", "answered"):
        assert words in table.stdout, table.stdout
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag.endswith("svg") and len(list(root.iter())) > 100
    hours = max(float(e.text[:-2]) for e in root.iter() if e.text and e.text.endswith(" h"))
    span = real("swebench", "--memory", "200M")["span_s"] / 3600
    assert span * 0.98 - 0.01 < hours < span * 1.02 + 0.01, (hours, span)  # the whole run, and no more
    run("--trace", DATA / "trace-swebench.jsonl", "--format", "swebench", "--memory", "200M", "--svg",
        "/nonexistent/x.svg", code=1)


def refuses():
    weka = ["--trace", DATA / "trace-weka.jsonl", "--format", "weka"]
    for arguments, word in (
            (["--format", "weka", "--memory", "1G"], "--trace"),
            (["--trace", "x", "--memory", "1G"], "--format"),
            (weka, "--memory"), ([*weka, "--memory", "0"], "--memory"), ([*weka, "--memory", "1"], "no page"),
            ([*weka, "--memory", "1000G", "--kv-bytes-per-token", 1, "--page-tokens", 16], "16777216 pages"),
            ([*weka, "--memory", "1G", "--policy", "best"], "--policy"),
            ([*weka, "--memory", "1G", "--policy", "ttl:"], "--policy"),
            ([*weka, "--memory", "1G", "--policy", "ttl:-1"], "--policy"),
            ([*weka, "--memory", "1G", "--arrivals", "0"], "--arrivals"),
            ([*weka, "--memory", "1G", "--arrivals", "60/d"], "--arrivals"),
            ([*weka, "--memory", "1G", "--prefill-tps", "0"], "--prefill-tps"),
            ([*weka, "--memory", "1G", "--prefill-tps", "nan"], "--prefill-tps"),
            ([*weka, "--memory", "1G", "--page-tokens", "48"], "--page-tokens"),
            ([*weka, "--memory", "1G", "--window", "64"], "--window-kv-bytes"),
            ([*weka, "--memory", "1G", "--window", "64", "--window-kv-bytes", 65536], "not less than all"),
            ([*weka, "--memory", "1G", "--window", "64", "--window-kv-bytes", 60000, "--disk", "1G"], "--disk"),
            ([*weka, "--memory", "1G", "--nonsense"], "no option"), ([*weka, "--memory"], "needs a value")):
        p = run(*arguments, code=2)
        assert word in p.stderr and not p.stdout, (arguments, p.stderr)
    assert "line 1: turns: is missing" in run("--trace", made([{}]), "--format", "weka", "--memory", "1G", code=1).stderr
    assert "no such file" in run("--trace", "/nonexistent", "--format", "weka", "--memory", "1G", code=1).stderr.lower()
    huge = folder / "huge.jsonl"  # ten gigabytes without a line's end
    with open(huge, "wb") as file:
        file.truncate(10 << 30)
    assert "line 1: longer than" in run("--trace", huge, "--format", "weka", "--memory", "1G", code=1).stderr
    os.unlink(huge)


def readme():
    """What README.md shows is what its command prints, and its picture is of that run."""
    root = DATA.parent.parent
    _, after = (root / "README.md").read_text().split("\n    build/holdfastd simulate ", 1)
    command, rest = after.split("\n", 1)
    shown = rest.split("```\n")[1]
    picture = folder / "readme.svg"
    words = [str(root / word) if word.startswith("tests/") else word for word in command.split()]
    assert run(*words).stdout == shown
    run(*words, "--svg", picture)
    texts = [[e.text for e in xml.etree.ElementTree.parse(file).iter() if e.text and e.text.strip()]
             for file in (picture, root / "sched" / "planner.svg")]
    assert texts[0] == texts[1] and len(texts[0]) > 10, texts


tap = Tap()
tap.run("figures that can be worked out by hand", by_hand)
tap.run("layers with a window", windows)
tap.run("open and closed loop", closed)
tap.run("what a step takes", machine)
tap.run("every policy on a coding trace", policies, "weka", 600 * 10**6)
tap.run("every policy on an agent's trace", policies, "swebench", 100 * 10**6)
tap.run("blocks that sessions share", shared)
tap.run("every policy on a chat trace", policies, "mooncake", 200 * 10**6)
tap.run("host memory: reloaded, not computed again", host)
tap.run("the same run twice is the same", repeats)
tap.run("the least memory", searches)
tap.run("the table and the picture", pictures)
tap.run("what README.md shows", readme)
tap.run("what is wrong is refused", refuses)
sys.exit(tap.done())
