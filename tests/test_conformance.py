"""The protocol's vectors, by both clients of ours, and by any third: tests/data/ar1-talks.json, and the bodies of clients/README.md.

Method: a ROUTER plays the daemon's part of each talk by the book, and what the client says is matched against the talk.
HOLDFAST_CONFORMANCE_CLIENT names a program that is run instead of ours: it finds the endpoint in HOLDFAST_ENDPOINT, does
what the file says, and prints {"text", "status", "error"} as JSON. What a client that dies on headers or bodies does is
asked of the readers themselves: the package's here, the C library's in tests/test_rules.c.
"""
import json
import os
import re
import struct
import subprocess
import sys
import tempfile

import ar1
from ar1 import BUILD, Tap, msgpack, zmq

if zmq is None:
    ar1.skip_all("pyzmq and msgpack are not installed")
SRC = os.environ.get("SRCDIR", ".")
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(SRC, "clients", "python"))
from holdfast import wire as package
from holdfast import errors

with open(os.path.join(SRC, "tests", "data", "ar1-talks.json")) as file:
    BOOK = json.load(file)
TYPES = {"HELLO": 1, "CALL": 2, "WINDOW": 3, "CANCEL": 4, "RESUME": 5, "ACK": 6, "PING": 7, "BYE": 15, "WELCOME": 0x81,
         "ACCEPTED": 0x82, "DATA": 0x83, "END": 0x84, "NOTE": 0x85, "PONG": 0x87, "GOAWAY": 0x88, "REJECT": 0x89}
ANY = object()
SHORT = {"op": bytes.fromhex(BOOK["op"]),
         "welcome": {"minor": 0, "boot": bytes(16), "principal": "uid:1", "hb_ms": 300, "caps": [],
                     "limits": {"frame": 1 << 20, "inflight": 64, "window": 1 << 20, "depth": 16}},
         "turn": {"m": "session.turn", "sess": bytes.fromhex(BOOK["session"]), "window": ANY, "a": {"messages": [{"role": "user", "content": "hello"}]},
                  "idem": ANY, "detach_ms": ANY, "epoch": ANY, "turn": ANY, "deadline_ms": ANY}}


class Other(Exception):
    pass


def filled(value, known):
    """What the book means: ids, long texts, values that were remembered."""
    if isinstance(value, dict):
        if "$bin" in value:
            return bytes.fromhex(value["$bin"])
        if "$text" in value:
            return value["$text"][0] * value["$text"][1]
        if "$any" in value:
            return ANY
        if "$let" in value or "$most" in value:
            return value
        if "$same" in value:
            return known[value["$same"]]
        return {k: SHORT["op"] if k == "op" and v == "op" else filled(v, known) for k, v in value.items()}
    if isinstance(value, list):
        return [filled(v, known) for v in value]
    return SHORT[value] if isinstance(value, str) and value in ("welcome", "turn") else value


def match(wanted, got, known, where=""):
    if wanted is ANY:
        return
    if isinstance(wanted, dict) and "$let" in wanted:
        known[wanted["$let"]] = got
    elif isinstance(wanted, dict) and "$most" in wanted:
        if not 0 < got <= wanted["$most"]:
            raise Other(f"{where} is {got}, and {wanted['$most']} is the most")
    elif isinstance(wanted, dict):
        for key in set(wanted) | {k for k in got if not k.startswith("x-")}:
            if key not in wanted:
                raise Other(f"{where}.{key} is not expected: {got}")
            if key not in got and wanted[key] is not ANY:
                raise Other(f"{where}.{key} is missing: {got}")
            if key in got:
                match(wanted[key], got[key], known, f"{where}.{key}")
    elif wanted != got:
        raise Other(f"{where} is {got!r}, not {wanted!r}")


