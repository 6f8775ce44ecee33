"""The client: one connection, one call at a time, blocking."""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

import zmq

from . import wire
from .errors import make_error, read_error
from .types import End, Note, Piece, ToolCall, Usage

_SAMPLING = frozenset((
    "max_tokens", "temperature", "top_p", "min_p", "typical", "top_k", "repetition", "presence",
    "frequency", "seed", "logprobs", "stop", "bias", "ignore_end", "tool_choice", "supersede"))
_MISSES_MAX = 3
_STRAY_MAX = 10000


def default_endpoint() -> str:
    said = os.environ.get("HOLDFAST_ENDPOINT")
    folder = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/holdfast-{os.getuid()}"
    return said or f"ipc://{folder}/holdfast.sock"


class Turn(Iterator[Piece]):
    """A call under way. Iterate for its pieces, or wait() for its end."""

    def __init__(self, client: "Client", channel: int, session: Optional["Session"],
                 on_note: Optional[Callable[[Note], None]], deadline: Optional[float]) -> None:
        self.end: Optional[End] = None
        self.notes: List[Note] = []
        self._client, self._channel, self._session = client, channel, session
        self._on_note, self._deadline = on_note, deadline
        self._op: Optional[bytes] = None
        self._seq = self._off = self._strays = 0
        self._granted = client.window
        self._text: List[str] = []
        self._ids: List[int] = []
        self._cancelled = self._done = False

    def __iter__(self) -> "Turn":
        return self

    def __next__(self) -> Piece:
        while not self._done:
            piece = self._step()
            if piece is not None and not self._cancelled:
                self._text.append(piece.text)
                self._ids.extend(piece.ids)
                return piece
        raise StopIteration

    def wait(self) -> End:
        """Runs the call to its end, and returns it."""
        for _ in self:
            pass
        if self.end is None:
            raise make_error(709, "the call was given up")
        return self.end

    def cancel(self) -> None:
        """Asks for the end; what was sampled stays. Safe to repeat."""
        if self._done or self._cancelled:
            return
        self._cancelled = True
        self._deadline = time.monotonic() + self._client.timeout
        body = {} if self._op is None else {"op": self._op}
        self._client._send(wire.CANCEL, self._channel, body)

    def close(self) -> None:
        """Cancels and waits for the end, whatever it is."""
        self.cancel()
        try:
            while not self._done:
                self._step()
        except Exception:
            self._client._reset()
            raise

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._done:
            self.close()

    def _step(self) -> Optional[Piece]:
        """One message, or one pause. Any error ends the call."""
        try:
            message = self._client._receive(self._deadline)
            if message is not None:
                return self._take(message)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                if self._cancelled:
                    raise make_error(708, "the call does not end")
                self.cancel()
            return None
        except Exception:
            if not self._done:
                # Nothing of this call is to reach the next one.
                self._finish()
                self._client._reset()
            raise

    def _finish(self) -> None:
        self._done = True
        if self._client._running is self:
            self._client._running = None

    def _take(self, m: wire.Message) -> Optional[Piece]:
        ours = m.channel == self._channel
        if m.kind == wire.REJECT and (ours or m.channel == 0):
            self._rejected(m)
            return None
        if ours and m.kind == wire.ACCEPTED:
            if self._op is not None:
                raise make_error(101)
            self._op = wire.need(m.map(), "op", bytes)
        elif ours and m.kind == wire.DATA:
            return self._data(m)
        elif ours and m.kind == wire.END:
            self._ended(m)
        elif ours and m.kind == wire.NOTE:
            body = m.map()
            note = Note(wire.need(body, "state", str), *(
                body.get(key) for key in ("done", "total", "place", "short_by", "eta_ms")))
            self.notes.append(note)
            if self._on_note is not None:
                self._on_note(note)
        else:
            self._strays += 1
            if m.channel > self._channel or self._strays > _STRAY_MAX:
                raise make_error(101, "messages of no call of ours")
        return None

    def _rejected(self, m: wire.Message) -> None:
        error = read_error(m.map().get("err"))
        if self._op is not None:
            if error.code == 200:
                raise make_error(602, "the daemon does not know this connection")
            return
        if self._cancelled and error.code == 303:
            return
        if error.code == 200:
            self._client._reset()
        self._finish()
        raise error

    def _data(self, m: wire.Message) -> Optional[Piece]:
        if m.seq <= self._seq:
            return None
        if self._op is None or m.seq != self._seq + 1:
            raise make_error(101, "a piece of the stream is missing")
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
        if self._granted - off <= self._client.window // 2:
            self._granted = off + self._client.window
            self._client._send(wire.WINDOW, self._channel,
                               {"op": self._op, "max_off": self._granted})
        return Piece(text, ids, logprobs)

    def _ended(self, m: wire.Message) -> None:
        if self._op is None or m.seq != self._seq + 1:
            raise make_error(101, "a piece of the stream is missing")
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
        self._finish()
        if self._session is not None:
            self._session._follow(self.end)
        if body.get("err") is not None:
            raise read_error(body["err"])


