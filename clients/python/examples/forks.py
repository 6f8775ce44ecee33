#!/usr/bin/env python3
"""Sub-agents side by side: each is a fork of one session, so the common context is computed once.

    forks.py "How does it open?" "How does it close?"
"""

import asyncio
import os
import sys

from holdfast import AsyncClient, AsyncSession

CONTEXT = "You are one of several readers of a long text. " * 20


async def reader(parent: AsyncSession, number: int, question: str) -> str:
    async with await parent.fork(label=f"reader {number}") as session:
        text = ""
        turn = session.turn(question, max_tokens=int(os.environ.get("MAX_TOKENS", "60")))
        async for piece in turn:
            text += piece.text
        end = await turn.wait()
        shared = end.usage.prompt - end.usage.new
        return f"reader {number}: {shared} tokens shared, {end.usage.new} new: {text!r}"


async def main() -> None:
    questions = sys.argv[1:] or ["How does it open?", "How does it close?", "What is missing?"]
    async with AsyncClient() as client:
        async with await client.open(system=CONTEXT) as parent:
            await parent.turn("Read it.", max_tokens=1).wait()
            for line in await asyncio.gather(*(reader(parent, i, q) for i, q in enumerate(questions))):
                print(line)


asyncio.run(main())
