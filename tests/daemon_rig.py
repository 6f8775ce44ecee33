"""What the tests of the daemon share: a tiny model, a daemon on it, and what must hold after each test."""
import ctypes
import json
import os
import random
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time

import ar1
from ar1 import BUILD, Daemon, Tap, Wire, zmq

if zmq is None:
    ar1.skip_all("pyzmq and msgpack are not installed")

CONTEXT = 1024
FOLDER = tempfile.mkdtemp(prefix="hf-model-")
MODEL = os.path.join(FOLDER, "tiny.gguf")
subprocess.run([f"{BUILD}/tests/make_tiny", MODEL, "7"], check=True)
RANDOM = random.Random(5)


def words(count):
    return [RANDOM.randrange(3, 259) for _ in range(count)]


def balanced(wire):
    deadline = time.time() + 10 * ar1.SLOW
    while True:
        device = wire.ledger()
        if device["running"] == device["promised"] == device["moving"] == 0 or time.time() > deadline:
            break
        time.sleep(0.02)
    assert device["running"] == device["promised"] == device["moving"] == 0, device
    return device


def same(a, b):
    assert a.ids == b.ids, (a.ids, b.ids)
    assert a.logprobs == b.logprobs


class Subscriber:
    """Session events, as frames: topic and a zero byte, number, map."""

    def __init__(self, endpoint, prefix=b"", kind=None):
        self.socket = zmq.Context.instance().socket(kind or zmq.SUB)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)
        if kind is None:
            self.socket.setsockopt(zmq.SUBSCRIBE, prefix)
        self.last = {}

    def take(self, seconds):
        if not self.socket.poll(int(seconds * 1000)):
            return None
        topic, number, body = self.socket.recv_multipart()
        event = ar1.msgpack.unpackb(body)
        assert topic == event["principal"].encode() + b"\0", (topic, event)
        assert struct.unpack(">Q", number)[0] == event["seq"]
        before = self.last.get(topic)
        assert before is None or event["seq"] == before + 1, f"a gap after {before}: {event}"
        self.last[topic] = event["seq"]
        return event

    def until(self, what, session=None):
        """Events up to one of that kind."""
        events, deadline = [], time.time() + 10 * ar1.SLOW
        while time.time() < deadline:
            event = self.take(0.1)
            if event and session in (None, event["sess"]):
                events.append(event)
                if event["event"] == what:
                    return events
        raise AssertionError(f"no {what}; {events}")

    def settle(self, wire):
        """Until a session that is opened now is heard of: then all that comes later is."""
        deadline = time.time() + 10 * ar1.SLOW
        while time.time() < deadline:
            session = wire.open()
            wire.ok("session.close", sess=session)
            if self.take(0.2):
                while self.take(0.1):
                    pass
                return
        raise AssertionError("nothing is heard")

    def close(self):
        self.socket.close()


def unsanitary(words):
    for mark in ("Sanitizer", "runtime error:"):
        assert mark not in words, words[max(0, words.index(mark) - 100):][:1400]


def left_clean(daemon):
    assert daemon.stop(keep=True) == 0
    unsanitary(daemon.words())


def begin(home, *options, model=MODEL, **more):
    """A daemon in a folder of its own, or in the one that another has left, whose words are put aside."""
    if home and os.path.exists(f"{home}/log"):
        os.rename(f"{home}/log", f"{home}/log.{time.time()}")
    return Daemon(model, *options, home=home, **more)


def kill(daemon):
    daemon.process.kill()
    daemon.process.wait()
    daemon.log.close()
    unsanitary(daemon.words())


def audit(state, *question, code=0):
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", state, "--json", *map(str, question)], capture_output=True,
                          text=True, timeout=60 * ar1.SLOW)
    assert done.returncode == code, (question, done.returncode, done.stderr[-500:])
    return [json.loads(line) for line in done.stdout.splitlines()]


def until(what, seconds=20):
    deadline = time.time() + seconds * ar1.SLOW
    while not what():
        assert time.time() < deadline, "it does not come"
        time.sleep(0.02)


def rests(daemon, seconds=0.6):
    """It is not at work, whatever is connected: a tenth of a core at most."""
    def used():
        with open(f"/proc/{daemon.process.pid}/stat") as file:
            return sum(int(n) for n in file.read().rsplit(")", 1)[1].split()[11:13]) / os.sysconf("SC_CLK_TCK")
    before = used()
    time.sleep(seconds)
    assert used() - before < seconds / 10 * min(ar1.SLOW, 5), f"{used() - before} s of {seconds}"


def deafen(port):
    """This process's connections to the port take in nothing more: what is sent to them is dropped before the kernel would
    answer, as if their host were gone. Returns how many there are."""
    nothing = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))  # a filter that returns 0
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(nothing))
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.stat(f"/proc/self/fd/{name}").st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                if s.family == socket.AF_INET and s.getpeername()[1] == port:
                    s.setsockopt(socket.SOL_SOCKET, 26, program)  # SO_ATTACH_FILTER
                    count += 1
        except OSError:
            pass
    return count


def await_message(wire, type, channel):
    """The body of the channel's first message of that type; what comes before it is passed over."""
    while True:
        message = wire.receive()
        if message[:2] == (type, channel):
            return message[3]


def ask(ids, **more):
    return {"tokens": True, "logprobs": 1, "ignore_end": True, "max_tokens": 20, **more}, ar1.pack(ids)


def resume(wire, op, after, window=1 << 20):
    wire.channel += 1
    wire.send(ar1.RESUME, wire.channel, {"op": op, "after_seq": after, "window": window})
    return wire.channel


def more_of_it(wire, channel, reply, tokens):
    """Continues a Reply: the next message must have the next number."""
    had = len(reply.ids)
    while True:
        type, at, seq, body, blob = wire.receive(60)
        if at != channel or type in (ar1.NOTE, ar1.ACCEPTED):
            continue
        assert type != ar1.REJECT, body
        reply.seq += 1
        assert seq == reply.seq, f"gap in seq: {seq} after {reply.seq - 1}"
        if type == ar1.END:
            reply.end = body
            return
        off, count, text, logprobs = body
        reply.ids += ar1.struct.unpack(f"<{count}I", blob)
        reply.text += text or ""
        reply.logprobs += [ar1.struct.pack("<f", x["p"]) for x in logprobs or []]
        assert off == len(reply.text.encode()), "off is the byte offset after the message"
        if tokens and len(reply.ids) - had >= tokens:
            return


def start(*options):
    return Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--chunk", "64", "--batch-rows", "96",
                  "--drain-ms", str(10000 * ar1.SLOW), "--strikes", "0", *options)


def narrow(*options):
    """A daemon of its own in which a turn that nobody reads soon waits, and waits long."""
    return Daemon(MODEL, "--template", "smollm2", "--kv-memory", "600000", "--stream-bytes", "1024", "--note-ms", "50", *options)


def run(tap, daemon, wire, tests):
    for what, test in tests:
        tap.run(what, test, wire)
        if daemon.process.poll() is not None:
            sys.stdout.write("".join(f"# {line}\n" for line in daemon.words().splitlines()[-60:]))
            print("Bail out! the daemon is gone")
            sys.exit(1)


def finish(tap, daemon):
    if tap.failed:
        sys.stdout.write("".join(f"# {line}\n" for line in daemon.words().splitlines()[-20:]))
    daemon.stop()
    sys.exit(tap.done())
