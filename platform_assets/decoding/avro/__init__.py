"""Format `avro`: raw data without a header, written with a declared schema.

Options: `schema` (a schema in Avro's JSON, which defines the columns), `writer_schema` (if records were written with
another schema), `maps`, `max_bytes`.
"""

from __future__ import annotations

import json
from typing import Any

from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.decoding.avro.types import AvroType, BadSchema, parsed
from platform_assets.decoding.options import Options
from platform_assets.decoding.schema import checked
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec


def decoder(spec: FormatSpec) -> AvroDecoder:
    """Build the decoder. Raises ConfigurationError."""
    options = Options(spec, ("schema", "writer_schema", "maps", "max_bytes"))
    reader = declared_schema(spec, options, "schema")
    writer = declared_schema(spec, options, "writer_schema") if "writer_schema" in spec.options else reader
    made = AvroDecoder(reader, writer, options.max_bytes())
    try:
        checked(made.fields, "schema")
    except BadSchema as error:
        raise ConfigurationError(f"option 'schema' of format 'avro': {error}") from error
    try:
        assert made.plan
    except BadSchema as error:
        raise ConfigurationError(
            f"format 'avro': data written with 'writer_schema' cannot be read with 'schema': {error}"
        ) from error
    return made


def declared_schema(spec: FormatSpec, options: Options, name: str) -> AvroType:
    """Parse the schema in an option. The schema is given as YAML values or as a JSON string. Raises ConfigurationError."""
    document: Any = spec.options.get(name)
    if document is None or document == "":
        raise options.wrong(name, "an Avro schema: {type: record, name: …, fields: […]}")
    try:
        if isinstance(document, str) and document.lstrip()[:1] in ("{", "["):
            document = json.loads(document)
        return parsed(document, writes=name == "writer_schema", map_columns=name == "schema" and options.map_columns())
    except (BadSchema, ValueError, RecursionError) as error:
        raise ConfigurationError(f"option {name!r} of format 'avro' is not a valid Avro schema: {error}") from error
