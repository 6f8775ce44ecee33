"""The daemon on a GPU, emulated. Goal: it serves; a GPU that is lost in a turn ends it with a code, is on record and
takes the daemon down in order, after which the sessions are there; what is not there, or too old, or too small, is
refused in one line, and the CPU is served all the same. Method: holdfastd linked with the emulated GPU."""
import json
import os
import re
import subprocess
import sys
import tempfile

import ar1

FOLDER = tempfile.mkdtemp(prefix="hf-emulated-")
REAL = ar1.BUILD
os.symlink(os.path.abspath(f"{REAL}/tests/emulated_daemon"), f"{FOLDER}/holdfastd")
os.symlink(os.path.abspath(f"{REAL}/tests"), f"{FOLDER}/tests")
ar1.BUILD = FOLDER

from ar1 import Daemon, Tap, Wire  # noqa: E402
from daemon_rig import MODEL, left_clean, unsanitary, words  # noqa: E402

tap = Tap()
GIVEN = words(20)
# Fibers are slow: a small step, a few tokens.
SMALL = ("--template", "smollm2", "--kv-memory", "300000", "--chunk", "16", "--batch-rows", "32", "--turns", "2",
         "--context", "256")


def start(*options, home=None):
    return Daemon(MODEL, *SMALL, "--device", "cuda", *options, home=home)


def serves():
    daemon = start()
    wire = Wire(daemon.endpoint)
    session = wire.open()
    first = wire.turn(session, GIVEN, max_tokens=4, ignore_end=True, temperature=0)
    second = wire.turn(session, words(3), keep=first.usage["history"], max_tokens=3, ignore_end=True, temperature=0)
    assert len(first.ids) == 4 and second.usage["resident"] > 0, second.usage
    assert "sm_90" in daemon.words(), daemon.words()
    left_clean(daemon)


def lost():
    gone = f"{FOLDER}/lost"
    os.environ["HOLDFAST_EMULATE_LOSE"] = gone
    daemon = start()
    wire = Wire(daemon.endpoint)
    session = wire.open()
    wire.turn(session, GIVEN, max_tokens=3, ignore_end=True)
    second = wire.open()
    open(gone, "w").close()
    channel = wire.begin("session.turn", {"tokens": True, "max_tokens": 200, "ignore_end": True}, ar1.pack(GIVEN),
                         sess=second)
    while True:
        type, at, _, body, _ = wire.receive()
        if at == channel and type == ar1.END:
            break
    assert body["status"] == "error" and body["err"]["n"] == "device", body
    assert daemon.process.wait(20 * ar1.SLOW) == 1
    assert "the device is lost" in daemon.words(), daemon.words()
    unsanitary(daemon.words())
    done = subprocess.run([f"{REAL}/holdfastd", "audit", "incidents", "--state", f"{daemon.home}/state", "--json"],
                          stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines() if '"incident"' in line]
    assert len(found) == 1 and found[0]["reason"] == "device" and found[0]["value"] == [1, 1], found
    del os.environ["HOLDFAST_EMULATE_LOSE"]
    again = start(home=daemon.home)
    assert len(Wire(again.endpoint).ok("session.list")["r"]) == 2
    left_clean(again)


