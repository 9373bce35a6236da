"""Debezium's change events as JSON: one change of a row per value; see docs/debezium.md."""

from __future__ import annotations

from platform_assets.decoding.debezium.declaration import declared
from platform_assets.decoding.debezium.decoder import DebeziumDecoder
from platform_assets.model.decoding import FormatSpec


def decoder(spec: FormatSpec) -> DebeziumDecoder:
    """Return the decoder for the format `debezium`. Raises ConfigurationError, which names the faulty option."""
    return DebeziumDecoder(declared(spec))
