"""AR/1 spoken plainly, for tests: its own frames and packing, nothing shared with the clients.

A Daemon is started with a model in a folder of its own; a Wire is one connection to it.
What a test program makes lies in one folder, that goes when it ends, and so do the daemons that it has left.
"""
import atexit
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

try:
    import msgpack
    import zmq
except ImportError:
    msgpack = zmq = None

SCRATCH = tempfile.tempdir = tempfile.mkdtemp(prefix="hf-")
os.chmod(SCRATCH, 0o711)  # what lies in it has rights of its own, and other users knock in tests
RUNNING = []


@atexit.register
def leave_nothing():
    for process in RUNNING:
        if process.poll() is None:
            process.kill()
            process.wait()
    shutil.rmtree(SCRATCH, ignore_errors=True)


BUILD = os.environ.get("BUILDDIR", ".")
SLOW = 10 if os.environ.get("HOLDFAST_SANITIZED") else 1

HELLO, CALL, WINDOW, CANCEL, RESUME, ACK, PING, BYE = 1, 2, 3, 4, 5, 6, 7, 15
WELCOME, ACCEPTED, DATA, END, NOTE, PONG, GOAWAY, REJECT = 0x81, 0x82, 0x83, 0x84, 0x85, 0x87, 0x88, 0x89


class Tap:
    def __init__(self):
        self.count = self.failed = 0

    def run(self, what, test, *arguments):
        self.count += 1
        try:
            reason = test(*arguments)
            skip = f" # SKIP {reason[5:]}" if isinstance(reason, str) and reason.startswith("skip ") else ""
            print(f"ok {self.count} - {what}{skip}", flush=True)
        except Exception as error:  # whatever it is, the line says so and the next test runs
            self.failed += 1
            where = error.__traceback__
            while where.tb_next:
                where = where.tb_next
            print(f"# {type(error).__name__} at line {where.tb_lineno}: {str(error)[:1500]}")
            print(f"not ok {self.count} - {what}", flush=True)

    def done(self):
        print(f"1..{self.count}")
        return 1 if self.failed else 0


def skip_all(reason):
    print(f"1..0 # SKIP {reason}")
    sys.exit(0)


class Daemon:
    def __init__(self, model, *options, state=None, home=None, wait=True, descriptors=None, under=()):
        self.home = home or tempfile.mkdtemp(prefix="hf-")
        self.endpoint = f"ipc://{self.home}/rpc.sock"
        self.log = open(f"{self.home}/log", "ab")
        self.command = [*under, f"{BUILD}/holdfastd", "--model", model, "--listen", self.endpoint, "--state",
                        state or f"{self.home}/state", "--cache", f"{self.home}/cache", *options]
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        preexec_fn=descriptors and (lambda: resource.setrlimit(
                                            resource.RLIMIT_NOFILE, (descriptors, descriptors))))
        RUNNING.append(self.process)
        if wait:
            self.wait()

    def wait(self):
        deadline = time.time() + 30 * SLOW
        while "serving" not in self.words():
            if self.process.poll() is not None or time.time() > deadline:
                raise RuntimeError(f"the daemon did not come up: {self.words()}")
            time.sleep(0.02)

    def words(self):
        with open(f"{self.home}/log", errors="replace") as file:
            return file.read()

    def stop(self, keep=False, timeout=20):
        code = self.process.poll()
        if code is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(timeout * SLOW)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise
        self.log.close()
        if not keep:
            shutil.rmtree(self.home, ignore_errors=True)
        return code


