"""Errors by their codes. The daemon's are below 700, the client's own from 700."""

from __future__ import annotations

from typing import Any, Mapping, Optional

NAMES = {
    100: "version", 101: "bad_frames", 102: "bad_type", 103: "bad_body", 104: "too_big",
    105: "unknown_field", 106: "limit",
    200: "unauthenticated", 201: "forbidden", 202: "key_revoked", 203: "routing_id",
    300: "bad_arg", 301: "out_of_range", 302: "idem_mismatch", 303: "not_found", 304: "gone",
    400: "session_busy", 401: "turn_conflict", 402: "fenced", 403: "expired",
    404: "context_full",
    500: "overloaded", 501: "no_pages", 502: "slow_consumer", 503: "deadline",
    504: "draining", 505: "audit_stalled", 506: "log_full",
    600: "internal", 601: "integrity", 602: "restarted", 603: "device",
    703: "in_use", 708: "timeout", 709: "closed",
}


class Error(Exception):
    """What ended or refused a call.

    code and name say what; retry is "no", "same", "later" or "resume"; after_ms, used, asked and
    limit are the numbers that came with it, or None.
    """

    def __init__(self, code: int, text: str = "", retry: str = "no",
                 numbers: Optional[Mapping[str, Optional[int]]] = None) -> None:
        numbers = numbers or {}
        self.code = code
        self.name = NAMES.get(code, "unknown")
        self.retry = retry
        self.after_ms = numbers.get("after_ms")
        self.used = numbers.get("used")
        self.asked = numbers.get("asked")
        self.limit = numbers.get("limit")
        super().__init__(f"{self.name}: {text}" if text else self.name)


class ProtocolError(Error):
    """1xx: one side does not speak the protocol."""


class AuthError(Error):
    """2xx: not known, or not allowed."""


class RequestError(Error):
    """3xx: the arguments."""


class SessionError(Error):
    """4xx: the state of the session."""


class ResourceError(Error):
    """5xx: not now, or not here."""


class InternalError(Error):
    """6xx: the daemon's fault."""


class LinkError(Error):
    """7xx: the connection, or the use of this client."""


_CLASSES = {1: ProtocolError, 2: AuthError, 3: RequestError, 4: SessionError,
            5: ResourceError, 6: InternalError, 7: LinkError}


def make_error(code: int, text: str = "") -> Error:
    """An error that this client found itself."""
    return _CLASSES.get(code // 100, Error)(code, text)


def read_error(body: Any) -> Error:
    """The error of a REJECT or an END, as it came."""
    if not isinstance(body, dict) or not isinstance(body.get("c"), int):
        return make_error(103, "an error without a code")
    code, text, retry = body["c"], body.get("t"), body.get("r")
    if not 100 <= code <= 699:
        return make_error(103, "an error with a code that is none")
    numbers = {key: body[key] for key in ("after_ms", "used", "asked", "limit")
               if isinstance(body.get(key), int)}
    text, why = text if isinstance(text, str) else "", body.get("why")
    return _CLASSES[code // 100](
        code, f"{text}: {why}" if isinstance(why, str) and why else text,
        retry if retry in ("no", "same", "later", "resume") else "no", numbers)
