#!/usr/bin/env python3
"""What is saved where a call's tokens are known without sampling: forced calls, appended and one by one.

usage: forced.py MODEL [--build DIR] [--rounds 4] [--threads N]

Two daemons on the same model, one with --forced step. Each is asked in turn for the same calls of a few tools, greedy and
by seeds; the tokens must be the same. What is told is a call's time from its first token to its end, without the prompt.
"""
import argparse
import os
import pathlib
import statistics
import sys

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("model"), parser.add_argument("--build", default="build")
parser.add_argument("--rounds", type=int, default=4), parser.add_argument("--threads", default="0")
args = parser.parse_args()
os.environ["BUILDDIR"] = args.build
here = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(here.parent), str(here.parent.parent / "clients" / "python")]
from ar1 import Daemon  # noqa: E402
from holdfast import Client  # noqa: E402


def tool(name, description, **properties):
    return {"type": "function", "function": {"name": name, "description": description, "parameters": {
        "type": "object", "properties": properties, "required": list(properties)}}}


TOOLS = [tool("read_file", "Read a file.", path={"type": "string", "maxLength": 60}),
         tool("search_in_files", "Search for a pattern.", pattern={"type": "string", "maxLength": 60},
              case_sensitive={"type": "boolean"}, max_results={"type": "integer", "minimum": 1, "maximum": 100})]
QUESTIONS = ["Read the file stack.py.", "Search for the word import in all files, whatever its case.",
             "Where is the function main defined?", "What does notes.txt say?"]

daemons = [Daemon(args.model, "--template", "smollm2" if "mol" in args.model.lower() else "qwen2.5", "--kv-memory", "256M",
                  "--threads", args.threads, *options) for options in ((), ("--forced", "step"))]
clients = [Client(d.endpoint) for d in daemons]
took, sampled, forced, same = [[], []], 0, 0, True
for round in range(args.rounds):
    for question in QUESTIONS:
        said = []
        for which in (0, 1) if round % 2 else (1, 0):
            with clients[which].open(system="You are a coding agent.", tools=TOOLS) as session:
                end = session.turn(question, tool_choice="required", max_tokens=300, seed=round,
                                   temperature=0.8 if round else None).wait()
                took[which].append(end.usage.decode_us / 1000)
                said.append((end.ids, [(c.name, c.arguments) for c in end.calls]))
                if which == 0:
                    sampled, forced = sampled + end.usage.sampled, forced + end.usage.forced
        same &= said[0] == said[1]
appended, step = (statistics.mean(t) for t in took)
print(f"{len(took[0])} calls, {sampled / len(took[0]):.1f} tokens each, of them known {forced / len(took[0]):.1f} ({100 * forced / sampled:.0f} %)")
print(f"ms from the first token to the end: one by one {step:.0f}, appended {appended:.0f}: {step / appended:.2f} times; same tokens: {same}")
for client, daemon in zip(clients, daemons):
    client.close()
    daemon.stop()
sys.exit(not same)
