#!/usr/bin/env python3
"""Thousands of schemas that nobody wrote: each is taken or refused with a reason, soon, whatever it is.

Method: schemas made at random of all keywords, some with values that they cannot have, some of them cut or with bytes
changed. What walks over the masks write by a schema that was taken must be valid by a plain model of what it means
(tests/test_schema.py); what is refused has a code and a reason. HOLDFAST_SCHEMAS=N makes so many, SEED=N begins elsewhere."""
import json
import os
import random
import sys
import time

sys.dont_write_bytecode = True
os.environ.pop("HOLDFAST_MODEL", None)
from test_schema import SANITIZED, Tap, Walker, valid, written

COUNT = int(os.environ.get("HOLDFAST_SCHEMAS", 250 if SANITIZED else 2500))
SECONDS = 60 if SANITIZED else 15
R = random.Random(int(os.environ.get("SEED", 17)))
CODES = {"bad_arg", "unsupported", "too_big"}
PIECES = ["a", "b", "[a-f]", "\\d", "[^x]", ".", "(ab|c)", "(a|b)*", "x{2,4}", "y?", "z+", "\\w", "^", "$", "(", ")", "*", "[", "\\b", "(?=a)", "\\1",
          "a{3,1}", "(a+)+", "(.*a){12}", "[z-a]", "\\u00e9", "-", " "]


def pattern():
    return "".join(R.choice(PIECES[:14] if R.random() < 0.8 else PIECES) for _ in range(R.randrange(1, 7)))


def number():
    return R.choice([0, 1, -1, 2.5, 10, 99, -7, 1e3, 0.001, 123456, R.randrange(-50, 50), "1", None, 1e40])


def count():
    return R.choice([0, 1, 2, 3, 5, R.randrange(8)] * 4 + [-1, 1.5, "2", 5000, 10**12])


def value(depth):
    kind = R.randrange(7 if depth else 5)
    return [None, True, R.randrange(-9, 99), R.choice(["", "a", "é", "a\"b\n", "red", "blue"]), 1.5,
            [value(depth - 1) for _ in range(R.randrange(3))] if depth else 0,
            {R.choice("abc"): value(depth - 1)} if depth else 0][kind]


def keyword(depth):
    """A keyword and what it says."""
    some = lambda n: [schema(depth - 1) for _ in range(R.randrange(0 if R.random() < 0.1 else 1, n))]
    name = R.choice(["type"] * 6 + ["properties"] * 4 + ["required", "items", "items", "enum", "enum", "const", "anyOf", "anyOf", "oneOf", "allOf", "minLength",
                    "maxLength", "pattern", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minItems", "maxItems", "prefixItems",
                    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "$ref", "title", "format",
                    "not", "if", "multipleOf", "uniqueItems", "contains", "dependentRequired", "unevaluatedProperties", "x-other"])
    if name == "type":
        return name, R.choice(["object", "array", "string", "integer", "number", "boolean", "null"] * 6 + [["string", "null"], ["integer", "array"], "text", 3, []])
    if name in ("properties", "patternProperties"):
        return name, {(R.choice("abcdef") + R.choice(["", "x"]) if name == "properties" else pattern()): schema(depth - 1) for _ in range(R.randrange(4))} \
            if R.random() < 0.95 else [1]
    if name == "required":
        return name, [R.choice("abcdef") for _ in range(R.randrange(3))] if R.random() < 0.9 else R.choice(["a", [1], None])
    if name in ("anyOf", "oneOf", "allOf", "prefixItems"):
        return name, some(4) if R.random() < 0.95 else {}
    if name in ("items", "additionalProperties", "propertyNames", "not", "if", "contains", "unevaluatedProperties"):
        return name, schema(depth - 1)
    if name == "enum":
        return name, [value(2) for _ in range(R.randrange(0 if R.random() < 0.1 else 1, 5))]
    if name == "const":
        return name, value(2)
    if name == "pattern":
        return name, pattern() if R.random() < 0.95 else 7
    if name == "$ref":
        return name, R.choice(["#/$defs/p", "#/$defs/q", "#/$defs/p", "#/$defs/q", "#", "#/$defs/none", "http://a/b", 4])
    if "imum" in name or name == "multipleOf":
        return name, number()
    if name.startswith("m"):
        return name, count()
    return name, R.choice(["date", True, {"a": 1}])


def schema(depth):
    if depth <= 0 or R.random() < 0.05:
        return R.choice([{"type": "integer"}, {"type": "string", "maxLength": 4}, {"type": "boolean"}, {}, True, {"type": "null"}, False, 3])
    return dict(keyword(depth) for _ in range(R.randrange(1, 5)))


def text():
    s = schema(R.randrange(1, 5))
    if isinstance(s, dict) and "$ref" in json.dumps(s):
        s["$defs"] = {"p": schema(2), "q": schema(1)}
    t = json.dumps(s, ensure_ascii=R.random() < 0.5)
    for _ in range(R.randrange(4) if R.random() < 0.15 else 0):
        at = R.randrange(len(t) + 1)
        t = R.choice([t[:at], t[:at] + R.choice("{}[]\",:0-ea") + t[at:], t[:at] + t[at + 1:], t[:at] + t[at:at + 40] + t[at:]])
    return t


def is_valid(text, schema):
    try:
        return valid(json.loads(text), schema, schema)
    except RecursionError:
        return True


walker, tap = Walker(), Tap()
wrong, slow, taken, refused, ended, reasons = [], 0.0, 0, 0, 0, set()
for i in range(COUNT):
    t = text()
    began = time.monotonic()
    got = walker.ask(kind="schema", text=t, walks=2, seed=i + 1, string_max=40)
    slow = max(slow, time.monotonic() - began)
    if got["code"] == "ok":
        taken += 1
        meant = json.loads(t)
        for one in got["texts"]:
            ended += one is not None
            if one is not None and not is_valid(one, meant):
                wrong.append(f"{t[:300]} wrote {one[:90]}")
    else:
        refused += 1
        reasons.add(got.get("reason", ""))
        if got["code"] not in CODES or not got.get("reason"):
            wrong.append(f"{t[:300]}: {got}")
print(f"# {taken} taken, {refused} refused for {len(reasons)} reasons, {ended} of {2 * taken} walks ended, the slowest took {slow:.2f} s")
tap.line(f"{COUNT} schemas: taken or refused with a reason, what is written is valid", wrong)
tap.line("many are taken, many refused, for many reasons", [] if taken > COUNT // 10 and refused > COUNT // 10 and len(reasons) > 20 else ["no"])
tap.line(f"none takes longer than {SECONDS} s", [] if slow < SECONDS else [f"{slow} s"])
print(f"1..{tap.count}")
sys.exit(tap.failed)
