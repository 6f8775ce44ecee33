"""A model over several ranks, as processes. Goal: the daemon serves from N ranks what it would serve from them at any
time; ranks of a launcher are those of one start; a rank that is killed ends the turns with a code, is on record and
takes the daemon down in order; logits are those of one rank within a bound, with the real models too. Method: tiny
models at 2 and 4 ranks, SIGKILL in a turn and at rest, four processes over loopback with a launcher's variables."""
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

import ar1
from ar1 import BUILD, Daemon, Tap, Wire
from daemon_rig import left_clean, unsanitary, words

FOLDER = tempfile.mkdtemp(prefix="hf-ranks-")
TINY = os.path.join(FOLDER, "tiny.gguf")
subprocess.run([f"{BUILD}/tests/make_tiny", TINY, "7", "mistral", "cut"], check=True)
PROGRAM = os.path.join(BUILD, "holdfastd")
SANITIZED = bool(os.environ.get("HOLDFAST_SANITIZED"))
GIVEN = [words(150), words(7), words(40)]
tap = Tap()


def start(ranks, *options, **keys):
    return Daemon(TINY, "--template", "smollm2", "--kv-memory", "900000", "--chunk", "64", "--batch-rows", "96",
                  "--tensor-parallel", str(ranks), *options, **keys)


def ranks_of(daemon):
    """The processes that it started, in the order of their ranks."""
    pid = daemon.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def gone(pids, seconds=5):
    deadline = time.time() + seconds * ar1.SLOW
    while any(alive(pid) for pid in pids):
        assert time.time() < deadline, "a rank outlived its daemon"
        time.sleep(0.02)


def play(wire):
    session = wire.open()
    tokens, history = [], 0
    for k, given in enumerate(GIVEN):
        reply = wire.turn(session, given, keep=history, max_tokens=20, ignore_end=True, temperature=0.8, seed=k)
        assert reply.end["status"] == "limit" and len(reply.ids) == 20, reply.end
        tokens.append(reply.ids)
        history = reply.usage["history"]
    return tokens


def serves(ranks):
    """Twice from the beginning, and the last turn once more from nothing: the same tokens."""
    def test():
        found = []
        for _ in range(2):
            daemon = start(ranks)
            children = ranks_of(daemon)
            assert len(children) == ranks - 1, children
            wire = Wire(daemon.endpoint)
            found.append(play(wire))
            if len(found) == 2:
                whole = GIVEN[0] + found[0][0] + GIVEN[1] + found[0][1] + GIVEN[2]
                again = wire.turn(wire.open(), whole, max_tokens=20, ignore_end=True, temperature=0.8, seed=2)
                assert again.ids == found[0][2], (again.ids, found[0][2])
            left_clean(daemon)
            gone(children)
        assert found[0] == found[1]
    return test


def tiers():
    """Pages give way to host memory and come back: all ranks' pieces of them."""
    daemon = start(2, "--host-memory", "4M", "--policy", "swap", "--kv-memory", "240000", "--digest", "resume")
    wire = Wire(daemon.endpoint)
    sessions, first = [wire.open() for _ in range(3)], []
    for s in sessions:
        first.append(wire.turn(s, GIVEN[0], max_tokens=8, ignore_end=True, temperature=0))
    for s, before in zip(sessions, first):
        after = wire.turn(s, GIVEN[1], keep=before.usage["history"], max_tokens=8, ignore_end=True, temperature=0)
        fresh = wire.turn(wire.open(), GIVEN[0] + before.ids + GIVEN[1], max_tokens=8, ignore_end=True, temperature=0)
        assert after.ids == fresh.ids, (after.ids, fresh.ids)
    left_clean(daemon)


def await_end(daemon, seconds=10):
    return daemon.process.wait(seconds * ar1.SLOW)


