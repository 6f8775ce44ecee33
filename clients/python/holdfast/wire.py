"""Frames and MessagePack of AR/1. Nothing that comes in is believed without a check."""

from __future__ import annotations

import math
import re
import struct
from typing import Any, Dict, Iterable, List, Optional, Tuple

import msgpack  # type: ignore[import-untyped]
import zmq

from .errors import make_error

HELLO, CALL, WINDOW, CANCEL, RESUME, ACK, PING, BYE = 1, 2, 3, 4, 5, 6, 7, 0x0F
WELCOME, ACCEPTED, DATA, END, NOTE, PONG, GOAWAY, REJECT = (
    0x81, 0x82, 0x83, 0x84, 0x85, 0x87, 0x88, 0x89)
FLAG_BLOB = 1
HEADER = struct.Struct(">2sBBHHQQ")
BODY_BYTES, BLOB_BYTES, WINDOW_BYTES, DATA_TOKENS = 256 << 10, 1 << 20, 64 << 10, 1 << 16
DEPTH, VALUES, PAIRS = 16, 20000, 32
_KEY = re.compile(r"[a-z0-9_-]{1,32}").fullmatch


def _pairs(given: Iterable[Tuple[Any, Any]]) -> Dict[str, Any]:
    pairs = list(given)  # a generator, where msgpack has no compiled part
    if len(pairs) > PAIRS:
        raise make_error(104, "the daemon sent a map of too many pairs")
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    for key in found:
        if not isinstance(key, str) or not _KEY(key):
            raise ValueError("a key of another form")
    return found


def _ext(code: int, data: bytes) -> Any:
    raise ValueError("extension types are not spoken here")


def pack(body: Any) -> bytes:
    """A body, or the error that the daemon would answer."""
    try:
        packed: bytes = msgpack.packb(body, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, UnicodeEncodeError) as e:
        raise make_error(300, "an argument cannot be sent") from e
    if len(packed) > BODY_BYTES:
        raise make_error(104, "the arguments are larger than a message may be")
    return packed


def _count(value: Any, most: int, depth: int = 0) -> int:
    """How many values there are, keys counted: what msgpack's hooks are not asked about is looked at here."""
    kind = type(value)
    if kind is float and not math.isfinite(value):
        raise ValueError("a number that is not finite")
    if kind is msgpack.Timestamp:  # the one extension type that is read without asking _ext
        raise ValueError("extension types are not spoken here")
    if kind is not dict and kind is not list:
        return 1
    if depth >= DEPTH:
        raise make_error(104, "the daemon sent what is too deep")
    count = 1 + (len(value) if kind is dict else 0)
    for each in value.values() if kind is dict else value:
        count += _count(each, most, depth + 1)
    if count > most:
        raise make_error(104, "the daemon sent too many values")
    return count


def unpack(body: bytes, most: int = VALUES) -> Any:
    """One value by the rules of AR/1 ("MessagePack, strictly"), of at most so many values; or bad_body or too_big."""
    try:
        value = msgpack.unpackb(body, raw=False, strict_map_key=True, ext_hook=_ext, object_pairs_hook=_pairs,
                                max_array_len=most)
        _count(value, most)
        return value
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as e:
        # Elements that could not be there are nonsense; those that are there are too many, or too deep.
        many = re.match(r"(\d+) exceeds max_array_len", str(e))
        if isinstance(e, msgpack.StackError) or (many and int(many[1]) <= len(body)):
            raise make_error(104, "the daemon sent what is too deep, or too many values") from e
        raise make_error(103, "the daemon sent what is not MessagePack") from e


def frames(kind: int, channel: int, body: Any, blob: Optional[bytes] = None) -> List[bytes]:
    return raw_frames(kind, channel, pack(body), blob)


def raw_frames(kind: int, channel: int, body: bytes, blob: Optional[bytes] = None) -> List[bytes]:
    head = HEADER.pack(b"AR", 1, kind, FLAG_BLOB if blob is not None else 0, 0, channel, 0)
    return [head, body] + ([blob] if blob is not None else [])


class Message:
    """A message that came: type, channel, seq, body, blob."""

    def __init__(self, parts: List[bytes]) -> None:
        if not 2 <= len(parts) <= 3 or len(parts[0]) != HEADER.size:
            raise make_error(101)
        magic, major, self.kind, flags, reserved, self.channel, self.seq = (
            HEADER.unpack(parts[0]))
        if magic != b"AR" or flags != (FLAG_BLOB if len(parts) == 3 else 0) or reserved:
            raise make_error(100 if magic == b"AR" and major != 1 else 101)
        if major != 1:
            raise make_error(100)
        if len(parts[1]) > BODY_BYTES or (len(parts) == 3 and len(parts[2]) > BLOB_BYTES):
            raise make_error(104)
        self.raw = parts[1]
        self.blob: Optional[bytes] = parts[2] if len(parts) == 3 else None

    def map(self) -> Dict[str, Any]:
        body = unpack(self.raw)
        if not isinstance(body, dict):
            raise make_error(103)
        return body

    def ids(self) -> List[int]:
        return read_ids(self.blob or b"")


def read_ids(blob: bytes) -> List[int]:
    if len(blob) % 4:
        raise make_error(103)
    return list(struct.unpack(f"<{len(blob) // 4}I", blob))


def write_ids(ids: List[int]) -> bytes:
    try:
        return struct.pack(f"<{len(ids)}I", *ids)
    except struct.error as e:
        raise make_error(301, "ids are numbers of 32 bits") from e


def need(body: Dict[str, Any], key: str, kind: type) -> Any:
    """A value that must be there; True is no number."""
    value = body.get(key)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise make_error(103, f"the daemon sent no {key}")
    return value


def the_map(value: Any) -> Dict[str, Any]:
    """A result that is a map."""
    if not isinstance(value, dict):
        raise make_error(103, "the daemon's result is no map")
    return value


def the_maps(value: Any) -> List[Dict[str, Any]]:
    if not isinstance(value, list):
        raise make_error(103, "the daemon's result is no list")
    return [the_map(v) for v in value]


def window_of(welcome: Dict[str, Any], window: int) -> int:
    """How far ahead of what was read we may grant: the daemon takes no more than it says. Who believes
    that more was granted never grants again."""
    limits = welcome.get("limits")
    most = limits.get("window") if isinstance(limits, dict) else None
    return min(window, most) if isinstance(most, int) and most > 0 else window


def read_keys(path: Optional[str], server: Optional[str]) -> List[Tuple[int, bytes]]:
    """The socket options of CURVE, from a certificate of ours and the daemon's public key."""
    if path is None and server is None:
        return []
    if path is None or server is None or len(server) != 40:
        raise make_error(300, "key and server_key belong together; server_key is Z85 of 40 characters")
    with open(path, encoding="ascii", errors="replace") as file:
        found = dict(re.findall(r'(public-key|secret-key) = "([^"\n]{40})"', file.read()))
    if len(found) != 2:
        raise make_error(300, "this file is no certificate with a secret key")
    return [(zmq.CURVE_PUBLICKEY, found["public-key"].encode()),
            (zmq.CURVE_SECRETKEY, found["secret-key"].encode()),
            (zmq.CURVE_SERVERKEY, server.encode())]
