"""Sessions that programs of before left are taken up: rows of versions 1 and 2, cut where those ended.

Method: the rows of a daemon that has ended are made old ones; the next daemon goes on with the same tokens as one session that was
never restarted. A version that nobody knows is refused with words.
"""
import os
import shutil
import subprocess
import tempfile

import ar1
from ar1 import BUILD, Tap, Wire
from daemon_rig import MODEL, begin, left_clean, same, words

HOME = tempfile.mkdtemp(prefix="hf-rows-")
OPTIONS = ("--template", "smollm2", "--kv-memory", "900000", "--sessions", "32")
ASK = {"max_tokens": 8, "ignore_end": True}


def made_old(version):
    done = subprocess.run([f"{BUILD}/tests/rows_old", f"{HOME}/d/state", str(version), "32"], capture_output=True, text=True)
    assert done.returncode == 0, done
    return int(done.stdout)


def versions():
    parts = [words(60), words(9), words(11), words(7)]
    os.mkdir(f"{HOME}/d")
    daemon = begin(f"{HOME}/d", *OPTIONS)
    wire = Wire(daemon.endpoint)
    whole, session = wire.open(), wire.open(label="a label of its own")
    right = [wire.turn(whole, part, **ASK) for part in parts]
    same(right[0], wire.turn(session, parts[0], **ASK))
    wire.ok("session.close", sess=whole)
    for at, version in ((1, 1), (2, 2), (3, 3)):
        left_clean(daemon)
        if version < 3:
            assert made_old(version) == 1
        daemon = begin(f"{HOME}/d", *OPTIONS)
        assert "1 sessions are back" in daemon.words(), daemon.words()
        wire = Wire(daemon.endpoint)
        (shown,) = wire.ok("session.list")["r"]
        assert shown["sess"] == session and shown["turn"] == at and shown["label"] == "a label of its own", shown
        same(right[at], wire.turn(session, parts[at], **ASK))
    left_clean(daemon)


def unknown():
    assert made_old(9) == 1
    daemon = begin(f"{HOME}/d", *OPTIONS, wait=False)
    assert daemon.process.wait(60 * ar1.SLOW) == 1
    assert "another version of the program" in daemon.words(), daemon.words()


tap = Tap()
tap.run("rows of versions 1 and 2 are read, and the sessions go on", versions)
tap.run("one of a version that nobody knows is refused", unknown)
shutil.rmtree(HOME)
raise SystemExit(tap.done())
