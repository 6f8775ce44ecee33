#!/usr/bin/env python3
"""Real transcripts of agents through a daemon, turn by turn: is all of each prompt found that can be?

usage: residents.py MODEL FOLDER [--build DIR] [--context 8192] [--files 3] [--answer 4] [--template NAME]

FOLDER has *.json files with {"messages": [...]}. Each turn gives what the transcript has up to the next answer (the last
one's text and calls, what the tools returned), samples a few tokens, and goes on, until --context is full. Where a turn
ends the next one must begin: every token of the history that was computed has to be resident, which is all but the last one
sampled. --files 0 plays all. Exit code 1 if one token was not found that could be.
"""
import argparse
import json
import os
import pathlib
import sys


def turns_of(messages, cut=None):
    """Lists of messages, each with all that comes before the next answer; the system prompt apart."""
    turns, system = [[]], None
    for m in messages:
        m = {k: m[k] for k in ("role", "content", "tool_calls", "tool_call_id", "name") if m.get(k)}
        if cut and m.get("content"):
            m["content"] = m["content"][:cut]
        if m.get("tool_calls"):
            m["tool_calls"] = [{"id": c["id"], "name": c["function"]["name"], "arguments": c["function"]["arguments"]} for c in m["tool_calls"]]
            if cut and any(len(c["arguments"]) > cut for c in m["tool_calls"]):
                m["tool_calls"] = [{**c, "arguments": "{}"} for c in m["tool_calls"]]
        if m["role"] == "system" and not turns[0]:
            system = m["content"]
        elif m["role"] == "assistant" and turns[-1]:
            turns.append([m])
        else:
            turns[-1].append(m)
    return system, turns


def play(client, path, answer, cut=None, end_mark=False):
    """(turns, tokens in the end, found, could be found, of prompts in all)"""
    from holdfast import Error
    messages = json.loads(path.read_text())["messages"]
    system, turns = turns_of(messages, cut)
    history = played = found = could = prompts = 0
    with client.open(system=system) as session:
        for turn in turns:
            try:
                end = session.turn(turn, max_tokens=answer, ignore_end=not end_mark, seed=played, temperature=0.7).wait()
            except Error as error:
                if error.name not in ("context_full", "too_big"):
                    raise
                break
            if end.status == "context_full":
                break
            u = end.usage
            # The last one sampled was never computed.
            found, could, prompts = found + u.resident, could + max(history - 1, 0), prompts + u.prompt
            assert u.recomputed == u.reloaded == 0, u
            history, played = u.history, played + 1
    return played, history, found, could, prompts


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model"), parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--build", default="build"), parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--files", type=int, default=3), parser.add_argument("--answer", type=int, default=4)
    parser.add_argument("--template")
    args = parser.parse_args()
    os.environ["BUILDDIR"] = args.build
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:0] = [str(here.parent), str(here.parent.parent / "clients" / "python")]
    from ar1 import Daemon
    from holdfast import Client
    daemon = Daemon(args.model, "--context", str(args.context), "--kv-memory", "1G", "--share", "no", *(["--template", args.template] if args.template else []))
    files = sorted(args.folder.glob("*.json"))
    good = bool(files)
    print(f"{'transcript':20} {'turns':>6} {'history':>8} {'of prompts':>11} {'found':>9} {'could be':>9}")
    with Client(daemon.endpoint) as client:
        for path in files[:args.files or None]:
            turns, history, found, could, prompts = play(client, path, args.answer)
            good &= found == could and turns > 1
            print(f"{path.stem:20} {turns:6} {history:8} {prompts:11} {found:9} {could:9}  {100 * found / could:.1f} %", flush=True)
    daemon.stop()
    sys.exit(not good)


if __name__ == "__main__":
    main()
