"""The Python package against the daemon with a tiny model: broken connections, asyncio, tools, examples, wheel."""
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import threading
import time

import ar1
import daemon_rig
from ar1 import Tap, Wire
from daemon_rig import balanced, left_clean
from relay import Relay

SRC = os.environ.get("SRCDIR", ".")
PACKAGE = os.path.join(SRC, "clients", "python")
sys.dont_write_bytecode = True
sys.path.insert(0, PACKAGE)
import holdfast
from holdfast import AsyncClient, Client, describe

RANDOM = random.Random(9)
ASKED = {"max_tokens": 300, "ignore_end": True, "temperature": 1.0, "seed": 4, "logprobs": 1}
PROMPT = [5 + i % 200 for i in range(30)]


def fails(name, f):
    try:
        f()
    except holdfast.Error as e:
        assert e.name == name, (e.name, name)
        return e
    raise AssertionError(f"{name} was not raised")


def whole():
    with Client(endpoint) as client, client.open(template="none") as session:
        return session.turn_tokens(PROMPT, **ASKED).wait()


def cut_anywhere(wire):
    """Connections that die at random points, also before ACCEPTED and between the last DATA and END."""
    expected, cuts, round = whole(), 0, 0
    while round < 6 or cuts <= 6 and round < 60:  # how much comes on one connection depends on how busy the machine is
        round += 1
        relay = Relay(endpoint)
        left = [RANDOM.randrange(200, 6000) for _ in range(4)]
        relay.cut_when = lambda count: bool(left) and count > left[0] and bool(left.pop(0))
        try:
            with Client(relay.endpoint, window=1024 if round % 2 else 65536, timeout=10 * ar1.SLOW) as client:
                session = client.open(template="none")
                turn = session.turn_tokens(PROMPT, **ASKED)
                pieces = list(turn)
                assert [i for p in pieces for i in p.ids] == expected.ids == turn.end.ids
                assert "".join(p.text for p in pieces) == expected.text == turn.end.text
                assert turn.end.status == "limit" and session.turn_number == 1
                session.close()
                cuts += relay.cuts
        finally:
            relay.close()
    assert cuts > 6, cuts
    balanced(wire)


def gone_for_good(wire):
    relay = Relay(endpoint)
    try:
        client = Client(relay.endpoint, resume=1.0, timeout=0.3)
        session = client.open(template="none")
        turn = session.turn_tokens(PROMPT, max_tokens=900, ignore_end=True)
        next(turn)
        relay.refuse = True
        relay.cut()
        began = time.monotonic()
        fails("closed", turn.wait)
        assert time.monotonic() - began < 10 * ar1.SLOW
        relay.refuse = False
        assert client.health()["state"] == "serving"
        client.close()
        without = Client(relay.endpoint, resume=0)
        session = without.open(template="none")
        turn = session.turn_tokens(PROMPT, max_tokens=900, ignore_end=True)
        next(turn)
        relay.cut()
        fails("closed", turn.wait)
        without.close()
    finally:
        relay.close()
    balanced(wire)


def asyncio_streams(wire):
    """Twenty streams on one connection, which is cut while they run; a slow reader holds up none."""
    expected = whole()

    async def go():
        relay = Relay(endpoint)
        try:
            async with AsyncClient(relay.endpoint, window=2048, timeout=10 * ar1.SLOW) as client:
                sessions = [await client.open(template="none") for _ in range(20)]

                async def one(session, slow):
                    turn, text = session.turn_tokens(PROMPT, **ASKED), ""
                    async for piece in turn:
                        text += piece.text
                        if slow:
                            await asyncio.sleep(0.002)
                    assert text == expected.text and turn.end.ids == expected.ids and turn.end.status == "limit"
                    assert session.turn_number == 1

                streams = [asyncio.create_task(one(s, i == 3)) for i, s in enumerate(sessions)]
                for _ in range(3):
                    await asyncio.sleep(0.1)
                    relay.cut()
                await asyncio.gather(*streams)
                async with sessions[0].turn_tokens(PROMPT, max_tokens=400, ignore_end=True) as turn:
                    await turn.__anext__()
                assert turn.end.status in ("cancelled", "limit")
                assert (await client.health())["turns_running"] == 0
                for session in sessions:
                    await session.close()
        finally:
            relay.close()

    asyncio.run(asyncio.wait_for(go(), 100 * ar1.SLOW))
    balanced(wire)


