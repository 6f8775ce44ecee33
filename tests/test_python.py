#!/usr/bin/env python3
"""The Python client against a daemon without a model (tests/fake_daemon.c).

Method: as tests/test_client.c; a turn's message tells the daemon what to do.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

SRC = os.environ.get("SRCDIR", ".")
BUILD = os.environ.get("BUILDDIR", ".")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SRC, "clients", "python"))
try:
    import msgpack  # noqa: F401
    import zmq  # noqa: F401
except ImportError as e:
    print(f"1..0 # SKIP {e.name} is not here")
    sys.exit(0)

import holdfast
from holdfast import errors

tests = []


def test(f):
    tests.append(f)
    return f


def fails(kind, name, f):
    try:
        f()
    except kind as e:
        assert e.name == name, e.name
        return e
    raise AssertionError(f"{name} was not raised")


@test
def hello_and_a_session(w):
    assert w.client.principal == "uid:1" and len(w.client.boot) == 16
    w.session = w.client.open(system="Be brief.", tools=[{"name": "f"}, '{"name":"g"}'],
                              label="t", residency={"kind": "leased", "lease_ms": 1000})
    assert w.session.id == bytes(range(16)) and w.session.history == 42
    assert w.session.granted["kind"] == "leased" and w.session.epoch == 1


@test
def a_stream(w):
    turn = w.session.turn("hello")
    pieces = list(turn)
    assert "".join(p.text for p in pieces) == "You said: hello" == turn.end.text
    assert [i - 256 for p in pieces for i in p.ids] == list(b"You said: hello")
    u = turn.end.usage
    assert u.prompt == u.resident + u.reloaded + u.recomputed + u.new and u.tool_us is None
    assert turn.end.status == "stop" and u.diverged_why == "new"
    before = w.session.turn_number
    turn = w.session.turn("notes")
    assert turn.wait().text == "ok" and [n.state for n in turn.notes] == ["queued", "prefilling"]
    assert w.session.turn_number == before + 1
    piece = next(w.session.turn("echo 3", logprobs=1))
    assert [l["p"] for l in piece.logprobs] == [-0.5] * 3
    w.client._running.close()


@test
def credit(w):
    text = w.session.turn("echo 200000").wait().text
    assert len(text) == 200000 and text[:27] == "abcdefghijklmnopqrstuvwxyza"
    with holdfast.Client(w.endpoint, window=1024) as narrow:
        assert len(narrow.session(w.session.id).turn("echo 5000").wait().text) == 5000
    assert w.client.metrics().startswith("bad 0 ")


@test
def a_tool_call(w):
    end = w.session.turn("tool").wait()
    assert end.status == "tool_wait"
    assert end.calls == [holdfast.ToolCall("c1", "read_file", '{"path":"a.txt"}')]
    assert w.session.results({"c1": "contents"}).wait().text == "The tool says contents"


@test
def errors_are_exceptions(w):
    e = fails(holdfast.SessionError, "context_full", w.session.turn("error 404").wait)
    assert (e.code, e.used, e.asked, e.limit) == (404, 100, 200, 256)
    e = fails(holdfast.SessionError, "session_busy", w.session.turn("error 400").wait)
    assert e.after_ms == 120 and e.retry == "later"
    fails(holdfast.ResourceError, "overloaded", w.session.turn("reject 500").wait)
    fails(holdfast.RequestError, "out_of_range", w.session.turn("x", temperature=101).wait)
    fails(holdfast.RequestError, "bad_arg", lambda: w.session.turn("\ud800"))
    fails(holdfast.ProtocolError, "too_big", lambda: w.session.turn("x" * 300000))
    try:
        w.session.turn("x", warmth=3)
        raise AssertionError("an unknown argument was taken")
    except TypeError:
        pass
    assert w.session.turn("well").wait().text == "You said: well"


@test
def cancel(w):
    turn = w.session.turn("hang")
    assert next(turn).text == "begun "
    fails(holdfast.LinkError, "in_use", w.client.health)
    turn.cancel()
    assert turn.wait().status == "cancelled"
    with w.session.turn("echo 200000") as turn:
        next(turn)
    assert turn.end.status == "cancelled"
    began = time.monotonic()
    assert w.session.turn("hang", deadline=0.05).wait().status == "cancelled"
    assert 0.5 < time.monotonic() - began < 3
    fails(holdfast.LinkError, "closed", w.session.turn("silent").wait)
    assert w.session.turn("hello").wait().text == "You said: hello"


@test
def nonsense(w):
    table = [
        ("gap", "bad_frames"), ("back", "bad_body"), ("future", "bad_frames"),
        ("overrun", "bad_body"), ("unaccepted", "bad_frames"), ("flood", "bad_frames"),
        ("raw ", "bad_frames"), ("raw 4152,80", "bad_frames"), ("raw H,80,00", "bad_frames"),
        ("raw H,80,00,00,00", "bad_frames"),
        ("raw 415202830000000000000000000000010000000000000001,80", "version"),
        ("raw 415201830002000000000000000000010000000000000001,80", "bad_frames"),
        ("raw H,", "bad_body"), ("raw H,c1", "bad_body"), ("raw H,80", "bad_body"),
        ("raw H,ddffffffff", "bad_body"), ("raw H,9405c0c0c0", "bad_body"),
        ("raw H,940001a2ffffc0", "bad_body"), ("raw H,940101a26161c0", "bad_body"),
        ("raw H," + "91" * 2000 + "c0", "too_big"),
    ]
    for text, name in table:
        try:
            fails(holdfast.ProtocolError, name, w.session.turn(text).wait)
        except AssertionError as e:
            raise AssertionError(f"{text}: {e}") from e
        assert w.session.turn("hello").wait().text == "You said: hello"
    assert w.session.turn("repeat").wait().text == "onetwo"
    assert w.session.turn("twice").wait().text == ""
    assert w.session.turn("stray").wait().text == "fine"
    fails(holdfast.InternalError, "restarted", w.session.turn("forget").wait)
    try:
        w.session.turn("huge").wait()
        raise AssertionError("3 MiB in a frame were taken")
    except holdfast.Error as e:
        assert e.name in ("restarted", "closed"), e.name
    assert w.session.turn("hello").wait().text == "You said: hello"


@test
def all_other_calls(w):
    s, c = w.session, w.client
    assert s.turn_tokens([1, 2, 70000]).wait().text == "abcd"
    assert s.fork().id == s.id and s.fork(to_turn=1).epoch == 1
    assert s.rollback(to_tokens=10) == {"history": 10, "resident": 10}
    assert s.show()["waiting"]["why"] == "pages" and s.attach()["history"] == 42
    assert s.residency("pinned", bytes=1)["granted"]["kind"] == "pinned"
    s.hint(500, "run")
    s.touch()
    assert s.fork(tied=True).epoch == 1
    s.park("host")
    fails(holdfast.RequestError, "bad_arg", lambda: s.park("attic"))
    assert len(c.sessions()) == 2 and c.ledger()["accounts"]["device"]["free"] == 104857600
    assert c.pages()[0]["page"] == 7 and c.pages(s, count=3)[0]["tag"] == 99
    assert c.model()["name"] == "fake" and c.health()["state"] == "serving"
    assert c.tokenize("aé") == [97, 0xC3, 0xA9] and c.tokenize("") == []
    assert c.detokenize([1]) == b"h\xc3\xa9\0\xff"
    s.close()
    assert w.client.metrics().startswith("bad 2 ")  # 101 degrees and the attic


@test
def names_as_in_c(w):
    text = open(os.path.join(SRC, "sched", "check.h"), encoding="utf-8").read()
    in_c = {int(n): name.lower() for name, n in re.findall(r"ERR_(\w+) = ([1-6]\d\d)", text)}
    assert in_c == {k: v for k, v in errors.NAMES.items() if k < 700}


@test
def refusals(w):
    began = time.monotonic()
    fails(holdfast.LinkError, "closed",
          lambda: holdfast.Client(w.endpoint + "-nobody", timeout=0.3))
    assert time.monotonic() - began < 2
    fails(holdfast.AuthError, "forbidden", lambda: holdfast.Client(w.endpoint, token="wrong"))
    fails(holdfast.RequestError, "bad_arg", lambda: holdfast.Client("carrier pigeon"))
    os.environ["HOLDFAST_ENDPOINT"] = w.endpoint
    with holdfast.Client() as c:
        assert c.health()["state"] == "serving"


@test
def results_of_another_kind(w):
    """A result that is not what its method promises is an error with a name, and no value of another type."""
    for value in (None, 7, "text", [1], {"a": 1}):
        for check, good in ((holdfast.wire.the_map, dict), (holdfast.wire.the_maps, list)):
            if isinstance(value, good) and value != [1]:
                assert check(value) == value
            else:
                fails(holdfast.ProtocolError, "bad_body", lambda: check(value))


@test
def events_under_a_key(w):
    """Who listens to events where there are keys has one too: sessions' (Client.events) and KV blocks' (KvBlocks)."""
    if not zmq.has("curve"):
        return
    with tempfile.TemporaryDirectory() as folder, zmq.Context() as context:
        (server, server_secret), (ours, secret) = zmq.curve_keypair(), zmq.curve_keypair()
        with open(f"{folder}/key", "w", encoding="ascii") as file:
            file.write(f'curve\n    public-key = "{ours.decode()}"\n    secret-key = "{secret.decode()}"\n')
        pub = context.socket(zmq.PUB)
        pub.curve_server, pub.curve_secretkey, pub.linger = True, server_secret, 0
        pub.bind(f"ipc://{folder}/s")
        with holdfast.KvBlocks(f"ipc://{folder}/s", key=f"{folder}/key", server_key=server.decode()) as blocks:
            batch = msgpack.packb([0.0, [["BlockStored", [5], None, [1, 2], 2, None, "GPU"]]])
            deadline = time.monotonic() + 30
            while not blocks.blocks:
                assert time.monotonic() < deadline, "nothing was heard"
                pub.send_multipart([b"", b"\0" * 8, batch])
                blocks.update(0.05)
            assert blocks.longest([1, 2, 3]) == 2
        pub.close()


class World:
    pass


def main():
    folder = tempfile.mkdtemp(prefix="holdfast-py-")
    w = World()
    w.endpoint = f"ipc://{folder}/s"
    daemon = subprocess.Popen([os.path.join(BUILD, "tests", "fake_daemon"), w.endpoint, "100"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    daemon.stdout.readline()
    bad = 0
    try:
        w.client = holdfast.Client(w.endpoint, timeout=3)
        for i, f in enumerate(tests, 1):
            try:
                f(w)
                print(f"ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
            except Exception as e:  # noqa: BLE001
                bad += 1
                line = e.__traceback__.tb_next
                print(f"# {type(e).__name__}: {e} (line {line.tb_lineno if line else '?'})")
                print(f"not ok {i} - {f.__name__.replace('_', ' ')}", flush=True)
                w.client._running = None
                w.client._reset()
        w.client.close()
    finally:
        daemon.stdin.close()
        daemon.wait(5)
        shutil.rmtree(folder)
    print(f"1..{len(tests)}")
    return 1 if bad else 0


sys.exit(main())
