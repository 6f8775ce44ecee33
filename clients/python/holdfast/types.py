"""What calls bring."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class ToolCall:
    """A call that the model made; arguments is JSON as the model wrote it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Piece:
    """A piece of the stream: text, the ids of its tokens, their log-probabilities if asked."""

    text: str
    ids: List[int]
    logprobs: Optional[List[Dict[str, Any]]] = None
    off: int = 0  # bytes of text with this piece


@dataclass(frozen=True)
class Note:
    """The progress of a call that waits or reads its prompt."""

    state: str
    done: Optional[int] = None
    total: Optional[int] = None
    place: Optional[int] = None
    short_by: Optional[int] = None
    eta_ms: Optional[int] = None


@dataclass(frozen=True)
class Usage:
    """Where the tokens of the prompt came from (four numbers that add up to it), and times. forced: of
    the sampled tokens those that were known without sampling, since the form had nothing else."""

    prompt: int = 0
    resident: int = 0
    reloaded: int = 0
    recomputed: int = 0
    new: int = 0
    sampled: int = 0
    history: int = 0
    context_left: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    decode_us: int = 0
    tool_us: Optional[int] = None
    diverged_at: Optional[int] = None
    diverged_why: Optional[str] = None
    forced: int = 0


@dataclass(frozen=True)
class Candidate:
    """One of several answers to the same question: its mean log-probability a token, its end, and the fork
    that gave it (closed, unless it was to be kept)."""

    logprob: float
    end: "End"
    session: Any
    seed: int


@dataclass(frozen=True)
class End:
    """The end of a call. calls are to be made, and answered with Session.results. ids: of the tokens
    that came, or what tokenize returned."""

    status: str
    text: str = ""
    usage: Optional[Usage] = None
    calls: List[ToolCall] = field(default_factory=list)
    result: Any = None
    ids: Optional[List[int]] = None
    session: Optional[bytes] = None
    turn: Optional[int] = None
    epoch: Optional[int] = None
    durable: bool = False
