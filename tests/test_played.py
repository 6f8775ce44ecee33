"""Goal: no error, no lost session and no other token, whatever the memory holds. Method: a real agent's transcript is
played by sessions at once on a slab that holds a third of their contexts, by the script of the figure itself, with a
tiny model: alone, under two policies, and with a disk below."""
import json
import os
import pathlib
import subprocess
import sys

import ar1
from ar1 import BUILD, Tap
from daemon_rig import MODEL

tap = Tap()
here = pathlib.Path(__file__).resolve().parent


def played():
    sessions = 8 if ar1.SLOW == 1 else 4
    run = subprocess.run([sys.executable, str(here / "bench/transcripts.py"), MODEL, str(here / "data"), "--build", BUILD,
                          "--sessions", str(sessions), "--context", "1000", "--answer", "8", "--turn", "150", "--pace", "0.05",
                          "--policies", "cost,lru,cost+disk,cost+host"], capture_output=True, text=True, timeout=240)
    sys.stdout.write("".join(f"# {line[:300]}\n" for line in run.stdout.splitlines()[:-1]))
    assert run.returncode == 0, run.stdout[-2000:] + run.stderr[-2000:]
    result = json.loads(run.stdout.splitlines()[-1])
    for policy in ("cost", "lru", "cost+disk", "cost+host"):
        r = result[policy]
        assert r["errors"] == r["sessions_lost"] == r["turns_wrong"] == r["exit"] == 0, (policy, r)
    assert result["cost"]["tokens_recomputed"] > 0 and result["lru"]["tokens_recomputed"] > 0, result
    for policy in ("cost+disk", "cost+host"):
        assert result[policy]["tokens_recomputed"] == 0 and result[policy]["tokens_reloaded"] > 0, result[policy]


tap.run("sessions that do not fit say what they say alone", played)
raise SystemExit(tap.done())
