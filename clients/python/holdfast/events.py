"""What the daemon tells without being asked: events of sessions, and of KV blocks.

    with Client() as client, client.events() as events:
        for event in events:
            print(event.kind, event.session.hex(), event.detail)

An event that was missed is asked for; if the daemon does not keep it any more, `events.lost` counts it.
"""

from __future__ import annotations

import struct
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple, Union

import zmq

from . import wire
from .errors import Error, make_error

_COMMON = frozenset(("seq", "ms", "boot", "principal", "event", "sess", "turn", "label"))


@dataclass(frozen=True)
class Event:
    """kind: granted, queued, running, tool_wait, ended, demoted, restored, lost, expired or closed."""

    kind: str
    session: bytes
    principal: str
    seq: int
    turn: int
    time: float  # seconds since 1970
    boot: bytes
    label: str = ""
    detail: Dict[str, Any] = field(default_factory=dict)


def read_event(value: Any) -> Event:
    try:
        return Event(kind=str(value["event"]), session=bytes(value["sess"]),
                     principal=str(value["principal"]), seq=int(value["seq"]),
                     turn=int(value["turn"]), time=value["ms"] / 1000, boot=bytes(value["boot"]),
                     label=str(value.get("label", "")),
                     detail={k: v for k, v in value.items() if k not in _COMMON})
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise make_error(103, "this is no event") from e


def subscribe(context: zmq.Context[Any], endpoint: str, topic: bytes,
               curve: List[Tuple[int, bytes]]) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = context.socket(zmq.SUB)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.RCVHWM, 10000)
    socket.setsockopt(zmq.MAXMSGSIZE, 1 << 20)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 5000)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 15000)
    for option, value in curve:
        socket.setsockopt(option, value)
    socket.connect(endpoint)
    socket.setsockopt(zmq.SUBSCRIBE, topic)
    return socket


class Order:
    """Puts events in order and finds gaps, for each principal; without a socket."""

    def __init__(self) -> None:
        self.lost = 0
        self._last: Dict[str, Tuple[bytes, int]] = {}

    def gap(self, event: Event) -> Optional[int]:
        """The number of the first event that is missing before this one."""
        boot, last = self._last.get(event.principal, (event.boot, event.seq - 1))
        if boot != event.boot:
            last = 0
        return last + 1 if event.seq > last + 1 else None

    def take(self, event: Event) -> bool:
        """Whether it is new; what lies before it is given up."""
        boot, last = self._last.get(event.principal, (event.boot, event.seq - 1))
        if boot != event.boot:
            last = 0
        if event.seq <= last:
            return False
        self.lost += event.seq - last - 1
        self._last[event.principal] = (event.boot, event.seq)
        return True


class Events(Iterator[Event]):
    """Session events, as an endless iterator, or by next_event(). The client asks for what was missed:
    use it from the same thread, and not within a turn."""

    def __init__(self, client: Any, endpoint: Optional[str] = None) -> None:
        self._client, self._order = client, Order()
        self._ready: Deque[Event] = deque()
        self._socket = subscribe(client._context, endpoint or client.endpoint + "-events", b"",
                                  client._curve)

    @property
    def lost(self) -> int:
        """Events that were missed and could not be had any more."""
        return self._order.lost

    def __enter__(self) -> "Events":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def __iter__(self) -> "Events":
        return self

    def __next__(self) -> Event:
        while True:
            event = self.next_event(60)
            if event is not None:
                return event

    def next_event(self, timeout: float) -> Optional[Event]:
        """The next one, or None when none came in so many seconds."""
        until = time.monotonic() + timeout
        while True:
            while self._ready:
                event = self._ready.popleft()
                if self._order.take(event):
                    return event
            left = until - time.monotonic()
            if not self._socket.poll(max(0, int(left * 1000))):
                if left <= 0:
                    return None
                continue
            self._live(self._socket.recv_multipart())

    def _live(self, frames: List[bytes]) -> None:
        if len(frames) != 3:
            return
        event = read_event(wire.unpack(frames[2]))
        first = self._order.gap(event)
        if first is not None:
            try:
                again = self._client.call("events.replay", principal=event.principal, first=first,
                                          count=1024).result
                self._ready.extend(read_event(e) for e in again["events"] if e["seq"] < event.seq)
            except Error:
                pass  # what is gone shows in `lost`
        self._ready.append(event)


