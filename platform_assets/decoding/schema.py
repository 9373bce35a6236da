"""Declared columns: conversion between Spark DDL and Arrow, and conversion of a subset of JSON Schema to Arrow. Pure.

This module has its own parser, which refuses types that are not in docs/json-dialect.md and shows their position. A
general SQL parser accepts nearly any word as a type.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.maps import map_type
from platform_assets.errors import ConfigurationError

RESERVED: Final = (
    "topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "tombstone", "key", "rescued", "window",
)  # fmt: skip
"""Columns that every decoded table has."""
ELEMENT: Final = "element"
"""Name of an array's elements in Arrow and Parquet. Spark writes the same name."""
MOST_LEVELS: Final = 50
"""Maximum nesting of types. The limit is needed because schemas are read recursively."""

_TYPES: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "SMALLINT": pa.int16(),
        "INT": pa.int32(),
        "BIGINT": pa.int64(),
        "FLOAT": pa.float32(),
        "DOUBLE": pa.float64(),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    }
)
_SYNONYMS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "BYTE": "TINYINT",
        "SHORT": "SMALLINT",
        "INTEGER": "INT",
        "LONG": "BIGINT",
        "REAL": "FLOAT",
        "DEC": "DECIMAL",
        "NUMERIC": "DECIMAL",
        "TIMESTAMP_LTZ": "TIMESTAMP",
    }
)
_OTHERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "TIMESTAMP_NTZ": "an instant needs a zone: declare TIMESTAMP, or STRING",
        "VARCHAR": "declare STRING",
        "CHAR": "declare STRING",
        "VARIANT": "declare the fields, as STRUCT",
    }
)
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z0-9_]+)|([<>(),:])|(\S))")
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_FORBIDDEN: Final = re.compile(r"[ ,;{}()\n\t=]")
_NULL: Final[Mapping[str, Any]] = MappingProxyType({"type": "null"})


def schema_of_ddl(ddl: str) -> pa.Schema:
    """Return the columns of a Spark DDL string, for example `id BIGINT NOT NULL, tags ARRAY<STRUCT<a: INT>>`.

    Columns without NOT NULL are nullable. Raises ConfigurationError, which shows the position.
    """
    reader = _Reader(ddl)
    fields = reader.fields(0, end="")
    return checked(pa.schema(fields), "schema")


def ddl_of_schema(schema: pa.Schema) -> str:
    """Return the Spark DDL from which `schema_of_ddl` would return `schema`."""
    return ", ".join(_field_ddl(field, " ") for field in schema)


