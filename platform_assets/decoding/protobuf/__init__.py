"""Protobuf: each value is one message, of a type from a set of descriptors or a registered schema; see docs/avro.md."""

from __future__ import annotations

from platform_assets.decoding.protobuf.descriptors import ProtobufDecoder, decoder

__all__ = ["ProtobufDecoder", "decoder"]
