"""What each question to a log of many records takes, and how many of its entries it looks at.

    questions.py BUILD [RECORDS]

Makes a log of RECORDS (1,000,000) records in a folder of its own with BUILD/tests/bench/bench_store, asks BUILD/holdfastd each question three
times, and prints a line of JSON for each: the least of the times in seconds, the process's own start with them.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time


def main(build, records=1000000):
    state = os.path.join(tempfile.mkdtemp(prefix="hf-questions-"), "state")
    try:
        began = time.time()
        made = subprocess.run([f"{build}/tests/bench/bench_store", state, str(records)], check=True, capture_output=True, text=True).stdout
        print(json.dumps({"made": made.strip(), "seconds": round(time.time() - began, 1), "data_mdb_bytes": os.stat(f"{state}/data.mdb").st_size}))
        middle = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(began + 1))
        often, rare = ("01020700" + "0" * 24), ("0103" + "0" * 28)
        for question in (["page", "5"], ["page", "5", middle], ["page", "100000"], ["session", rare], ["session", often], ["session", "f" * 32],
                         ["turn", rare, "50"], ["incidents"], ["between", middle, middle], ["refusals"], ["configuration"], ["verify"]):
            times = []
            for _ in range(3):
                started = time.perf_counter()
                done = subprocess.run([f"{build}/holdfastd", "audit", "--state", state, *question], capture_output=True, text=True)
                times.append(time.perf_counter() - started)
            assert done.returncode == 0, done
            seen = re.search(r"(\d+) records; (\d+) entries looked at of (\d+)", done.stderr)
            said = dict(zip(("records", "looked_at", "entries"), map(int, seen.groups()))) if seen else {}
            print(json.dumps({"question": " ".join(w[:12] for w in question), "seconds": round(min(times), 3), **said}), flush=True)
    finally:
        shutil.rmtree(os.path.dirname(state))


main(sys.argv[1], *map(int, sys.argv[2:]))