Content = Union[str, Sequence[Mapping[str, Any]]]


class Session:
    """A session of the daemon's. Its calls carry turn and epoch, and follow them."""

    def __init__(self, client: "Client", id: Union[bytes, str], turn: Optional[int] = None,
                 epoch: Optional[int] = None, history: Optional[int] = None,
                 granted: Optional[dict] = None) -> None:
        self.client = client
        self.id = bytes.fromhex(id) if isinstance(id, str) else id
        self.turn_number, self.epoch = turn, epoch
        self.history, self.granted = history, granted

    def __repr__(self) -> str:
        return f"Session({self.id.hex()})"

    def _follow(self, end: End) -> None:
        self.turn_number = self.turn_number if end.turn is None else end.turn
        self.epoch = self.epoch if end.epoch is None else end.epoch

    def _start(self, method: str, args: dict, options: Mapping[str, Any], blob: Optional[bytes],
               deadline: Optional[float], on_note: Optional[Callable[[Note], None]]) -> Turn:
        unknown = set(options) - _SAMPLING
        if unknown:
            raise TypeError(f"no such argument: {', '.join(sorted(unknown))}")
        args.update({k: v for k, v in options.items() if v is not None})
        return self.client._start(method, args, self, blob, deadline, on_note)

    def turn(self, content: Content, *, deadline: Optional[float] = None,
             on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> Turn:
        """Says something (a user's text, or messages), and streams what the model answers."""
        messages = ([{"role": "user", "content": content}] if isinstance(content, str)
                    else [dict(m) for m in content])
        return self._start("session.turn", {"messages": messages}, options, None, deadline,
                           on_note)

    def turn_tokens(self, ids: Iterable[int], *, keep: Optional[int] = None,
                    deadline: Optional[float] = None,
                    on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> Turn:
        """The same with raw tokens, behind the first keep of the history (None: all)."""
        args: dict = {"tokens": True}
        if keep is not None:
            args["keep"] = keep
        return self._start("session.turn", args, options, wire.write_ids(list(ids)), deadline,
                           on_note)

    def results(self, results: Mapping[str, str], *, deadline: Optional[float] = None,
                on_note: Optional[Callable[[Note], None]] = None, **options: Any) -> Turn:
        """Returns the results of tool calls, by the ids of the calls, and goes on."""
        listed = [{"tool_call_id": k, "content": v} for k, v in results.items()]
        return self._start("session.continue", {"results": listed}, options, None, deadline,
                           on_note)

    def _call(self, method: str, **args: Any) -> Any:
        return self.client.call(method, session=self, **args).result

    def fork(self, *, to_tokens: Optional[int] = None, to_turn: Optional[int] = None,
             label: Optional[str] = None) -> "Session":
        return self.client._opened(self.client.call(
            "session.fork", session=self, to_tokens=to_tokens, to_turn=to_turn, label=label,
            _follow=False))

    def rollback(self, *, to_tokens: Optional[int] = None,
                 to_turn: Optional[int] = None) -> dict:
        return self._call("session.rollback", to_tokens=to_tokens, to_turn=to_turn)

    def close(self) -> None:
        self._call("session.close")

    def show(self) -> dict:
        return self._call("session.show")

    def attach(self) -> dict:
        return self._call("session.attach")

    def residency(self, kind: str, **args: int) -> dict:
        return self._call("session.residency", residency={"kind": kind, **args})

    def hint(self, returns_in_ms: int, tool: Optional[str] = None) -> None:
        self._call("session.hint", returns_in_ms=returns_in_ms, tool=tool)

    def park(self, place: str) -> None:
        self._call("session.park", place=place)


class Client:
    """A connection. Belongs to one thread at a time."""

    def __init__(self, endpoint: Optional[str] = None, *, name: str = "holdfast-python",
                 timeout: float = 5.0, window: int = wire.WINDOW_BYTES,
                 token: Optional[str] = None, act_as: Optional[str] = None) -> None:
        self.endpoint = endpoint or default_endpoint()
        self.timeout, self.window = timeout, window
        self.principal = ""
        self.boot = b""
        self._hello: dict = {"client": name, "minor": 0, "caps": []}
        if token is not None:
            self._hello["auth"] = {"scheme": "token", "token": token}
        if act_as is not None:
            self._hello["act_as"] = act_as
        self._context = zmq.Context()
        self._socket: Optional[zmq.Socket] = None
        self._channel = self._misses = 0
        self._hb, self._said = 5.0, 0.0
        self._running: Optional[Turn] = None
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Says BYE. Safe to repeat."""
        if self._socket is not None:
            self._send(wire.BYE, 0, {})
        self._reset()
        self._context.term()

    def open(self, *, system: Optional[str] = None,
             tools: Sequence[Union[str, Mapping[str, Any]]] = (), template: Optional[str] = None,
             label: Optional[str] = None, residency: Optional[Mapping[str, Any]] = None
             ) -> Session:
        """A new session."""
        listed = [t if isinstance(t, str) else json.dumps(t) for t in tools]
        return self._opened(self.call("session.open", system=system, tools=listed or None,
                                      template=template, label=label, residency=residency))

    def session(self, id: Union[bytes, str]) -> Session:
        """A session that is there already, by its id."""
        return Session(self, id)

    def sessions(self, first: int = 0, count: int = 100) -> List[dict]:
        return self.call("session.list", first=first, count=count).result

    def ledger(self) -> dict:
        return self.call("ledger.show").result

    def pages(self, session: Optional[Session] = None, *, first: int = 0, count: int = 100,
              group: Optional[int] = None) -> List[dict]:
        return self.call("pages.show", session=session, _guard=False, first=first, count=count,
                         group=group).result

    def model(self) -> dict:
        return self.call("model.show").result

    def health(self) -> dict:
        return self.call("health").result

    def metrics(self) -> str:
        return self.call("metrics").result["text"]

    def tokenize(self, text: Union[str, bytes], special: bool = False) -> List[int]:
        data = text.encode() if isinstance(text, str) else text
        return self.call("tokenize", _blob=data, special=special or None).ids or []

    def detokenize(self, ids: Iterable[int]) -> bytes:
        return self.call("detokenize", _blob=wire.write_ids(list(ids))).result["text"]

    def call(self, method: str, *, session: Optional[Session] = None,
             _blob: Optional[bytes] = None, _follow: bool = True, _guard: bool = True,
             **args: Any) -> End:
        """Any method by its name; arguments that are None are left out."""
        given = {k: v for k, v in args.items() if v is not None}
        turn = self._start(method, given, session, _blob, None, None, _guard)
        if not _follow:
            turn._session = None
        return turn.wait()

    # The inside.

    def _opened(self, end: End) -> Session:
        if not isinstance(end.session, bytes) or len(end.session) != 16:
            raise make_error(103, "the daemon named no session")
        result = end.result if isinstance(end.result, dict) else {}
        return Session(self, end.session, end.turn, end.epoch, result.get("history"),
                       result.get("granted"))

    def _start(self, method: str, args: dict, session: Optional[Session],
               blob: Optional[bytes], deadline: Optional[float],
               on_note: Optional[Callable[[Note], None]], guard: bool = True) -> Turn:
        if self._running is not None:
            raise make_error(703, "a call is under way; finish or close() it first")
        body: dict = {"m": method, "window": self.window, "a": args}
        if session is not None:
            body["sess"] = session.id
            if guard and session.epoch is not None:
                body["epoch"] = session.epoch
            if guard and session.turn_number is not None:
                body["turn"] = session.turn_number
        until = None
        if deadline is not None:
            body["deadline_ms"] = max(1, int(deadline * 1000))
            until = time.monotonic() + deadline + 0.5
        self._connect()
        self._channel += 1
        parts = wire.frames(wire.CALL, self._channel, body, blob)
        self._put(parts, self.timeout)
        self._misses = 0
        self._running = Turn(self, self._channel, session, on_note, until)
        return self._running

    def _connect(self) -> None:
        if self._socket is not None:
            return
        hello = wire.frames(wire.HELLO, 0, self._hello)
        self._socket = self._context.socket(zmq.DEALER)
        try:
            self._socket.setsockopt(zmq.LINGER, 200)
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            self._socket.setsockopt(zmq.MAXMSGSIZE, wire.BLOB_BYTES + wire.HEADER.size)
            self._socket.connect(self.endpoint)
            self._put(hello, self.timeout)
            self._welcome()
        except zmq.ZMQError as e:
            self._reset()
            raise make_error(300, "this endpoint is not possible") from e
        except BaseException:
            self._reset()
            raise

    def _welcome(self) -> None:
        until = time.monotonic() + self.timeout
        self._said, self._misses, self._hb = time.monotonic(), 0, self.timeout * 2
        message = None
        while message is None:
            if time.monotonic() >= until:
                raise make_error(708, "the daemon does not answer")
            message = self._receive(until)
        if message.kind == wire.REJECT:
            raise read_error(message.map().get("err"))
        if message.kind != wire.WELCOME:
            raise make_error(102)
        body = message.map()
        self.principal = wire.need(body, "principal", str)
        self.boot = wire.need(body, "boot", bytes)
        self._hb = min(max(wire.need(body, "hb_ms", int), 50), 60000) / 1000
        self._said = time.monotonic()

    def _reset(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None

    def _put(self, parts: List[bytes], timeout: float) -> None:
        assert self._socket is not None
        if not self._socket.poll(int(timeout * 1000), zmq.POLLOUT):
            raise make_error(709, f"no daemon listens at {self.endpoint}")
        self._socket.send_multipart(parts, flags=zmq.DONTWAIT)
        self._said = time.monotonic()

    def _send(self, kind: int, channel: int, body: Any) -> None:
        """What steers; one that cannot go now is missed by a peer that is not there."""
        if self._socket is None:
            return
        self._said = time.monotonic()
        try:
            self._socket.send_multipart(wire.frames(kind, channel, body), flags=zmq.DONTWAIT)
        except zmq.Again:
            pass

    def _receive(self, until: Optional[float]) -> Optional[wire.Message]:
        """The next message, or None when it is time to look at the clock."""
        if self._socket is None:
            raise make_error(709)
        now = time.monotonic()
        wait = self._said + self._hb - now
        if until is not None:
            wait = min(wait, until - now)
        if self._socket.poll(max(0, int(wait * 1000) + 1), zmq.POLLIN):
            parts = self._socket.recv_multipart()
            self._misses = 0
            return wire.Message(parts)
        # By our own silence, so that the daemon hears of us while only it speaks.
        if time.monotonic() - self._said >= self._hb:
            if self._misses >= _MISSES_MAX:
                raise make_error(709, "the daemon is silent")
            self._misses += 1
            self._send(wire.PING, 0, {"t": int(now * 1000)})
        return None