def type_name(kind: pa.DataType) -> str:
    """Return Spark's name for a type. The type must be possible in a schema of this module."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(_field_ddl(kind.field(i), ': ') for i in range(kind.num_fields))}>"
    for name, each in _TYPES.items():
        if each == kind:
            return name
    raise ConfigurationError(f"{kind} is not a type of decoded columns; use one of: {', '.join([*_TYPES, 'DECIMAL'])}")


def schema_of_json_schema(document: Any, renamed: Mapping[str, str] = MappingProxyType({})) -> pa.Schema:
    """Return the columns for the properties of a JSON Schema (see docs/json-dialect.md). `renamed` maps properties to
    column names.

    Raises ConfigurationError, which names the path.
    """
    kind, nullable = _JsonSchema(document).kind(document, "#", ())
    if not pa.types.is_struct(kind) or nullable:
        raise ConfigurationError(
            "json_schema: # must be an object and must not allow null, because each value becomes a row"
        )
    fields = pa.schema([kind.field(i) for i in range(kind.num_fields)])
    checked(pa.schema([field.with_name(renamed.get(field.name, field.name)) for field in fields]), "json_schema")
    return fields


def checked(schema: pa.Schema, option: str) -> pa.Schema:
    """Return `schema`, after checking that a decoded table can have its columns. Raises ConfigurationError, which
    names `option`."""
    if not len(schema):
        raise ConfigurationError(f"{option}: there are no columns; a table needs at least one")
    _check_names(list(schema), option, "")
    for field in schema:
        if field.name.lower() in RESERVED:
            raise ConfigurationError(
                f"{option}: {field.name!r} is a reserved column of decoded tables ({', '.join(RESERVED)}); "
                "a field of that name cannot be a column. Leave the field out, which keeps its values in `rescued`, or rename "
                f"the field (in JSON, with option `columns`), such as {{my_{field.name.lower()}: {field.name}}}"
            )
    return schema


def _check_names(fields: list[pa.Field], option: str, place: str) -> None:
    seen: dict[str, str] = {}
    for field in fields:
        where = f"{place}{field.name}"
        if not field.name or _FORBIDDEN.search(field.name):
            raise ConfigurationError(
                f"{option}: {where!r} cannot be the name of a column: in Delta, a name must not be empty or contain "
                "one of "
                r"' ,;{}()=', a tab or a newline. Leave the field out, which keeps its values in `rescued`"
            )
        if field.name.lower() in seen:
            raise ConfigurationError(
                f"{option}: {where!r} occurs twice (also as {seen[field.name.lower()]!r}; in Delta, names that differ "
                "only by case are the same): leave one out"
            )
        seen[field.name.lower()] = field.name
        _check_names(_inner_fields(field.type), option, f"{where}.")


def _inner_fields(kind: pa.DataType) -> list[pa.Field]:
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return [kind.field(i) for i in range(kind.num_fields)] if pa.types.is_struct(kind) else []


def _field_ddl(field: pa.Field, colon: str) -> str:
    name = field.name if _PLAIN_NAME.fullmatch(field.name) else "`" + field.name.replace("`", "``") + "`"
    return f"{name}{colon}{type_name(field.type)}{'' if field.nullable else ' NOT NULL'}"


class _Reader:
    """Reader that parses a DDL string from left to right."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(f"schema: {text!r} is not text; write Spark DDL, such as 'id BIGINT NOT NULL'")
        self._text = text
        self._tokens = list(self._split())
        self._at = 0

    def _split(self) -> Iterator[tuple[str, int]]:
        end = len(self._text.rstrip())
        at = 0
        while at < end:
            found = _TOKEN.match(self._text, at, end)
            if found is None or found[4]:
                raise self._error(
                    "a name, a type, or one of < > ( ) , :", found[4] if found else "", found.start(4) if found else at
                )
            yield found[found.lastindex or 0], found.start(found.lastindex or 0)
            at = found.end()
        yield "", end

    def _error(self, expected: str, found: str, at: int) -> ConfigurationError:
        what = repr(found) if found else "the end"
        return ConfigurationError(
            f"schema: {what} at character {at + 1}, where {expected} was expected: {self._text!r}"
        )

    def _next(self) -> tuple[str, int]:
        token = self._tokens[self._at]
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def _accept(self, *words: str) -> bool:
        """Skip `words` if they come next. Return True if they were skipped."""
        there = [token.upper() for token, _ in self._tokens[self._at : self._at + len(words)]]
        if there == list(words):
            self._at += len(words)
            return True
        return False

    def _expect(self, word: str) -> None:
        if not self._accept(word):
            token, at = self._next()
            raise self._error(repr(word), token, at)

    def fields(self, level: int, end: str) -> list[pa.Field]:
        """Read fields up to the character `end`. If `end` is empty, read up to the end of the text."""
        fields: list[pa.Field] = []
        while True:
            fields.append(self._field(level))
            token, at = self._next()
            if token == end:
                return fields
            if token != ",":
                raise self._error(f"',' or {repr(end) if end else 'the end'}, or NOT NULL", token, at)

    def _field(self, level: int) -> pa.Field:
        token, at = self._next()
        if token.startswith("`"):
            name = token[1:-1].replace("``", "`")
        elif token and (token[0].isalnum() or token[0] == "_"):
            name = token
        else:
            raise self._error("a name", token, at)
        self._accept(":")
        kind = self._type(level)
        return pa.field(name, kind, nullable=not self._accept("NOT", "NULL"))

    def _type(self, level: int) -> pa.DataType:
        token, at = self._next()
        name = _SYNONYMS.get(token.upper(), token.upper())
        if level >= MOST_LEVELS:
            raise ConfigurationError(f"schema: more than {MOST_LEVELS} nested types: flatten it")
        if name in _TYPES:
            return _TYPES[name]
        if name == "DECIMAL":
            return self._decimal()
        if name == "ARRAY":
            self._expect("<")
            kind = self._type(level + 1)
            self._expect(">")
            return pa.list_(pa.field(ELEMENT, kind))
        if name == "MAP":
            return self._map(level, token, at)
        if name == "STRUCT":
            self._expect("<")
            return pa.struct(self.fields(level + 1, end=">"))
        if name in _OTHERS:
            raise ConfigurationError(
                f"schema: {token} at character {at + 1} is not a type of a decoded table: {_OTHERS[name]}"
            )
        raise self._error(
            f"a type ({', '.join([*_TYPES, 'DECIMAL(p,s)', 'ARRAY<…>', 'MAP<STRING, …>', 'STRUCT<…>'])})", token, at
        )

    def _map(self, level: int, token: str, at: int) -> pa.DataType:
        self._expect("<")
        key = self._type(level + 1)
        if key != pa.string():
            raise ConfigurationError(
                f"schema: {token} at character {at + 1} has keys of type {type_name(key)}: declare MAP<STRING, …>"
            )
        self._expect(",")
        kind = self._type(level + 1)
        self._expect(">")
        return map_type(pa.field("value", kind))

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number()
            if self._accept(","):
                scale = self._number()
            self._expect(")")
        if not (1 <= precision <= 38 and 0 <= scale <= precision):
            raise ConfigurationError(
                f"schema: DECIMAL({precision},{scale}) is not allowed: 1 ≤ precision ≤ 38, 0 ≤ scale ≤ precision"
            )
        return pa.decimal128(precision, scale)

    def _number(self) -> int:
        token, at = self._next()
        if not re.fullmatch("[0-9]{1,3}", token):
            raise self._error("a number of digits", token, at)
        return int(token)


