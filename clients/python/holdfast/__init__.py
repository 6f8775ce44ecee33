"""Clients of holdfast: blocking, and for asyncio.

    from holdfast import Client

    with Client() as client:
        session = client.open(system="Be brief.")
        for piece in session.turn("Hello!", max_tokens=64):
            print(piece.text, end="", flush=True)

The protocol, AR/1, is described in clients/README.md of the project.
"""

from .aio import AsyncClient, AsyncSession, AsyncTurn
from .client import Client, Session, Turn
from .errors import (
    AuthError,
    Error,
    InternalError,
    LinkError,
    ProtocolError,
    RequestError,
    ResourceError,
    SessionError,
)
from .events import Block, Event, Events, KvBlocks
from .tools import describe
from .types import Candidate, End, Note, Piece, ToolCall, Usage

__all__ = [
    "AsyncClient", "AsyncSession", "AsyncTurn", "AuthError", "Block", "Candidate", "Client",
    "describe", "End", "Error", "Event", "Events", "InternalError", "KvBlocks", "LinkError",
    "Note", "Piece", "ProtocolError", "RequestError", "ResourceError", "Session",
    "SessionError", "ToolCall", "Turn", "Usage",
]
__version__ = "0.1.0"
