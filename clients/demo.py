#!/usr/bin/env python3
"""A coding agent's session, live: a daemon of its own, a real model, two real tools in a scratch folder.

usage: demo.py --daemon PATH --model FILE [--script FILE] [--keep]

Each step of the script is one turn of one session. Where a step says "call", the answer must be a call
of one of the tools (a mask on its form; the model chooses which tool and with what); elsewhere the model
decides by itself whether to call. The tool really runs, its result goes back, and only what is new is
computed. A model of fewer than MODEL_SMALL parameters gets a script that forces calls, any other one that
does not. Beside each turn the same turn is computed
from nothing: a fork of the session gives up its pages, keeps its tokens, and answers too. At the end a
table of both, and whether they said the same.

A script is JSON: {"system", "files": {name: text}, "commands": [what run_shell may run], "steps":
[{"user"?, "call"?, "max_tokens"?}]}. A step returns the results of the calls before it, and then says what
"user" has.
"""
import argparse
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "python"))
import holdfast  # noqa: E402

RESULT_BYTES = 8000      # of one tool's result
TOOL_SECONDS = 5         # of a command
START_SECONDS = 120      # until the daemon serves
MODEL_SMALL = 300_000_000

SCRIPT = {
    "system": "You are a coding agent. Use the tools to look into the folder. After a tool has answered, say in one sentence "
              "what you learned.",
    "files": {
        "stack.py": "class Stack:\n    \"\"\"A stack of numbers.\"\"\"\n\n    def __init__(self):\n        self.items = []\n\n"
                    "    def push(self, x):\n        self.items.append(x)\n\n    def pop(self):\n        return self.items.pop(0)\n",
        "check.py": "import unittest\n\nfrom stack import Stack\n\n\nclass Check(unittest.TestCase):\n"
                    "    def test_last_in_first_out(self):\n        s = Stack()\n        s.push(1)\n        s.push(2)\n"
                    "        self.assertEqual(s.pop(), 2)\n\n\nif __name__ == \"__main__\":\n    unittest.main()\n",
    },
    "copies": ["textwrap.py"],
    "commands": ["ls -l", "python3 -B check.py"],
    "steps": [
        {"user": "Run ls -l in the folder.", "call": True},
        {"max_tokens": 32},
        {"user": "Read the file stack.py.", "call": True},
        {"max_tokens": 32},
        {"user": "Run check.py with python3.", "call": True},
        {"max_tokens": 32},
        {"user": "Read the file textwrap.py.", "call": True},
        {"max_tokens": 48},
        {"user": "Thank you. What is a stack?", "max_tokens": 64},
    ],
}

# For a model that decides by itself. It is still a small one: told nothing after a result it calls again.
SCRIPT_FREE = {
    **SCRIPT,
    "system": "You are a helpful assistant.",
    "files": {**SCRIPT["files"], "notes.txt": "The meeting with Dana is on Thursday at 10:30 in room 214.\n"},
    "steps": [
        {"user": "Read notes.txt. In which room is the meeting?"},
        {"user": "Now answer my question in one sentence.", "max_tokens": 48},
        {"user": "Read stack.py. Which methods does the class have?"},
        {"user": "Now answer my question in one sentence.", "max_tokens": 48},
        {"user": "Run the command python3 -B check.py."},
        {"user": "Now tell me in one sentence what went wrong.", "max_tokens": 48},
        {"user": "Read textwrap.py. What is it for?"},
        {"user": "Now answer my question in one sentence.", "max_tokens": 64},
    ],
}


def tools(commands):
    def tool(name, description, properties):
        return {"type": "function", "function": {"name": name, "description": description, "parameters": {
            "type": "object", "properties": properties, "required": list(properties)}}}
    return [tool("read_file", "Read a file of the folder.", {"path": {"type": "string", "description": "its name"}}),
            tool("run_shell", "Run a command in the folder.", {"command": {"type": "string", "enum": commands}})]


