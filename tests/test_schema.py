#!/usr/bin/env python3
"""What is written by a schema, an expression or a list must be of it; what is of it must be writable.

Method: walks at random over the masks, each text held against a plain model of what the schema means (or
Python's re); a list of valid texts for each schema, each cut into tokens in five ways, all of which the masks
must take; texts that are not of it, none of which they may take; schemas that are refused, with the reason.
With `--jsonschema` the model is the package jsonschema instead; with a number, as many walks a schema.
"""
import json
import os
import re
import subprocess
import sys

WALKER = os.path.join(os.environ.get("BUILDDIR", "build"), "tests", "form_walk")
MODEL = bool(os.environ.get("HOLDFAST_MODEL"))  # a real vocabulary is slower to walk: a part of the cases
SANITIZED = bool(os.environ.get("SANITIZE_FLAGS"))
WHY_MAX = 128  # bytes of a reason that goes over the wire


# --- The model: what a schema says of a value. ---

def same(a, b):
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    if type(a) is not type(b):
        return False
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    return a == b


def is_type(v, name):
    number = isinstance(v, (int, float)) and not isinstance(v, bool)
    return {"null": v is None, "boolean": isinstance(v, bool), "string": isinstance(v, str), "array": isinstance(v, list),
            "object": isinstance(v, dict), "number": number, "integer": number and v == int(v)}[name]


def follow(root, ref):
    at = root
    for step in ref.lstrip("#").split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        at = at[int(step)] if isinstance(at, list) else at[step]
    return at


def pattern(text):
    """ECMA-262 as Python has it: $ is the end, not the last line's; \\d and \\w are ASCII's, \\s Unicode's."""
    space = "\\s\\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
    text = text.replace("\\s", f"[{space}]").replace("\\S", f"[^{space}]")
    return re.compile(re.sub(r"(?<!\\)\$", r"\\Z", text).replace("(?<", "(?P<"), re.ASCII)


def valid(v, s, root):
    if isinstance(s, bool):
        return s

    def says(key):
        return key in s
    number = is_type(v, "number")
    checks = [
        lambda: not says("$ref") or valid(v, follow(root, s["$ref"]), root),
        lambda: all(valid(v, x, root) for x in s.get("allOf", ())),
        lambda: not says("anyOf") or any(valid(v, x, root) for x in s["anyOf"]),
        lambda: not says("oneOf") or sum(valid(v, x, root) for x in s["oneOf"]) == 1,
        lambda: not says("type") or any(is_type(v, t) for t in ([s["type"]] if isinstance(s["type"], str) else s["type"])),
        lambda: not says("enum") or any(same(v, x) for x in s["enum"]),
        lambda: not says("const") or same(v, s["const"]),
        lambda: not number or v >= s.get("minimum", v),
        lambda: not number or v <= s.get("maximum", v),
        lambda: not number or not says("exclusiveMinimum") or v > s["exclusiveMinimum"],
        lambda: not number or not says("exclusiveMaximum") or v < s["exclusiveMaximum"],
        lambda: not isinstance(v, str) or s.get("minLength", 0) <= len(v) <= s.get("maxLength", len(v)),
        lambda: not isinstance(v, str) or not says("pattern") or pattern(s["pattern"]).search(v) is not None,
        lambda: not isinstance(v, list) or valid_list(v, s, root),
        lambda: not isinstance(v, dict) or valid_object(v, s, root),
    ]
    return all(check() for check in checks)


def valid_list(v, s, root):
    prefix = s.get("prefixItems", [])
    return (s.get("minItems", 0) <= len(v) <= s.get("maxItems", len(v))
            and all(valid(x, p, root) for x, p in zip(v, prefix))
            and all(valid(x, s.get("items", True), root) for x in v[len(prefix):]))


def valid_object(v, s, root):
    listed, patterns = s.get("properties", {}), s.get("patternProperties", {})
    for key, x in v.items():
        by = [p for p in patterns if pattern(p).search(key)]
        if key in listed and not valid(x, listed[key], root) or not all(valid(x, patterns[p], root) for p in by):
            return False
        if key not in listed and not by and not valid(x, s.get("additionalProperties", True), root):
            return False
        if not valid(key, s.get("propertyNames", True), root):
            return False
    return (all(k in v for k in s.get("required", ()))
            and s.get("minProperties", 0) <= len(v) <= s.get("maxProperties", len(v)))


# --- The cases: a schema, values that it takes, texts that it does not. ---

def obj(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required, **more}


S, I, N, B = {"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}
TREE = {"$defs": {"node": obj({"name": S, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 3}},
                              ["name"])}, "$ref": "#/$defs/node"}
EXPRESSION = {"$defs": {"e": {"anyOf": [I, {"type": "array", "prefixItems": [{"enum": ["+", "*"]}, {"$ref": "#/$defs/e"},
                                                                             {"$ref": "#/$defs/e"}],
                                            "items": False, "minItems": 3}]}}, "$ref": "#/$defs/e"}
