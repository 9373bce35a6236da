"""JSON: one object a value, strictly; see docs/json-dialect.md."""

from __future__ import annotations

from platform_assets.decoding.json.decoder import JsonDecoder
from platform_assets.decoding.json.dialect import dialect
from platform_assets.model.decoding import FormatSpec


def decoder(spec: FormatSpec) -> JsonDecoder:
    """The decoder of a format `json`. Raises ConfigurationError, which names the option at fault."""
    return JsonDecoder(dialect(spec))
