"""From what a plan reads to the columns of its reader, and to the text of what the reader lacks."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa

from platform_assets.decoding.avro.columns import as_json
from platform_assets.decoding.avro.plan import RESCUED, Either, Node, Output, Repeated, Struct


def columns_of(plan: Struct, read: pa.StructArray) -> list[pa.Array]:
    """The reader's columns, in its order: null in each row that is null in `read`, whose type is that of `plan`."""
    return _outputs(plan, read, read.flatten())


def rescued_of(plan: Struct, read: pa.StructArray) -> pa.StringArray:
    """For each row a JSON object of what the reader lacks; null where that is nothing but nulls."""
    if not _rescues(plan):
        return pa.nulls(len(read), pa.string())
    return pa.array([_text(row) for row in _rescued(plan, read).to_pylist()], pa.string())


def _text(row: object) -> str | None:
    made = as_json(row)
    return json.dumps(made, ensure_ascii=False, separators=(",", ":")) if made else None


def _outputs(node: Struct, read: pa.StructArray, children: list[pa.Array]) -> list[pa.Array]:
    assert node.outputs is not None
    parts = [part for _, part in node.parts if part.type is not None]
    return [
        _filled(output, read)
        if output.child is None
        else _assembled(parts[output.child], children[output.child], output.column.type)
        for output in node.outputs
    ]


def _assembled(node: Node, read: pa.Array, wanted: pa.DataType) -> pa.Array:
    """`read` as the reader has it."""
    if isinstance(node, Either):
        return _assembled(node.main, read, wanted)
    if read.type == wanted:
        return read
    if isinstance(node, Struct):
        children = _outputs(node, read, [read.field(number) for number in range(read.type.num_fields)])
    else:
        assert isinstance(node, Repeated)
        is_map = pa.types.is_map(wanted)
        item = pa.struct([wanted.key_field, wanted.item_field]) if is_map else wanted.value_type
        children = [_assembled(node.item, read.values, item)]
    return _rebuilt(read, wanted, children)


def _rebuilt(read: pa.Array, wanted: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """A struct or list with other children; a list of pairs may become a map."""
    assert read.offset == 0
    own = read.buffers()[: 1 if pa.types.is_struct(wanted) else 2]
    return pa.Array.from_buffers(wanted, len(read), own, read.null_count, children=children)


def _filled(output: Output, read: pa.StructArray) -> pa.Array:
    """A default for each row that is not null."""
    mask = read.is_null().to_numpy(zero_copy_only=False)
    rows = pa.array(np.zeros(len(read), np.int32), mask=mask)
    return pa.array([output.default], output.column.type).take(rows)


def _rescues(node: Node) -> bool:
    """Whether the reader lacks any of it."""
    if isinstance(node, Struct):
        return any(part.type is not None and (name.startswith(RESCUED) or _rescues(part)) for name, part in node.parts)
    if isinstance(node, Either):
        return _rescues(node.main)
    return isinstance(node, Repeated) and _rescues(node.item)


def _rescued(node: Node, read: pa.Array) -> pa.Array:
    """What the reader lacks of a node that `_rescues`, under the names that it has there."""
    if isinstance(node, Either):
        return _rescued(node.main, read)
    if isinstance(node, Repeated):
        item = _rescued(node.item, read.values)
        return _rebuilt(read, pa.list_(item.type), [item])
    assert isinstance(node, Struct)
    children: dict[str, pa.Array] = {}
    for number, (name, part) in enumerate(each for each in node.parts if each[1].type is not None):
        if name.startswith(RESCUED):
            children[name.removeprefix(RESCUED)] = read.field(number)
        elif _rescues(part):
            children[name] = _rescued(part, read.field(number))
    wanted = pa.struct([pa.field(name, child.type) for name, child in children.items()])
    return _rebuilt(read, wanted, list(children.values()))
