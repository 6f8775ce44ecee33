"""The client: one connection, one call at a time, blocking."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

import zmq

from . import tools as _tools
from . import wire
from .core import Call, Lost
from .errors import Error, LinkError, make_error, read_error
from .events import Events
from .session import Content, SessionCalls, mean_logprob, scored
from .types import Candidate, End, Note, Piece, ToolCall

_MISSES_MAX = 3


def default_endpoint() -> str:
    said = os.environ.get("HOLDFAST_ENDPOINT")
    folder = os.environ.get("XDG_RUNTIME_DIR") or f"/tmp/holdfast-{os.getuid()}"
    return said or f"ipc://{folder}/holdfast.sock"


class Turn(Iterator[Piece]):
    """A call under way. Iterate for its pieces, or wait() for its end. A connection that breaks on the
    way is made again, and the stream goes on where it was."""

    def __init__(self, client: "Client", call: Call, session: Optional["Session"],
                 deadline: Optional[float]) -> None:
        self._client, self._call, self._session = client, call, session
        self._deadline = deadline
        self._closed = False

    @property
    def end(self) -> Optional[End]:
        return self._call.end

    @property
    def notes(self) -> List[Note]:
        return self._call.notes

    def __iter__(self) -> "Turn":
        return self

    def __next__(self) -> Piece:
        while not self._closed:
            piece = self._step()
            if piece is not None:
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
        if self._closed or not self._call.cancel():
            return
        self._deadline = time.monotonic() + self._client.timeout
        self._client._flush(self._call)

    def close(self) -> None:
        """Cancels and waits for the end, whatever it is."""
        self.cancel()
        try:
            while not self._closed:
                self._step()
        except Exception:
            self._client._reset()
            raise

    def __enter__(self) -> "Turn":
        return self

    def __exit__(self, *_: object) -> None:
        if not self._closed:
            self.close()

    def _step(self) -> Optional[Piece]:
        """One message, or one pause. Any error but a lost connection ends the call."""
        try:
            return self._message()
        except Lost as lost:
            error = lost.error
        except LinkError as e:
            if e.code != 709:
                self._finish(reset=True)
                raise
            error = e
        except Exception:
            self._finish(reset=self._call.end is None)
            raise
        try:
            self._client._resume(self._call, error, self._deadline)
        except Exception:
            self._finish(reset=True)
            raise
        return None

    def _message(self) -> Optional[Piece]:
        message = self._client._receive(self._deadline)
        if message is None:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                if self._call.cancelled:
                    raise make_error(708, "the call does not end")
                self.cancel()
            return None
        try:
            piece = self._call.take(message)
            if piece is not None:
                self._call.consumed(piece.off)
        finally:
            self._client._flush(self._call)
            if self._call.done:
                self._finish()
        return piece

    def _finish(self, reset: bool = False) -> None:
        if not self._closed and self._session is not None and self.end is not None:
            self._session._follow(self.end)
        self._closed = True
        if self._client._running is self:
            self._client._running = None
        if reset:  # nothing of this call is to reach the next one
            self._client._reset()


class Session(SessionCalls[Turn]):
    """A session of the daemon's. Its calls carry turn and epoch, and follow them."""

    client: "Client"

    def run(self, content: Content, tools: Union[Mapping[str, Callable[..., Any]],
                                                 Iterable[Callable[..., Any]]], *,
            rounds: int = 32, on_piece: Optional[Callable[[Piece], None]] = None,
            on_call: Optional[Callable[[ToolCall], Optional[bool]]] = None,
            on_result: Optional[Callable[[ToolCall, str], None]] = None, **options: Any) -> End:
        """Says something and calls the tools that the model asks for, until it asks for none.

        tools are plain functions, called with what their signature names; what they return is the
        result, what they raise is told to the model. on_call may return False to refuse one.
        """
        known = _tools.by_name(tools)
        turn = self.turn(content, **options)
        for _ in range(rounds):
            for piece in turn:
                if on_piece is not None:
                    on_piece(piece)
            end = turn.wait()
            if end.status != "tool_wait":
                return end
            results = {}
            for call in end.calls:
                if on_call is not None and on_call(call) is False:
                    results[call.id] = "error: the user refused this call"
                else:
                    results[call.id] = self._tool(known, call)
                if on_result is not None:
                    on_result(call, results[call.id])
            turn = self.results(results, **options)
        return turn.wait()

    @staticmethod
    def _tool(known: Mapping[str, Callable[..., Any]], call: ToolCall) -> str:
        try:
            return _tools.as_text(_tools.prepare(known, call.name, call.arguments)())
        except Exception as e:  # a tool's failure is the model's to read
            return f"error: {type(e).__name__}: {e}"

    def export(self) -> Dict[str, Any]:
        """The session as tokens and settings, for Client.adopt of this or another daemon."""
        end = self.client.call("session.export", session=self, _guard=False)
        return {**wire.the_map(end.result), "tokens": end.ids}

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: str, **args: Any) -> Any:
        return self.client.call(method, session=self, **args).result

    def fork(self, *, to_tokens: Optional[int] = None, to_turn: Optional[int] = None,
             label: Optional[str] = None, tied: bool = False) -> "Session":
        """A new session of this one's history. tied: it is closed when this one is."""
        return self.client._opened(self.client.call(
            "session.fork", session=self, to_tokens=to_tokens, to_turn=to_turn, label=label,
            tied=tied or None, _follow=False))

    def best(self, content: Content, n: int, *, keep: int = 1, seed: int = 0,
             **options: Any) -> List[Candidate]:
        """n answers to the same, each of a fork of this session with a seed of its own (seed, seed + 1, …),
        the likeliest first. What stands before the answers is computed once. The forks of the first
        `keep` stay open, to go on from; this session is as it was. Ask with a temperature above 0."""
        found: List[Candidate] = []
        forks: List[Session] = []
        try:
            for i in range(n):
                forks.append(self.fork())
                turn = forks[-1].turn(content, **scored(options, seed + i))
                score = mean_logprob(turn)
                found.append(Candidate(score, turn.wait(), forks[-1], seed + i))
            found.sort(key=lambda c: -c.logprob)
        except BaseException:
            keep = 0
            raise
        finally:
            kept = [c.session for c in found[:keep]]
            for fork in forks:
                if fork not in kept:
                    fork.close()
        return found

    def rollback(self, *, to_tokens: Optional[int] = None,
                 to_turn: Optional[int] = None) -> Dict[str, Any]:
        return wire.the_map(self._call("session.rollback", to_tokens=to_tokens, to_turn=to_turn))

    def close(self) -> None:
        self._call("session.close")

    def forget(self) -> None:
        """Closes it, and removes its text, tokens and pages everywhere. Forks that are not tied stay."""
        self._call("session.forget")

    def show(self) -> Dict[str, Any]:
        return wire.the_map(self._call("session.show"))

    def attach(self) -> Dict[str, Any]:
        return wire.the_map(self._call("session.attach"))

    def residency(self, kind: str, **args: int) -> Dict[str, Any]:
        return wire.the_map(self._call("session.residency", residency={"kind": kind, **args}))

    def hint(self, returns_in_ms: int, tool: Optional[str] = None) -> None:
        self._call("session.hint", returns_in_ms=returns_in_ms, tool=tool)

    def touch(self) -> None:
        """It is still wanted: how long it rests, and its lease, count from now."""
        self._call("session.touch")

    def park(self, place: str) -> None:
        self._call("session.park", place=place)