class Book:
    """The daemon's part of one talk."""

    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="hf-talk-")
        self.endpoint = f"ipc://{self.folder}/s"
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.bind(self.endpoint)
        self.peer, self.channels, self.known = None, {}, {}

    def hear(self):
        if not self.socket.poll(8000 * min(ar1.SLOW, 3)):
            raise Other("the client says nothing")
        frames = self.socket.recv_multipart()
        self.peer = frames[0]
        if len(frames[1]) != 24 or len(frames) not in (3, 4):
            raise Other(f"frames of {[len(f) for f in frames]} bytes")
        magic, major, type, flags, reserved, channel, seq = struct.unpack(">2sBBHHQQ", frames[1])
        body = msgpack.unpackb(frames[2], strict_map_key=True)
        if (magic, major, flags, reserved, seq) != (b"AR", 1, len(frames) == 4, 0, 0):
            raise Other(f"the header {frames[1].hex()}")
        if msgpack.packb(body) != frames[2]:
            raise Other("a body that is not in the shortest form")
        return type, channel, body

    def step(self, step):
        who, name, where, body, *rest = step
        type, body = int(name, 16) if name.startswith("0x") else TYPES[name], filled(body, self.known)
        if who == "d":
            seq, ids = rest[0] if rest else 0, rest[1] if len(rest) > 1 else None
            channel = self.channels[where] if where else 0
            head = b"AR" + struct.pack(">BBHHQQ", 1, type, ids is not None, 0, channel, seq)
            self.socket.send_multipart([self.peer, head, msgpack.packb(body)] +
                                       ([struct.pack(f"<{len(ids)}I", *ids)] if ids is not None else []))
            return
        while True:
            got, channel, heard = self.hear()
            # Presence is asked for when it takes long: that is no step of the talk.
            if got == TYPES["PING"] and type != got:
                head = b"AR" + struct.pack(">BBHHQQ", 1, TYPES["PONG"], 0, 0, 0, 0)
                self.socket.send_multipart([self.peer, head, msgpack.packb(heard)])
                continue
            if got == TYPES["HELLO"] and type == TYPES["RESUME"]:
                # It may make the connection anew, and then counts its channels from the start.
                self.channels = {}
                head = b"AR" + struct.pack(">BBHHQQ", 1, TYPES["WELCOME"], 0, 0, 0, 0)
                self.socket.send_multipart([self.peer, head, msgpack.packb(SHORT["welcome"])])
                continue
            break
        if got != type:
            raise Other(f"{name} was expected, and {got:#x} came: {heard}")
        match(body, heard, self.known, name)
        if where == "any":
            return
        if where == 0 and channel != 0:
            raise Other(f"{name} on channel {channel}")
        if where != 0:
            if channel <= max(self.channels.values(), default=0):
                raise Other(f"channel {channel} does not rise")
            self.channels[where] = channel


PYTHON = """
import json, sys
sys.path.insert(0, %r)
from holdfast import Client, Error
text, out = "", {}
try:
    with Client(timeout=10, resume=10) as client:
        for piece in (turn := client.session(%r).turn("hello")):
            text += piece.text
        out["status"] = turn.end.status
except Error as e:
    out["error"] = e.name
print(json.dumps({"text": text, **out}))
""" % (os.path.abspath(os.path.join(SRC, "clients", "python")), BOOK["session"])


def c_result(done):
    lines = [json.loads(l) for l in done.stdout.splitlines() if l.startswith("{")]
    return lines[-1] if lines else {}


def ours(name):
    if os.environ.get("HOLDFAST_CONFORMANCE_CLIENT"):
        return os.environ["HOLDFAST_CONFORMANCE_CLIENT"].split()
    if name == "python":
        return [sys.executable, "-c", PYTHON]
    return [f"{BUILD}/holdfast", "turn", "--session", BOOK["session"], "--message", "hello", "--json", "--timeout", "10000"]


def talk(name, one):
    book = Book()
    child = subprocess.Popen(ours(name), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                             env={**os.environ, "HOLDFAST_ENDPOINT": book.endpoint})
    try:
        for step in one["steps"]:
            book.step(step)
    except Other as other:
        child.kill()
        raise AssertionError(f"{other}; {child.communicate()}")
    out, err = child.communicate(timeout=30 * ar1.SLOW)
    book.socket.close()
    wanted = {k: filled(v, {}) for k, v in one["result"].items()}
    if name == "c" and not os.environ.get("HOLDFAST_CONFORMANCE_CLIENT"):
        # The command prints events as they come; its error is a line of words.
        parts = [json.loads(l) for l in out.splitlines()]
        got = {"text": "".join(p.get("text", "") for p in parts if "status" not in p)}
        for p in parts:
            got.update({k: p[k] for k in ("status",) if k in p})
        if not got["text"] and parts and "text" in parts[-1]:
            got["text"] = parts[-1]["text"]
        if "error" in wanted:
            assert f" {wanted['error']}:" in err or wanted["error"] in out, (out, err)
            got["error"] = wanted["error"]
            wanted["text"] = got["text"]
            got.pop("status", None)
    else:
        got = json.loads(out.splitlines()[-1])
    assert got == wanted, (got, wanted, err)


def headers(wire):
    for hexed, wanted in BOOK["headers"]:
        try:
            got = package.Message([bytes.fromhex(hexed), b"\x80"] + ([b""] if not isinstance(wanted, str) and wanted["flags"] else []))
            assert {"type": got.kind, "channel": got.channel, "seq": got.seq} == {k: wanted[k] for k in ("type", "channel", "seq")}, hexed
        except errors.Error as error:
            assert error.name == wanted, (hexed, error)