def child_limits():
    resource.setrlimit(resource.RLIMIT_CPU, (TOOL_SECONDS, TOOL_SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_shell(folder, commands, command):
    if command not in commands:
        return "error: this command is not allowed here"
    child = subprocess.Popen(["/bin/sh", "-c", command], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, preexec_fn=child_limits, start_new_session=True,
                             env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": folder, "LC_ALL": "C"})
    try:
        output = child.communicate(timeout=TOOL_SECONDS)[0]
        code = child.returncode
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        output, code = child.communicate()[0], "time-out"
    # Names in the folder, wherever it is: so that a session is the same again.
    text = output.decode(errors="replace").replace(f"{folder}/", "")
    return text[:RESULT_BYTES] + f"(exit code {code})"


def read_file(folder, path):
    try:
        root = pathlib.Path(folder).resolve()
        target = (root / path).resolve()
        if root not in target.parents:
            return "error: outside the folder"
        return target.read_bytes()[:RESULT_BYTES].decode(errors="replace")
    except (OSError, ValueError) as error:
        return f"error: {error.__class__.__name__}"


def tool_run(folder, commands, call):
    arguments = json.loads(call.arguments)
    if call.name == "read_file":
        return read_file(folder, arguments["path"])
    return run_shell(folder, commands, arguments["command"])


def script_read(path):
    try:
        script = json.loads(path.read_text())
        missing = [key for key in ("system", "files", "commands", "steps") if key not in script]
    except OSError as error:
        sys.exit(f"demo: the script cannot be read: {error.strerror}")
    except (ValueError, TypeError):
        sys.exit("demo: the script is not JSON")
    if missing:
        sys.exit(f"demo: the script lacks {', '.join(missing)}")
    return script


def scratch_make(script):
    folder = tempfile.mkdtemp(prefix="holdfast-demo-")
    for name, text in script["files"].items():
        pathlib.Path(folder, name).write_text(text)
    for name in script.get("copies", []):
        shutil.copyfile(pathlib.Path(os.__file__).parent / name, pathlib.Path(folder, name))
    return folder


class Look:
    """Colours where there is a terminal, plain words elsewhere."""

    def __init__(self):
        self.on = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def __call__(self, code, text):
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text


look = Look()


def daemon_start(path, model, folder):
    endpoint = f"ipc://{folder}/rpc.sock"
    command = [path, "--model", model, "--listen", endpoint, "--state", f"{folder}/state", "--kv-memory", "512M",
               "--share", "no"]  # or the turn from nothing would find the pages of the other session
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    deadline = time.time() + START_SECONDS
    while time.time() < deadline and process.poll() is None:
        if os.path.exists(endpoint[6:]):
            return process, holdfast.Client(endpoint)
        time.sleep(0.02)
    sys.exit(f"demo: the daemon did not start (exit code {process.poll()})")


def say_step(session, step, results, **options):
    if "user" not in step:
        return session.results(results, **options)
    return session.turn([{"role": "tool", "tool_call_id": call, "content": text} for call, text in results.items()]
                        + [{"role": "user", "content": step["user"]}], **options)


def twin_measure(session, step, results, options):
    """The same turn on a fork whose pages were given up: every token of its prompt is computed again."""
    twin = session.fork(label="from nothing")
    twin.park("tokens")
    end = say_step(twin, step, results, **options).wait()
    twin.close()
    return end


def first_token_ms(end):
    return (end.usage.queue_us + end.usage.prefill_us) / 1e3


def step_run(session, step, results, number):
    options = {"max_tokens": step.get("max_tokens", 64), "tool_choice": "required" if step.get("call") else "auto"}
    if "user" in step:
        print(look("1;36", "user      ") + step["user"])
    nothing = twin_measure(session, step, results, options)
    print(look("1;32", "assistant "), end="", flush=True)
    turn = say_step(session, step, results, **options)
    for piece in turn:
        print(piece.text, end="", flush=True)
    end = turn.wait()
    for call in end.calls:
        print(look("1;33", f"→ {call.name}({call.arguments})"), end="")
    print()
    u = end.usage
    return end, {"turn": number, "prompt": u.prompt, "resident": u.resident, "new": u.new + u.recomputed,
                 "sampled": u.sampled, "first_ms": first_token_ms(end), "nothing_ms": first_token_ms(nothing),
                 "same": bool(end.ids) and end.ids == nothing.ids and end.text == nothing.text,
                 "resident_nothing": nothing.usage.resident}


def results_make(session, folder, commands, end):
    results = {}
    for call in end.calls:
        held = session.show()
        start = time.time()
        text = tool_run(folder, commands, call)
        seconds = time.time() - start
        shown = text if len(text) < 400 else text[:400].rsplit("\n", 1)[0] + f"\n… ({len(text)} bytes)"
        print(look("2", "\n".join("          " + line for line in shown.splitlines())))
        print(look("2", f"          [{call.name} ran {seconds * 1e3:.0f} ms; meanwhile {held['resident']} tokens stayed resident "
                        f"in {held['bytes'] / 1024:.0f} KiB of FP8 pages, state {held['state']}]"))
        results[call.id] = text
    return results


def table_print(rows):
    print(f"\n{'turn':>4} {'prompt':>7} {'resident':>9} {'new':>6} {'first token':>12} {'from nothing':>13} {'ratio':>6}  same answer")
    for r in rows:
        print(f"{r['turn']:>4} {r['prompt']:>7} {r['resident']:>9} {r['new']:>6} {r['first_ms']:>9.1f} ms {r['nothing_ms']:>10.1f} ms "
              f"{r['nothing_ms'] / max(r['first_ms'], 0.01):>6.1f}  {'yes' if r['same'] else 'NO'}")


def session_run(client, script, folder):
    commands = script["commands"]
    session = client.open(system=script["system"], tools=tools(commands), label="demo")
    rows, results = [], {}
    for number, step in enumerate(script["steps"], 1):
        if "user" not in step and not results:
            print(look("2", "          (no call was made; the step is left out)"))
            continue
        end, row = step_run(session, step, results, number)
        rows.append(row)
        results = results_make(session, folder, commands, end)
    table_print(rows)
    held = session.show()
    session.close()
    if not all(r["same"] for r in rows):
        sys.exit("demo: a turn computed from nothing said something else")
    return held


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True), parser.add_argument("--model", required=True)
    parser.add_argument("--holdfast", help="the command line, to be named at the end")
    parser.add_argument("--script", type=pathlib.Path)
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    script, folder = script_read(args.script) if args.script else None, None
    home = tempfile.mkdtemp(prefix="hf-")
    process, client = daemon_start(args.daemon, args.model, home)
    try:
        model = client.model()
        script = script or (SCRIPT if model["parameters"] < MODEL_SMALL else SCRIPT_FREE)
        folder = scratch_make(script)
        print(look("2", f"{model['name']}: {model['layers']} layers, KV in {model['kv']}, {model['page_bytes']} bytes a page of "
                        f"{model['page_tokens']} tokens, {model['isa']}\n"))
        session_run(client, script, folder)
    finally:
        client.close()
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        shutil.rmtree(home, ignore_errors=True)
        if folder and not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
