"""The decoder: its two paths, and how the verdicts of the exact one get into the columns of the other."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from platform_assets.decoding.decoder import Decoded, dead_letters
from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.exact import columns_of, decode_rows


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Values are JSON objects, of which `dialect.fields` become columns."""

    dialect: Dialect

    @property
    def fields(self) -> pa.Schema:
        """The columns that values become."""
        return self.dialect.columns

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block by compiled loops; what they do not settle is decoded exactly."""
        # Kernels are loaded where values are decoded, and not where a declaration is read.
        from platform_assets.decoding.json.fast import find
        from platform_assets.decoding.settling import settled

        found = find(values, self.dialect)
        return settled(self, values, found.columns, found.unsettled, rescued=found.rescued, voided=True)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block value by value."""
        rows, rescued, dead = decode_rows(values.to_pylist(), self.dialect)
        columns = pa.RecordBatch.from_arrays(columns_of(rows, self.dialect.fields), schema=self.fields)
        return Decoded(columns, pa.array(rescued, pa.string()), dead_letters(dead))
