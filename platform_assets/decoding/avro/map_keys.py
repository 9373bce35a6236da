"""Keys of Avro maps that become MAP columns. An Avro map can contain the same key twice, but a MAP cannot.

Both paths look for duplicate keys only in values that they could read completely. The two paths therefore agree on the
outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from platform_assets.decoding.avro.exact import step_to
from platform_assets.decoding.avro.plan import Either, Node, Repeated, Struct
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.maps import repeated_keys

if TYPE_CHECKING:
    from platform_assets.decoding.pieces import Marks


def has_map_columns(node: Node) -> bool:
    """Return True if any part of a node becomes a MAP."""
    if isinstance(node, Struct):
        return any(has_map_columns(part) for _, part in node.parts)
    if isinstance(node, Either):
        return has_map_columns(node.main)
    return isinstance(node, Repeated) and (node.is_map_column or has_map_columns(node.item))


def check_keys(plan: Struct, row: dict[str, Any]) -> None:
    """Raise DecodeFault for the first map in `row` that contains a key twice. `row` comes from the exact path."""
    _check(plan, row, "$")


def _check(node: Node, value: Any, place: str) -> None:
    if value is None or not has_map_columns(node):
        return
    if isinstance(node, Either):
        _check(node.main, value, place)
    elif isinstance(node, Struct):
        for name, part in node.parts:
            _check(part, value.get(name), place + step_to(name))
    elif isinstance(node, Repeated):
        seen: set[str] = set()
        has_more = has_map_columns(node.item)
        for number, item in enumerate(value):
            if node.is_map_column:
                if item["key"] in seen:
                    raise DecodeFault(
                        "wrong_type",
                        f"the map has key {item['key']!r:.60} twice, but a MAP column allows each key once: declare `maps: array`",
                        place,
                    )
                seen.add(item["key"])
            if has_more:
                _check(node.item, item, f"{place}[{number}]")


def rows_with_repeated_keys(plan: Struct, read: pa.StructArray) -> Marks:
    """Mark the rows that contain a map with a duplicate key. The rows come from the fast path."""
    marks = np.zeros(len(read), np.bool_)
    _mark(plan, read, np.arange(len(read)), marks)
    return marks


def _mark(node: Node, read: pa.Array, rows: npt.NDArray[np.int64], marks: Marks) -> None:
    """Set `marks` for the faulty rows. Item `i` of `read` belongs to row `rows[i]`."""
    if isinstance(node, Either):
        _mark(node.main, read, rows, marks)
    elif isinstance(node, Struct):
        parts = [part for _, part in node.parts if part.type is not None]
        for number, part in enumerate(parts):
            if has_map_columns(part):
                _mark(part, read.field(number), rows, marks)
    elif isinstance(node, Repeated):
        offsets = read.offsets.to_numpy()
        inside = np.repeat(rows, np.diff(offsets))
        if node.is_map_column:
            marks[inside[repeated_keys(read.values.field(0), offsets)]] = True
        if has_map_columns(node.item):
            _mark(node.item, read.values, inside, marks)