CHAIN = obj({"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}})
HARD = "(" * 30 + "a" + ")*" * 30
SCHEMAS = [
    (S, ["", "a b", "\u00e9\n\"\\\u0001\U0001f642"], ["a", "\"", "\"\t\"", "1", " \"\"", "\"\" "]),
    (I, [0, -1, 12, 10**17, -999999999999999999], ["01", "1.0", "1e3", "+1", "", "- 1", "1000000000000000000"]),
    (N, [0, -0.5, 1.5e-7, 12.25, 3], ["1.", ".5", "1e", "00", "--1", "0x1", "NaN"]),
    (B, [True, False], ["True", "0", "tru", "\"true\""]),
    ({"type": "null"}, [None], ["nul", "None"]),
    ({"type": ["string", "null"]}, ["x", None], ["1", "true"]),
    ({"type": ["integer", "number"]}, [1, 1.5], ["\"1\""]),
    ({"enum": ["red", "green", "r", 1, 12, None, {"a": [1, 2]}, 1.5]},
     ["red", "r", 1, 12, None, {"a": [1, 2]}, 1.5], ["\"gree\"", "2", "{\"a\": [1]}", "121"]),
    ({"enum": ["a", "bb", "ccc", 3, "dddd"], "type": "string", "minLength": 2, "maxLength": 3}, ["bb", "ccc"],
     ["\"a\"", "3", "\"dddd\""]),
    ({"enum": [1, 2, 3, 4.5, "x"], "type": "integer", "minimum": 2}, [2, 3], ["1", "4.5", "\"x\""]),
    ({"enum": ["ab", "b"], "pattern": "^a"}, ["ab"], ["\"b\""]),
    ({"const": "only \"this\""}, ["only \"this\""], ["\"only\""]),
    ({"const": {"b": 1, "a": [True, None]}}, [{"b": 1, "a": [True, None]}], ["{}"]),
    ({"type": "string", "minLength": 2, "maxLength": 4}, ["ab", "\u00e9\u00e9", "\n\n\n\n", "\U0001f642\U0001f642\U0001f642"],
     ["\"a\"", "\"abcde\"", "\"\\n\""]),
    ({"type": "string", "maxLength": 0}, [""], ["\"a\""]),
    ({"type": "string", "minLength": 5}, ["abcde", "abcdef"], ["\"abcd\""]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ["a", "abc"], ["\"\"", "\"A\"", "\"ab1\"", "\"ab\\n\""]),
    ({"type": "string", "pattern": "b"}, ["b", "abc", "\nb"], ["\"\"", "\"ac\""]),
    ({"type": "string", "pattern": "^\\d{4}-\\d{2}-\\d{2}$"}, ["2024-01-31"], ["\"2024-1-31\"", "\"x2024-01-31\""]),
    ({"type": "string", "pattern": "^(foo|bar)*$", "minLength": 4, "maxLength": 9}, ["foobar", "barbarbar"],
     ["\"foo\"", "\"\"", "\"foobarfoobar\""]),
    ({"type": "string", "pattern": "^[^\"\\\\]{1,3}$"}, ["a", "\u00e9\n\u0001"], ["\"\\\"\"", "\"\"", "\"abcd\""]),
    ({"type": "string", "pattern": "^[\"\\\\\\n\\u0001/]{2}$"}, ["\"\\", "\n\u0001", "//"], ["\"ab\""]),
    ({"type": "string", "pattern": "^[\u00e0-\u00ff\u4e00-\u9fff]+$"}, ["\u00e9", "\u4e2d\u6587"], ["\"a\"", "\"\u00c0\""]),
    ({"type": "string", "pattern": "^\\w+@\\w+\\.(com|org)$"}, ["me@example.com"], ["\"me@example\"", "\"@a.com\""]),
    ({"type": "string", "pattern": HARD}, ["", "aaaa", "b"], ["a"]),
    ({"type": "string", "pattern": "^(a+)+$", "maxLength": 40}, ["a" * 40], ["\"" + "a" * 41 + "\"", "\"aab\""]),
    ({"type": "string", "pattern": "^a{2,5}?b??$"}, ["aa", "aaaaab"], ["\"a\"", "\"aaaaaa\""]),
    ({"type": "string", "pattern": "^$|^x$"}, ["", "x"], ["\"xx\""]),
    ({"allOf": [{"type": "string", "pattern": "^a"}, {"pattern": "z$"}, {"maxLength": 5}]}, ["az", "abcz"],
     ["\"a\"", "\"abcdez\""]),
    ({"type": "integer", "minimum": 3, "maximum": 12}, list(range(3, 13)), ["2", "13", "-5", "100", "3.5"]),
    ({"type": "integer", "minimum": -120, "maximum": -7}, [-120, -7, -99, -100], ["-6", "-121", "7", "0"]),
    ({"type": "integer", "exclusiveMinimum": -2, "exclusiveMaximum": 2}, [-1, 0, 1], ["-2", "2"]),
    ({"type": "integer", "minimum": 0}, [0, 7, 123456789], ["-1"]),
    ({"type": "integer", "maximum": 0}, [0, -7], ["1"]),
    ({"type": "integer", "minimum": 1.5, "maximum": 4.2e0}, [2, 3, 4], ["1", "5"]),
    ({"type": "integer", "minimum": 999, "maximum": 1001}, [999, 1000, 1001], ["998", "1002"]),
    ({"type": "number", "minimum": 0, "maximum": 1}, [0, 1, 0.5, 0.25, 0.999999], ["1.1", "-0.1", "1.000001", "2"]),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, [0.5, 0.001], ["0", "1", "0.0", "1.0"]),
    ({"type": "number", "minimum": -1.25, "maximum": 10.75}, [-1.25, -1.2, 10.75, 10.7, 10, 0.5, -0.75],
     ["-1.26", "10.76", "11", "-2", "10.751"]),
    ({"type": "number", "minimum": 1e-3, "exclusiveMaximum": 2.5E1}, [0.001, 24.999999, 0.0011], ["0.0009", "25", "25.0"]),
    ({"type": "number", "maximum": -0.5}, [-0.5, -1, -100.25], ["0", "-0.4", "-0.49"]),
    ({"allOf": [{"type": "number", "minimum": 5}, {"maximum": 6}]}, [5, 5.5, 6], ["4.9", "6.1"]),
    ({"type": "array", "items": I}, [[], [1], [1, 2, 3]], ["[1,2]", "[1, ]", "[,]", "[\"1\"]", "["]),
    ({"type": "array", "items": B, "minItems": 2, "maxItems": 3}, [[True, False], [True, True, True]],
     ["[]", "[true]", "[true, true, true, true]"]),
    ({"type": "array", "maxItems": 0}, [[]], ["[1]"]),
    ({"type": "array", "prefixItems": [S, I], "items": B}, [[], ["a"], ["a", 1], ["a", 1, True, False]], ["[1]", "[\"a\", 1, 2]"]),
    ({"type": "array", "prefixItems": [I, I], "items": False, "minItems": 1}, [[1], [1, 2]], ["[]", "[1, 2, 3]"]),
    ({"type": "array", "items": {"type": "array", "items": I, "maxItems": 2}, "maxItems": 2}, [[[], [1, 2]]], ["[[1, 2, 3]]"]),
    ({"type": "array", "items": {"anyOf": [I, S, {"type": "null"}]}, "maxItems": 4}, [[1, "a", None]], ["[true]"]),
    (obj({"a": S, "b": I}), [{"a": "x", "b": 1}], ["{\"b\": 1, \"a\": \"x\"}", "{\"a\": \"x\"}", "{\"a\":\"x\",\"b\":1}", "{}"]),
    (obj({"a": I, "b": I, "c": I, "d": I}, ["b", "d"]),
     [{"b": 1, "d": 2}, {"a": 0, "b": 1, "d": 2}, {"b": 1, "c": 1, "d": 2}, {"a": 1, "b": 1, "c": 1, "d": 2}],
     ["{\"a\": 1, \"d\": 1}", "{\"d\": 1}", "{\"b\": 1, \"d\": 1, \"c\": 1}"]),
    (obj({"a": I, "ab": I, "abc": I}, []), [{}, {"ab": 1}, {"a": 1, "abc": 2}], ["{\"abc\": 1, \"a\": 1}", "{\"b\": 1}"]),
    (obj({"k\"ey\n": I, "\u00e9": I, "": I}, [""]), [{"k\"ey\n": 1, "": 2}, {"\u00e9": 1, "": 2}], ["{}"]),
    (obj({"a": I}, ["a"], additionalProperties=S), [{"a": 1}, {"a": 1, "b": "x", "aa": "y"}],
     ["{\"a\": \"x\"}", "{\"a\": 1, \"a\": \"x\"}", "{\"b\": \"x\"}"]),
    ({"type": "object"}, [{}, {"x": [1, {"y": None}]}], ["{x: 1}", "{\"a\"}"]),
    ({"type": "object", "additionalProperties": I}, [{}, {"x": 1, "y": 2}], ["{\"x\": \"1\"}"]),
    ({"type": "object", "additionalProperties": False}, [{}], ["{\"a\": 1}"]),
    ({"type": "object", "additionalProperties": B, "minProperties": 1}, [{"a": True}], ["{}"]),
    (obj({"a": I, "b": I, "c": I}, [], minProperties=2), [{"a": 1, "b": 1}, {"b": 1, "c": 1}, {"a": 1, "b": 1, "c": 1}],
     ["{}", "{\"a\": 1}", "{\"c\": 1}"]),
    (obj({"a": I, "b": I, "c": I}, ["c"], maxProperties=2), [{"c": 1}, {"a": 1, "c": 1}], ["{\"a\": 1, \"b\": 1, \"c\": 1}"]),
    ({"type": "object", "patternProperties": {"^n_": I, "^s_": S}, "additionalProperties": False},
     [{}, {"n_a": 1, "s_b": "x"}], ["{\"n_a\": \"x\"}", "{\"x\": 1}"]),
    (obj({"id": I}, ["id"], patternProperties={"^x-": S}, additionalProperties=B), [{"id": 1, "x-a": "b", "c": True}],
     ["{\"id\": 1, \"x-a\": true}"]),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": I}, [{"abc": 1}],
     ["{\"abcd\": 1}", "{\"\": 1}"]),
    ({"type": "object", "required": ["a"], "additionalProperties": I}, [{"a": 1}, {"a": 1, "b": 2}], ["{}", "{\"a\": \"x\"}"]),
    ({"type": "object", "required": ["z"]}, [{"z": [None]}], ["{}"]),
    (obj({"in": obj({"deep": obj({"x": B})})}), [{"in": {"deep": {"x": True}}}], ["{\"in\": {}}"]),
    ({"anyOf": [I, S]}, [1, "a"], ["true"]),
    ({"anyOf": [obj({"a": I}), obj({"a": I, "b": I}), obj({"a": S})]}, [{"a": 1}, {"a": 1, "b": 2}, {"a": "x"}], ["{\"b\": 1}"]),
    ({"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "string", "pattern": "^a*b$"}, {"type": "string", "maxLength": 2}]},
     ["aaa", "aab", "b", "zz"], ["\"zzz\""]),
    ({"anyOf": [{"type": "array", "items": I}, {"type": "array", "items": N}, {"type": "array", "items": S}]}, [[1, 2], [1, 2.5], ["a"]],
     ["[1, \"a\"]"]),
    ({"type": "object", "properties": {"a": I, "b": I}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
     [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}], ["{}"]),
    ({"oneOf": [I, S, {"type": "null"}]}, [1, "x", None], ["true"]),
    ({"oneOf": [obj({"kind": {"const": "a"}, "x": I}), obj({"kind": {"const": "b"}, "y": S})]},
     [{"kind": "a", "x": 1}, {"kind": "b", "y": "z"}], ["{\"kind\": \"a\", \"y\": \"z\"}"]),
    ({"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 10}]}, [1, 10, -5], ["5"]),
    ({"oneOf": [{"type": "string", "maxLength": 2}, {"type": "string", "minLength": 3, "maxLength": 5}]}, ["a", "abc"], ["\"abcdef\""]),
    ({"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "^b"}]}, ["a", "bc"], ["\"c\""]),
    ({"oneOf": [obj({"a": I}), obj({"b": I})]}, [{"a": 1}, {"b": 1}], ["{\"a\": 1, \"b\": 1}"]),
    ({"oneOf": [{"$ref": "#/$defs/p"}, {"$ref": "#/$defs/q"}], "$defs": {"p": obj({"t": {"enum": ["p", "pp"]}}),
                                                                         "q": obj({"t": {"const": "q"}, "n": I}, ["t"])}},
     [{"t": "pp"}, {"t": "q"}, {"t": "q", "n": 1}], ["{\"t\": \"r\"}"]),
    (TREE, [{"name": "a"}, {"name": "a", "children": [{"name": "b", "children": []}, {"name": "c"}]}], ["{\"children\": []}"]),
    (EXPRESSION, [1, ["+", 1, ["*", 2, 3]]], ["[\"+\", 1]", "[\"-\", 1, 2]"]),
    (CHAIN, [{"next": None}, {"next": {"next": {"next": None}}}], ["{}", "{\"next\": {}}"]),
    ({"$ref": "#/$defs/a%25b~1c", "$defs": {"a%b/c": I}}, [5], ["\"5\""]),
    ({"definitions": {"x": {"$ref": "#/definitions/y"}, "y": B}, "type": "array", "items": {"$ref": "#/definitions/x"}}, [[True]], ["[1]"]),
    ({"anyOf": [{"$ref": "#/$defs/s"}, S], "$defs": {"s": {"anyOf": [I, {"$ref": "#/$defs/t"}]}, "t": {"anyOf": [B, N]}}}, [1, 1.5, True, "x"], ["null"]),
    ({"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": obj({"x": I}), "b": obj({"y": I}, [])}},
     [{"x": 1}, {"x": 1, "y": 2}], ["{\"y\": 1}"]),
    ({}, [1, "a", None, [True, {}], {"a": {"b": []}}], ["tru", "{a}"]),
    (True, [[[]]], ["x"]),
    ({"title": "T", "description": "d", "default": 3, "examples": [4], "format": "date", "x-y": {"not": 1}, "type": "integer"}, [3], ["x"]),
    ({"properties": {"a": I}}, [{}, {"a": 1}], ["{\"a\": \"x\"}"]),
    ({"minimum": 3, "maximum": 4}, [3, 3.5, 4], ["5", "2"]),
    (obj({"p%d" % i: I for i in range(80)}, ["p79"]), [{"p3": 1, "p79": 2}, {"p79": 0}], ["{\"p3\": 1}"]),
    ({"type": "array", "items": obj({"op": {"enum": ["add", "remove"]}, "path": {"type": "string", "pattern": "^/"}, "n": N}, ["op", "path"])},
     [[{"op": "add", "path": "/a"}, {"op": "remove", "path": "/b", "n": 1.5}]], ["[{\"op\": \"add\"}]"]),
    (json.loads("[" * 0 + "{}" + "]" * 0) | {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "array"}}}},
     [[[[[]]]]], ["[1]"]),
]

