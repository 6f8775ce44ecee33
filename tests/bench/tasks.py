#!/usr/bin/env python3
"""Twenty small tasks that need a tool, done by the model alone: greedy, with and without a forced form.

usage: tasks.py --daemon PATH --model FILE [--template NAME] [--form none|required|both] [--least N] [--verbose]

A task is a question about a folder, the tools that can look into it, and a check of the answer. The
model decides whether to call a tool, and what to say. The call is run; its result goes back with one
sentence of the user's (NOW: without it a model this small calls the same again). A task is solved when a
tool was called and the answer to that passes the check. With "required" the first answer must be a call
of one of the tools: its form is forced, what it says is the model's. The exit code is 1 where fewer are solved than
--least says, or LEAST: what Qwen2.5-Coder 0.5B solves (13 and 18), less one that another CPU's rounding may turn.
"""
import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "clients/python"))
import holdfast  # noqa: E402

START_SECONDS = 120
SYSTEM = "You are a helpful assistant."
NOW = "Now answer my question in one sentence."

FILES = {
    "notes.txt": "The meeting with Dana is on Thursday at 10:30 in room 214.\n",
    "config.ini": "[server]\nhost = 10.0.4.17\nport = 8443\ntimeout = 30\n",
    "version.txt": "3.14.2\n",
    "users.csv": "name,age,city\nAlma,34,Oslo\nBoris,51,Riga\nChen,27,Turin\n",
    "app.log": "INFO started\nINFO loading plugins\nERROR plugin 'charts' is missing\nINFO stopped\n",
    "main.py": "def area(width, height):\n    return width * height\n\n\nprint(area(6, 7))\n",
    "todo.md": "- [x] write the parser\n- [ ] test the parser\n- [ ] publish the release\n",
    "colors.json": "{\"primary\": \"teal\", \"secondary\": \"maroon\"}\n",
    "recipe.txt": "Pancakes: 200 g flour, 3 eggs, 400 ml milk. Bake 4 minutes on each side.\n",
    "letter.txt": "Dear Ms. Novak,\nyour order 58213 was sent on Monday.\nYours, Ellen\n",
}


def tool(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": {k: {"type": t, "description": d} for k, (t, d) in properties.items()},
        "required": list(properties)}}}


TOOLS = [
    tool("read_file", "Read a file of the folder.", path=("string", "name of the file")),
    tool("count_lines", "Count the lines of a file.", path=("string", "name of the file")),
    tool("add", "Add two integers.", a=("integer", "first"), b=("integer", "second")),
    tool("weather", "The weather in a city now.", city=("string", "name of the city")),
]

# A question, and words of which each must be in the answer (any of those parted by "|").
LEAST = {"none": 12, "required": 17}
TASKS = [
    ("On which day is the meeting? It is written in notes.txt.", ["thursday"]),
    ("Read notes.txt. In which room is the meeting?", ["214"]),
    ("Which port does the server use? Read config.ini.", ["8443"]),
    ("Read config.ini and tell me the host.", ["10.0.4.17"]),
    ("What does the file version.txt say?", ["3.14.2"]),
    ("Read users.csv. How old is Boris?", ["51"]),
    ("Read users.csv. In which city does Chen live?", ["turin"]),
    ("Read app.log. Which plugin is missing?", ["charts"]),
    ("Read main.py. Which function is defined in it?", ["area"]),
    ("Read todo.md. What is done already?", ["parser"]),
    ("Read colors.json. What is the primary color?", ["teal"]),
    ("Read recipe.txt. How many eggs do I need?", ["3|three"]),
    ("Read letter.txt. What is the number of the order?", ["58213"]),
    ("Read letter.txt. Who wrote it?", ["ellen"]),
    ("How many lines has users.csv?", ["4|four"]),
    ("Count the lines of todo.md.", ["3|three"]),
    ("Use the tool to add 4817 and 2956.", ["7773|7,773"]),
    ("What is 1234567 plus 7654321? Use the tool add.", ["8888888|8,888,888"]),
    ("What is the weather in Oslo?", ["rain", "7"]),
    ("How warm is it in Turin now?", ["24"]),
]

WEATHER = {"oslo": "rain, 7 degrees", "turin": "sunny, 24 degrees"}


def tool_run(call):
    try:
        a = json.loads(call.arguments)
        if call.name == "read_file":
            return FILES.get(pathlib.PurePath(str(a["path"])).name, "error: there is no such file")
        if call.name == "count_lines":
            text = FILES.get(pathlib.PurePath(str(a["path"])).name)
            return "error: there is no such file" if text is None else f"{len(text.splitlines())} lines"
        if call.name == "add":
            return str(int(a["a"]) + int(a["b"]))
        if call.name == "weather":
            return WEATHER.get(str(a["city"]).split(",")[0].strip().lower(), "error: the city is not known")
    except (KeyError, TypeError, ValueError) as error:
        return f"error: bad arguments ({error.__class__.__name__})"
    return "error: there is no such tool"


def passes(text, words):
    text = text.lower()
    return all(any(w in text for w in each.split("|")) for each in words)


def call_shown(call):
    return f"-> {call.name}({call.arguments})"


def task_run(client, question, words, required, verbose):
    session = client.open(system=SYSTEM, tools=TOOLS)
    end = session.turn(question, max_tokens=160, tool_choice="required" if required else "auto").wait()
    said = [end.text or " ".join(map(call_shown, end.calls))]
    good = False
    if end.calls:
        results = [(call, tool_run(call)) for call in end.calls]
        said += [f"   {text!r}" for _, text in results]
        end = session.turn([{"role": "tool", "tool_call_id": call.id, "content": text} for call, text in results]
                           + [{"role": "user", "content": NOW}], max_tokens=96).wait()
        said.append(end.text or " ".join(map(call_shown, end.calls)))
        good = not end.calls and passes(end.text, words)
    session.close()
    if verbose or not good:
        print(f"{'solved' if good else 'FAILED'}: {question}")
        for line in said:
            print(f"    {line.strip()[:300]}")
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--daemon", required=True), parser.add_argument("--model", required=True)
    parser.add_argument("--template", default=""), parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--form", choices=["none", "required", "both"], default="both")
    parser.add_argument("--kv", default="fp8"), parser.add_argument("--least", type=int)
    args = parser.parse_args()
    home = tempfile.mkdtemp(prefix="hf-")
    socket = pathlib.Path(home, "rpc.sock")
    command = [args.daemon, "--model", args.model, "--listen", f"ipc://{socket}", "--state", f"{home}/state",
               "--kv-memory", "512M", "--kv", args.kv] + (["--template", args.template] if args.template else [])
    low = False
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.time() + START_SECONDS
        while not socket.exists() and time.time() < deadline and process.poll() is None:
            time.sleep(0.05)
        client = holdfast.Client(f"ipc://{socket}")
        for form in ["none", "required"] if args.form == "both" else [args.form]:
            solved = sum(task_run(client, q, w, form == "required", args.verbose) for q, w in TASKS)
            print(f"{'first answer forced to be a call' if form == 'required' else 'unconstrained'}: "
                  f"{solved} of {len(TASKS)} solved", flush=True)
            least = LEAST[form] if args.least is None else args.least
            if solved < least:
                print(f"fewer than {least}")
                low = True
        client.close()
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(home)
    return 1 if low else 0


if __name__ == "__main__":
    sys.exit(main())
