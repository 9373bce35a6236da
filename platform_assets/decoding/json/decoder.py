"""The decoder: its two paths, and how the verdicts of the exact one get into the columns of the other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from platform_assets.decoding.decoder import DeadLetter, Decoded, dead_letters
from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.exact import columns_of, decode_rows


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Values are JSON objects, of which `dialect.fields` become columns."""

    dialect: Dialect

    @property
    def fields(self) -> pa.Schema:
        """The columns that values become."""
        return self.dialect.fields

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block by compiled loops; what they do not settle is decoded exactly."""
        from platform_assets.decoding.json.fast import find  # compiles kernels, or reads them

        found = find(values, self.dialect)
        columns, rescued = found.columns, found.rescued
        dead: list[DeadLetter] = []
        if found.unsettled.size:
            unsettled = values.take(pa.array(found.unsettled)).to_pylist()
            rows, lacking, faults = decode_rows(unsettled, self.dialect)
            dead = [replace(fault, row=int(found.unsettled[fault.row])) for fault in faults]
            if len(dead) < len(rows):
                where = np.arange(len(values))
                where[found.unsettled] = np.arange(len(values), len(values) + len(rows))
                exact = columns_of(rows, self.fields)
                columns = [
                    pa.concat_arrays([column, other]).take(pa.array(where))
                    for column, other in zip(columns, exact, strict=True)
                ]
                rescued = pa.concat_arrays([rescued, pa.array(lacking, pa.string())]).take(pa.array(where))
        return Decoded(pa.RecordBatch.from_arrays(columns, schema=self.fields), rescued, dead_letters(dead))

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block value by value."""
        rows, rescued, dead = decode_rows(values.to_pylist(), self.dialect)
        columns = pa.RecordBatch.from_arrays(columns_of(rows, self.fields), schema=self.fields)
        return Decoded(columns, pa.array(rescued, pa.string()), dead_letters(dead))
