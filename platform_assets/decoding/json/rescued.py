"""Fields that the schema lacks, as they were written: found in text that is known to be JSON."""

from __future__ import annotations

import json
import re
from typing import Final

import pyarrow as pa

from platform_assets.decoding.json.faults import place

_TOKEN: Final = re.compile(r'[ \t\n\r]*("[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^ \t\n\r{}\[\],:"]++)[ \t\n\r]*')

Path = tuple[str | int, ...]


def rescue(text: str, fields: pa.Schema) -> str:
    """A JSON object of the fields of `text`, a JSON object that was decoded, that `fields` lacks."""
    found: list[tuple[str, str]] = []
    _object(text, 0, {field.name: field.type for field in fields}, (), found)
    return "{" + ",".join(f"{name}:{value}" for name, value in found) + "}"


def _token(text: str, at: int) -> tuple[str, int, int]:
    """The token at or behind `at`, where it ends, and where the next one begins."""
    found = _TOKEN.match(text, at)
    assert found is not None, "the text is JSON"
    return found[1], found.end(1), found.end()


def _object(text: str, at: int, types: dict[str, pa.DataType], path: Path, found: list[tuple[str, str]]) -> int:
    """Go through the object at `at`, adding to `found`; returns where the token behind it begins."""
    _, _, at = _token(text, at)
    token, _, behind = _token(text, at)
    while token != "}":
        written, _, at = _token(text, behind if token == "," else at)
        name: str = json.loads(written)
        _, _, at = _token(text, at)
        if name in types:
            at = _value(text, at, types[name], (*path, name), found)
        else:
            end, behind = _end(text, at)
            by_path = bool(path) or name.startswith("$")
            found.append((json.dumps(place((*path, name))) if by_path else written, text[at:end]))
            at = behind
        token, _, behind = _token(text, at)
    return behind


def _value(text: str, at: int, kind: pa.DataType, path: Path, found: list[tuple[str, str]]) -> int:
    if text.startswith("{", at):
        return _object(text, at, {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}, path, found)
    if not text.startswith("[", at):
        return _token(text, at)[2]
    _, _, at = _token(text, at)
    token, _, behind = _token(text, at)
    index = 0
    while token != "]":
        at = _value(text, behind if token == "," else at, kind.value_type, (*path, index), found)
        index += 1
        token, _, behind = _token(text, at)
    return behind


def _end(text: str, at: int) -> tuple[int, int]:
    """Where the value at `at` ends, and where the token behind it begins."""
    depth = 0
    while True:
        token, end, at = _token(text, at)
        depth += (token in "{[") - (token in "}]")
        if not depth:
            return end, at