def incidents(daemon):
    done = subprocess.run([PROGRAM, "audit", "incidents", "--state", f"{daemon.home}/state", "--json"],
                          stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"seq"')]


def recorded(daemon, ranks, rank):
    found = [r for r in incidents(daemon) if r["kind"] == "incident"]
    assert len(found) == 1 and found[0]["reason"] == "device" and found[0]["value"] == [ranks, rank], found
    assert f"rank {rank} of {ranks} is gone" in daemon.words(), daemon.words()
    unsanitary(daemon.words())


def killed_in_a_turn():
    daemon = start(4)
    children = ranks_of(daemon)
    wire = Wire(daemon.endpoint)
    session = wire.open()
    os.kill(children[1], signal.SIGSTOP)  # so that the turn is surely in a step
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 800, "ignore_end": True}, ar1.pack(GIVEN[0]),
                         sess=session)
    time.sleep(0.3)
    os.kill(children[1], signal.SIGKILL)
    while True:
        type, at, _, body, _ = wire.receive()
        if at == channel and type == ar1.END:
            break
    assert body["status"] == "error" and body["err"]["n"] == "device" and body["err"]["r"] == "later", body
    assert await_end(daemon) == 1
    gone(children)
    recorded(daemon, 4, 2)
    # What was kept is there at the next start, with another number of ranks too: then its pages are void.
    again = start(2, state=f"{daemon.home}/state", home=daemon.home)
    assert len(Wire(again.endpoint).ok("session.list")["r"]) == 1
    assert again.stop() == 0


def killed_at_rest():
    daemon = start(2)
    children = ranks_of(daemon)
    play(Wire(daemon.endpoint))
    os.kill(children[0], signal.SIGKILL)
    assert await_end(daemon) == 1
    recorded(daemon, 2, 1)


def daemon_killed():
    daemon = start(4)
    children = ranks_of(daemon)
    daemon.process.kill()
    daemon.process.wait()
    gone(children)


def line_of(arguments, code, **environment):
    """The one line of a refusal."""
    done = subprocess.run(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60 * ar1.SLOW,
                          env={**os.environ, **environment}, check=False)
    lines = done.stderr.splitlines()
    assert done.returncode == code and len(lines) == 1 and not done.stdout, (done.returncode, done.stderr)
    return lines[0]


def refusals():
    daemon = [PROGRAM, "--model", TINY, "--listen", f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/state", "--template",
              "smollm2"]
    line = line_of([*daemon, "--tensor-parallel", "3"], 1)
    assert "8 heads, and 3 does not divide them" in line, line
    assert "number from 1 to 64" in line_of([*daemon, "--tensor-parallel", "65"], 2)
    launched = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    line = line_of([*daemon, "--tensor-parallel", "2"], 1, RANK="1", WORLD_SIZE="4", **launched)
    assert "started 4 ranks" in line and "says 2" in line, line
    line = line_of([*daemon, "--tensor-parallel", "2"], 1, RANK="2", WORLD_SIZE="2", **launched)
    assert "not a rank" in line, line
    for address, key in (("192.0.2.1", {}), ("127.0.0.1", {}), ("127.0.0.1", {"HOLDFAST_RANKS_KEY": "short"})):
        line = line_of([*daemon, "--tensor-parallel", "2"], 1, RANK="0", WORLD_SIZE="2", MASTER_ADDR=address,
                       MASTER_PORT="1", **key)
        assert "set HOLDFAST_RANKS_KEY to a secret of 16 bytes or more" in line, line
    assert not os.path.exists(f"{FOLDER}/state"), "a refusal made something"
    done = subprocess.run([*daemon, "--tensor-parallel", "2", "--check", "--json"], stdout=subprocess.PIPE, check=True)
    assert json.loads(done.stdout)["weights_bytes"] > 0


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def launch(arguments, count, names=("RANK", "WORLD_SIZE"), keys=None, port=None, only=None, **keywords):
    """One process a rank, as a launcher starts them; the last first."""
    port, processes = port or free_port(), {}
    for rank in reversed(range(count)) if only is None else [only]:
        environment = {**os.environ, names[0]: str(rank), names[1]: str(count), "MASTER_ADDR": "127.0.0.1",
                       "MASTER_PORT": port, "HOLDFAST_RANKS_KEY": (keys or {}).get(rank, "0123456789abcdef")}
        processes[rank] = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                           stderr=subprocess.PIPE, text=True, **keywords)
        ar1.RUNNING.append(processes[rank])
    return processes


def logits_of(model, cases, ranks, *options):
    path = os.path.join(FOLDER, "cases.json")
    with open(path, "w") as file:
        json.dump(cases, file)
    return [PROGRAM, "logits", model, "--tokens", path, "--tensor-parallel", str(ranks), "--top", "8", *options]


