"""ZMTP by hand, so that no library stands between a test and the daemon's socket."""
import socket
import struct

import ar1
from ar1 import HELLO, msgpack


class Raw:
    """A ZMTP 3.0 peer: greeting, READY, frames; everything may be wrong."""

    def __init__(self, endpoint, identity=b"", kind=b"DEALER", greet=True):
        self.s = socket.socket(socket.AF_UNIX)
        self.s.settimeout(5 * ar1.SLOW)
        self.s.connect(endpoint[6:])
        if greet:
            self.s.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
            self.exactly(64)
            ready = b"\x05READY" + self.prop(b"Socket-Type", kind) + self.prop(b"Identity", identity)
            self.s.sendall(bytes([4, len(ready)]) + ready)
            self.frame()

    @staticmethod
    def prop(name, value):
        return bytes([len(name)]) + name + struct.pack(">I", len(value)) + value

    def exactly(self, n):
        data = b""
        while len(data) < n:
            more = self.s.recv(n - len(data))
            if not more:
                raise ConnectionError("closed")
            data += more
        return data

    def frame(self):
        flags = self.exactly(1)[0]
        size = struct.unpack(">Q", self.exactly(8))[0] if flags & 2 else self.exactly(1)[0]
        return flags, self.exactly(size)

    def send(self, body, more=False):
        self.s.sendall(bytes([(1 if more else 0) | 2]) + struct.pack(">Q", len(body)) + body)

    def message(self, kind, channel, body):
        self.send(b"AR" + struct.pack(">BBHHQQ", 1, kind, 0, 0, channel, 0), True)
        self.send(msgpack.packb(body))

    def receive(self):
        parts, more = [], True
        while more:
            flags, body = self.frame()
            if flags & 4:
                continue
            parts.append(body)
            more = flags & 1
        return parts

    def hello(self):
        self.message(HELLO, 0, {"client": "raw", "minor": 0, "caps": []})
        return self.receive()[0][3]

    def closed(self):
        """Whether the daemon's side has ended it."""
        try:
            while self.s.recv(4096):
                pass
            return True
        except ConnectionError:
            return True
        except socket.timeout:
            return False

    def close(self):
        self.s.close()
