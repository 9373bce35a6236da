"""Format `string`: a value is one string.

Options: `charset` (only utf-8), `column` (the name of the column, by default `value`), `max_bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from platform_assets.decoding.by_value import decoded
from platform_assets.decoding.decoder import Decoded, text_of
from platform_assets.decoding.fallback import with_fallback
from platform_assets.decoding.options import Options
from platform_assets.decoding.pieces import pieces_of
from platform_assets.model.decoding import FormatSpec


def decoder(spec: FormatSpec) -> TextDecoder:
    """Return the decoder. Raises ConfigurationError."""
    options = Options(spec, ("charset", "column", "max_bytes"))
    options.one_of("charset", ["utf-8"], "utf-8")
    return TextDecoder(options.text("column", "value"), options.max_bytes())


@dataclass(frozen=True, slots=True)
class TextDecoder:
    """Decoder of UTF-8 into one string column. An empty value becomes an empty string."""

    column: str
    max_bytes: int

    @property
    def fields(self) -> pa.Schema:
        """The single column."""
        return pa.schema([pa.field(self.column, pa.string(), nullable=False)])

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        pieces = pieces_of(values)
        undecided = pieces.invalid_utf8() | (pieces.sizes > np.int32(self.max_bytes))
        return with_fallback(self, values, [pieces.without(undecided).strings()], undecided)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        return decoded(self.fields, values, lambda value: ({self.column: text_of(value, self.max_bytes)}, None))
