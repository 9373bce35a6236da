"""Values of one writer's schema, as columns of one reader's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from platform_assets.decoding.avro import assembly, exact, map_keys
from platform_assets.decoding.avro.columns import fields_of
from platform_assets.decoding.avro.plan import Struct
from platform_assets.decoding.avro.resolution import plan_of
from platform_assets.decoding.avro.types import AvroType
from platform_assets.decoding.decoder import DeadLetter, Decoded, dead_letters
from platform_assets.decoding.reading import Unfit

if TYPE_CHECKING:
    from platform_assets.decoding.avro.program import Program


@dataclass(frozen=True)
class AvroDecoder:
    """Raw data, without a header of a file: each value is one datum, and no byte more."""

    reader: AvroType
    writer: AvroType
    max_bytes: int

    @cached_property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`. Raises BadSchema."""
        return fields_of(self.reader)

    @cached_property
    def plan(self) -> Struct:
        """How values are read. Raises BadSchema."""
        return plan_of(self.writer, self.reader)

    @cached_property
    def _has_maps(self) -> bool:
        return map_keys.has_map_columns(self.plan)

    @cached_property
    def _program(self) -> Program:
        from platform_assets.decoding.avro.program import compiled

        return compiled(self.plan)

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        from platform_assets.decoding.avro.fast import read_block
        from platform_assets.decoding.avro.verdicts import verdicts
        from platform_assets.decoding.pieces import pieces_of
        from platform_assets.decoding.settling import settled

        pieces = pieces_of(values)
        block = read_block(self._program, pieces, self.max_bytes)
        columns = assembly.columns_of(self.plan, block.read)
        rescued = assembly.rescued_of(self.plan, block.read)
        dead, unsettled = verdicts(self._program, block, pieces, self.max_bytes)
        repeated = map_keys.rows_with_repeated_keys(self.plan, block.read) if self._has_maps else None
        if repeated is None or not repeated.any():
            return settled(self, values, columns, unsettled, rescued=rescued, voided=True, dead=dead)
        return settled(self, values, columns, unsettled | repeated, rescued=rescued, dead=dead)

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
            except Unfit as unfit:
                dead.append(DeadLetter(number, unfit.reason, unfit.place, unfit.detail))
        read = pa.array(rows, self.plan.type)
        columns = pa.RecordBatch.from_arrays(assembly.columns_of(self.plan, read), schema=self.fields)
        return Decoded(columns, assembly.rescued_of(self.plan, read), dead_letters(dead))
