"""Schemas that a hostile registry may return: too deep, too many, circular, with wrong types or odd names."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Final

from platform_assets_tests.fuzzing.target import damaged
from platform_assets_tests.support.avro_data import record
from platform_assets_tests.support.proto_data import proto

_DEEP: Final = (50, 99, 101, 500, 2_000, 100_000)
_NAME: Final = (
    "R",
    "",
    "a.b",
    "1",
    "a" * 100_000,
    "\0",
    "ü",
    "int",
    "record",
    "..",
    "a..b",
    "\x1b[2J",
    "\ud800",
    "n.R",
)
DECLARED: Final = record(id="long", name="string", more=["null", "string"])


class HostileSchemas:
    """Generator of hostile schemas, made from the valid schemas in `corpus`."""

    def __init__(self) -> None:
        self.corpus = [
            json.dumps(DECLARED).encode(),
            proto("message R { int64 id = 1; }").encode(),
            _a_json_schema().encode(),
        ]

    def avro(self, rng: random.Random) -> str:
        """Return an Avro schema."""
        kind = rng.random()
        if kind < 0.08:
            depth = rng.choice(_DEEP)
            return '{"type":"array","items":' * depth + '"int"' + "}" * depth
        if kind < 0.14:
            depth = rng.choice((5, 20, 60))
            schema: Any = "int"
            for level in range(depth):
                fields = [
                    {"name": "a", "type": schema},
                    {"name": "b", "type": "int" if level == 0 else f"X{level - 1}"},
                ]
                schema = {"type": "record", "name": f"X{level}", "fields": fields}
            return json.dumps({**DECLARED, "fields": [*DECLARED["fields"], {"name": "big", "type": schema}]})
        if kind < 0.2:
            return json.dumps(
                {**DECLARED, "fields": [{"name": f"f{n}", "type": "int"} for n in range(rng.choice((500, 5_000)))]}
            )
        if kind < 0.26:
            return json.dumps(["null", *(_a_record(f"U{n}", "int") for n in range(rng.choice((3, 2_000))))])
        fields = [*DECLARED["fields"]]
        for n in range(rng.choice((0, 1, 3))):
            fields.append({"name": rng.choice((f"x{n}", *_NAME)), "type": self._avro_type(rng, 0), **self._extras(rng)})
        rng.shuffle(fields)
        return json.dumps(self._odd(rng, {**DECLARED, "fields": fields}), ensure_ascii=rng.random() < 0.7)

    def _avro_type(self, rng: random.Random, level: int) -> Any:
        plain = ("null", "boolean", "int", "long", "float", "double", "bytes", "string", "R", "nothing", "")
        if level > 4 or rng.random() < 0.4:
            return rng.choice(plain)
        made: Any = rng.choice(
            (
                {"type": "array", "items": self._avro_type(rng, level + 1)},
                {"type": "map", "values": self._avro_type(rng, level + 1)},
                [self._avro_type(rng, level + 1) for _ in range(rng.randint(0, 3))],
                {
                    "type": "fixed",
                    "name": rng.choice(_NAME),
                    "size": rng.choice((0, 1, -1, 1 << 31, 1 << 63, 1.5, "x", 10**400)),
                },
                {
                    "type": "enum",
                    "name": rng.choice(_NAME),
                    "symbols": rng.choice(([], ["A"], ["A", "A"], [""], [1], "A", ["A"] * 3_000)),
                },
                {
                    "type": "bytes",
                    "logicalType": rng.choice(("decimal", "uuid", "x", "", 1)),
                    "precision": rng.choice((0, 1, 39, -1, 10**30, "9")),
                    "scale": rng.choice((0, -1, 40, 10**30)),
                },
                {
                    "type": "long",
                    "logicalType": rng.choice(("timestamp-millis", "timestamp-nanos", "date", "time-micros")),
                },
                {
                    "type": "record",
                    "name": rng.choice((*_NAME, "Q")),
                    "fields": [{"name": "y", "type": self._avro_type(rng, level + 1)}],
                },
            )
        )
        return self._odd(rng, made) if isinstance(made, dict) else made

    def _odd(self, rng: random.Random, schema: dict[str, Any]) -> dict[str, Any]:
        if rng.random() < 0.85:
            return schema
        odd: Any = rng.choice((None, 1, True, [], {}, "x", "x" * 10_000, [[]], {"type": {}}, -1))
        name = rng.choice((*schema, "aliases", "namespace", "doc", "default", "order", "type"))
        return {**schema, name: odd}

    def _extras(self, rng: random.Random) -> dict[str, Any]:
        if rng.random() < 0.6:
            return {}
        return {
            rng.choice(("default", "aliases", "order", "doc")): rng.choice(
                (None, 0, "x", [], {}, ["a"], [1], 1e400, 10**400)
            )
        }

    def json(self, rng: random.Random) -> str:
        """Return a JSON Schema."""
        kind = rng.random()
        if kind < 0.1:
            depth = rng.choice(_DEEP)
            return '{"properties":{"a":' * depth + "{}" + "}}" * depth
        if kind < 0.16:
            return json.dumps(
                {"$ref": "#"}
                if rng.random() < 0.5
                else {
                    "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {"$ref": "#/definitions/a"}},
                    "$ref": "#/definitions/a",
                }
            )
        if kind < 0.24:
            levels = rng.choice((5, 10, 28))
            definitions: dict[str, Any] = {
                f"d{n}": {"anyOf": [{"$ref": f"#/definitions/d{n + 1}"}] * 2} for n in range(levels)
            }
            return json.dumps(
                {"definitions": {**definitions, f"d{levels}": {"type": "string"}}, "$ref": "#/definitions/d0"}
            )
        return json.dumps(self._subschema(rng, 0), ensure_ascii=rng.random() < 0.7)

    def _subschema(self, rng: random.Random, level: int) -> Any:
        if level > 4:
            return rng.choice(({}, True, False, {"type": "string"}))
        words: dict[str, Callable[[], Any]] = {
            "type": lambda: rng.choice(("object", "string", ["object", "null"], "nothing", 1, None)),
            "properties": lambda: {rng.choice(("id", "name", "a")): self._subschema(rng, level + 1)},
            "patternProperties": lambda: {
                rng.choice(("^a", "(a+)+$", "[", "(?=x)", "\\p{L}", "(x{1,1000}){1,1000}", ".*" * 50)): self._subschema(
                    rng, level + 1
                )
            },
            "pattern": lambda: rng.choice(
                ("(a|a)*b", "[", "(?<n>x)\\k<n>", "((a{1,100}){1,100}){1,100}", "\\u{110000}", "")
            ),
            "allOf": lambda: [self._subschema(rng, level + 1)] * rng.choice((0, 1, 3)),
            "not": lambda: self._subschema(rng, level + 1),
            "if": lambda: self._subschema(rng, level + 1),
            "then": lambda: self._subschema(rng, level + 1),
            "items": lambda: rng.choice(([], self._subschema(rng, level + 1))),
            "$ref": lambda: rng.choice(
                (
                    "#",
                    "#/properties/id",
                    "#/nothing",
                    "other",
                    "http://127.0.0.1:1/x",
                    "file:///etc/passwd",
                    "#/%",
                    "",
                    1,
                    "json-schema:///",
                    "//",
                    "http://[",
                )
            ),
            "$id": lambda: rng.choice(("x", "http://127.0.0.1:1/x", "file:///etc/passwd", "#", "", 1, "http://[", "%")),
            "$schema": lambda: rng.choice(
                (
                    "http://json-schema.org/draft-07/schema#",
                    "https://json-schema.org/draft/2020-12/schema",
                    "x",
                    1,
                    "http://127.0.0.1:1/s",
                )
            ),
            "multipleOf": lambda: rng.choice((0, -1, 1e-308, 1e308, 10**400, "x")),
            "maxLength": lambda: rng.choice((0, -1, 1 << 70, 1.5)),
            "enum": lambda: rng.choice(([], [1] * 3_000, "x", [{}])),
            "required": lambda: rng.choice((["id"], ["id", "id"], "id", [1])),
            "$dynamicRef": lambda: "#a",
            "$recursiveRef": lambda: "#",
            "$anchor": lambda: rng.choice(("a", "", 1)),
            "unevaluatedProperties": lambda: rng.choice((False, self._subschema(rng, level + 1))),
            "definitions": lambda: {"a": self._subschema(rng, level + 1)},
            "contains": lambda: self._subschema(rng, level + 1),
            "dependencies": lambda: rng.choice(({"id": ["x"]}, {"id": {}}, [], 1)),
        }
        return {word: words[word]() for word in rng.sample(sorted(words), rng.randint(0, 4))}

    def protobuf(self, rng: random.Random) -> str:
        """Return a Protobuf file."""
        kind = rng.random()
        if kind < 0.08:
            depth = rng.choice((20, 100, 2_000))
            return proto("message R { " + "message A { " * depth + "}" * depth + " int64 id = 1; }")
        if kind < 0.14:
            return proto(
                f"message R {{ {' '.join(f'int64 f{n} = {n + 1};' for n in range(rng.choice((50, 5_000))))} }}"
            )
        if kind < 0.22:
            return proto("message R { R r = 1; repeated R rs = 2; map<string, R> m = 3; int64 id = 4; }")
        if kind < 0.3:
            return proto(
                "message R { int64 id = 1; }",
                imports=(
                    rng.choice(
                        (
                            "a.proto",
                            "registered.proto",
                            "../../etc/passwd",
                            "google/protobuf/any.proto",
                            "/etc/passwd",
                            "b.proto",
                            "\x1b[2J.proto",
                        )
                    ),
                ),
            )
        if kind < 0.36:
            return proto("message R { int64 id = 1; }") + rng.choice(
                (
                    '\nimport public "a.proto";',
                    '\noption java_package = "x";',
                    "\n" + "/*" * 100_000,
                    "\n//" + "x" * 100_000,
                    "\nextend R {}",
                    "\0",
                    "\ud800",
                )
            )
        whole = proto(
            "message R { int64 id = 1; optional string name = 2; oneof x { int32 a = 3; Q b = 4; } }",
            "message Q { map<int32, bytes> m = 1; }",
            syntax=rng.choice(("proto3", "proto2")),
        )
        return damaged(rng, whole.encode(), self.corpus).decode(errors="replace") if rng.random() < 0.6 else whole


def _a_record(name: str, kind: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "x", "type": kind}]}


def _a_json_schema() -> str:
    return json.dumps(
        {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}, "required": ["id"]}
    )
