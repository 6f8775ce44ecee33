#!/usr/bin/env python3
"""The Python package says that it is typed (py.typed): mypy --strict finds nothing in it. It runs where mypy is installed for this Python,
or is named by HOLDFAST_MYPY."""
import os
import subprocess
import sys
import tempfile

SRC = os.path.abspath(os.environ.get("SRCDIR", "."))
mypy = os.environ.get("HOLDFAST_MYPY")
command = [mypy] if mypy else [sys.executable, "-m", "mypy"]
if subprocess.run([*command, "--version"], capture_output=True, check=False).returncode:
    print("1..0 # SKIP mypy is not here; HOLDFAST_MYPY names one")
    sys.exit(0)
package = f"{SRC}/clients/python/holdfast"
with tempfile.TemporaryDirectory() as cache:
    done = subprocess.run([*command, "--python-executable", sys.executable, "--strict", "--cache-dir", cache, package], capture_output=True, text=True, check=False)
said = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
print("\n".join("# " + line for line in said))
print(("ok" if done.returncode == 0 else "not ok") + " 1 - mypy --strict finds nothing in the package")
typed = os.path.exists(f"{package}/py.typed")
print(("ok" if typed else "not ok") + " 2 - the package says that it is typed")
print("1..2")
sys.exit(0 if done.returncode == 0 and typed else 1)
