#!/usr/bin/env python3
"""A real transcript of an agent, its messages cut short, turn by turn through a daemon: each prompt begins with all of the
history before it, in every template, and all of it that was computed is found. Method: tests/bench/residents.py's play."""
import os
import pathlib
import sys

import ar1
import daemon_rig
from ar1 import Daemon, Tap
from daemon_rig import MODEL, left_clean

SRC = pathlib.Path(os.environ.get("SRCDIR", "."))
sys.dont_write_bytecode = True
sys.path[:0] = [str(SRC / "clients" / "python"), str(SRC / "tests" / "bench")]
from holdfast import Client
from residents import play

tap = Tap()


def whole(client, cut, end_mark):
    turns, history, found, could, prompts = play(client, SRC / "tests" / "data" / "transcript.json", 6, cut, end_mark)
    assert turns > 4 and history > 400, (turns, history)
    assert found == could > 1000, (found, could)
    assert prompts > 2 * history


daemon = None
for template in ("smollm2", "qwen2.5") if ar1.SLOW > 1 else ("smollm2", "qwen2.5", "qwen3"):
    daemon = Daemon(MODEL, "--template", template, "--kv-memory", "600000", "--strikes", "0")
    with Client(daemon.endpoint) as client:
        for cut, end_mark in ((24, False), (40, True)):
            tap.run(f"{template}, messages of {cut} bytes: all is found that was computed", whole, client, cut, end_mark)
    left_clean(daemon)
daemon_rig.finish(tap, daemon)
