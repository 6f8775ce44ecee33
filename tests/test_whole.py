"""The real clients against the real daemon: the command line and the Python package with a tiny model, and
the demo's session with the default model (where HOLDFAST_MODEL names it).
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import ar1
import daemon_rig
from ar1 import BUILD, SLOW, Tap

SOURCE = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "clients" / "python"))


def holdfast(daemon, *arguments, code=0, stdin=""):
    p = subprocess.run([f"{BUILD}/holdfast", "--endpoint", daemon.endpoint, *arguments], input=stdin, capture_output=True,
                       text=True, timeout=60 * SLOW)
    assert p.returncode == code, (arguments, p.returncode, p.stdout, p.stderr)
    return p.stdout


def command_line(daemon):
    assert json.loads(holdfast(daemon, "--json", "health"))["state"] == "serving"
    said = holdfast(daemon, "turn", "--message", "hello", "--max-tokens", "5", "--ignore-end", "--keep", "--label", "kept")
    assert said
    (session,) = json.loads(holdfast(daemon, "--json", "sessions"))
    assert session["label"] == "kept" and session["turn"] == 1 and session["state"] == "idle", session
    name = session["sess"]
    holdfast(daemon, "turn", "--session", name, "--message", "-", "--max-tokens", "3", "--ignore-end", stdin="more")
    shown = json.loads(holdfast(daemon, "--json", "show", name))
    assert shown["turn"] == 2 and shown["history"] > session["history"]
    fork = json.loads(holdfast(daemon, "--json", "fork", name))
    assert len(json.loads(holdfast(daemon, "--json", "sessions"))) == 2, fork
    ledger = json.loads(holdfast(daemon, "--json", "ledger"))["accounts"]["device"]
    assert ledger["running"] == ledger["promised"] == 0 and ledger["retained"] + ledger["shared"] > 0, ledger
    assert json.loads(holdfast(daemon, "--json", "pages"))
    assert "kept" in holdfast(daemon, "sessions") and "device" in holdfast(daemon, "ledger")
    holdfast(daemon, "close", name)
    holdfast(daemon, "show", name, code=1)
    chat = holdfast(daemon, "chat", "--max-tokens", "4", stdin="one\ntwo\n")
    assert chat


def signals(daemon):
    """A command that ends by a signal closes the session that it opened, and no other."""
    own = ar1.Daemon(daemon_rig.MODEL, "--template", "smollm2", "--kv-memory", "600000", "--turns", "1", "--stream-bytes", "1024")
    try:
        # One turn has the only place, and waits for its reader: the next one does not get on.
        holder = ar1.Wire(own.endpoint)
        held = holder.open()
        holder.begin("session.turn", {"tokens": True, "max_tokens": 900, "ignore_end": True}, ar1.pack([5] * 9), sess=held,
                     window=0)
        holder.expect(ar1.ACCEPTED)
        watcher = ar1.Wire(own.endpoint)
        for number, arguments, left in ((signal.SIGTERM, ["turn", "--message", "x"], 0), (signal.SIGINT, ["turn", "--message", "x"], 0),
                                        (signal.SIGINT, ["turn", "--keep", "--message", "x"], 1),
                                        (signal.SIGTERM, ["chat"], 1), (signal.SIGINT, ["chat"], 1)):
            p = subprocess.Popen([f"{BUILD}/holdfast", "--endpoint", own.endpoint, *arguments], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert p.stderr.readline().startswith("session ")
            assert len(watcher.ok("session.list")["r"]) == 2 + (left if arguments[0] == "chat" else 0)
            queued = 1 if arguments[0] == "turn" else 0
            deadline = time.time() + 10 * SLOW
            while watcher.ok("health")["r"]["turns_waiting"] != queued and time.time() < deadline:
                time.sleep(0.02)
            p.send_signal(number)
            p.communicate(timeout=20 * SLOW)
            assert p.returncode == 128 + number, (number, arguments, p.returncode)
            sessions = [s["sess"] for s in watcher.ok("session.list")["r"]]
            assert held in sessions and len(sessions) == 1 + left, (number, arguments, sessions)
    finally:
        assert own.stop() == 0


def python_package(daemon):
    import holdfast as package
    with package.Client(daemon.endpoint) as client:
        tool = {"type": "function", "function": {"name": "f", "parameters": {
            "type": "object", "properties": {"on": {"type": "boolean"}}, "required": ["on"]}}}
        session = client.open(system="Be brief.", tools=[tool])
        end = session.turn("go", tool_choice="required", max_tokens=100, temperature=1.0, seed=4).wait()
        assert end.status == "tool_wait" and [c.name for c in end.calls] == ["f"], end
        twin = session.fork()
        twin.park("tokens")
        pieces = session.results({c.id: "done" for c in end.calls}, max_tokens=6, ignore_end=True)
        text = "".join(p.text for p in pieces)
        resident = pieces.wait()
        nothing = twin.results({c.id: "done" for c in end.calls}, max_tokens=6, ignore_end=True).wait()
        assert nothing.ids == resident.ids and resident.text == text and len(resident.ids) == 6
        assert resident.usage.resident > 0 and nothing.usage.resident == 0
        try:
            session.turn_tokens([1 << 20], max_tokens=1).wait()
            raise AssertionError("an id beyond the vocabulary was taken")
        except package.Error as error:
            assert error.name == "out_of_range", error
        session.close()


def recorded(daemon):
    """What a daemon records is what it answered; it has no text in it, and the planner takes it."""
    import holdfast as package

    path = pathlib.Path(daemon.home) / "traffic.jsonl"
    path.touch()
    other = daemon_rig.narrow("--trace", str(path))
    try:
        with package.Client(other.endpoint) as client:
            sessions = [client.open(system="secret") for _ in range(2)]
            ends = [s.turn("word", max_tokens=3 + i, ignore_end=True).wait() for i, s in enumerate(sessions)]
            ends.append(sessions[0].turn("more", max_tokens=2, ignore_end=True).wait())
            for s in sessions:
                s.close()
    finally:
        other.stop(keep=True)
    text = path.read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [line["session"] for line in lines] == [1, 2, 1], text
    assert [line["completion"] for line in lines] == [3, 4, 2] and all(line["stop"] == "other" for line in lines), text
    assert [line["prompt"] for line in lines] == [e.usage.resident + e.usage.recomputed + e.usage.new for e in ends], text
    assert lines[0]["kept"] == 0 and 0 < lines[2]["kept"] <= lines[0]["prompt"] + 3, text
    assert "secret" not in text and "word" not in text
    p = subprocess.run([f"{BUILD}/holdfastd", "simulate", "--trace", str(path), "--format", "holdfast", "--memory", "1G", "--json"],
                       capture_output=True, text=True)
    assert p.returncode == 0 and json.loads(p.stdout)["turns_answered"] == 3, p
    again = ar1.Daemon(daemon_rig.MODEL, "--template", "smollm2", "--trace", str(path), wait=False)
    assert again.process.wait(30 * SLOW) != 0 and "--trace: the file is there already" in again.words()
    again.stop()


def demo(daemon):
    model = os.environ.get("HOLDFAST_MODEL")
    if not model:
        return "skip HOLDFAST_MODEL names no model"
    p = subprocess.run([sys.executable, str(SOURCE / "clients" / "demo.py"), "--daemon", f"{BUILD}/holdfastd", "--model",
                        model, "--script", str(SOURCE / "tests" / "data" / "demo-short.json")], capture_output=True, text=True,
                       timeout=120 * SLOW)
    assert p.returncode == 0, p.stderr[-2000:]
    rows = [line.split() for line in p.stdout.splitlines() if line.rstrip().endswith(" yes")]
    assert len(rows) == 4 and "NO" not in p.stdout, p.stdout
    assert "→ run_shell(" in p.stdout or "→ read_file(" in p.stdout, p.stdout
    prompts, resident = [int(r[1]) for r in rows], [int(r[2]) for r in rows]
    assert resident[0] == 0 and all(r > 0 for r in resident[1:]) and prompts == sorted(prompts), rows
    assert "FP8 pages" in p.stdout


daemon = daemon_rig.start()
tap = Tap()
tap.run("the command line against the real daemon", command_line, daemon)
tap.run("signals leave no session behind", signals, daemon)
# The package's twin computes all from nothing: with --share it would find what the session has.
alone = daemon_rig.start("--share", "no")
tap.run("the Python package against the real daemon", python_package, alone)
tap.run("which ends with 0, and no sanitizer spoke", daemon_rig.left_clean, alone)
tap.run("recorded traffic: counts and times, and the planner reads it", recorded, daemon)
tap.run("the demo: calls, results, and the same answers from nothing", demo, daemon)
assert ar1.msgpack
daemon_rig.finish(tap, daemon)
