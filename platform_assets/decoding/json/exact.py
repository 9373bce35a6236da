"""The exact path: it decodes one value at a time, with Python's parser and the rules in docs/json-dialect.md. It
decides every case."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from platform_assets.decoding.decoder import DeadLetter, DecodeFault, text_of
from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.faults import Fault, brief, place
from platform_assets.decoding.json.scalars import Number, scalar_reader

_JSON_SPACE: Final = r"[ \t\n\r]*"
_NAME: Final = re.compile(rf'{_JSON_SPACE}("[^"\\]*+(?:\\.[^"\\]*+)*+"){_JSON_SPACE}:{_JSON_SPACE}')
_BEHIND: Final = re.compile(rf"{_JSON_SPACE}([,}}\]]){_JSON_SPACE}")
"""Pattern of the text after a field or an element: a comma, or the end of the object or array."""
_OPENING: Final = re.compile(rf"[{{\[]{_JSON_SPACE}([}}\]]?)")
_SCAN: Final = json.JSONDecoder(parse_float=str, parse_int=str).raw_decode
"""Function, written in C, that finds the end of a value. Numbers stay strings, because converting many digits is slow.
"""

Path = tuple[str | int, ...]


def rescue(text: str, fields: pa.Schema) -> str:
    """Return a JSON object with those fields of `text` that `fields` lacks. `text` is a JSON object that was already
    decoded successfully."""
    found: list[tuple[str, str]] = []
    start = len(text) - len(text.lstrip(" \t\n\r"))
    _object(text, start, {field.name: field.type for field in fields}, (), found)
    return "{" + ",".join(f"{name}:{value}" for name, value in found) + "}"


def _object(text: str, at: int, types: dict[str, pa.DataType], path: Path, found: list[tuple[str, str]]) -> int:
    """Walk through the object at `at`, adding rescued fields to `found`. Return the end of the object."""
    at, is_empty = _opened(text, at)
    while not is_empty:
        start = _NAME.match(text, at)
        assert start is not None, "the text is JSON"
        written, at = start[1], start.end()
        name: str = json.loads(written) if "\\" in written else written[1:-1]
        if name in types:
            at = _value(text, at, types[name], (*path, name), found)
        else:
            _, end = _SCAN(text, at)
            by_path = path or name.startswith("$")
            found.append((json.dumps(place((*path, name))) if by_path else written, text[at:end]))
            at = end
        at, is_empty = _behind(text, at)
    return at


def _map(text: str, at: int, kind: pa.DataType, path: Path, found: list[tuple[str, str]]) -> int:
    """Walk through the map at `at`, whose values have the type `kind`. Return the end of the map."""
    at, is_empty = _opened(text, at)
    while not is_empty:
        start = _NAME.match(text, at)
        assert start is not None, "the text is JSON"
        at, is_empty = _behind(text, _value(text, start.end(), kind, (*path, json.loads(start[1])), found))
    return at


def _value(text: str, at: int, kind: pa.DataType, path: Path, found: list[tuple[str, str]]) -> int:
    """Walk through the value at `at`, adding the fields that `kind` lacks to `found`. Return the end of the value."""
    if not _has_fields(kind) or text[at] not in "{[":
        return int(_SCAN(text, at)[1])
    if pa.types.is_map(kind):
        return _map(text, at, kind.item_type, path, found)
    if text[at] == "{":
        return _object(text, at, {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}, path, found)
    at, is_empty = _opened(text, at)
    index = 0
    while not is_empty:
        at, is_empty = _behind(text, _value(text, at, kind.value_type, (*path, index), found))
        index += 1
    return at


def _has_fields(kind: pa.DataType) -> bool:
    """Return True if values of a type contain objects."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return bool(pa.types.is_struct(kind))


def _opened(text: str, at: int) -> tuple[int, bool]:
    """Return the start of the first part of the object or array at `at`, and False. If the object or array is empty,
    return its end and True."""
    found = _OPENING.match(text, at)
    assert found is not None, "the text is JSON"
    return found.end(), bool(found[1])


def _behind(text: str, at: int) -> tuple[int, bool]:
    """Return the start of the part that follows the part ending at `at`, and False. After the last part, return the end
    of the object or array, and True."""
    found = _BEHIND.match(text, at)
    assert found is not None, "the text is JSON"
    return (found.end(), False) if found[1] == "," else (found.end(1), True)


