"""Readers of registered schemas into the declared columns, one class per format."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.decoding.avro.types import AvroType, BadSchema, parsed
from platform_assets.decoding.decoder import Decoder
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.decoding.protobuf.declared import DeclaredDecoder
from platform_assets.decoding.registry.admitted import AdmittedDecoder
from platform_assets.decoding.registry.schemas import AVRO, JSON, PROTOBUF, Registered


class Reader(Protocol):
    """The declared columns, and the conversion of a registered schema's values to them. It can be pickled."""

    @property
    def kind(self) -> str:
        """The declared kind of schema."""

    @property
    def fields(self) -> pa.Schema:
        """The declared columns."""

    def decoder_for(self, schema: Registered) -> Decoder:
        """Return the decoder of data written with `schema`. Raises BadSchema if it cannot be read as declared."""


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Reads data of any schema that Avro's rules resolve into the declared one."""

    schema: AvroType
    fields: pa.Schema
    max_bytes: int
    kind: str = AVRO

    def decoder_for(self, schema: Registered) -> Decoder:
        """See `Reader.decoder_for`."""
        _check_kind(schema, AVRO)
        try:
            references = [json.loads(text) for text in schema.references.values()]
            writer = parsed(json.loads(schema.text), references, writes=True)
        except (ValueError, RecursionError) as error:
            raise BadSchema("$", f"it is no JSON: {error}") from error
        made = AvroDecoder(self.schema, writer, self.max_bytes)
        assert made.plan  # made here, so that BadSchema is raised here
        return made


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reads JSON as declared, if the schema that it was written with admits it."""

    decoder: Decoder
    kind: str = JSON

    @property
    def fields(self) -> pa.Schema:
        """See `Reader.fields`."""
        return self.decoder.fields

    def decoder_for(self, schema: Registered) -> Decoder:
        """See `Reader.decoder_for`."""
        _check_kind(schema, JSON)
        made = AdmittedDecoder(self.decoder, schema.text, schema.references)
        assert made.validator  # made here, so that BadSchema is raised here
        return made


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """Reads messages with one full name, of any schema whose fields named like the columns can be read as declared."""

    message: str
    fields: pa.Schema
    max_bytes: int
    kind: str = PROTOBUF

    def decoder_for(self, schema: Registered) -> DeclaredDecoder:
        """See `Reader.decoder_for`. Raises SchemaCompilerError too, which is retryable."""
        _check_kind(schema, PROTOBUF)
        made = DeclaredDecoder(
            descriptor_set(schema.text, schema.references), self.message, self.fields, self.max_bytes
        )
        if self.message in made.names.values():
            assert made.read is not None  # made here, so that BadSchema is raised here
        return made


def _check_kind(schema: Registered, wanted: str) -> None:
    if schema.kind != wanted:
        raise BadSchema("$", f"it is a schema of {schema.kind[:20]}, and values are declared as {wanted}")
