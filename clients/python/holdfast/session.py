"""What the blocking client's sessions and asyncio's have in common."""

from __future__ import annotations

from typing import Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, Sequence, TypeVar, Union

from . import wire
from .core import SAMPLING
from .types import End, Note, Piece

T = TypeVar("T")
Content = Union[str, Sequence[Mapping[str, Any]]]


def messages_of(content: Content) -> List[Dict[str, Any]]:
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    return [dict(m) for m in content]


def mean_logprob(pieces: Iterable[Piece]) -> float:
    """Of the tokens that were sampled with log-probabilities; minus infinity if there are none."""
    found = [p["p"] for piece in pieces for p in piece.logprobs or ()]
    return sum(found) / len(found) if found else float("-inf")


def scored(options: Mapping[str, Any], seed: int) -> Dict[str, Any]:
    """The options of one of several answers: its own seed, and log-probabilities."""
    return {**options, "seed": seed, "logprobs": options.get("logprobs") or 1}


class SessionCalls(Generic[T]):
    """What a session of either client is: its calls carry turn and epoch, and follow them. T is the
    client's kind of a call under way."""

    def __init__(self, client: Any, id: Union[bytes, str], turn: Optional[int] = None,
                 epoch: Optional[int] = None, history: Optional[int] = None,
                 granted: Optional[Dict[str, Any]] = None) -> None:
        self.client = client
        self.id = bytes.fromhex(id) if isinstance(id, str) else id
        self.turn_number, self.epoch = turn, epoch
        self.history, self.granted = history, granted

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id.hex()})"

    def _follow(self, end: End) -> None:
        self.turn_number = self.turn_number if end.turn is None else end.turn
        self.epoch = self.epoch if end.epoch is None else end.epoch

    def _start(self, method: str, args: Dict[str, Any], options: Mapping[str, Any], blob: Optional[bytes],
               deadline: Optional[float], on_note: Optional[Callable[[Note], None]]) -> T:
        unknown = set(options) - SAMPLING
        if unknown:
            raise TypeError(f"no such argument: {', '.join(sorted(unknown))}")
        args.update({k: v for k, v in options.items() if v is not None})
        started: T = self.client._start(method, args, self, blob, deadline, on_note)
        return started

    def turn(self, content: Content, *, deadline: Optional[float] = None,
             on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> T:
        """Says something (a user's text, or messages), and streams what the model answers."""
        return self._start("session.turn", {"messages": messages_of(content)}, options, None, deadline,
                           on_note)

    def turn_tokens(self, ids: Iterable[int], *, keep: Optional[int] = None,
                    deadline: Optional[float] = None,
                    on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> T:
        """The same with raw tokens, behind the first keep of the history (None: all)."""
        args: Dict[str, Any] = {"tokens": True}
        if keep is not None:
            args["keep"] = keep
        return self._start("session.turn", args, options, wire.write_ids(list(ids)), deadline,
                           on_note)

    def results(self, results: Mapping[str, str], *, deadline: Optional[float] = None,
                on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> T:
        """Returns the results of tool calls, by the ids of the calls, and goes on."""
        listed = [{"tool_call_id": k, "content": v} for k, v in results.items()]
        return self._start("session.continue", {"results": listed}, options, None, deadline,
                           on_note)
