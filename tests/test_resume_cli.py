"""The C library's RESUME: `holdfast turn` over a relay that cuts its connections, against one that does not."""
import json
import os
import random
import re
import subprocess

import ar1
import daemon_rig
from ar1 import BUILD, Tap, Wire
from daemon_rig import balanced, left_clean
from relay import Relay

RANDOM = random.Random(3)


def turn(at, session, *more, wait=60):
    done = subprocess.run([f"{BUILD}/holdfast", "turn", "--endpoint", at, "--session", session, "--message", "count", "--max-tokens",
                           "250", "--temperature", "1", "--seed", "5", "--ignore-end", *more],
                          capture_output=True, timeout=wait * ar1.SLOW)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def cut_anywhere(wire):
    code, whole, words = turn(endpoint, wire.open("smollm2").hex())
    assert code == 0 and len(whole) > 100, words
    cuts = 0
    for _ in range(8):
        relay = Relay(endpoint)
        left = [RANDOM.randrange(300, 4000) for _ in range(3)]
        relay.cut_when = lambda count: bool(left) and count > left[0] and bool(left.pop(0))
        session = wire.open("smollm2")
        try:
            code, text, words = turn(relay.endpoint, session.hex())
            assert code == 0 and text == whole, (code, words, text[:200], whole[:200])
            cuts += relay.cuts
        finally:
            relay.close()
        assert wire.ok("session.show", sess=session)["r"]["turn"] == 1
        wire.ok("session.close", sess=session)
    assert cuts > 6, cuts
    balanced(wire)


daemon = daemon_rig.start()
endpoint = daemon.endpoint
wire = Wire(endpoint)
tap = Tap()
daemon_rig.run(tap, daemon, wire, [("a turn whose connection is cut anywhere prints what it would have printed", cut_anywhere)])
tap.run("it ends with 0 at once, and no sanitizer spoke", left_clean, daemon)
daemon_rig.finish(tap, daemon)
