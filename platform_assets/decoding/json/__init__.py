"""JSON: exactly one object per value; see docs/json-dialect.md."""

from __future__ import annotations

from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.decoding.json.dialect import dialect
from platform_assets.model.decoding import FormatSpec


def decoder(spec: FormatSpec) -> JsonDecoder:
    """Return the decoder for the format `json`. Raises ConfigurationError, which names the faulty option."""
    return JsonDecoder(dialect(spec))
