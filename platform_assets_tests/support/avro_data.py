"""Avro schemas and values for tests. The values are written by fastavro, which shares no code with the decoder."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import fastavro

from platform_assets.decoding.avro import decoder
from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.support import decoding

Schema = dict[str, Any] | list[Any] | str


def record(**fields: Any) -> dict[str, Any]:
    """Return the schema of a record with these fields. If a field is given as a pair, the pair contains the field's
    type and its default."""
    listed = [
        {"name": name, "type": of[0], "default": of[1]} if isinstance(of, tuple) else {"name": name, "type": of}
        for name, of in fields.items()
    ]
    return {"type": "record", "name": "R", "fields": listed}


def written(schema: Schema, value: Any) -> bytes:
    """Return one value in Avro's binary form."""
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def avro(schema: Schema, writer: Schema | None = None, **options: Any) -> AvroDecoder:
    """Return a decoder."""
    if writer is not None:
        options["writer_schema"] = writer
    return decoder(FormatSpec("avro", {"schema": schema, **options}))


def decoded(of: AvroDecoder, values: Sequence[bytes | None]) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the rows, rescued fields and dead letters from both paths, which must agree."""
    found = decoding.decoded(of, values)
    return found.columns.to_pylist(), found.rescued.to_pylist(), found.dead.to_pylist()