TINY_CASES = [{"name": "a", "tokens": GIVEN[0], "generate": 16}, {"name": "b", "tokens": GIVEN[1], "generate": 4}]


def launched():
    """The same bits as from ranks of one start: the sums have one order however they travel."""
    started = subprocess.run(logits_of(TINY, TINY_CASES, 4), stdout=subprocess.PIPE, text=True, check=True).stdout
    for names in (("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
                  ("SLURM_PROCID", "SLURM_NTASKS")):
        processes = launch(logits_of(TINY, TINY_CASES, 4), 4, names)
        results = {rank: p.communicate(timeout=60 * ar1.SLOW) for rank, p in processes.items()}
        assert [processes[r].returncode for r in range(4)] == [0, 0, 0, 0], results
        assert results[0][0] == started, "another text"
        assert not results[1][0] and not results[3][0]
        if SANITIZED:
            break


def another_secret():
    """Who says nothing sensible, and who has another secret, is not let in; the right one then is."""
    port = free_port()
    first = launch(logits_of(TINY, TINY_CASES, 2), 2, port=port, only=0)[0]
    deadline = time.time() + 20 * ar1.SLOW
    with socket.socket() as s:
        while s.connect_ex(("127.0.0.1", int(port))) != 0:
            assert time.time() < deadline and first.poll() is None
            time.sleep(0.01)
        s.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
    if os.environ.get("HOLDFAST_LONG"):  # who sends a byte now and then is let go in some seconds
        with socket.create_connection(("127.0.0.1", int(port))) as s:
            begun = time.time()
            try:
                while time.time() < begun + 60:
                    s.sendall(b"H")
                    time.sleep(0.5)
            except OSError:
                pass
            assert time.time() < begun + 20, "a slow stranger holds rank 0"
    stranger = launch(logits_of(TINY, TINY_CASES, 2), 2, port=port, only=1, keys={1: "another secret!!"})[1]
    words_of = stranger.communicate(timeout=60 * ar1.SLOW)[1]
    assert stranger.returncode == 1 and "another secret (HOLDFAST_RANKS_KEY)" in words_of, words_of
    assert first.poll() is None, "rank 0 waits for the right one"
    second = launch(logits_of(TINY, TINY_CASES, 2), 2, port=port, only=1)[1]
    results = [p.communicate(timeout=60 * ar1.SLOW) for p in (first, second)]
    assert first.returncode == 0 and second.returncode == 0 and results[0][0], results


def launched_serving():
    """Its processes, by their rank, and who speaks to it."""
    home = tempfile.mkdtemp(prefix="hf-", dir=FOLDER)
    processes = launch([PROGRAM, "--model", TINY, "--listen", f"ipc://{home}/rpc.sock", "--state", f"{home}/state",
                        "--cache", f"{home}/cache", "--template", "smollm2", "--kv-memory", "900000",
                        "--tensor-parallel", "2"], 2)
    deadline = time.time() + 30 * ar1.SLOW
    while not os.path.exists(f"{home}/rpc.sock"):
        assert time.time() < deadline and processes[0].poll() is None
        time.sleep(0.02)
    wire = Wire(f"ipc://{home}/rpc.sock")
    play(wire)
    return processes, wire


def launched_stop():
    """A launcher tells all its processes to end, in any order, the others first too: a clean stop."""
    for order in ((1, 0), (0, 1)):
        processes, _ = launched_serving()
        for rank in order:
            processes[rank].send_signal(signal.SIGTERM)
            time.sleep(0.2)
        said = {rank: p.communicate(timeout=20 * ar1.SLOW)[1] for rank, p in processes.items()}
        assert [processes[r].returncode for r in (0, 1)] == [0, 0] and "gone" not in said[0] + said[1], said


def launched_goodbye():
    """Rank 0 leaves when the other has closed, and not before: that one is stopped while the end is told."""
    processes, _ = launched_serving()
    processes[1].send_signal(signal.SIGSTOP)
    processes[0].send_signal(signal.SIGTERM)
    time.sleep(2)
    early = processes[0].poll()
    processes[1].send_signal(signal.SIGCONT)
    said = {rank: p.communicate(timeout=20 * ar1.SLOW)[1] for rank, p in processes.items()}
    assert early is None, "rank 0 left before rank 1 had closed"
    assert [processes[r].returncode for r in (0, 1)] == [0, 0] and "gone" not in said[0] + said[1], said


def stopped_for_good():
    """A rank that hangs keeps a stop for the time of the goodbye, and is ended with the daemon."""
    if not os.environ.get("HOLDFAST_LONG"):
        return "skip the goodbye's time passes (HOLDFAST_LONG=1)"
    daemon = start(4)
    children = ranks_of(daemon)
    play(Wire(daemon.endpoint))
    os.kill(children[1], signal.SIGSTOP)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(40 * ar1.SLOW) == 0, daemon.words()
    gone(children)
    return None


def launched_daemon():
    """Over TCP too a rank that is killed is noticed, in a turn and at rest."""
    for busy in (True, False):
        processes, wire = launched_serving()
        if busy:
            session = wire.open()
            processes[1].send_signal(signal.SIGSTOP)
            channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 800, "ignore_end": True},
                                 ar1.pack(GIVEN[0]), sess=session)
            time.sleep(0.3)
        processes[1].kill()
        while busy:
            type, at, _, body, _ = wire.receive()
            if at == channel and type == ar1.END:
                assert body["err"]["n"] == "device", body
                break
        said = processes[0].communicate(timeout=20 * ar1.SLOW)[1]
        assert processes[0].returncode == 1 and "rank 1 of 2 is gone" in said, said
        processes[1].communicate()


