"""Protobuf: one message a value, of a type that a set of descriptors or a registered schema describes; see docs/avro.md."""

from __future__ import annotations

from platform_assets.decoding.protobuf.descriptors import ProtobufDecoder, decoder

__all__ = ["ProtobufDecoder", "decoder"]
