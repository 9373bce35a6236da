"""Protobuf: each value is one message. The message type comes from a set of descriptors or from a registered schema;
see docs/avro.md."""

from __future__ import annotations

from platform_assets.decoding.protobuf.descriptors import ProtobufDecoder, decoder

__all__ = ["ProtobufDecoder", "decoder"]