def largest_difference(one, many):
    worst = largest = 0.0
    for a, b in zip(one, many):
        for x, y in zip(a["rows"], b["rows"]):
            got, last = dict(map(tuple, y["top"])), y["top"][-1][1]
            largest = max(largest, abs(x["top"][0][1]))
            worst = max([worst] + [abs(got.get(token, last) - value) for token, value in x["top"]])
    return worst, largest


def real(model, name, ranks, longest):
    """The reference's cases: f32 throughout, so that only the order of the sums differs. The bound is 1e-4 of the
    largest logit; greedy continuations are equal."""
    def test():
        if SANITIZED:
            return "skip with sanitizers the tiny models will do"
        if not os.path.isfile(model):
            return f"skip there is no {name}"
        with open(os.path.join(os.environ["SRCDIR"], "tests", "data", f"logits-{name}.json")) as file:
            cases = [c for c in json.load(file) if len(c["tokens"]) <= longest]
        assert cases
        found = []
        for n in (1, ranks, ranks) if ranks == 3 else (1, ranks):
            done = subprocess.run(logits_of(model, cases, n, "--act", "f32", "--kv", "f32"), stdout=subprocess.PIPE,
                                  text=True, check=True)
            found.append(json.loads(done.stdout))
        worst, largest = largest_difference(found[0], found[1])
        print(f"# {name} over {ranks}: {worst:.2g} of {largest:.4g}")
        assert worst <= 1e-4 * largest, worst
        assert [c["greedy"] for c in found[0]] == [c["greedy"] for c in found[1]]
        assert found[1] == found[-1], "two runs differ"
    return test


MODELS = os.environ.get("HOLDFAST_MODELS", "")
tap.run("what cannot be is refused in one line", refusals)
tap.run("a session over 2 ranks, twice and from nothing", serves(2))
tap.run("a session over 4 ranks, twice and from nothing", serves(4))
tap.run("pages of 2 ranks go to host memory and come back", tiers)
tap.run("a rank that is killed in a turn", killed_in_a_turn)
tap.run("a rank that is killed at rest", killed_at_rest)
tap.run("ranks end with a daemon that is killed", daemon_killed)
tap.run("ranks of a launcher compute the same bits", launched)
tap.run("strangers at rank 0's port are refused and change nothing", another_secret)
tap.run("a launcher's rank that is killed", launched_daemon)
tap.run("a launcher that ends all its ranks", launched_stop)
tap.run("a launcher's rank 0 waits for the other's close", launched_goodbye)
tap.run("a rank that hangs at the end", stopped_for_good)
tap.run("the default model over 3 ranks", real(os.environ.get("HOLDFAST_MODEL", ""), "smollm2-135m", 3, 100))
tap.run("Qwen over 2 ranks", real(os.path.join(MODELS, "qwen2.5-coder-0.5b.gguf"), "qwen2.5-coder-0.5b", 2, 11))
sys.exit(tap.done())
