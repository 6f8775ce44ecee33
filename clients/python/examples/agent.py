#!/usr/bin/env python3
"""A bare agent: tools are plain functions, and the loop is session.run.

    agent.py "What is in this folder?"     # needs a daemon; $HOLDFAST_ENDPOINT names another one
"""

import os
import sys

from holdfast import Client


def list_files(folder: str = ".") -> str:
    """Lists the files of a folder."""
    return "\n".join(sorted(os.listdir(folder)))


def read_file(path: str, lines: int = 40) -> str:
    """Reads the first lines of a file."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[:lines])


def main() -> None:
    tools = [list_files, read_file]
    options = {"max_tokens": int(os.environ.get("MAX_TOKENS", "200"))}
    # A small model seldom calls a tool of its own accord; rounds then bounds the forced ones.
    if os.environ.get("FORCE_TOOLS"):
        options["tool_choice"] = "required"
    with Client() as client, client.open(system="You are a brief assistant.", tools=tools) as session:
        end = session.run(" ".join(sys.argv[1:]) or "What is in this folder?", tools, rounds=3,
                          on_piece=lambda piece: print(piece.text, end="", flush=True),
                          on_call=lambda call: print(f"\n→ {call.name}({call.arguments})"),
                          **options)
        print(f"\n{end.status}; of {end.usage.prompt} tokens of prompt {end.usage.new} were computed")


main()
