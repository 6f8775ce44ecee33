"""Many calls at once over one connection, for the measurements: tests/ar1.py waits for each."""
import struct
import time

import ar1


class Played:
    def __init__(self, began):
        self.ids, self.end, self.began, self.first = [], None, began, None


def side_by_side(wire, jobs, width=32, timeout=600):
    """jobs yields (key, method, arguments, blob, keys of the CALL) or None, when there is nothing to ask yet; as many
    as `width` run at once. Yields (key, Played) as they end, and asks jobs again after each."""
    running, jobs, more, at = {}, iter(jobs), True, time.time()
    while more or running:
        while more and len(running) < width:
            try:
                job = next(jobs)
            except StopIteration:
                more = False
                break
            if job is None:
                break
            key, method, arguments, blob, keys = job
            running[wire.begin(method, arguments, blob, **keys)] = (key, Played(time.time()))
        if not running:
            if more:
                time.sleep(0.001)
                continue
            return
        try:
            type, channel, _, body, blob = wire.receive(0.05 if more and len(running) < width else timeout)
        except TimeoutError:
            assert time.time() - at < timeout, "no message came"
            continue
        at = time.time()
        if channel not in running:
            continue
        key, played = running[channel]
        if type == ar1.DATA:
            played.first = played.first or at
            if blob:
                played.ids += struct.unpack(f"<{len(blob) // 4}I", blob)
        elif type == ar1.REJECT:
            raise ar1.Refused(body["err"])
        elif type == ar1.END:
            played.end = body
            del running[channel]
            yield key, played