_REFUSED: Final = (
    "allOf", "not", "if", "then", "else", "patternProperties", "dependentSchemas", "prefixItems", "$dynamicRef", "$recursiveRef",
)  # fmt: skip
_SCALARS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
)
_TEXTS: Final[Mapping[str, pa.DataType]] = MappingProxyType(
    {"date": pa.date32(), "date-time": pa.timestamp("us", tz="UTC")}
)


class _JsonSchema:
    """One JSON Schema document. `$ref` can refer to the definitions in it."""

    def __init__(self, document: Any) -> None:
        self._document = document

    def kind(self, node: Any, path: str, followed: tuple[str, ...], level: int = 0) -> tuple[pa.DataType, bool]:
        """Return the type that the schema at `path` declares, and True if the schema allows null. `followed` are the
        `$ref`s that were followed so far."""
        if level > MOST_LEVELS:
            raise ConfigurationError(f"json_schema: {path}: more than {MOST_LEVELS} nested types: flatten it")
        if not isinstance(node, Mapping):
            raise _refused(path, f"is {node!r:.60}, not an object that declares a type")
        for keyword in _REFUSED:
            if keyword in node:
                raise _refused(f"{path}/{keyword}", "is not supported, because it does not declare one type")
        if "$ref" in node:
            return self._referred(node["$ref"], path, followed, level)
        for keyword in ("anyOf", "oneOf"):
            if keyword in node:
                return self._nullable(node[keyword], f"{path}/{keyword}", followed, level)
        declared = node.get("type")
        types = list(declared) if isinstance(declared, (list, tuple)) else [declared]
        others = [each for each in types if each != "null"]
        if len(others) != 1 or len(types) > 2:
            raise _refused(f"{path}/type", f"is {declared!r:.60}; it must be one type, optionally with 'null'")
        return self._of(others[0], node, path, followed, level), "null" in types

    def _of(self, name: Any, node: Mapping[str, Any], path: str, followed: tuple[str, ...], level: int) -> pa.DataType:
        if name == "object":
            return self._struct(node, path, followed, level)
        if name == "array":
            items = node.get("items")
            if not isinstance(items, Mapping):
                raise _refused(f"{path}/items", "must be one schema, which declares the type of all elements")
            kind, nullable = self.kind(items, f"{path}/items", followed, level + 1)
            return pa.list_(pa.field(ELEMENT, kind, nullable=nullable))
        if not isinstance(name, str) or name not in _SCALARS:
            raise _refused(
                f"{path}/type", f"is {name!r:.60}; use one of: {', '.join([*_SCALARS, 'object', 'array', 'null'])}"
            )
        text = node.get("format")
        if name == "string" and isinstance(text, str) and text in _TEXTS:
            return _TEXTS[text]
        return _SCALARS[name]

    def _struct(self, node: Mapping[str, Any], path: str, followed: tuple[str, ...], level: int) -> pa.DataType:
        properties, required = node.get("properties"), node.get("required", ())
        values = node.get("additionalProperties")
        if not properties and isinstance(values, Mapping) and path != "#":
            kind, nullable = self.kind(values, f"{path}/additionalProperties", followed, level + 1)
            return map_type(pa.field("value", kind, nullable=nullable))
        if not isinstance(properties, Mapping) or not properties:
            raise _refused(f"{path}/properties", "must name the fields of the object")
        if not isinstance(required, (list, tuple)) or not set(map(str, required)) <= set(properties):
            raise _refused(f"{path}/required", "must be a list of names that are among the properties")
        if not isinstance(node.get("additionalProperties", True), bool):
            raise _refused(
                f"{path}/additionalProperties",
                "must be true or false (in both cases, `rescued` keeps the additional fields); only without `properties` "
                "can it be the schema of a map's values",
            )
        fields = []
        for name, each in properties.items():
            kind, nullable = self.kind(each, f"{path}/properties/{name}", followed, level + 1)
            fields.append(pa.field(str(name), kind, nullable=nullable or name not in required))
        return pa.struct(fields)

    def _nullable(self, choices: Any, path: str, followed: tuple[str, ...], level: int) -> tuple[pa.DataType, bool]:
        some = list(choices) if isinstance(choices, (list, tuple)) else []
        numbered = [(i, each) for i, each in enumerate(some) if each != _NULL]
        if len(some) != 2 or len(numbered) != 1:
            raise _refused(path, 'must be {"type": "null"} and one other schema, because a column has one type')
        index, other = numbered[0]
        kind, _ = self.kind(other, f"{path}/{index}", followed, level + 1)
        return kind, True

    def _referred(self, target: Any, path: str, followed: tuple[str, ...], level: int) -> tuple[pa.DataType, bool]:
        where = f"{path}/$ref"
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            raise _refused(
                where, f"is {target!r:.120}; it may only refer to the same document ('#/…'), since nothing is fetched"
            )
        if target in followed or target == "#":
            raise _refused(where, f"refers to {target!r:.120}, which contains itself: a column's type must be finite")
        node = self._document
        for part in target[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(node, Mapping) or name not in node:
                raise _refused(where, f"refers to {target!r:.120}, which does not exist")
            node = node[name]
        return self.kind(node, target, (*followed, target), level + 1)


def _refused(path: str, why: str) -> ConfigurationError:
    return ConfigurationError(f"json_schema: {path} {why}: see docs/json-dialect.md for supported schemas")
