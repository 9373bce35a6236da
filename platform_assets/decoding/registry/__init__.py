"""Values that name their writer's schema, either before the datum or in a header of the record.

The options `registry: true` and `id` of the formats `avro`, `debezium`, `json` and `protobuf` declare such values. The
columns are those of the declared schema, whatever is registered later.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

from platform_assets.decoding.avro import declared_schema
from platform_assets.decoding.avro.columns import fields_of
from platform_assets.decoding.avro.types import BadSchema
from platform_assets.decoding.debezium.declaration import declared
from platform_assets.decoding.json import decoder as json_decoder
from platform_assets.decoding.options import Options
from platform_assets.decoding.registry.decoder import RegistryDecoder
from platform_assets.decoding.registry.readers import AvroReader, DebeziumReader, JsonReader, ProtobufReader
from platform_assets.decoding.registry.wire import IdFrom
from platform_assets.decoding.schema import checked, schema_of_ddl
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

OPTION = "registry"
ID_OPTION = "id"


def decoder(spec: FormatSpec) -> RegistryDecoder:
    """Return the decoder. Raises ConfigurationError."""
    if spec.options[OPTION] is not True:
        raise Options(spec, spec.options).wrong(
            OPTION, "true, or left out; SCHEMA_REGISTRY_URL sets the registry's address"
        )
    id_from = spec.options.get(ID_OPTION, "prefix")
    if id_from not in get_args(IdFrom):
        raise Options(spec, spec.options).wrong(ID_OPTION, f"one of: {', '.join(get_args(IdFrom))}")
    if spec.format == "protobuf" and id_from not in ("prefix", "header"):
        raise ConfigurationError(
            f"option 'id' of format 'protobuf' is {id_from!r}, but Apicurio's messages are not supported: use prefix or header"
        )
    inner = replace(spec, options={n: value for n, value in spec.options.items() if n not in (OPTION, ID_OPTION)})
    if spec.format == "avro":
        return RegistryDecoder(_avro(inner), id_from=id_from)
    if spec.format == "debezium":
        return RegistryDecoder(DebeziumReader(declared(inner, by_registry=True)), id_from=id_from)
    if spec.format == "json":
        return RegistryDecoder(JsonReader(json_decoder(inner)), id_from=id_from)
    if spec.format == "protobuf":
        return RegistryDecoder(_protobuf(inner), id_from=id_from)
    raise AssertionError(f"no reader for schemas of format {spec.format!r}")


def _avro(spec: FormatSpec) -> AvroReader:
    options = Options(spec, ("schema", "maps", "max_bytes"))
    schema = declared_schema(spec, options, "schema")
    try:
        fields = checked(fields_of(schema), "schema")
    except BadSchema as error:
        raise ConfigurationError(f"option 'schema' of format 'avro': {error}") from error
    return AvroReader(schema, fields, options.max_bytes())


def _protobuf(spec: FormatSpec) -> ProtobufReader:
    options = Options(spec, ("schema", "message", "max_bytes"))
    return ProtobufReader(options.text("message"), schema_of_ddl(options.text("schema")), options.max_bytes())
