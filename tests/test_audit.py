"""Goal: the audit log answers what it is asked, beside its daemon and without it, and says so when it was changed.
Method: a daemon with two sessions and a fault on purpose; each question against what the clients saw."""
import json
import os
import subprocess
import sys
import time

import ar1
from ar1 import BUILD, Daemon, Tap, Wire
from daemon_rig import MODEL, left_clean, words

sys.path.insert(0, os.path.join(os.environ.get("SRCDIR", "."), "clients", "python"))
tap = Tap()
daemon = Daemon(MODEL, "--template", "smollm2", "--kv-memory", "900000", "--inject", "tag-device@30")
STATE = f"{daemon.home}/state"
wire = Wire(daemon.endpoint)
started = time.time()


def ask(*question, code=0, text=False):
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", STATE, *([] if text else ["--json"]), *map(str, question)],
                          capture_output=True, text=True, timeout=60 * ar1.SLOW)
    assert done.returncode == code, (question, done.returncode, done.stderr[-500:])
    return done.stdout if text else [json.loads(line) for line in done.stdout.splitlines()]


first, second = wire.open(), wire.open()
one = wire.turn(first, words(50), max_tokens=6, ignore_end=True)
two = wire.turn(first, words(20), max_tokens=6, ignore_end=True)
time.sleep(0.05)  # times are asked for in milliseconds, rounded
middle = time.time()
time.sleep(0.05)
wire.turn(second, words(100), max_tokens=40, ignore_end=True)
pages = {p["page"]: p for p in wire.ok("pages.show", {"count": 200})["r"] if p.get("sess") == first}


def of_session():
    records = ask("session", first.hex())
    kinds = [r["kind"] for r in records]
    assert kinds[0] in ("session_open", "assign") and kinds.count("turn_end") == 2, kinds
    held = {r["page"] + i for r in records if r["kind"] in ("assign", "share") for i in range(r["pages"])}
    assert set(pages) <= held, (sorted(pages), sorted(held))
    assert ask("session", "00" * 16) == []


def of_page():
    for page, shown in list(pages.items())[:5]:
        records = ask("page", page)
        assert records[-1]["kind"] == "assign" and records[-1]["session"] == first.hex(), records
        assert records[-1]["tag"] == shown["tag"] and records[-1]["position"] == shown["position"], (records[-1], shown)
        assert ask("page", page, f"{started - 3600:.3f}") == []
        assert ask("page", page, f"{middle:.3f}")[-1]["tag"] == shown["tag"]
    assert "assign" in ask("page", next(iter(pages)), text=True)
    assert ask("page", f"0:{page}") == records and ask("page", f"1:{page}") == []
    for wrong in ("1:", ":1", "x:1", "300:1", "1:2:3"):
        ask("page", wrong, code=2)


def of_turn():
    numbers = ask("turn", first.hex(), 1)[-1]
    usage = two.usage
    for key in ("prompt", "resident", "recomputed", "new", "sampled"):
        assert numbers[key] == usage[key], (key, numbers, usage)
    assert "were resident" in ask("turn", first.hex(), 0, text=True)
    ask("turn", first.hex(), 99, code=1)


def of_time():
    early, late = ask("between", f"{started - 10:.3f}", f"{middle:.3f}"), ask("between", f"{middle:.3f}", f"{time.time() + 9:.3f}")
    assert {r["session"] for r in early} >= {first.hex()} and second.hex() in {r["session"] for r in late}
    assert not any(r["kind"] == "assign" and r["session"] == second.hex() for r in early)
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(started - 10))
    assert ask("between", iso, f"{middle:.3f}") == early


def of_incidents():
    records = ask("incidents")
    assert records[0]["kind"] == "incident" and records[0]["reason"] == "tag" and records[0]["session"] == second.hex(), records
    assert records[-1]["kind"] == "assign", records


def whole():
    (verdict,) = ask("verify")
    assert verdict["ok"] and verdict["entries"] > 10, verdict
    everything = ask("export")
    assert everything[0]["kind"] == "boot" and everything[-1]["seq"] <= verdict["entries"] + 5
    from holdfast import audit
    assert list(audit.ask("session", first.hex(), state=STATE, program=f"{BUILD}/holdfastd")) == ask("session", first.hex())
    assert audit.verify(STATE, f"{BUILD}/holdfastd")["ok"]
    # The client's program finds the daemon's, where nobody installed either.
    done = subprocess.run([f"{BUILD}/holdfast", "audit", "--state", STATE, "--json", "verify"], capture_output=True, text=True)
    assert json.loads(done.stdout) == verdict, done


def wrong():
    for question in (["nothing"], ["page"], ["page", "x"], ["session", "12"], ["turn", first.hex()], ["between", "a", "b"], []):
        ask(*question, code=2)
    done = subprocess.run([f"{BUILD}/holdfastd", "audit", "--state", "/nowhere", "verify"], capture_output=True, text=True)
    assert done.returncode == 1 and "nowhere" in done.stderr


def changed():
    """Without the daemon: a bit of an entry is turned, and verify says where."""
    assert daemon.stop(keep=True) == 0
    assert ask("verify")[0]["clean"]
    of_session()
    with open(f"{STATE}/data.mdb", "r+b") as file:
        data = file.read()
        # Pages that the file no longer uses have old copies: one of those would be no part of the log.
        at = data.find(first)
        assert at >= 0
        while at >= 0:
            file.seek(at + 3)
            file.write(bytes([data[at + 3] ^ 1]))
            at = data.find(first, at + 1)
    (verdict,) = ask("verify", code=1)
    assert not verdict["ok"], verdict


for what, test in (("all that a session had", of_session), ("who held a page", of_page), ("where a turn's context came from", of_turn),
                   ("between two times", of_time), ("incidents and their pages", of_incidents), ("verify, export, Python", whole),
                   ("questions that are none", wrong), ("a changed log is found", changed)):
    tap.run(what, test)
raise SystemExit(tap.done())
