"""The Debezium decoder and its two paths. Results of the exact path are merged into the columns of the fast path."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from platform_assets.decoding.by_value import decoded
from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.exact import event_reader
from platform_assets.decoding.decoder import Decoded


@dataclass(frozen=True, slots=True)
class DebeziumDecoder:
    """Decodes change events into columns of the changed row and facts about the change."""

    declared: Declared

    @property
    def fields(self) -> pa.Schema:
        """The columns of the row, then those of the facts."""
        return self.declared.columns

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block with compiled loops. Values that the loops cannot decide are decoded by the exact path."""
        # Kernels are loaded when values are decoded, not when a declaration is read.
        from platform_assets.decoding.debezium.fast import find
        from platform_assets.decoding.fallback import with_fallback

        found = find(values, self.declared)
        return with_fallback(self, values, found.columns, found.undecided, rescued=found.rescued)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """Decode a block value by value, with the exact path."""
        return decoded(self.fields, values, event_reader(self.declared))
