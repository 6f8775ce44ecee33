"""holdfastd bench with --roofline on a tiny model: what its JSON and its text promise.

Goal: the bench that people judge their machine by runs, and its figures hang together: a share is the figure over
the nearer bound, parts have both, and the instruction set is named with what the CPU has beside it.
"""
import json
import os
import pty
import subprocess
import sys
import tempfile

import reported
from reported import report

BUILD = os.environ["BUILDDIR"]


def run(*arguments):
    done = subprocess.run([os.path.join(BUILD, "holdfastd"), "bench", *arguments], stdout=subprocess.PIPE, check=True, text=True)
    return done.stdout


def on_a_terminal(*arguments):
    """What standard error says to a terminal."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen([os.path.join(BUILD, "holdfastd"), "bench", *arguments], stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    words = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        words += part
    os.close(ours)
    return child.wait(), words


def main():
    with tempfile.TemporaryDirectory() as folder:
        model = os.path.join(folder, "tiny.gguf")
        subprocess.run([os.path.join(BUILD, "tests", "make_tiny"), model, "7"], check=True)
        found = json.loads(run(model, "--roofline", "--seconds", "1", "--threads", "1", "--json", "--only", "decode_b1_c128"))
        text = run(model, "--seconds", "1", "--threads", "1", "--only", "prefill_512", "--isa", "scalar")
        code, words = on_a_terminal(model, "--seconds", "1", "--threads", "1", "--only", "prefill_512")
    report(code == 0 and b"\rweights: 100 %" in words and words.rstrip().endswith(b"\x1b[K"),
           "a terminal sees how far the packing of weights is, and nothing of it is left", words)
    speed = found["decode_b1_c128"]
    report(speed > 0 and found["prefill_512"] is None, "one figure, the others are null", found)
    report(found["isa"] in ("scalar", "avx2", "avx512") and isinstance(found["isa_beside"], str) and found["threads"] == 1,
           "the instruction set, what is beside it, the threads", found)
    report(all(found[key] > 1e8 for key in ("bytes_per_s", "macs_per_s", "f32_per_s")) and found["tile_per_s"] >= 0,
           "the machine's four bounds", found)
    bound = found["roofline"]["decode_b1_c128"]
    share = speed / min(bound["bytes"], bound["macs"])
    report(abs(bound["reached"] / share - 1) < 0.01, "what is reached is the figure over the nearer bound", bound)
    parts = bound["parts"]
    report(set(parts) == {"batch", "tags", "embed", "qkv", "rope_write", "attend", "output", "gate_up", "down", "head", "sample"}
           and all(part["us"] >= 0 and part["bound_us"] >= 0 for part in parts.values()) and parts["head"]["bound_us"] > 0
           and parts["attend"]["bound_us"] > 0 and parts["head"]["by"] in ("bytes", "sums") and parts["batch"]["by"] == "", "every part of a step, with its bound", parts)
    total = sum(part["us"] for part in parts.values())
    report(total <= 1.05e6 / speed, "parts do not take longer than their step", f"{total} us, {1e6 / speed} a step")
    report("prefill_512" in text and "tokens/s" in text and "scalar, 1 threads" in text, "the same for people", text)
    return reported.done()


sys.exit(main())