deep = {"type": "integer"}
for _ in range(40):
    deep = {"type": "array", "items": deep, "minItems": 1}
REFUSED = [
    ("", "not JSON"), ("{", "not JSON"), ("3", "neither an object"), ("[]", "neither an object"), ("{\"type\": 3}", "a type is none of"),
    ("{\"type\": \"strin\"}", "a type is none of"), ("{\"not\": {}}", "\"not\""), ("{\"if\": {}}", "\"if\""), ("{\"contains\": {}}", "\"contains\""),
    ("{\"dependentRequired\": {}}", "dependentRequired"), ("{\"unevaluatedProperties\": false}", "unevaluatedProperties"),
    ("{\"type\": \"number\", \"multipleOf\": 3}", "multipleOf"), ("{\"type\": \"array\", \"uniqueItems\": true}", "uniqueItems"),
    ("{\"$ref\": \"http://a/b\"}", "out of the schema"), ("{\"$ref\": \"#/x\"}", "nowhere"), ("{\"$ref\": 1}", "no string"),
    ("{\"$ref\": \"#\"}", "no answer"), ("false", "no answer"), ("{\"anyOf\": []}", "empty"), ("{\"anyOf\": 1}", "no list"),
    ("{\"enum\": []}", "empty"), ("{\"enum\": {}}", "no list"), ("{\"type\": \"object\", \"required\": \"a\"}", "list of names"),
    ("{\"type\": \"object\", \"required\": [1]}", "list of names"), ("{\"type\": \"object\", \"properties\": []}", "properties is no object"),
    ("{\"type\": \"object\", \"properties\": {\"a\": 1}}", "neither an object"), ("{\"type\": \"string\", \"minLength\": -1}", "no whole number"),
    ("{\"type\": \"string\", \"minLength\": 1e9}", "no whole number"), ("{\"type\": \"string\", \"minLength\": 1.5}", "no whole number"),
    ("{\"type\": \"string\", \"minLength\": 3000}", "minLength is more than"), ("{\"type\": \"string\", \"minLength\": 3, \"maxLength\": 2}", "no answer"),
    ("{\"type\": \"string\", \"pattern\": \"(\"}", "not closed"), ("{\"type\": \"string\", \"pattern\": \")\"}", "not opened"),
    ("{\"type\": \"string\", \"pattern\": \"[a\"}", "not closed"), ("{\"type\": \"string\", \"pattern\": \"*a\"}", "repeats nothing"),
    ("{\"type\": \"string\", \"pattern\": \"(?=a)\"}", "looks ahead"), ("{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", "looks back"),
    ("{\"type\": \"string\", \"pattern\": \"\\\\ba\"}", "word's edge"), ("{\"type\": \"string\", \"pattern\": \"\\\\p{L}\"}", "property of"),
    ("{\"type\": \"string\", \"pattern\": \"a{2,1}\"}", "repetition"), ("{\"type\": \"string\", \"pattern\": \"a{99999}\"}", "more than 1024 times"),
    ("{\"type\": \"string\", \"pattern\": \"[z-a]\"}", "wrong way"), ("{\"type\": \"string\", \"pattern\": \"a\\\\\"}", "backslash"),
    ("{\"type\": \"string\", \"pattern\": 3}", "no string"), ("{\"type\": \"string\", \"pattern\": \"\\\\u12\"}", "not whole"),
    ("{\"type\": \"string\", \"pattern\": \"(a{1000}){1000}\"}", "more than 32768 parts"),
    ("{\"type\": \"string\", \"pattern\": \"a.{30}b\"}", "more than"), ("{\"type\": \"string\", \"pattern\": \"^(a|b)*a(a|b){18}$\"}", "more than"),
    (json.dumps({"type": "string", "pattern": "(" * 100 + ")" * 100}), "deeper than 64"),
    ("{\"type\": \"string\", \"pattern\": \"^a$\", \"minLength\": 2}", "no answer"),
    ("{\"type\": \"string\", \"pattern\": \"a\", \"maxLength\": 100000}", "too long a bound"),
    ("{\"type\": \"integer\", \"minimum\": 2, \"maximum\": 1}", "no answer"), ("{\"type\": \"integer\", \"minimum\": \"1\"}", "no number"),
    ("{\"type\": \"integer\", \"minimum\": 1.2, \"maximum\": 1.8}", "no answer"),
    ("{\"type\": \"number\", \"minimum\": 1e999}", "too many digits"), ("{\"type\": \"integer\", \"minimum\": 1" + "1" * 60 + "}", "too many digits"),
    ("{\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"number\"}]}", "both be true"),
    ("{\"oneOf\": [{\"type\": \"object\"}, {\"type\": \"object\", \"required\": [\"a\"]}]}", "both be true"),
    (json.dumps({"type": "object", "properties": {"a": I, "b": I}, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}), "both be true"),
    ("{\"oneOf\": [{\"type\": \"string\", \"pattern\": \"a\"}, {\"type\": \"string\", \"pattern\": \"b\"}]}", "both be true"),
    ("{\"type\": \"object\", \"patternProperties\": {\"a\": {}, \"b\": {}}}", "match one name"),
    ("{\"items\": {\"patternProperties\": [1]}}", "patternProperties is no object"), ("{\"patternProperties\": 3}", "no object"),
    ("{\"propertyNames\": {\"type\": \"integer\"}}", "no name has"), ("{\"propertyNames\": {\"type\": [\"null\"]}, \"minItems\": 1}", "no name has"),
    ("{\"propertyNames\": {\"type\": [\"null\", \"string\"]}}", ""),
    ("{\"type\": \"object\", \"properties\": {\"a\": {}}, \"patternProperties\": {\"a\": {}}}", "matches a pattern"),
    ("{\"type\": \"object\", \"propertyNames\": {\"enum\": [\"a\"]}}", "more than a pattern"),
    ("{\"type\": \"object\", \"additionalProperties\": true, \"minProperties\": 3}", "minProperties"),
    ("{\"type\": \"object\", \"properties\": {\"a\": false}, \"required\": [\"a\"]}", "no answer"),
    ("{\"type\": \"object\", \"required\": [\"a\"], \"additionalProperties\": false}", "no answer"),
    ("{\"properties\": {\"n\": {\"$ref\": \"#\"}}, \"required\": [\"n\"]}", "no answer"),
    ("{\"type\": \"array\", \"items\": false, \"minItems\": 1}", "no answer"),
    ("{\"enum\": [[1]], \"minItems\": 1}", "other keywords beside"), ("{\"allOf\": [{\"enum\": [1]}, {\"enum\": [1]}]}", "two enums"),
    (json.dumps(deep), "nested deeper than 32"),
    ("{\"items\": " * 63 + "{}" + "}" * 63, ""), ("{\"items\": " * 64 + "{}" + "}" * 64, "JSON is nested deeper than 64"), ("{\"items\": {]", "not JSON"),
    ("{\"type\": \"integer\", \"minimum\": 1e30}", "leave only numbers of more digits"), ("{\"maximum\": -1e18}", "more digits"),
    (json.dumps({"properties": {"a": {"type": "integer", "minimum": 10**30}}, "required": ["a"]}), "more digits"),
    ("{\"type\": \"number\", \"exclusiveMinimum\": 0, \"maximum\": 1e-9}", "more digits"),
    ("{\"type\": \"number\", \"exclusiveMinimum\": 3, \"exclusiveMaximum\": 3}", "no answer"),
    ("{\"type\": \"integer\", \"minimum\": 0.1, \"maximum\": 0.9}", "no answer"), ("{\"type\": \"integer\", \"minimum\": 5, \"maximum\": 3}", "no answer"),
    (json.dumps({"properties": {"a": {"minimum": 10**30}, "b": False}, "required": ["a", "b"]}), "no answer"),
    (json.dumps({"anyOf": [{"type": "integer", "minimum": 10**30}, {"type": "null"}]}), ""), ("{\"minimum\": 1e41}", "too many digits"),
    (json.dumps({"allOf": [{"$ref": "#"}], "type": "integer"}), "more than 8 schemas"),
    (json.dumps({"anyOf": [{"type": "integer"}] * 200}), "more than 127 branches"),
    (json.dumps({"enum": ["x" * 1000 + str(i) for i in range(200)]}), "" ), # large and fine
    ("{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"a\": {}}}", "described twice"),
    (json.dumps({"$ref": "#/" + "a" * 5000}), "$ref has more than 1024"),
    (json.dumps({"d": [{}] * 1100, "prefixItems": [{"prefixItems": [{"$ref": f"#/d/{i + k}"} for i in range(100)]} for k in range(0, 1100, 100)]},
                separators=(",", ":")), "more than 1024 references"),
    (json.dumps({"properties": {f"p{i}": I for i in range(1025)}}), "more than 1024 properties"),
    (json.dumps({"allOf": [{"type": "object", "propertyNames": {"minLength": 1}}] * 2}), "names of one object"),
    (json.dumps({"patternProperties": {f"^p{i}$": I for i in range(200)}}), "patternProperties has more than 128"),
    (json.dumps({"type": "integer", "allOf": [{"minimum": i} for i in range(9)]}), "more than 8 schemas"),
    (json.dumps({"type": "integer", "allOf": [{"minimum": i, "exclusiveMinimum": i} for i in range(5)]}), "more than 8 schemas"),
    (json.dumps({"type": "number", "allOf": [{"maximum": i, "exclusiveMaximum": i} for i in range(5)]}), "more than 8 schemas"),
    (json.dumps({"type": "integer", "allOf": [{"minimum": i, "exclusiveMinimum": i} for i in range(4)]}), ""),
    (json.dumps({"items": [I], "prefixItems": [I]}), "beside prefixItems"), (json.dumps({"prefixItems": {}}), "prefixItems is no list"),
    (json.dumps({"type": "array", "prefixItems": [I] * 200}), "prefixItems has more than 128"),
    (json.dumps({"const": "x" * (256 << 10)}), "the schema has more than 262144 bytes"),
    (json.dumps({"enum": list(range(10)) * 6600}), "the form has too many parts"),
    (json.dumps({"properties": {f"p{i}": {"type": "string", "pattern": f"^(a|b)*a(a|b){{11}}{i}$"} for i in range(400)}}), "more than 31457280 steps"),
]
# Regular expressions that are none, or no regular ones.
REGEXES_REFUSED = [
    ("\\xg0", "escape is not whole"), ("\\x1", "escape is not whole"), ("\\u{1100000000}", "escape is not whole"), ("\\u{}", "escape is not whole"),
    ("\\ud800\\u0041", "half a surrogate"), ("\\udc00", "half a surrogate"), ("\\u{110000}", "half a surrogate"), ("\\q", "unknown escape"),
    ("(?<name", "group has no name"), ("^*", "repeats nothing"), ("a$+", "repeats nothing"), ("+", "repeats nothing"), ("a**", "repeats nothing"),
    ("(?!a)", "looks ahead"), ("(?<=a)b", "looks ahead"), ("(?i)a", "looks ahead"), ("(a", "not closed"), ("a)", "not opened"), ("[", "not closed"),
    ("a{2,1}", "repetition"), ("[b-a]", "wrong way"), ("\\1", "looks back"), ("\\p{L}", "property of"), ("\\B", "word's edge"), ("\\", "backslash"),
    ("a" * 16385, "more than 16384 bytes"), ("(?:" * 100, "deeper than 64"), ("a{99999}", "more than 1024 times"), ("[" + "ac" * 8190 + "]" , ""), ("(?:[a-z]{100}){1000}", "more than 32768 parts"),
    ("(" * 64 + "|" * 16256 + ")" * 64, ""), ("(" * 64 + "|" * 16320, "not closed"), # as many parts as there can be
    ("((a+)+)+b" * 40, ""), ("(a|b)*a(a|b){18}", "more than"), ("(.*a){40}", ""), ("(x+x+)+y", ""),
]
REGEXES = [
    ("a+b?", ["a", "aaab"], ["", "b", "abb"]), ("[0-9]{3}-[0-9]{4}", ["555-1234"], ["5551234", "555-12345"]),
    ("(yes|no|maybe)", ["yes", "maybe"], ["ye", "yess"]), ("\\s*x\\s*", ["x", " x\t"], ["y"]), (".*", ["", "a\u00e9\U0001f642"], ["a\nb"]),
    ("[^]{3}", ["a\n\u00e9"], ["ab"]), ("^ab$", ["ab"], ["aab"]), ("(?:a|b)+(?<n>c)", ["abc"], ["c"]), ("\\x41\\u00e9\\u{1f642}", ["A\u00e9\U0001f642"], ["A"]),
    ("", [""], ["a"]), ("a|", ["a", ""], ["b"]), ("[\\d_-]+", ["1_-"], ["a"]), ("\\W\\D\\S", [" xx", "\u00e9ab"], ["aaa", "-1a"]),
    ("(a*)*(b*)*", ["aabb", ""], ["ba c"]), ("[\u0400-\u04ff]{2}", ["\u0416\u0451"], ["ab"]),
]
CHOICES = [(["yes", "no", "yes, but", "\u00e9"], ["maybe", "ye", "yes,", ""]), (["a", "ab", "abc"], ["b", "abcd"]), (["x"], ["", "xx"])]


