"""Questions to a daemon's audit log: what `holdfast audit` answers, as dictionaries.

    from holdfast import audit
    for record in audit.ask("session", session_id, state="/var/lib/holdfast"):
        print(record["kind"], record["page"], record["pages"])
"""
from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, Iterator, Optional


class AuditError(Exception):
    """The log cannot be read, or the question is none; the text says why."""


def ask(*question: object, state: Optional[str] = None, program: str = "holdfastd") -> Iterator[Dict[str, Any]]:
    """Yields a dictionary for each record. `question` is as on the command line: "page", 7; "session", ID;
    "turn", ID, 3; "between", FROM, TO; "incidents"; "refusals"; "configuration"; "export"."""
    command = [program, "audit", "--json", *(["--state", state] if state else []), *map(str, question)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        for line in process.stdout:
            yield json.loads(line)
        words = process.stderr.read()
        if process.wait() != 0 and words:
            raise AuditError(words.strip().splitlines()[0])


def verify(state: Optional[str] = None, program: str = "holdfastd") -> Dict[str, Any]:
    """The whole log, checked: {"ok": …, "proven": …, "entries": …, "anchored": …, "tail": …, "error": …}; ok and not proven: keys that
    would be needed are not there."""
    command = [program, "audit", "--json", *(["--state", state] if state else []), "verify"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        found: Dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise AuditError(done.stderr.strip()) from None
    return found