Row = dict[str, Any]
Read = Callable[[Any, "Facts"], Any]
Scalars = Callable[[pa.DataType], Callable[[Any], Any]]
"""Function that returns the reader for a type that is not nested."""

_BRACKET: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{])|([\]}])', re.DOTALL)


_SPACE: Final = " \t\n\r"


class Facts:
    """Facts about a value that are not in its columns."""

    __slots__ = ("lacking",)

    def __init__(self) -> None:
        self.lacking = False
        """True if the value has fields that the schema lacks."""


class Twice(dict[str, Any]):
    """An object with a duplicate field."""

    name: str


def decode_rows(
    values: list[bytes | None], dialect: Dialect
) -> tuple[list[Row | None], list[str | None], list[DeadLetter]]:
    """Return rows, rescued fields as strings, and dead letters. For null and dead values, the row and the rescued
    string are None."""
    read = _object_reader(dialect)
    rows: list[Row | None] = []
    rescued: list[str | None] = []
    dead: list[DeadLetter] = []
    for index, value in enumerate(values):
        row, lacking = None, None
        if value is not None:
            try:
                row, lacking = _decode(value, dialect, read)
            except DecodeFault as fault:
                dead.append(DeadLetter(index, fault.reason, fault.place, fault.detail))
        rows.append(row)
        rescued.append(lacking)
    return rows, rescued, dead


def columns_of(rows: list[Row | None], fields: pa.Schema) -> list[pa.Array]:
    """Return rows as columns."""
    if not any(rows):
        return [pa.nulls(len(rows), field.type) for field in fields]
    return [pa.array([None if row is None else row[field.name] for row in rows], field.type) for field in fields]


def _decode(value: bytes, dialect: Dialect, read: Read) -> tuple[Row, str | None]:
    """Decode a value. Return its row, by column, and its rescued fields as a string. Raises DecodeFault."""
    text, document = parsed(value, dialect.max_bytes, dialect.max_depth)
    seen = Facts()
    try:
        row: Row = read(document, seen)
    except Fault as fault:
        fault.locate()
        if document.keys() == {"schema", "payload"} and "payload" not in dialect.fields.names:
            fault.detail += (
                "; the value is Kafka Connect's {schema, payload}: set `schemas.enable=false` in its converter, or "
                "declare payload STRUCT<…>"
            )
        raise
    return row, rescue(text, dialect.fields) if seen.lacking else None


def parsed(value: bytes, max_bytes: int, max_depth: int) -> tuple[str, dict[str, Any]]:
    """Return the text of a value and the object in it. Raises DecodeFault."""
    text = text_of(value, max_bytes)
    _judge_depth(text, max_depth)
    try:
        document = _parse(text)
    except DecodeFault as fault:
        fault.detail += _of_a_registry(value)
        raise
    if not isinstance(document, dict):
        raise DecodeFault("wrong_type", "the value is not an object")
    return text, document


def text_at(text: str, *path: str) -> str:
    """Return the text of the field at `path`, which leads through objects from the outermost one. `text` is a JSON
    object that was already parsed, in which the field exists."""
    at = len(text) - len(text.lstrip(_SPACE))
    for wanted in path:
        at, _ = _opened(text, at)
        while True:
            start = _NAME.match(text, at)
            assert start is not None, "the text is JSON"
            at = start.end()
            if json.loads(start[1]) == wanted:
                break
            at, _ = _behind(text, int(_SCAN(text, at)[1]))
    return text[at : _SCAN(text, at)[1]]


def _of_a_registry(value: bytes) -> str:
    """Return a hint if the value is JSON that follows a registry's header with a schema id."""
    if value[:1] != b"\0" or value[5:6] not in (b"{", b" ", b"\n", b"\t", b"\r"):
        return ""
    return (
        f"; it begins with a registry's prefix for schema {int.from_bytes(value[1:5], 'big')}: declare `registry: true`"
    )


def _judge_depth(text: str, most: int) -> None:
    """Raise DecodeFault if an object or array is nested too deeply. If an earlier part of the text is malformed, the
    error reports that part instead."""
    if text.count("[") + text.count("{") <= most:
        return
    depth = 0
    for found in _BRACKET.finditer(text):
        if found[1]:
            depth += 1
        elif found[2]:
            depth -= 1
        if depth > most:
            at = found.start()
            try:
                _PARSER_OF_LONG.decode(text[:at] + "null")
            except json.JSONDecodeError as error:
                if error.pos <= at:
                    return  # malformed, which the parser finds before this depth
            raise DecodeFault(
                "too_deep", f"an object or array at character {at} is at level {depth}, but max_depth is {most}"
            )