class Wire:
    process = None  # whose end is no news to wait for

    def __init__(self, endpoint, hello=True):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.connect(endpoint)
        self.channel = 0
        if hello:
            self.send(HELLO, 0, {"client": "test", "minor": 0, "caps": []})
            self.welcome = self.expect(WELCOME)[3]

    def close(self):
        self.socket.close()

    def header(self, type, channel, flags=0, major=1, reserved=0):
        return b"AR" + struct.pack(">BBHHQQ", major, type, flags, reserved, channel, 0)

    def send(self, type, channel, body, blob=None):
        frames = [self.header(type, channel, 0 if blob is None else 1), msgpack.packb(body)]
        self.socket.send_multipart(frames + ([] if blob is None else [blob]))

    def receive(self, timeout=30):
        deadline = time.time() + timeout * SLOW
        while not self.socket.poll(max(0, min(50, int((deadline - time.time()) * 1000)))):
            ended = self.process is not None and self.process.poll() is not None
            if time.time() >= deadline or ended and not self.socket.poll(50):
                raise TimeoutError("no message came")
        frames = self.socket.recv_multipart()
        magic, major, type, flags, reserved, channel, seq = struct.unpack(">2sBBHHQQ", frames[0])
        assert magic == b"AR" and major == 1 and reserved == 0, frames[0]
        return type, channel, seq, msgpack.unpackb(frames[1], strict_map_key=False), frames[2] if len(frames) > 2 else None

    def expect(self, *types, timeout=30):
        while True:
            message = self.receive(timeout)
            if message[0] in types:
                return message
            assert message[0] in (NOTE, GOAWAY), f"unexpected {message}"

    def begin(self, method, arguments=None, blob=None, **keys):
        """Sends a CALL and returns its channel; keys beside `a` (sess, turn, epoch, window, …)."""
        self.channel += 1
        body = {"m": method, "window": 1 << 20, "a": arguments or {}}
        body.update(keys)
        self.send(CALL, self.channel, body, blob)
        return self.channel

    def finish(self, channel, timeout=60, tokens=None):
        """Reads up to the call's END; checks what must hold of every call on the way."""
        reply = Reply()
        while True:
            type, at, seq, body, blob = self.receive(timeout)
            if type == REJECT and at == channel:
                raise Refused(body["err"])
            if at != channel or type in (NOTE, GOAWAY, PONG):
                continue
            if type == ACCEPTED:
                assert reply.op is None, "ACCEPTED twice"
                reply.op = body["op"]
                continue
            assert reply.op is not None, "nothing comes before ACCEPTED"
            reply.seq += 1
            assert seq == reply.seq, f"gap in seq: {seq} after {reply.seq - 1}"
            if type == DATA:
                off, count, text, logprobs = body
                ids = struct.unpack(f"<{len(blob) // 4}I", blob)
                assert len(ids) == count
                reply.text += text or ""
                assert off == len(reply.text.encode()), "off is the byte offset after the message"
                reply.ids += ids
                reply.logprobs += [struct.pack("<f", x["p"]) for x in logprobs or []]
                reply.alternatives += [x.get("top") for x in logprobs or []]
                if reply.first is None:
                    reply.first = time.time()
                if tokens and len(reply.ids) >= tokens:
                    return reply
                continue
            assert type == END, f"unexpected {type:#x}"
            reply.end, reply.blob = body, blob
            return reply

    def call(self, method, arguments=None, blob=None, **keys):
        return self.finish(self.begin(method, arguments, blob, **keys))

    def ok(self, method, arguments=None, blob=None, **keys):
        reply = self.call(method, arguments, blob, **keys)
        assert reply.end["status"] == "ok", reply.end
        return reply.end

    def open(self, template="none", **arguments):
        """A session of raw tokens, unless another template is named."""
        arguments["template"] = template
        return self.ok("session.open", arguments)["sess"]

    def tokenize(self, text, special=False):
        blob = self.call("tokenize", {"text": text, "special": special}).blob or b""
        return list(struct.unpack(f"<{len(blob) // 4}I", blob))

    def turn(self, session, ids, keep=None, **arguments):
        arguments = {"tokens": True, "logprobs": 1, **arguments}
        if keep is not None:
            arguments["keep"] = keep
        return self.call("session.turn", arguments, pack(ids), sess=session)

    def ledger(self):
        return self.ok("ledger.show")["r"]["accounts"]["device"]


class Refused(Exception):
    @property
    def name(self):
        return self.args[0]["n"]


class Reply:
    def __init__(self):
        self.op = self.end = self.blob = self.first = None
        self.seq, self.text, self.ids, self.logprobs, self.alternatives = 0, "", [], [], []

    @property
    def usage(self):
        return self.end["usage"]

    @property
    def status(self):
        return self.end["status"]


def pack(ids):
    return struct.pack(f"<{len(ids)}I", *ids)