def asyncio_refusals(wire):
    async def go():
        # Who grants little and does not read holds his turn.
        async with AsyncClient(endpoint, window=256) as client:
            try:
                await client.session(os.urandom(16)).show()
                raise AssertionError
            except holdfast.RequestError as e:
                assert e.name == "not_found"
            session = await client.open(template="none")
            try:
                session.turn("x", warmth=1)
                raise AssertionError
            except TypeError:
                pass
            first = session.turn_tokens(PROMPT, max_tokens=900, ignore_end=True, temperature=1.0, seed=4)
            await first.__anext__()
            try:
                await client.session(session.id).turn_tokens([5], max_tokens=1).wait()
                raise AssertionError
            except holdfast.SessionError as e:
                assert e.name == "session_busy" and e.retry == "later"
            first.cancel()
            assert (await first.wait()).status in ("cancelled", "limit")
            await session.close()
        try:
            await AsyncClient(endpoint + "-nobody", timeout=0.2).__aenter__()
            raise AssertionError
        except holdfast.LinkError as e:
            assert e.name == "closed"

    asyncio.run(asyncio.wait_for(go(), 60 * ar1.SLOW))


def tools_run(wire):
    from typing import List, Literal, Optional
    seen = []

    def pick(flag: bool, mode: Literal["a", "b"] = "a", names: Optional[List[str]] = None) -> dict:
        """Picks one.

        And more words."""
        seen.append(flag)
        return {"picked": flag}

    tool = describe(pick)["function"]
    assert tool["name"] == "pick" and tool["description"] == "Picks one."
    assert tool["parameters"] == {"type": "object", "required": ["flag"], "properties": {
        "flag": {"type": "boolean"}, "mode": {"enum": ["a", "b"]}, "names": {"type": "array", "items": {"type": "string"}}}}

    def choose(flag: bool) -> str:
        """Chooses."""
        seen.append(flag)
        if len(seen) > 1:
            raise OSError("no more")
        return "chosen"

    options = {"tool_choice": "required", "temperature": 1.0, "seed": 3, "max_tokens": 200}
    with Client(endpoint) as client, client.open(template="smollm2", tools=[choose]) as session:
        asked, results = [], []
        end = session.run("go", [choose], rounds=2, on_call=lambda c: asked.append(c.name),
                          on_result=lambda c, text: results.append(text), **options)
        assert end.status == "tool_wait" and asked == ["choose"] * 2, (end, asked)
        assert results == ["chosen", "error: OSError: no more"], results
    with Client(endpoint) as client, client.open(template="smollm2", tools=[choose]) as session:
        results = []
        session.run("go", {}, rounds=1, on_result=lambda c, text: results.append(text), **options)
        assert results[0].startswith("error: ValueError: there is no tool"), results
        session.rollback(to_turn=0)
        results.clear()
        session.run("go", [choose], rounds=1, on_call=lambda c: False,
                    on_result=lambda c, text: results.append(text), **options)
        assert results == ["error: the user refused this call"]

    async def go():
        async def choose(flag: bool) -> str:
            """Chooses."""
            await asyncio.sleep(0)
            return "chosen later"
        async with AsyncClient(endpoint) as client:
            async with await client.open(template="smollm2", tools=[choose]) as session:
                end = await session.run("go", [choose], rounds=1, **options)
                assert end.status == "tool_wait" and session.turn_number == 2

    asyncio.run(go())


