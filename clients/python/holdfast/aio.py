"""The client for asyncio: one connection, any number of calls at once.

    async with AsyncClient() as client:
        session = await client.open(system="Be brief.")
        async for piece in session.turn("Hello!"):
            print(piece.text, end="")

Belongs to one event loop. A connection that breaks is made again and every stream goes on.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from typing import (Any, AsyncIterator, Awaitable, Callable, Deque, Dict, Iterable, List, Mapping,
                    Optional, Sequence, Union)

import zmq
import zmq.asyncio

from . import tools as _tools
from . import wire
from .client import _MISSES_MAX, default_endpoint
from .core import Call, Lost
from .errors import Error, LinkError, make_error, read_error
from .events import Event, Order, read_event, subscribe
from .session import Content, SessionCalls, mean_logprob, scored
from .types import Candidate, End, Note, Piece, ToolCall


class AsyncTurn(AsyncIterator[Piece]):
    """A call under way: `async for` its pieces, or await wait() for its end."""

    def __init__(self, client: "AsyncClient", call: Call, session: Optional["AsyncSession"]) -> None:
        self._client, self._call, self._session = client, call, session
        self._pieces: Deque[Piece] = deque()
        self._news = asyncio.Event()
        self._error: Optional[BaseException] = None
        self._broke: Optional[Error] = None
        self._timer: Optional[asyncio.TimerHandle] = None

    @property
    def end(self) -> Optional[End]:
        return self._call.end

    @property
    def notes(self) -> List[Note]:
        return self._call.notes

    def __aiter__(self) -> "AsyncTurn":
        return self

    async def __anext__(self) -> Piece:
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._call.done:
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        piece = self._pieces.popleft()
        self._call.consumed(piece.off)
        self._client._flush(self._call)
        return piece

    async def wait(self) -> End:
        """Runs the call to its end, and returns it."""
        async for _ in self:
            pass
        assert self.end is not None
        return self.end

    def cancel(self) -> None:
        """Asks for the end; what was sampled stays. Safe to repeat."""
        if self._call.cancel():
            self._pieces.clear()
            self._client._flush(self._call)
            self._after(self._client.timeout, lambda: self._fail(
                make_error(708, "the call does not end")))

    async def __aenter__(self) -> "AsyncTurn":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        while not self._call.done and self._error is None:
            self._news.clear()
            await self._news.wait()

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, what)

    def _late(self) -> None:
        """The deadline has passed, and the daemon has not said it; where none is there, we do."""
        if self._client._socket is None or self._client._recovering is not None:
            self._fail(make_error(503, "the daemon is gone, and was not back by the call's deadline"))
        else:
            self.cancel()

    def _take(self, m: wire.Message) -> None:
        try:
            piece = self._call.take(m)
            if piece is not None:
                self._pieces.append(piece)
        except Lost as lost:
            self._client._lost(lost.error)
            return
        except Exception as e:
            known = self._broke is not None and self._call.op is not None and self.end is None
            self._fail(self._broke if known and not self._call.accepted else e)
        self._client._flush(self._call)
        if self._call.done:
            self._finish()
        self._news.set()

    def _fail(self, error: Optional[BaseException]) -> None:
        if not self._call.done or self._error is None:
            self._error = error
        self._finish()

    def _finish(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._session is not None and self.end is not None:
            self._session._follow(self.end)
            self._session = None
        self._client._calls.pop(self._call.channel, None)
        self._news.set()


class AsyncSession(SessionCalls[AsyncTurn]):
    """A session of the daemon's. Its calls carry turn and epoch, and follow them."""

    client: "AsyncClient"

    async def __aenter__(self) -> "AsyncSession":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def run(self, content: Content, tools: Union[Mapping[str, Callable[..., Any]],
                                                       Iterable[Callable[..., Any]]], *,
                  rounds: int = 32, on_piece: Optional[Callable[[Piece], None]] = None,
                  on_call: Optional[Callable[[ToolCall], Union[bool, Awaitable[bool], None]]] = None,
                  **options: Any) -> End:
        """As Session.run; the calls of one turn run side by side, and tools may be coroutines."""
        known = _tools.by_name(tools)
        turn = self.turn(content, **options)
        for _ in range(rounds):
            async for piece in turn:
                if on_piece is not None:
                    on_piece(piece)
            end = await turn.wait()
            if end.status != "tool_wait":
                return end
            texts = await asyncio.gather(*(self._tool(known, c, on_call) for c in end.calls))
            turn = self.results({c.id: t for c, t in zip(end.calls, texts)}, **options)
        return await turn.wait()

    @staticmethod
    async def _tool(known: Mapping[str, Callable[..., Any]], call: ToolCall,
                    on_call: Optional[Callable[[ToolCall], Any]]) -> str:
        try:
            allowed = on_call(call) if on_call is not None else True
            if inspect.isawaitable(allowed):
                allowed = await allowed
            if allowed is False:
                return "error: the user refused this call"
            bound = _tools.prepare(known, call.name, call.arguments)
            if inspect.iscoroutinefunction(known[call.name]):
                return _tools.as_text(await bound())
            # A plain function may take its time; the other streams go on.
            return _tools.as_text(await asyncio.get_running_loop().run_in_executor(None, bound))
        except Exception as e:  # a tool's failure is the model's to read
            return f"error: {type(e).__name__}: {e}"

    async def _call(self, method: str, **args: Any) -> Any:
        return (await self.client.call(method, session=self, **args)).result

    async def fork(self, *, to_tokens: Optional[int] = None, to_turn: Optional[int] = None,
                   label: Optional[str] = None, tied: bool = False) -> "AsyncSession":
        """A new session of this one's history. tied: it is closed when this one is."""
        return self.client._opened(await self.client.call(
            "session.fork", session=self, to_tokens=to_tokens, to_turn=to_turn, label=label,
            tied=tied or None, _follow=False))

    async def best(self, content: Content, n: int, *, keep: int = 1, seed: int = 0,
                   **options: Any) -> List[Candidate]:
        """n answers to the same at once, each of a fork of this session with a seed of its own (seed,
        seed + 1, …), the likeliest first. What stands before the answers is computed once. The forks of
        the first `keep` stay open, to go on from; this session is as it was. Ask with a temperature
        above 0."""
        forks: List[AsyncSession] = []
        found: List[Candidate] = []

        async def one(number: int, fork: AsyncSession) -> Candidate:
            turn = fork.turn(content, **scored(options, seed + number))
            score = mean_logprob([piece async for piece in turn])
            return Candidate(score, await turn.wait(), fork, seed + number)

        try:
            for _ in range(n):
                forks.append(await self.fork())
            found = list(await asyncio.gather(*(one(i, f) for i, f in enumerate(forks))))
            found.sort(key=lambda c: -c.logprob)
        finally:
            kept = [c.session for c in found[:keep]]
            for fork in forks:
                if fork not in kept:
                    await fork.close()
        return found

    async def rollback(self, *, to_tokens: Optional[int] = None,
                       to_turn: Optional[int] = None) -> Dict[str, Any]:
        return wire.the_map(await self._call("session.rollback", to_tokens=to_tokens, to_turn=to_turn))

    async def close(self) -> None:
        await self._call("session.close")

    async def forget(self) -> None:
        """Closes it, and removes its text, tokens and pages everywhere. Forks that are not tied stay."""
        await self._call("session.forget")

    async def show(self) -> Dict[str, Any]:
        return wire.the_map(await self._call("session.show"))

    async def attach(self) -> Dict[str, Any]:
        return wire.the_map(await self._call("session.attach"))

    async def residency(self, kind: str, **args: int) -> Dict[str, Any]:
        return wire.the_map(await self._call("session.residency", residency={"kind": kind, **args}))

    async def hint(self, returns_in_ms: int, tool: Optional[str] = None) -> None:
        await self._call("session.hint", returns_in_ms=returns_in_ms, tool=tool)

    async def touch(self) -> None:
        """It is still wanted: how long it rests, and its lease, count from now."""
        await self._call("session.touch")

    async def park(self, place: str) -> None:
        await self._call("session.park", place=place)

    async def export(self) -> Dict[str, Any]:
        end = await self.client.call("session.export", session=self, _guard=False)
        return {**wire.the_map(end.result), "tokens": end.ids}


