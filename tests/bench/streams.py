#!/usr/bin/env python3
"""What a long prompt costs those who are being answered beside it: the time between two tokens of a stream.

usage: streams.py MODEL [--build DIR] [--streams 16] [--prompt 100000] [--alone 10] [--most 60] [--stretch] [daemon's options …]

The streams sample without an end, first alone, then beside one prompt of so many tokens until it is answered, or for --most
seconds; then alone again. Exit code 1 if the 99th hundredth of the times beside the prompt is more than twice that of the
slower of the two without. The model must have the context, and the daemon may need --context and --kv-memory. With --stretch
a model of a shorter one will do: a copy of its file, removed in the end, says that it has what the prompt needs. What it
answers at such places is of no use, what it costs is what it would be.
"""
import argparse
import os
import pathlib
import random
import shutil
import struct
import sys
import tempfile
import time

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here.parent))
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model")
parser.add_argument("--build", default="build")
parser.add_argument("--streams", type=int, default=16)
parser.add_argument("--prompt", type=int, default=100000)
parser.add_argument("--alone", type=float, default=10)
parser.add_argument("--most", type=float, default=60)
parser.add_argument("--stretch", action="store_true")
arguments, options = parser.parse_known_args()
os.environ["BUILDDIR"] = arguments.build
import ar1  # noqa: E402, which looks for BUILDDIR
from ar1 import DATA, END, REJECT, Daemon, Wire, pack, zmq  # noqa: E402


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of a GGUF's values, by their type


def stretched(path, tokens, folder):
    """A copy of the GGUF whose ARCHITECTURE.context_length, four bytes of its metadata, is at least so many tokens."""
    copy = os.path.join(folder, "stretched.gguf")
    shutil.copyfile(path, copy)
    with open(copy, "r+b") as file:
        def take(form):
            return struct.unpack("<" + form, file.read(struct.calcsize("<" + form)))[0]

        def skip(kind):
            if kind == 8:
                file.seek(take("Q"), os.SEEK_CUR)
            elif kind == 9:
                of, count = take("I"), take("Q")
                if of == 8:
                    for _ in range(count):
                        skip(8)
                else:
                    file.seek(SIZES[of] * count, os.SEEK_CUR)
            else:
                file.seek(SIZES[kind], os.SEEK_CUR)

        magic, version, _, pairs = file.read(4), take("I"), take("Q"), take("Q")
        assert magic == b"GGUF" and version in (2, 3), "not a GGUF that this can read"
        for _ in range(pairs):
            key = file.read(take("Q"))
            kind = take("I")
            if key.endswith(b".context_length") and kind == 4:
                had = take("I")
                file.seek(-4, os.SEEK_CUR)
                file.write(struct.pack("<I", max(had, tokens)))
                return copy
            skip(kind)
    raise SystemExit("the model's metadata has no context_length")


class Stream:
    def __init__(self, daemon):
        self.wire = Wire(daemon.endpoint)
        self.session = self.wire.open()
        self.gaps, self.last = [], None
        self.ask()

    def ask(self):
        self.last = None
        self.channel = self.wire.begin("session.turn", {"tokens": True, "keep": 0, "max_tokens": 0, "ignore_end": True},
                                       pack([random.randrange(3, 200) for _ in range(8)]), sess=self.session)

    def take(self):
        type, channel, *_ = self.wire.receive()
        if type == DATA and channel == self.channel:
            now = time.monotonic()
            if self.last:
                self.gaps.append(now - self.last)
            self.last = now
        elif type == END and channel == self.channel:
            self.ask()
        assert type != REJECT, "refused"


def play(streams, seconds, other=None, channel=None):
    """The gaps meanwhile, and whether the other call came to its end."""
    poller = zmq.Poller()
    by_socket = {s.wire.socket: s for s in streams}
    for socket in (*by_socket, *([other.socket] if other else [])):
        poller.register(socket, zmq.POLLIN)
    for s in streams:
        s.gaps = []
    until, over = time.monotonic() + seconds, False
    while time.monotonic() < until and not over:
        for socket, _ in poller.poll(1000):
            if socket in by_socket:
                by_socket[socket].take()
            else:
                over |= other.receive()[:2] == (END, channel)
    return sorted(g for s in streams for g in s.gaps), over


def told(what, gaps):
    p50, p99 = gaps[len(gaps) // 2], gaps[len(gaps) * 99 // 100]
    print(f"{what:28s} {len(gaps):7d} tokens, between two p50 {p50 * 1e3:7.1f} ms, p99 {p99 * 1e3:7.1f} ms", flush=True)
    return p99


folder = tempfile.mkdtemp(prefix="hf-streams-")
model = arguments.model
if arguments.stretch:
    model = stretched(model, arguments.prompt + 1024, folder)
daemon = Daemon(model, *options)
streams = [Stream(daemon) for _ in range(arguments.streams)]
play(streams, 2)
alone = [told("alone", play(streams, arguments.alone)[0])]
wire = Wire(daemon.endpoint)
began = time.monotonic()
channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 1},
                     pack([random.randrange(3, 200) for _ in range(arguments.prompt)]), sess=wire.open())
gaps, over = play(streams, arguments.most, wire, channel)
print(f"the prompt of {arguments.prompt} tokens " + (f"took {time.monotonic() - began:.1f} s" if over else "was not done then"))
beside = told("beside the prompt", gaps)
if over:
    alone.append(told("alone again", play(streams, arguments.alone)[0]))
print(f"beside the prompt p99 is {beside / max(alone):.2f} of that without")
daemon.stop()
shutil.rmtree(folder)
sys.exit(beside > 2 * max(alone))
