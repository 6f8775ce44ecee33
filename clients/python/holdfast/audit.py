"""Questions to a daemon's audit log: what `holdfast audit` answers, as dictionaries.

    from holdfast import audit
    for record in audit.ask("session", session_id, state="/var/lib/holdfast"):
        print(record["kind"], record["page"], record["pages"])
"""
import json
import subprocess


class AuditError(Exception):
    """The log cannot be read, or the question is none; the text says why."""


def ask(*question, state=None, program="holdfastd"):
    """Yields a dictionary for each record. `question` is as on the command line: "page", 7; "session", ID;
    "turn", ID, 3; "between", FROM, TO; "incidents"; "export"."""
    command = [program, "audit", "--json", *(["--state", state] if state else []), *map(str, question)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            yield json.loads(line)
        words = process.stderr.read()
        if process.wait() != 0 and words:
            raise AuditError(words.strip().splitlines()[0])


def verify(state=None, program="holdfastd"):
    """The whole log, checked: {"ok": …, "entries": …, "anchored": …, "tail": …, "error": …}."""
    command = [program, "audit", "--json", *(["--state", state] if state else []), "verify"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise AuditError(done.stderr.strip()) from None