def model_of(argv):
    if "--jsonschema" not in argv:
        return lambda v, s: valid(v, s, s)
    import jsonschema
    return lambda v, s: jsonschema.Draft202012Validator(s).is_valid(v)


class Walker:
    def __init__(self, small=False):
        environment = {k: v for k, v in os.environ.items() if not small or k != "HOLDFAST_MODEL"}
        self.child = subprocess.Popen([WALKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8", env=environment)

    def close(self):
        self.child.stdin.close()
        return self.child.wait()

    def ask(self, **request):
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise SystemExit(f"Bail out! the walker is gone after {json.dumps(request)[:300]}")
        return json.loads(line)


class Tap:
    def __init__(self):
        self.count, self.failed = 0, False

    def line(self, what, wrong):
        self.count += 1
        for one in wrong[:5]:
            print("#", one.encode("ascii", "backslashreplace").decode()[:400])
        print(f"{'not ok' if wrong else 'ok'} {self.count} - {what}")
        self.failed |= bool(wrong)


def written(value):
    return json.dumps(value, ensure_ascii=False)


def hold(walker, name, request, good, bad, is_of):
    """What is wrong with a form: texts that are not of it, or cannot be written, or could."""
    got = walker.ask(accept=good + bad, seed=len(name) + 1, **request)
    if got["code"] != "ok":
        return [f"{name}: {got}"]
    wrong = [f"{name}: no walk came to its end"] if not MODEL and got["texts"] and not any(t is not None for t in got["texts"]) else []
    wrong += [f"{name}: wrote {text}" for text in got["texts"] if text is not None and not is_of(text)]
    wrong += [f"{name}: does not take {t} ({a})" for t, a in zip(good, got["accepts"]) if a != 1]
    return wrong + [f"{name}: takes {t}" for t, a in zip(bad, got["accepts"][len(good):]) if a != 0]


def main(argv):
    numbers = [int(a) for a in argv if a.isdigit()]
    walks = numbers[0] if numbers else 1 if MODEL else 4 if SANITIZED else 25
    walker, tap, model = Walker(), Tap(), model_of(argv)

    def schema_is(schema):
        def is_of(text):
            try:
                return model(json.loads(text), schema)
            except ValueError:
                return False
        return is_of

    wrong = []
    for schema, values, _ in SCHEMAS:
        wrong += [f"the case itself: {schema} {v}" for v in values if not model(v, schema)]
    tap.line("the cases' own values are valid", wrong)
    wrong = []
    small = Walker(small=True) if MODEL and not numbers else walker
    for i, (schema, values, bad) in enumerate(SCHEMAS):
        wrong += hold(small if i % 9 else walker, written(schema)[:120], {"kind": "schema", "text": json.dumps(schema), "walks": walks},
                      [written(v) for v in values], bad, schema_is(schema))
    if small is not walker and small.close():
        wrong.append("the walker with the small vocabulary failed")
    tap.line(f"{len(SCHEMAS)} schemas: what is written is valid, what is valid can be written", wrong)
    wrong = []
    for text, reason in REFUSED:
        got = walker.ask(kind="schema", text=text)
        if (got["code"] == "ok") != (reason == "") or reason not in got.get("reason", "") or len(got.get("reason", "")) > WHY_MAX:
            wrong.append(f"{text[:200]}: {got}")
    tap.line(f"{len(REFUSED)} schemas at the limits, each refused with its reason", wrong)
    wrong = []
    for text, reason in REGEXES_REFUSED:
        got = walker.ask(kind="regex", text=text)
        if (got["code"] == "ok") != (reason == "") or reason not in got.get("reason", "") or len(got.get("reason", "")) > WHY_MAX:
            wrong.append(f"{text[:200]}: {got}")
    tap.line(f"{len(REGEXES_REFUSED)} expressions at the limits, each refused with its reason", wrong)
    wrong = [str(choices) for choices, reason in (([], "nothing to choose"), ([""], "empty"), (["a", ""], "empty"))
             if reason not in walker.ask(kind="choices", text=choices).get("reason", "")]
    tap.line("choices that are none", wrong)
    wrong = []
    for expression, good, bad in REGEXES:
        plain = pattern(expression.replace("[^]", "(?:.|\n)").replace("\\u{1f642}", "\\U0001f642"))
        wrong += hold(walker, expression, {"kind": "regex", "text": expression, "walks": walks}, good, bad,
                      lambda text, plain=plain: plain.fullmatch(text) is not None)
    tap.line(f"{len(REGEXES)} expressions", wrong)
    wrong = []
    for choices, bad in CHOICES:
        wrong += hold(walker, str(choices), {"kind": "choices", "text": choices, "walks": walks}, choices, bad, choices.__contains__)
    tap.line("lists of choices", wrong)
    if walker.close():
        tap.line("the walker ends well", ["it does not"])
    print(f"1..{tap.count}")
    return tap.failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