def examples(wire):
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HOLDFAST_ENDPOINT": endpoint, "PYTHONPATH": PACKAGE, "MAX_TOKENS": "60",
               "CHECKPOINTS": f"{folder}/c.json", "PYTHONDONTWRITEBYTECODE": "1"}

        def run(name, *arguments, **more):
            done = subprocess.run([sys.executable, f"{PACKAGE}/examples/{name}", *arguments], env={**env, **more},
                                  cwd=folder, capture_output=True, text=True, timeout=60 * ar1.SLOW)
            assert done.returncode == 0, done.stderr
            return done.stdout

        out = run("agent.py", "Look.", FORCE_TOOLS="1", MAX_TOKENS="300")
        assert "tokens of prompt" in out, out
        assert "turn 1: 0 tokens" in run("checkpoint.py", "t", "I am Ann.")
        again = run("checkpoint.py", "t", "Who am I?")
        assert "turn 2: " in again and "turn 2: 0 tokens" not in again, again
        assert "turn 2: " in run("checkpoint.py", "t", "--back", "1", "I am Bob.")
        lines = run("forks.py", "a?", "b?", "c?").splitlines()
        assert len(lines) == 3 and all("tokens shared" in l and ": 0 tokens" not in l for l in lines), lines


def best_of(wire):
    """Answers of forks: each what its seed gives alone, the likeliest first; the kept ones go on, the rest is closed."""
    options = {"max_tokens": 12, "temperature": 1.0, "ignore_end": True}

    def sessions():
        return {s["sess"] for s in wire.ok("session.list")["r"]}

    with Client(endpoint) as client, client.open(template="smollm2") as session:
        session.turn("hello", max_tokens=3).wait()
        before = sessions()
        found = session.best("go on", 4, keep=2, seed=7, **options)
        assert sorted(c.seed for c in found) == [7, 8, 9, 10]
        assert len({tuple(c.end.ids) for c in found}) > 1
        assert [c.logprob for c in found] == sorted((c.logprob for c in found), reverse=True) and found[0].logprob < 0
        assert all(c.end.usage.resident > 0 for c in found), "what stood before is there"
        assert sessions() - before == {c.session.id for c in found[:2]} and session.show()["turn"] == 1
        for c in found:
            with session.fork() as alone:
                turn = alone.turn("go on", seed=c.seed, logprobs=1, **options)
                p = [p["p"] for piece in turn for p in piece.logprobs]
                assert turn.wait().ids == c.end.ids and abs(sum(p) / len(p) - c.logprob) < 1e-9
        assert found[0].session.turn("and then?", max_tokens=2).wait().turn == 3
        for c in found[:2]:
            c.session.close()

        async def at_once():
            async with AsyncClient(endpoint) as other:
                async with await other.open(template="smollm2") as second:
                    await second.turn("hello", max_tokens=3).wait()
                    again = await second.best("go on", 4, keep=1, seed=7, **options)
                    assert [(c.seed, c.end.ids, c.logprob) for c in again] == [(c.seed, c.end.ids, c.logprob) for c in found]
                    await again[0].session.close()

        asyncio.run(at_once())
        assert sessions() == before
        fails("bad_arg", lambda: session.best("x", 2, schema="{"))
        assert sessions() == before
    balanced(wire)


def wheel(wire):
    """What pip would install is the whole package, and imports."""
    if subprocess.run([sys.executable, "-c", "import setuptools, wheel"], capture_output=True).returncode:
        return "skip setuptools and wheel are not installed"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cp", "-r", PACKAGE, f"{folder}/src"], check=True)
        done = subprocess.run([sys.executable, "-c", "import setuptools.build_meta as b, sys; print(b.build_wheel(sys.argv[1]))",
                               folder], cwd=f"{folder}/src", capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        name = done.stdout.split()[-1]
        code = (f"import sys; sys.path.insert(0, '{folder}/{name}'); import holdfast, os; "
                "assert '.whl' in holdfast.__file__; print(holdfast.__version__, holdfast.AsyncClient.__name__)")
        out = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
        assert out.stdout == "0.1.0 AsyncClient\n", out.stderr
        listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", f"{folder}/{name}"], capture_output=True, text=True).stdout
        assert "holdfast/py.typed" in listed and "holdfast/core.py" in listed


daemon = daemon_rig.start("--stream-bytes", "1024")
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [
    ("a stream whose connection is cut anywhere is whole", cut_anywhere),
    ("a daemon that does not come back is told in time", gone_for_good),
    ("asyncio: twenty streams over a connection that is cut", asyncio_streams),
    ("asyncio: refusals are exceptions", asyncio_refusals),
    ("functions as tools", tools_run),
    ("the examples run", examples),
    ("the best of several answers", best_of),
    ("a wheel is built and imports", wheel)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
