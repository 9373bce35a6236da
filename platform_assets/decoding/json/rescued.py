"""Rescue of fields that the schema lacks, as they were written, from text that is known to be JSON."""

from __future__ import annotations

import json
import re
from typing import Final

import pyarrow as pa

from platform_assets.decoding.json.faults import place

_SPACE: Final = r"[ \t\n\r]*"
_NAME: Final = re.compile(rf'{_SPACE}("[^"\\]*+(?:\\.[^"\\]*+)*+"){_SPACE}:{_SPACE}')
_BEHIND: Final = re.compile(rf"{_SPACE}([,}}\]]){_SPACE}")
"""The text after a field or an element: a comma, or the end of the object or array."""
_OPENING: Final = re.compile(rf"[{{\[]{_SPACE}([}}\]]?)")
_SCAN: Final = json.JSONDecoder(parse_float=str, parse_int=str).raw_decode
"""Finds the end of a value, in C. Numbers stay text, since converting many digits takes long."""

Path = tuple[str | int, ...]


def rescue(text: str, fields: pa.Schema) -> str:
    """Return a JSON object with the fields of `text`, a decoded JSON object, that `fields` lacks."""
    found: list[tuple[str, str]] = []
    start = len(text) - len(text.lstrip(" \t\n\r"))
    _object(text, start, {field.name: field.type for field in fields}, (), found)
    return "{" + ",".join(f"{name}:{value}" for name, value in found) + "}"


def _object(text: str, at: int, types: dict[str, pa.DataType], path: Path, found: list[tuple[str, str]]) -> int:
    """Walk through the object at `at`, adding to `found`; return its end."""
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
    """Walk through the map at `at`, whose values have type `kind`; return its end."""
    at, is_empty = _opened(text, at)
    while not is_empty:
        start = _NAME.match(text, at)
        assert start is not None, "the text is JSON"
        at, is_empty = _behind(text, _value(text, start.end(), kind, (*path, json.loads(start[1])), found))
    return at


def _value(text: str, at: int, kind: pa.DataType, path: Path, found: list[tuple[str, str]]) -> int:
    """Walk through the value at `at`, which may have more fields than `kind`; return its end."""
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
    """Return true if values of a type contain objects."""
    while pa.types.is_list(kind) or pa.types.is_map(kind):
        kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
    return bool(pa.types.is_struct(kind))


def _opened(text: str, at: int) -> tuple[int, bool]:
    """Return the start of the first part of the object or array at `at`; or its end, and true, if it is empty."""
    found = _OPENING.match(text, at)
    assert found is not None, "the text is JSON"
    return found.end(), bool(found[1])


def _behind(text: str, at: int) -> tuple[int, bool]:
    """Return the start of the part after the one that ends at `at`; or the end of the object or array, and true."""
    found = _BEHIND.match(text, at)
    assert found is not None, "the text is JSON"
    return (found.end(), False) if found[1] == "," else (found.end(1), True)
