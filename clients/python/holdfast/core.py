"""One call from CALL to END, without a socket: what to send, and what comes of what came.

Both clients, the blocking one and the one for asyncio, drive this. Over a broken connection a call
goes on: by RESUME behind the last piece that came, or, before it was accepted, by the same CALL
again, which its key keeps from running twice.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Mapping, Optional

from . import wire
from .errors import Error, make_error, read_error
from .types import End, Note, Piece, ToolCall, Usage

STRAY_MAX = 10000
SAMPLING = frozenset((
    "max_tokens", "temperature", "top_p", "min_p", "typical", "top_k", "repetition", "presence",
    "frequency", "seed", "logprobs", "stop", "stop_tokens", "bias", "ignore_end", "tool_choice", "supersede",
    "dry", "dry_base", "dry_allowed", "dry_last", "schema", "regex", "choices"))
# What only looks may be asked twice; all else carries a key when it may have to be.
_LOOKS = frozenset((
    "session.list", "session.show", "session.export", "ledger.show", "pages.show", "model.show",
    "tokenize", "detokenize", "health", "metrics", "events.replay"))


class Lost(Exception):
    """The connection is of no use for this call any more; `error` if it cannot go on."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


class Call:
    """A call under way. `outgoing` is what has to be sent, in order; the driver empties it."""

    def __init__(self, method: str, args: Mapping[str, Any], window: int, *,
                 session: Optional[bytes] = None, epoch: Optional[int] = None,
                 turn: Optional[int] = None, deadline: Optional[float] = None,
                 resume: float = 0, blob: Optional[bytes] = None,
                 on_note: Optional[Callable[[Note], None]] = None) -> None:
        body: Dict[str, Any] = {"m": method, "window": window, "a": dict(args)}
        if session is not None:
            body["sess"] = session
        if epoch is not None:
            body["epoch"] = epoch
        if turn is not None:
            body["turn"] = turn
        if deadline is not None:
            body["deadline_ms"] = max(1, int(deadline * 1000))
        looks = method in _LOOKS
        self.keyed = resume > 0 and not looks
        if self.keyed:
            body["idem"] = os.urandom(16)
            body["detach_ms"] = int(resume * 1000)
        self.again = looks or self.keyed  # may be sent once more if it was not accepted
        self.body, self.blob, self.window, self.on_note = wire.pack(body), blob, window, on_note
        self.channel = 0
        self.op: Optional[bytes] = None
        self.accepted = self.cancelled = self.done = False
        self.end: Optional[End] = None
        self.outgoing: List[List[bytes]] = []
        self.notes: List[Note] = []
        self._seq = self._off = self._strays = 0
        self._granted = window
        self._text: List[str] = []
        self._ids: List[int] = []

    def frames(self, channel: int, window: int) -> List[bytes]:
        """What begins the call, or goes on with it, on a connection; window: the most it takes."""
        self.channel, self.accepted = channel, False
        if window < self.window:
            self.window, self._granted = window, self._off + window
        self.outgoing.clear()
        if self.op is None:
            return wire.raw_frames(wire.CALL, channel, self.body, self.blob)
        return wire.frames(wire.RESUME, channel,
                           {"op": self.op, "after_seq": self._seq, "window": self._granted})

    def can_resume(self) -> bool:
        return not self.done and (self.op is not None and self.keyed
                                  or self.op is None and self.again)

    def cancel(self) -> bool:
        """Asks for the end. False if there is nothing to ask for."""
        if self.done or self.cancelled:
            return False
        self.cancelled = True
        body = {} if self.op is None else {"op": self.op}
        self.outgoing.append(wire.frames(wire.CANCEL, self.channel, body))
        return True

    def consumed(self, off: int) -> None:
        """The reader has taken the text up to there: more may be sent."""
        if self._granted - off <= self.window // 2 and self.op is not None and not self.done:
            self._granted = off + self.window
            self.outgoing.append(wire.frames(wire.WINDOW, self.channel,
                                             {"op": self.op, "max_off": self._granted}))

    def take(self, m: wire.Message) -> Optional[Piece]:
        """One message. An Error ends the call; Lost asks for another connection."""
        ours = m.channel == self.channel
        if m.kind == wire.REJECT and (ours or m.channel == 0):
            self._rejected(m)
        elif ours and m.kind == wire.ACCEPTED:
            if self.accepted:
                raise make_error(101)
            op = wire.need(m.map(), "op", bytes)
            if self.op not in (None, op):
                raise make_error(101, "another call was resumed")
            self.op, self.accepted = op, True
            if self.cancelled:  # it was asked for before, on another connection
                self.cancelled = False
                self.cancel()
        elif ours and m.kind == wire.DATA:
            return self._data(m)
        elif ours and m.kind == wire.END:
            self._ended(m)
        elif ours and m.kind == wire.NOTE:
            self._noted(m)
        else:
            self._strays += 1
            if m.channel > self.channel or self._strays > STRAY_MAX:
                raise make_error(101, "messages of no call of ours")
        return None

    def _noted(self, m: wire.Message) -> None:
        body = m.map()
        note = Note(wire.need(body, "state", str), *(
            body.get(key) for key in ("done", "total", "place", "short_by", "eta_ms")))
        self.notes.append(note)
        if self.on_note is not None:
            self.on_note(note)

    def _rejected(self, m: wire.Message) -> None:
        error = read_error(m.map().get("err"))
        if error.code == 200:
            # The daemon does not know this connection: it broke unseen, or the daemon is new.
            raise Lost(make_error(602, "the daemon does not know this connection")
                       if self.op is not None else error)
        if self.accepted:
            if error.code == 402 and m.channel == self.channel:
                raise error  # another reader has taken the stream
            return
        if self.cancelled and error.code == 303:
            return
        raise error

    def _data(self, m: wire.Message) -> Optional[Piece]:
        if self.accepted and m.seq <= self._seq:
            return None
        if not self.accepted:
            raise make_error(101, "a piece of the stream is missing")
        if m.seq != self._seq + 1:
            raise Lost(make_error(101, "a piece of the stream is missing"))
        body = wire.unpack(m.raw)
        if not isinstance(body, list) or len(body) < 4:
            raise make_error(103)
        off, count, text, logprobs = body[:4]
        text = "" if text is None else text
        good = (type(off) is int and type(count) is int and isinstance(text, str)
                and (logprobs is None or isinstance(logprobs, list))
                and 0 <= count <= wire.DATA_TOKENS)
        if not good or off - self._off < len(text.encode()) or off > self._granted:
            raise make_error(103)
        ids = m.ids()
        if m.blob is not None and len(ids) != count:
            raise make_error(103)
        self._seq, self._off = m.seq, off
        piece = Piece(text, ids, logprobs, off)
        if self.cancelled:
            self.consumed(off)
            return None
        self._text.append(piece.text)
        self._ids.extend(piece.ids)
        return piece

    def _ended(self, m: wire.Message) -> None:
        if not self.accepted:
            raise make_error(101, "a piece of the stream is missing")
        if m.seq != self._seq + 1:
            raise Lost(make_error(101, "a piece of the stream is missing"))
        body = m.map()
        usage, calls = body.get("usage"), []
        for call in body.get("next") or []:
            if not isinstance(call, dict):
                raise make_error(103)
            calls.append(ToolCall(*(wire.need(call, k, str)
                                    for k in ("id", "name", "arguments"))))
        known = Usage.__dataclass_fields__
        self.end = End(
            wire.need(body, "status", str), "".join(self._text),
            Usage(**{k: v for k, v in usage.items() if k in known})
            if isinstance(usage, dict) else None,
            calls, body.get("r"), m.ids() if m.blob is not None else self._ids, body.get("sess"),
            body.get("turn"), body.get("epoch"), body.get("durable") is True)
        self.done = True
        self.outgoing.clear()
        if self.keyed:  # nothing of it has to be kept for us
            self.outgoing.append(wire.frames(wire.ACK, 0, {"op": self.op, "seq": m.seq}))
        if body.get("err") is not None:
            raise read_error(body["err"])