def _parse(text: str, parser: json.JSONDecoder | None = None) -> Any:
    try:
        document, end = (parser or _PARSER).raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
    except json.JSONDecodeError as error:
        raise DecodeFault("malformed", f"{error.msg.removesuffix(' at')} at character {error.pos}") from None
    except ValueError:  # an integer with more digits than Python converts at once
        return _parse(text, _PARSER_OF_LONG)
    if end < len(text) and text[end:].strip(_SPACE):
        raise DecodeFault("malformed", f"text follows the first value, which ends at character {end}")
    return document


def _no_constant(name: str) -> Any:
    raise DecodeFault("malformed", f"{name} is not JSON")


def as_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object with these fields. If a field occurs twice, the object is a `Twice`."""
    fields = dict(pairs)
    if len(fields) == len(pairs):
        return fields
    twice = Twice(fields)
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            twice.name = name
            break
        names.add(name)
    return twice


_PARSER: Final = json.JSONDecoder(object_pairs_hook=as_object, parse_float=Number, parse_constant=_no_constant)
_PARSER_OF_LONG: Final = json.JSONDecoder(
    object_pairs_hook=as_object, parse_float=Number, parse_int=Number, parse_constant=_no_constant
)


@lru_cache(maxsize=64)
def _object_reader(dialect: Dialect) -> Read:
    decimals, form = dialect.decimals, dialect.form
    return reader(pa.struct(list(dialect.fields)), lambda kind: scalar_reader(kind, decimals, form))


def reader(kind: pa.DataType, scalars: Scalars) -> Read:
    """Return the reader for a type, at any depth. Readers raise Fault."""
    if pa.types.is_struct(kind):
        return _struct_reader([kind.field(i) for i in range(kind.num_fields)], scalars)
    if pa.types.is_list(kind):
        return _list_reader(kind.value_field, scalars)
    if pa.types.is_map(kind):
        return _map_reader(kind.item_field, scalars)
    read = scalars(kind)
    return lambda value, _: read(value)


def _list_reader(element: pa.Field, scalars: Scalars) -> Read:
    read_element, nullable = reader(element.type, scalars), element.nullable

    def read(value: Any, seen: Facts) -> list[Any]:
        if type(value) is not list:
            raise _no(value, "an array")
        elements = []
        for index, each in enumerate(value):
            if each is None and not nullable:
                raise Fault("missing", "is null, but required", index)
            try:
                elements.append(None if each is None else read_element(each, seen))
            except Fault as fault:
                fault.parts.append(index)
                raise
        return elements

    return read


def _map_reader(value_field: pa.Field, scalars: Scalars) -> Read:
    read_value, nullable = reader(value_field.type, scalars), value_field.nullable
    read_key = scalar_reader(pa.string(), None, "strict")

    def read(value: Any, seen: Facts) -> list[tuple[str, Any]]:
        if not isinstance(value, dict):
            raise _no(value, "an object")
        if type(value) is Twice:
            raise Fault("malformed", "the field occurs twice", value.name)
        entries = []
        for name, each in value.items():
            if each is None and not nullable:
                raise Fault("missing", "is null, but required", name)
            try:
                entries.append((read_key(name), None if each is None else read_value(each, seen)))
            except Fault as fault:
                fault.parts.append(name)
                raise
        return entries

    return read


def _struct_reader(fields: list[pa.Field], scalars: Scalars) -> Read:
    columns = [(field.name, field.nullable, reader(field.type, scalars)) for field in fields]

    def read(value: Any, seen: Facts) -> Row:
        if not isinstance(value, dict):
            raise _no(value, "an object")
        if type(value) is Twice:
            raise Fault("malformed", "the field occurs twice", value.name)
        row: Row = {}
        there = len(columns)
        for name, nullable, read_field in columns:
            each = value.get(name)
            if each is None:
                absent = name not in value
                there -= absent
                if not nullable:
                    raise Fault("missing", "is absent, but required" if absent else "is null, but required", name)
                row[name] = None
                continue
            try:
                row[name] = read_field(each, seen)
            except Fault as fault:
                fault.parts.append(name)
                raise
        if there < len(value):
            seen.lacking = True
        return row

    return read


def _no(value: object, expected: str) -> Fault:
    return Fault("wrong_type", f"found {brief(value)}, where {expected} was expected")
