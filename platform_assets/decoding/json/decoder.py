"""The JSON decoder and its two paths. Results of the exact path are merged into the columns of the fast path."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from platform_assets.decoding.decoder import Decoded, dead_letters
from platform_assets.decoding.json.dialect import Dialect
from platform_assets.decoding.json.exact import columns_of, decode_rows


@dataclass(frozen=True, slots=True)
class JsonDecoder:
    """Decodes JSON objects. The fields in `dialect.fields` become columns."""

    dialect: Dialect

    @property
    def fields(self) -> pa.Schema:
        """The columns of decoded values."""
        return self.dialect.columns

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block with compiled loops. Values that the loops cannot decide are decoded by the exact path."""
        # Kernels are loaded when values are decoded, not when a declaration is read.
        from platform_assets.decoding.fallback import with_fallback
        from platform_assets.decoding.json.fast import find

        found = find(values, self.dialect)
        return with_fallback(self, values, found.columns, found.undecided, rescued=found.rescued, voided=True)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block value by value, with the exact path."""
        rows, rescued, dead = decode_rows(values.to_pylist(), self.dialect)
        columns = pa.RecordBatch.from_arrays(columns_of(rows, self.dialect.fields), schema=self.fields)
        return Decoded(columns, pa.array(rescued, pa.string()), dead_letters(dead))
