"""A synchronous client of holdfast.

    from holdfast import Client

    with Client() as client:
        session = client.open(system="Be brief.")
        for piece in session.turn("Hello!", max_tokens=64):
            print(piece.text, end="", flush=True)

The protocol, AR/1, is described in clients/README.md of the project.
"""

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
from .types import End, Piece, ToolCall, Usage

__all__ = [
    "AuthError", "Client", "End", "Error", "InternalError", "LinkError", "Piece",
    "ProtocolError", "RequestError", "ResourceError", "Session", "SessionError", "ToolCall",
    "Turn", "Usage",
]
__version__ = "0.1.0"
