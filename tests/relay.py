"""A relay between clients and a daemon that can cut every connection: bytes in, bytes out, no protocol."""
import os
import select
import socket
import tempfile
import threading


class Relay:
    def __init__(self, endpoint):
        self.target = endpoint[len("ipc://"):]
        self.folder = tempfile.mkdtemp(prefix="hf-relay-")
        self.endpoint = f"ipc://{self.folder}/s"
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(f"{self.folder}/s")
        self.listener.listen(64)
        self.pairs, self.lock, self.closed, self.cuts, self.refuse = [], threading.Lock(), False, 0, False
        # Called with how many bytes came from the daemon so far on this connection; True cuts it.
        self.cut_when = lambda count: False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while not self.closed:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                if self.refuse:
                    raise OSError
                far.connect(self.target)
            except OSError:
                near.close()
                continue
            with self.lock:
                self.pairs.append((near, far))
            threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near, far):
        count = 0
        try:
            while True:
                for ready in select.select([near, far], [], [])[0]:
                    data = ready.recv(65536)
                    if not data:
                        return
                    if ready is far:
                        count += len(data)
                        if self.cut_when(count):
                            self.cuts += 1
                            return
                    (far if ready is near else near).sendall(data)
        except (OSError, ValueError):
            pass
        finally:
            near.close()
            far.close()

    def cut(self):
        with self.lock:
            for near, far in self.pairs:
                for s in (near, far):
                    try:
                        s.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
            self.pairs.clear()

    def close(self):
        self.closed = True
        self.cut()
        self.listener.close()
        os.unlink(f"{self.folder}/s")
        os.rmdir(self.folder)
