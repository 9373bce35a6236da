"""Decoding of values that were written with one schema into the columns of a reader's schema."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from platform_assets.decoding.avro import exact, map_keys
from platform_assets.decoding.avro.columns import as_json, fields_of
from platform_assets.decoding.avro.fast import TOO_LARGE, Block, Program
from platform_assets.decoding.avro.plan import RESCUED, Either, Node, Output, Repeated, Struct
from platform_assets.decoding.avro.resolution import plan_of
from platform_assets.decoding.avro.types import AvroType
from platform_assets.decoding.decoder import DeadLetter, Decoded, DecodeFault, dead_letters
from platform_assets.decoding.pieces import Marks, Pieces

if TYPE_CHECKING:
    from platform_assets.decoding.avro.fast import Program


def columns_of(plan: Struct, read: pa.StructArray) -> list[pa.Array]:
    """Return the reader's columns, in the reader's order. `read` has the type of `plan`. Rows that are null in `read`
    are null in each column."""
    return _outputs(plan, read, read.flatten())


def rescued_of(plan: Struct, read: pa.StructArray) -> pa.StringArray:
    """Return, for each row, a JSON object with the fields that the reader lacks, or null if all of these fields are
    null."""
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
    """Convert `read` from the type that `node` reads to the reader's type `wanted`."""
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
    """Return the array `read` with the type `wanted` and with these children. A list of pairs can become a map."""
    assert read.offset == 0
    own = read.buffers()[: 1 if pa.types.is_struct(wanted) else 2]
    return pa.Array.from_buffers(wanted, len(read), own, read.null_count, children=children)


def _filled(output: Output, read: pa.StructArray) -> pa.Array:
    """Return an array with the default in each row in which `read` is not null."""
    mask = read.is_null().to_numpy(zero_copy_only=False)
    rows = pa.array(np.zeros(len(read), np.int32), mask=mask)
    return pa.array([output.default], output.column.type).take(rows)


def _rescues(node: Node) -> bool:
    """Return True if the reader lacks any part of this node."""
    if isinstance(node, Struct):
        return any(part.type is not None and (name.startswith(RESCUED) or _rescues(part)) for name, part in node.parts)
    if isinstance(node, Either):
        return _rescues(node.main)
    return isinstance(node, Repeated) and _rescues(node.item)


def _rescued(node: Node, read: pa.Array) -> pa.Array:
    """Return those parts of a node that the reader lacks, under the names that they have in the node. Requires that
    `_rescues` returns True for the node."""
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


def decode_faults(program: Program, block: Block, values: Pieces, max_bytes: int) -> tuple[list[DeadLetter], Marks]:
    """Return the dead letters, in ascending order of rows, and marks for the values that must be decoded from the
    beginning.

    The kernel reads the parts of a value in the same order as the exact path, and stops at the first part that it
    cannot read. The exact path would reach the same part at the same byte, so if the exact path finds a fault in that
    part, this is the fault of the value. If the exact path can read the part (for example a branch that the kernel does
    not follow, or a decimal of many bytes), the exact path decodes the whole value.
    """
    dead: list[DeadLetter] = []
    undecided = np.zeros(len(values), np.bool_)
    content = values.data.data
    starts, sizes = values.starts[block.rows].tolist(), values.sizes[block.rows].tolist()
    stops = zip(block.rows.tolist(), block.steps.tolist(), block.places.tolist(), starts, sizes, strict=True)
    for row, step, place, start, size in stops:
        if step == TOO_LARGE:
            fault: DecodeFault | None = exact.too_large(size, max_bytes)
        else:
            fault = exact.fault_at(program.parts[step], bytes(content[start : start + size]), place)
        if fault is None:
            undecided[row] = True
        else:
            dead.append(DeadLetter(row, fault.reason, fault.place, fault.detail))
    return dead, undecided


@dataclass(frozen=True)
class AvroDecoder:
    """Decoder for raw data without a file header: each value is exactly one datum."""

    reader: AvroType
    writer: AvroType
    max_bytes: int

    @cached_property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`. Raises BadSchema."""
        return fields_of(self.reader)

    @cached_property
    def plan(self) -> Struct:
        """The plan for reading values. Raises BadSchema."""
        return plan_of(self.writer, self.reader)

    @cached_property
    def _has_maps(self) -> bool:
        return map_keys.has_map_columns(self.plan)

    @cached_property
    def _program(self) -> Program:
        from platform_assets.decoding.avro.fast import compiled

        return compiled(self.plan)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        from platform_assets.decoding.avro.fast import read_block
        from platform_assets.decoding.fallback import with_fallback
        from platform_assets.decoding.pieces import pieces_of

        pieces = pieces_of(values)
        block = read_block(self._program, pieces, self.max_bytes)
        columns = columns_of(self.plan, block.read)
        rescued = rescued_of(self.plan, block.read)
        dead, undecided = decode_faults(self._program, block, pieces, self.max_bytes)
        repeated = map_keys.rows_with_repeated_keys(self.plan, block.read) if self._has_maps else None
        if repeated is None or not repeated.any():
            return with_fallback(self, values, columns, undecided, rescued=rescued, voided=True, dead=dead)
        return with_fallback(self, values, columns, undecided | repeated, rescued=rescued, dead=dead)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        rows: list[dict[str, Any] | None] = []
        dead: list[DeadLetter] = []
        for number, content in enumerate(values.to_pylist()):
            rows.append(None)
            if content is None:
                continue
            try:
                row = exact.read(self.plan, content, self.max_bytes)
                if self._has_maps:
                    map_keys.check_keys(self.plan, row)
                rows[-1] = row
            except DecodeFault as fault:
                dead.append(DeadLetter(number, fault.reason, fault.place, fault.detail))
        read = pa.array(rows, self.plan.type)
        columns = pa.RecordBatch.from_arrays(columns_of(self.plan, read), schema=self.fields)
        return Decoded(columns, rescued_of(self.plan, read), dead_letters(dead))