def ranks():
    """CUDA is not used before the ranks are started: what is forked after that cannot use it."""
    tiny = f"{FOLDER}/tiny.gguf"
    subprocess.run([f"{REAL}/tests/make_tiny", tiny, "7", "mistral", "cut"], check=True)
    os.environ["HOLDFAST_EMULATE_MACHINE"] = f"2,13000,9,{1 << 30}"
    daemon = Daemon(tiny, *SMALL, "--device", "cuda", "--tensor-parallel", "2")
    wire = Wire(daemon.endpoint)
    first = wire.turn(wire.open(), GIVEN, max_tokens=3, ignore_end=True, temperature=0)
    again = wire.turn(wire.open(), GIVEN, max_tokens=3, ignore_end=True, temperature=0)
    assert len(first.ids) == 3 and first.ids == again.ids, (first.ids, again.ids)
    left_clean(daemon)
    # Where NCCL does not start between them, none waits for ever.
    done = subprocess.run([f"{FOLDER}/holdfastd", "--model", tiny, *SMALL, "--device", "cuda", "--tensor-parallel", "2",
                           "--ranks-start-seconds", "1", "--listen", f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/state"],
                          stderr=subprocess.PIPE, text=True, timeout=60, check=False, env={
                              **os.environ, "HOLDFAST_NCCL": f"{REAL}/tests/fake_nccl.so", "FAKE_NCCL": "missing"})
    assert done.returncode == 1, done.returncode
    assert "NCCL is not ready between 2 ranks after 1 seconds (--ranks-start-seconds)" in done.stderr, done.stderr
    os.environ["HOLDFAST_EMULATE_MACHINE"] = f"1,13000,9,{1 << 30}"
    done = subprocess.run([f"{FOLDER}/holdfastd", "--model", tiny, *SMALL, "--device", "cuda", "--tensor-parallel", "2",
                           "--listen", f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/state"], stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False)
    assert done.returncode == 1 and "rank 1: there is no CUDA device 1; this machine has 1" in done.stderr, done.stderr
    del os.environ["HOLDFAST_EMULATE_MACHINE"]


def given():
    """Given tokens with weights of their own: computed again in other chunks they give what they gave."""
    tiny = f"{FOLDER}/tiny.gguf"
    subprocess.run([f"{REAL}/tests/make_tiny", tiny, "7", "mistral", "cut"], check=True)
    os.environ["HOLDFAST_EMULATE_MACHINE"] = f"1,13000,9,{1 << 30}"
    for kind in ("same", "int8", "bf16", "fp8"):
        daemon = Daemon(tiny, *SMALL, "--device", "cuda", "--prefill-weights", kind, "--share", "no")
        wire = Wire(daemon.endpoint)
        first = wire.open()
        one = wire.turn(first, GIVEN, max_tokens=6, ignore_end=True, temperature=0.9, seed=3).ids
        two = wire.turn(first, GIVEN[:5], max_tokens=6, ignore_end=True, temperature=0.9, seed=4).ids
        again = wire.open()
        assert wire.turn(again, GIVEN, max_tokens=6, ignore_end=True, temperature=0.9, seed=3).ids == one
        assert wire.turn(again, GIVEN[:5], max_tokens=6, ignore_end=True, temperature=0.9, seed=4).ids == two
        # A library that is wanted and not there is said to be missing, once.
        assert daemon.words().count("no cuBLASLt of version 12 or later is found") == (kind != "same"), daemon.words()
        left_clean(daemon)
    del os.environ["HOLDFAST_EMULATE_MACHINE"]
    line = subprocess.run([f"{FOLDER}/holdfastd", "--model", tiny, *SMALL, "--device", "cpu", "--prefill-weights", "fp8",
                           "--listen", f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/state"], stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False).stderr
    assert "the CPU has no copy of the weights in fp8" in line, line


def refused(machine, *options):
    done = subprocess.run([f"{FOLDER}/holdfastd", "--model", MODEL, *SMALL, "--device", "cuda", *options, "--listen",
                           f"ipc://{FOLDER}/s", "--state", f"{FOLDER}/state"], stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "HOLDFAST_EMULATE_MACHINE": machine}, timeout=60, check=False)
    assert done.returncode == 1, (machine, done)
    return done


def refusals():
    one = str(1 << 30)
    # As many pages as there can be of the tiny model: 51 GiB, where a machine has less.
    large = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") > 50 << 30
    beside = () if large else ((f"1,13000,9,{one}", ("--host-memory", "900G"), "not enough memory: --host-memory of"),)
    for machine, options, line in (
            (f"1,0,9,{one}", (), "no CUDA driver is here"),
            (f"1,11080,9,{one}", (), "the driver is for CUDA 11.8; this build needs one for CUDA 13.0"),
            (f"0,13000,9,{one}", (), "no CUDA device is found"),
            (f"1,13000,7,{one}", (), "compute capability 7.0; 8.0 or later is needed"),
            (f"2,13000,9,{one}", ("--device", "cuda:2"), "there is no CUDA device 2; this machine has 2"),
            (f"1,13000,8,{one}", (), "is sm_80; this build is for sm_90"),
            ("1,13000,9,100000", (), "not enough memory: weights"), *beside):
        lines = refused(machine, *options).stderr.splitlines()
        assert len(lines) == 1 and line in lines[0], (machine, lines)
    # The plan in numbers, which are its own: they add up to more than is there.
    done = refused("1,13000,9,100000")
    found = re.search(r"not enough memory: weights ([0-9.]+) MiB \+ workspace ([0-9.]+) MiB \+ KV ([0-9.]+) MiB is more than "
                      r"the ([0-9.]+) MiB available; lower --kv-memory$", done.stderr.rstrip("\n"))
    assert found, done.stderr
    weights, workspace, kv, there = map(float, found.groups())
    assert weights > 0 and workspace > 1 and 0.1 < kv < 0.4 and there == 0.1, found.groups()
    # A driver that has the memory, and not in one piece: what was asked for, in one line, and what to lower.
    done = refused(f"1,13000,9,{one},0,200000")
    found = re.search(r"the device cannot be opened \([^)]*memory[^)]*\): workspace ([0-9.]+) MiB, KV pages ([0-9.]+) MiB; lower "
                      r"--kv-memory, --batch-rows or --context$", done.stderr.rstrip("\n"))
    assert found and done.stderr.count("\n") == 1 and float(found[1]) > 1 and float(found[2]) > 0.1, done.stderr
    # Attention that has no room in a block's shared memory names what does not fit.
    done = refused(f"1,13000,9,{one},20000")
    assert "attention over fp8 pages with heads of 16 values, 2 to a KV head, needs more shared memory than the 20000 bytes" \
        in done.stderr and "the device cannot be opened" in done.stderr and done.stderr.count("\n") == 2, done.stderr
    # What is in the host's memory takes none of the GPU's.
    done = subprocess.run([f"{FOLDER}/holdfastd", "--model", MODEL, *SMALL, "--device", "cuda", "--host-memory", "1G",
                           "--check", "--json"], stdout=subprocess.PIPE, text=True, timeout=60, check=True,
                          env={**os.environ, "HOLDFAST_EMULATE_MACHINE": f"1,13000,9,{one}"})
    plan = json.loads(done.stdout)
    assert plan["host_bytes"] > 1 << 29 and plan["headroom_bytes"] == (
        plan["available_bytes"] - plan["weights_bytes"] - plan["workspace_bytes"] - plan["kv_bytes"]), plan
    os.environ["HOLDFAST_EMULATE_MACHINE"] = f"0,0,9,{one}"
    daemon = Daemon(MODEL, *SMALL, "--device", "cpu")
    wire = Wire(daemon.endpoint)
    assert wire.turn(wire.open(), GIVEN, max_tokens=2, ignore_end=True).ids
    left_clean(daemon)
    del os.environ["HOLDFAST_EMULATE_MACHINE"]


tap.run("a session on an emulated GPU", serves)
tap.run("a GPU that is lost in a turn", lost)
tap.run("two ranks, a GPU each", ranks)
tap.run("given tokens with weights of their own", given)
tap.run("what is not there is refused in one line", refusals)
sys.exit(tap.done())