class AsyncClient:
    """A connection of one event loop."""

    def __init__(self, endpoint: Optional[str] = None, *, name: str = "holdfast-python",
                 timeout: float = 5.0, window: int = wire.WINDOW_BYTES, resume: float = 30.0,
                 token: Optional[str] = None, act_as: Optional[str] = None,
                 key: Optional[str] = None, server_key: Optional[str] = None) -> None:
        self.endpoint = endpoint or default_endpoint()
        self.timeout, self.window, self.resume = timeout, window, resume
        self.principal, self.boot = "", b""
        self._hello: Dict[str, Any] = {"client": name, "minor": 0, "caps": []}
        if token is not None:
            self._hello["auth"] = {"scheme": "token", "token": token}
        if act_as is not None:
            self._hello["act_as"] = act_as
        self._curve = wire.read_keys(key, server_key)
        self._context = zmq.Context()
        self._socket: Optional[zmq.Socket[bytes]] = None
        self._monitor: Optional[zmq.Socket[bytes]] = None
        self._calls: Dict[int, AsyncTurn] = {}
        self._channel = self._misses = 0
        self._hb, self._said = 5.0, 0.0
        self._beat: Optional[asyncio.TimerHandle] = None
        self._welcome: Optional["asyncio.Future[wire.Message]"] = None
        self._recovering: Optional["asyncio.Task[None]"] = None
        self._open_lock = asyncio.Lock()

    async def __aenter__(self) -> "AsyncClient":
        await self._open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels what runs and says BYE. Safe to repeat."""
        if self._recovering is not None:
            self._recovering.cancel()
        for turn in list(self._calls.values()):
            turn.cancel()
            turn._fail(make_error(709, "the client was closed"))
        if self._socket is not None:
            self._put(wire.frames(wire.BYE, 0, {}))
        self._drop()
        self._context.term()

    async def open(self, *, system: Optional[str] = None, tools: Sequence[_tools.Tool] = (),
                   template: Optional[str] = None, label: Optional[str] = None,
                   residency: Optional[Mapping[str, Any]] = None) -> AsyncSession:
        listed = [_tools.as_json(t) for t in tools]
        return self._opened(await self.call(
            "session.open", system=system, tools=listed or None, template=template, label=label,
            residency=residency))

    def session(self, id: Union[bytes, str]) -> AsyncSession:
        """A session that is there already, by its id."""
        return AsyncSession(self, id)

    async def adopt(self, exported: Mapping[str, Any]) -> AsyncSession:
        args = {k: v for k, v in exported.items() if k != "tokens"}
        return self._opened(await self.call(
            "session.import", _blob=wire.write_ids(list(exported["tokens"])), **args))

    async def sessions(self, first: int = 0, count: int = 100) -> List[Dict[str, Any]]:
        return wire.the_maps((await self.call("session.list", first=first, count=count)).result)

    async def ledger(self, first: int = 0, count: int = 100) -> Dict[str, Any]:
        return wire.the_map((await self.call("ledger.show", first=first, count=count)).result)

    async def model(self) -> Dict[str, Any]:
        return wire.the_map((await self.call("model.show")).result)

    async def health(self) -> Dict[str, Any]:
        return wire.the_map((await self.call("health")).result)

    async def metrics(self) -> str:
        return str(wire.need(wire.the_map((await self.call("metrics")).result), "text", str))

    async def events(self, endpoint: Optional[str] = None) -> AsyncIterator[Event]:
        """What happens to sessions, as it happens; what was missed is asked for."""
        order = Order()
        socket: Any = subscribe(zmq.asyncio.Context.shadow(self._context.underlying), endpoint or self.endpoint + "-events", b"", self._curve)
        try:
            while True:
                frames = await socket.recv_multipart()
                if len(frames) != 3:
                    continue
                live = read_event(wire.unpack(frames[2]))
                first, came = order.gap(live), [live]
                if first is not None:
                    again = (await self.call("events.replay", principal=live.principal, first=first,
                                             count=1024)).result
                    came = [read_event(e) for e in again["events"] if e["seq"] < live.seq] + came
                for event in came:
                    if order.take(event):
                        yield event
        finally:
            socket.close()

    async def tokenize(self, text: Union[str, bytes], special: bool = False) -> List[int]:
        data = text.encode() if isinstance(text, str) else text
        return (await self.call("tokenize", _blob=data, special=special or None)).ids or []

    async def detokenize(self, ids: Iterable[int]) -> bytes:
        end = await self.call("detokenize", _blob=wire.write_ids(list(ids)))
        return bytes(wire.need(wire.the_map(end.result), "text", bytes))

    async def call(self, method: str, *, session: Optional[AsyncSession] = None,
                   _blob: Optional[bytes] = None, _follow: bool = True, _guard: bool = True,
                   **args: Any) -> End:
        """Any method by its name; arguments that are None are left out."""
        await self._open()
        given = {k: v for k, v in args.items() if v is not None}
        turn = self._start(method, given, session, _blob, None, None, _guard)
        if not _follow:
            turn._session = None
        return await turn.wait()

    # The inside.

    def _opened(self, end: End) -> AsyncSession:
        if not isinstance(end.session, bytes) or len(end.session) != 16:
            raise make_error(103, "the daemon named no session")
        result = end.result if isinstance(end.result, dict) else {}
        return AsyncSession(self, end.session, end.turn, end.epoch, result.get("history"),
                            result.get("granted"))

    def _start(self, method: str, args: Dict[str, Any], session: Optional[AsyncSession],
               blob: Optional[bytes], deadline: Optional[float],
               on_note: Optional[Callable[[Note], None]], guard: bool = True) -> AsyncTurn:
        guarded = session if guard else None
        call = Call(method, args, self.window, session=session.id if session else None,
                    epoch=guarded.epoch if guarded else None,
                    turn=guarded.turn_number if guarded else None, deadline=deadline,
                    resume=self.resume, blob=blob, on_note=on_note)
        turn = AsyncTurn(self, call, session)
        if deadline is not None:
            turn._after(deadline + 0.5, turn._late)
        self._channel += 1
        frames = call.frames(self._channel, self.window)
        self._calls[self._channel] = turn
        if self._socket is None:
            self._lost(make_error(709, "there is no connection"))
        elif self._recovering is None and not self._put(frames):
            self._lost(make_error(709, f"no daemon listens at {self.endpoint}"))
        return turn

    async def _open(self) -> None:
        """Socket, HELLO, WELCOME; nothing if it stands."""
        async with self._open_lock:
            if self._recovering is not None and self._recovering is not asyncio.current_task():
                await asyncio.wait({self._recovering})
            if self._socket is None:
                await self._connect()

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        self._socket = self._context.socket(zmq.DEALER)
        try:
            self._socket.setsockopt(zmq.LINGER, 200)
            self._socket.setsockopt(zmq.IMMEDIATE, 1)
            for option, value in self._curve:
                self._socket.setsockopt(option, value)
            self._socket.setsockopt(zmq.MAXMSGSIZE, wire.BLOB_BYTES + wire.HEADER.size)
            self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
            self._socket.connect(self.endpoint)
            until = loop.time() + self.timeout
            while not self._put(wire.frames(wire.HELLO, 0, self._hello)):
                if loop.time() >= until:
                    raise make_error(709, f"no daemon listens at {self.endpoint}")
                await asyncio.sleep(0.005)
            self._welcome = loop.create_future()
            loop.add_reader(self._socket.FD, self._ready)
            loop.add_reader(self._monitor.FD, self._ready)
            self._ready()
            try:
                message = await asyncio.wait_for(self._welcome, self.timeout)
            except asyncio.TimeoutError:
                raise make_error(708, "the daemon does not answer") from None
            if message.kind == wire.REJECT:
                raise read_error(message.map().get("err"))
            body = message.map()
            self.principal = wire.need(body, "principal", str)
            self.boot = wire.need(body, "boot", bytes)
            self.window = wire.window_of(body, self.window)
            self._hb = min(max(wire.need(body, "hb_ms", int), 50), 60000) / 1000
            self._misses = 0
            self._beat = loop.call_later(self._hb, self._heartbeat)
        except zmq.ZMQError as e:
            self._drop()
            raise make_error(300, "this endpoint is not possible") from e
        except BaseException:
            self._drop()
            raise
        finally:
            self._welcome = None

    def _drop(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.FD)
            if self._monitor is not None:
                loop.remove_reader(self._monitor.FD)
                self._socket.disable_monitor()
            self._socket.close()
        self._socket = self._monitor = self._beat = None

    def _put(self, frames: List[bytes]) -> bool:
        if self._socket is None:
            return False
        self._said = asyncio.get_running_loop().time()
        try:
            self._socket.send_multipart(frames, flags=zmq.DONTWAIT)
        except zmq.Again:
            return False
        # Sending may have used up the descriptor's news of what can be read.
        if int(self._socket.EVENTS) & zmq.POLLIN:
            asyncio.get_running_loop().call_soon(self._ready)
        return True

    def _flush(self, call: Call) -> None:
        for frames in call.outgoing:
            self._put(frames)
        call.outgoing.clear()

    def _ready(self) -> None:
        while self._socket is not None and int(self._socket.EVENTS) & zmq.POLLIN:
            try:
                self._message(wire.Message(self._socket.recv_multipart(flags=zmq.DONTWAIT)))
            except zmq.Again:
                break
            except Error as e:  # what is no message of AR/1: nothing of this connection is believed
                self._break(e)
                return
        if self._monitor is not None and int(self._monitor.EVENTS) & zmq.POLLIN:
            self._lost(make_error(709, "the connection is lost"))

    def _message(self, m: wire.Message) -> None:
        self._misses = 0
        if self._welcome is not None:
            if m.kind in (wire.WELCOME, wire.REJECT) and not self._welcome.done():
                self._welcome.set_result(m)
            return
        if m.kind == wire.REJECT and m.channel == 0:
            error = read_error(m.map().get("err"))
            if error.code == 200:
                self._lost(make_error(602, "the daemon does not know this connection"))
            return
        turn = self._calls.get(m.channel)
        if turn is not None:
            turn._take(m)
        elif m.channel > self._channel:
            raise make_error(101, "messages of no call of ours")

    def _break(self, error: Error) -> None:
        self._drop()
        for turn in list(self._calls.values()):
            turn._fail(error)

    def _heartbeat(self) -> None:
        loop = asyncio.get_running_loop()
        self._beat = loop.call_later(self._hb, self._heartbeat)
        if not self._calls or loop.time() - self._said < self._hb * 0.9:
            return
        if self._misses >= _MISSES_MAX:
            self._lost(make_error(709, "the daemon is silent"))
            return
        self._misses += 1
        self._put(wire.frames(wire.PING, 0, {"t": int(loop.time() * 1000)}))

    def _lost(self, error: Error) -> None:
        """The connection is gone: it is made again, and what can go on does."""
        if self._welcome is not None:
            if not self._welcome.done():
                self._welcome.set_exception(make_error(709, "the connection is lost"))
            return
        if self._recovering is not None:
            return
        self._drop()
        for turn in list(self._calls.values()):
            turn._broke = error
            if self.resume <= 0 or not turn._call.can_resume():
                turn._fail(error)
        if self._calls:
            self._recovering = asyncio.get_running_loop().create_task(self._recover(error))

    async def _recover(self, error: Error) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.resume
        try:
            while True:
                try:
                    await asyncio.wait_for(self._connect(), max(until - loop.time(), 0.1))
                    break
                except (LinkError, asyncio.TimeoutError) as e:
                    if loop.time() >= until:
                        raise e if isinstance(e, Error) else error
                    await asyncio.sleep(0.1)
        except Error as e:
            self._recovering = None
            for turn in list(self._calls.values()):
                turn._fail(e if e.code >= 700 or turn._call.op is None else error)
            return
        self._recovering = None
        turns = list(self._calls.values())
        self._calls.clear()
        for turn in turns:
            self._channel += 1
            self._calls[self._channel] = turn
            self._put(turn._call.frames(self._channel, self.window))