class Client:
    """A connection. Belongs to one thread at a time."""

    def __init__(self, endpoint: Optional[str] = None, *, name: str = "holdfast-python",
                 timeout: float = 5.0, window: int = wire.WINDOW_BYTES, resume: float = 30.0,
                 token: Optional[str] = None, act_as: Optional[str] = None,
                 key: Optional[str] = None, server_key: Optional[str] = None) -> None:
        """key: over TCP, our certificate (holdfast keygen makes one), with the daemon's public key.
        resume: for so many seconds a call outlives its connection, and is gone on with; 0: not."""
        self.endpoint = endpoint or default_endpoint()
        self.timeout, self.window, self.resume = timeout, window, resume
        self.principal = ""
        self.boot = b""
        self._hello: Dict[str, Any] = {"client": name, "minor": 0, "caps": []}
        if token is not None:
            self._hello["auth"] = {"scheme": "token", "token": token}
        if act_as is not None:
            self._hello["act_as"] = act_as
        self._curve = wire.read_keys(key, server_key)
        self._context = zmq.Context()
        self._socket: Optional[zmq.Socket[bytes]] = None
        self._channel = self._misses = 0
        self._hb, self._said = 5.0, 0.0
        self._running: Optional[Turn] = None
        self._monitor: Optional[zmq.Socket[bytes]] = None
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
            if self._running is not None:
                self._running.cancel()
            self._send(wire.BYE, 0, {})
        self._reset()
        self._context.term()

    def open(self, *, system: Optional[str] = None,
             tools: Sequence[_tools.Tool] = (), template: Optional[str] = None,
             label: Optional[str] = None, residency: Optional[Mapping[str, Any]] = None
             ) -> Session:
        """A new session. A tool is a JSON object, or a function, described by its signature."""
        listed = [_tools.as_json(t) for t in tools]
        return self._opened(self.call("session.open", system=system, tools=listed or None,
                                      template=template, label=label, residency=residency))

    def adopt(self, exported: Mapping[str, Any]) -> Session:
        """A session that Session.export gave, as a new one of this daemon's."""
        args = {k: v for k, v in exported.items() if k != "tokens"}
        return self._opened(self.call("session.import",
                                      _blob=wire.write_ids(list(exported["tokens"])), **args))

    def session(self, id: Union[bytes, str]) -> Session:
        """A session that is there already, by its id."""
        return Session(self, id)

    def sessions(self, first: int = 0, count: int = 100) -> List[Dict[str, Any]]:
        return wire.the_maps(self.call("session.list", first=first, count=count).result)

    def ledger(self, first: int = 0, count: int = 100) -> Dict[str, Any]:
        return wire.the_map(self.call("ledger.show", first=first, count=count).result)

    def pages(self, session: Optional[Session] = None, *, first: int = 0, count: int = 100,
              group: Optional[int] = None) -> List[Dict[str, Any]]:
        return wire.the_maps(self.call("pages.show", session=session, _guard=False, first=first, count=count,
                                       group=group).result)

    def model(self) -> Dict[str, Any]:
        return wire.the_map(self.call("model.show").result)

    def health(self) -> Dict[str, Any]:
        return wire.the_map(self.call("health").result)

    def metrics(self) -> str:
        return str(wire.need(wire.the_map(self.call("metrics").result), "text", str))

    def events(self, endpoint: Optional[str] = None) -> Events:
        """What happens to sessions, as it happens; endpoint: else the daemon's with -events behind it."""
        return Events(self, endpoint)

    def tokenize(self, text: Union[str, bytes], special: bool = False) -> List[int]:
        data = text.encode() if isinstance(text, str) else text
        return self.call("tokenize", _blob=data, special=special or None).ids or []

    def detokenize(self, ids: Iterable[int]) -> bytes:
        end = self.call("detokenize", _blob=wire.write_ids(list(ids)))
        return bytes(wire.need(wire.the_map(end.result), "text", bytes))

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

    def _start(self, method: str, args: Dict[str, Any], session: Optional[Session],
               blob: Optional[bytes], deadline: Optional[float],
               on_note: Optional[Callable[[Note], None]], guard: bool = True) -> Turn:
        if self._running is not None:
            raise make_error(703, "a call is under way; finish or close() it first")
        guarded = session if guard else None
        call = Call(method, args, self.window, session=session.id if session else None,
                    epoch=guarded.epoch if guarded else None,
                    turn=guarded.turn_number if guarded else None, deadline=deadline,
                    resume=self.resume, blob=blob, on_note=on_note)
        until = None if deadline is None else time.monotonic() + deadline + 0.5
        self._connect()
        self._channel += 1
        self._put(call.frames(self._channel, self.window), self.timeout)
        self._misses = 0
        self._running = Turn(self, call, session, until)
        return self._running

    def _resume(self, call: Call, error: Error, deadline: Optional[float]) -> None:
        """Another connection, and the call goes on there; or `error`. No longer than the call's own deadline:
        nobody is there to say that it has passed."""
        until, timeout = time.monotonic() + self.resume, self.timeout
        late = None
        if deadline is not None and deadline < until:
            until = deadline
            if not call.cancelled:
                late = make_error(503, "the daemon is gone, and was not back by the call's deadline")
        try:
            while call.can_resume() and self.resume > 0:
                self.timeout = min(timeout, max(0.1, until - time.monotonic()))
                self._reset()
                try:
                    self._connect()
                    self._channel += 1
                    self._put(call.frames(self._channel, self.window), self.timeout)
                    self._misses = 0
                    refused = self._await_answer(call)
                    if refused is None:
                        return
                    error = error if call.op is not None else refused
                    break
                except (LinkError, Lost):
                    if time.monotonic() >= until:
                        error = late or error
                        break
                    time.sleep(0.1)
        finally:
            self.timeout = timeout
        raise error

    def _await_answer(self, call: Call) -> Optional[Error]:
        """None when the call was accepted (again), or its refusal."""
        until = time.monotonic() + self.timeout
        while not call.accepted:
            message = self._receive(until)
            if message is None:
                if time.monotonic() >= until:
                    raise make_error(709, "the daemon does not answer")
                continue
            try:
                call.take(message)
            except LinkError:
                raise
            except Error as e:
                return e
        self._flush(call)
        return None

    def _flush(self, call: Call) -> None:
        for frames in call.outgoing:
            self._put_now(frames)
        call.outgoing.clear()

    def _connect(self) -> None:
        if self._socket is not None:
            return
        hello = wire.frames(wire.HELLO, 0, self._hello)
        self._socket = self._context.socket(zmq.DEALER)
        try:
            self._socket.setsockopt(zmq.LINGER, 200)
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            for option, value in self._curve:
                self._socket.setsockopt(option, value)
            self._socket.setsockopt(zmq.MAXMSGSIZE, wire.BLOB_BYTES + wire.HEADER.size)
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
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
        self.window = wire.window_of(body, self.window)
        self._hb = min(max(wire.need(body, "hb_ms", int), 50), 60000) / 1000
        self._said = time.monotonic()

    def _reset(self) -> None:
        if self._socket is not None:
            if self._monitor is not None:
                self._socket.disable_monitor()
            self._socket.close()
        self._socket = self._monitor = None

    def _put(self, parts: List[bytes], timeout: float) -> None:
        assert self._socket is not None
        if not self._socket.poll(int(timeout * 1000), zmq.POLLOUT):
            raise make_error(709, f"no daemon listens at {self.endpoint}")
        self._socket.send_multipart(parts, flags=zmq.DONTWAIT)
        self._said = time.monotonic()

    def _send(self, kind: int, channel: int, body: Any) -> None:
        """What steers; one that cannot go now is missed by a peer that is not there."""
        self._put_now(wire.frames(kind, channel, body))

    def _put_now(self, frames: List[bytes]) -> None:
        if self._socket is None:
            return
        self._said = time.monotonic()
        try:
            self._socket.send_multipart(frames, flags=zmq.DONTWAIT)
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
        ready = self._wait(max(0.0, wait))
        if ready == "message":
            parts = self._socket.recv_multipart()
            self._misses = 0
            return wire.Message(parts)
        if ready == "broken":
            raise make_error(709, "the connection is lost")
        # By our own silence, so that the daemon hears of us while only it speaks.
        if time.monotonic() - self._said >= self._hb:
            if self._misses >= _MISSES_MAX:
                raise make_error(709, "the daemon is silent")
            self._misses += 1
            self._send(wire.PING, 0, {"t": int(now * 1000)})
        return None

    def _wait(self, seconds: float) -> str:
        """What comes first: a message, the end of the connection, or of the time."""
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        if self._monitor is not None:
            poller.register(self._monitor, zmq.POLLIN)
        ready = dict(poller.poll(int(seconds * 1000) + 1))
        if self._socket in ready:
            return "message"
        return "broken" if ready else ""
