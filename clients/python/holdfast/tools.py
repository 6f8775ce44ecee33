"""Plain functions as tools: described by their signature, called with what the model wrote."""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any, Callable, Dict, Iterable, Mapping, Sequence, Union

Tool = Union[str, Mapping[str, Any], Callable[..., Any]]
_NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", dict: "object",
          list: "array"}


def _schema(hint: Any) -> Dict[str, Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin is Union or str(origin) == "<class 'types.UnionType'>":
        left = [a for a in arguments if a is not type(None)]
        return _schema(left[0]) if len(left) == 1 else {}
    if origin in (list, tuple, set) or origin in (typing.Sequence, Sequence):
        return {"type": "array", "items": _schema(arguments[0])} if arguments else {"type": "array"}
    kind = _NAMES.get(origin or hint)
    return {"type": kind} if kind else {}


def describe(function: Callable[..., Any]) -> Dict[str, Any]:
    """The tool that a function is: its name, the first paragraph of its text, its parameters."""
    try:
        hints = typing.get_type_hints(function)
    except Exception:  # a hint that names what is not there is no reason to refuse the function
        hints = {}
    properties: Dict[str, Dict[str, Any]] = {}
    required = []
    for name, p in inspect.signature(function).parameters.items():
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        if p.kind == p.POSITIONAL_ONLY:
            raise TypeError(f"{function.__name__}: {name} cannot be given by its name")
        properties[name] = _schema(hints.get(name, str if p.default is p.empty else type(p.default)))
        if p.default is p.empty:
            required.append(name)
    text = inspect.getdoc(function) or ""
    return {"type": "function", "function": {
        "name": function.__name__, "description": text.split("\n\n")[0].replace("\n", " "),
        "parameters": {"type": "object", "properties": properties, "required": required}}}


def as_json(tool: Tool) -> str:
    if isinstance(tool, str):
        return tool
    return json.dumps(describe(tool) if callable(tool) else tool)


def by_name(tools: Union[Mapping[str, Callable[..., Any]], Iterable[Callable[..., Any]]]
            ) -> Dict[str, Callable[..., Any]]:
    if isinstance(tools, Mapping):
        return dict(tools)
    return {f.__name__: f for f in tools}


def prepare(tools: Mapping[str, Callable[..., Any]], name: str, arguments: str) -> Callable[[], Any]:
    """The call that the model asked for, bound; ValueError, in words for the model, if it is none."""
    function = tools.get(name)
    if function is None:
        raise ValueError(f"there is no tool {name}")
    try:
        given = json.loads(arguments or "{}")
    except ValueError as e:
        raise ValueError("the arguments are not JSON") from e
    if not isinstance(given, dict):
        raise ValueError("the arguments are not an object")
    try:
        bound = inspect.signature(function).bind(**given)
    except TypeError as e:
        raise ValueError(str(e)) from e
    return lambda: function(*bound.args, **bound.kwargs)


def as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    if isinstance(result, (bytes, bytearray)):
        return bytes(result).decode(errors="replace")
    return json.dumps(result, ensure_ascii=False, default=str)
