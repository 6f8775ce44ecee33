#!/usr/bin/env python3
"""Threads that outlive the program, as a graph's checkpointer keeps them.

A checkpoint here is not the messages but where they lie: the session's id, and its turn. Each run of the
program finds its thread again and computes only what is new; `--back N` is the time travel of such
frameworks, a rollback to the state before turn N.

    checkpoint.py THREAD "I am Ann."
    checkpoint.py THREAD "Who am I?"
    checkpoint.py THREAD --back 1 "I am Bob."
"""

import json
import os
import sys

from holdfast import Client, RequestError, Session

FILE = os.environ.get("CHECKPOINTS", "checkpoints.json")


def load() -> dict:
    try:
        with open(FILE, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


def save(threads: dict) -> None:
    with open(FILE + ".new", "w", encoding="utf-8") as file:
        json.dump(threads, file)
    os.replace(FILE + ".new", FILE)


def find(client: Client, threads: dict, name: str) -> Session:
    """The thread's session; a new one, if the daemon has none any more."""
    if name in threads:
        session = client.session(threads[name]["session"])
        try:
            session.attach()  # whoever held it before is fenced from now on
            return session
        except RequestError as e:
            if e.name != "not_found":
                raise
    return client.open(system="You remember what you are told.", label=name)


def main() -> None:
    name, rest = sys.argv[1], sys.argv[2:]
    threads = load()
    with Client() as client:
        session = find(client, threads, name)
        if rest[0] == "--back":
            session.rollback(to_turn=int(rest[1]))
            rest = rest[2:]
        turn = session.turn(" ".join(rest), max_tokens=int(os.environ.get("MAX_TOKENS", "60")))
        for piece in turn:
            print(piece.text, end="", flush=True)
        end = turn.wait()
        threads[name] = {"session": session.id.hex(), "turn": end.turn}
        save(threads)
        print(f"\nturn {end.turn}: {end.usage.resident} tokens were resident, {end.usage.new} new")


main()