# Rows whose bytes are MessagePack by the rules, in a message that only a daemon reads: no client has a reader for it.
DAEMON_ONLY = ["no `t`", "below zero", "`a` is not known", "no such method"]


def vectors():
    with open(os.path.join(SRC, "clients", "README.md")) as file:
        text = file.read()
    rows = re.findall(r"^\| (0x[0-9a-f]+) \| `([0-9a-f]*)` \| (\w+) \| (.*?) \|$", text[text.index("<!-- vectors -->"):], re.M)
    assert len(rows) > 30
    return rows


def plain(value):
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, list) else value


def refused(data):
    try:
        package.unpack(data)
    except errors.Error as error:
        return error.name
    return "ok"


def bodies(wire):
    """The table of clients/README.md: what is ok comes back byte for byte; what is refused has the table's name."""
    others = []
    for kind, hexed, result, rest in vectors():
        data = bytes.fromhex(hexed)
        if result == "ok":
            value = package.unpack(data)
            assert plain(value) == json.loads(rest.strip("`")), (hexed, value)
            assert kind == "0x83" or package.pack(value) == data or b"\xca" in data or b"\xcb" in data, hexed
        elif result in ("bad_body", "too_big"):
            assert refused(data) == result, (hexed, refused(data), result, rest)
        else:
            assert int(kind, 16) < 0x80, "a client reads that"
            assert refused(data) == "ok"
            others.append(rest)
    assert others == DAEMON_ONLY, others


def siblings(wire):
    """Of each rule the last that holds and the first that does not."""
    key = lambda k: b"\x81" + k + b"\x00"
    many = lambda n, each=b"\xc0": b"\xdd" + struct.pack(">I", n) + each * n
    pairs = lambda n: b"\xde" + struct.pack(">H", n) + b"".join(b"\xa2" + b"%02d" % i + b"\x00" for i in range(n))
    for result, data in [
            ("ok", key(b"\xd9\x20" + b"k" * 32)), ("bad_body", key(b"\xd9\x21" + b"k" * 33)), ("bad_body", key(b"\xa0")),
            ("bad_body", key(b"\xc4\x01k")), ("bad_body", key(b"\x01")), ("bad_body", key(b"\xa1\n")), ("bad_body", key(b"\xa2k\n")),
            ("ok", key(b"\xa8az09_-kk")), ("bad_body", key(b"\xa1.")), ("bad_body", key(b"\xa2\xc3\xbc")), ("bad_body", key(b"\xc0")),
            ("ok", b"\xcb\x7f\xef" + b"\xff" * 6), ("bad_body", b"\xcb\x7f\xf0" + bytes(6)), ("bad_body", b"\xcb\xff\xf0" + bytes(6)),
            ("bad_body", b"\xca\x7f\x80\0\0"), ("bad_body", b"\xca\xff\xc0\0\0"), ("bad_body", b"\x91\x81\xa1a\xcb\x7f\xf8" + bytes(6)),
            ("ok", b"\x91" * 16 + b"\xc0"), ("too_big", b"\x91" * 17 + b"\xc0"), ("too_big", b"\x81\xa1k" * 17 + b"\xc0"),
            ("ok", b"\x91" * 15 + b"\x90"), ("too_big", b"\x91" * 16 + b"\x90"), ("too_big", b"\x91" * 3000 + b"\xc0"),
            ("ok", pairs(32)), ("too_big", pairs(33)), ("ok", many(19999)), ("too_big", many(20000)), ("too_big", many(20001)),
            ("too_big", b"\x92" + many(10000) * 2), ("bad_body", b"\xdf\xff\xff\xff\xff"), ("bad_body", b"\xc6\xff\xff\xff\xff"),
            ("bad_body", b"\xdd\x00\x03\x00\x00" * 200), ("bad_body", b""), ("bad_body", b"\x91\xc7\x00\x05"),
            ("bad_body", b"\xc7\x0c\xff" + bytes(12)), ("bad_body", b"\xd7\xff" + bytes(8)), ("bad_body", b"\xa4\xf4\x90\x80\x80")]:
        assert refused(data) == result, (data[:40].hex(), len(data), refused(data), result)


tap = Tap()
for client in ("python", "c"):
    for one in BOOK["talks"]:
        tap.run(f"{client}: {one['name']}", talk, client, one)
tap.run("headers, by the Python package", headers, None)
tap.run("bodies of clients/README.md, by the Python package", bodies, None)
tap.run("the last that a rule allows, and the first that it does not", siblings, None)
sys.exit(tap.done())