Hash = Union[int, bytes]


@dataclass(frozen=True)
class Block:
    """A full page: `tokens` behind those of `parent`."""

    hash: Hash
    parent: Optional[Hash]
    tokens: Tuple[int, ...]
    medium: str


class KvBlocks:
    """The blocks that a daemon has, kept up to date from its KV events (--kv-events), as a router keeps
    them; also of another runtime with the same schema. replay: the endpoint of --kv-replay, for what was
    there before and for what was missed."""

    def __init__(self, endpoint: str, replay: Optional[str] = None, *, topic: str = "",
                 key: Optional[str] = None, server_key: Optional[str] = None) -> None:
        self.blocks: Dict[Tuple[str, Hash], Block] = {}
        self.seq, self.lost = -1, 0
        self._replay, self._curve = replay, wire.read_keys(key, server_key)
        self._context = zmq.Context()
        self._socket = subscribe(self._context, endpoint, topic.encode(), self._curve)

    def __enter__(self) -> "KvBlocks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()
        self._context.term()

    def sync(self, timeout: float = 5.0) -> None:
        """Asks for what has been told since the last event that was heard, or for all."""
        if self._replay is None:
            raise make_error(300, "no endpoint to replay from was named")
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.setsockopt(zmq.LINGER, 0)
            for option, value in self._curve:
                socket.setsockopt(option, value)
            socket.connect(self._replay)
            socket.send_multipart([b"", struct.pack(">Q", self.seq + 1)])
            while socket.poll(int(timeout * 1000)):
                frames = socket.recv_multipart()
                if len(frames) != 3 or frames[1] == b"\xff" * 8:
                    return
                self._apply(struct.unpack(">Q", frames[1])[0], frames[2])
            raise make_error(708, "the kept events did not come")
        finally:
            socket.close()

    def update(self, timeout: float = 0.0) -> bool:
        """Takes in what has come; waits for the first so long. Whether anything came."""
        came = False
        while self._socket.poll(0 if came else int(timeout * 1000)):
            frames = self._socket.recv_multipart()
            if len(frames) != 3 or len(frames[1]) != 8:
                continue
            seq = struct.unpack(">Q", frames[1])[0]
            if seq > self.seq + 1 and self._replay is not None:
                self.sync()
            if seq > self.seq:
                self.lost += seq - self.seq - 1
                self._apply(seq, frames[2])
            came = True
        return came

    def _apply(self, seq: int, payload: bytes) -> None:
        for event in wire.unpack(payload, max(wire.VALUES, len(payload)))[1]:
            self._event(event)
        self.seq = seq

    def _event(self, event: Any) -> None:
        if isinstance(event, dict):
            kind, hashes = event.get("type"), event.get("block_hashes", ())
            parent, tokens = event.get("parent_block_hash"), event.get("token_ids", ())
            size, medium = event.get("block_size", 0), event.get("medium")
        else:
            kind, *rest = event
            hashes, parent, tokens, size, medium = (), None, (), 0, None
            if kind == "BlockStored":
                hashes, parent, tokens, size = rest[:4]
                medium = rest[5] if len(rest) > 5 else None
            elif kind == "BlockRemoved":
                hashes, medium = rest[0], rest[1] if len(rest) > 1 else None
        where = medium or "GPU"
        if kind == "AllBlocksCleared":
            self.blocks.clear()
        elif kind == "BlockRemoved":
            for h in hashes:
                self.blocks.pop((where, h), None)
        elif kind == "BlockStored":
            for i, h in enumerate(hashes):
                self.blocks[where, h] = Block(h, parent, tuple(tokens[i * size:(i + 1) * size]), where)
                parent = h

    def longest(self, tokens: List[int], medium: str = "GPU") -> int:
        """How many of these tokens, from the first, lie in one chain of blocks here."""
        children: Dict[Tuple[Optional[Hash], Tuple[int, ...]], List[Block]] = {}
        for block in self.blocks.values():
            if block.medium == medium:
                children.setdefault((block.parent, block.tokens), []).append(block)
        size = {len(b.tokens) for b in self.blocks.values()}
        best, at = 0, 0
        parents: List[Optional[Hash]] = [None]
        while parents and size:
            part = tuple(tokens[at:at + max(size)])
            found = [b for p in parents for b in children.get((p, part), ())]
            at += len(part)
            best = at if found else best
            parents = [b.hash for b in found]
        return best
