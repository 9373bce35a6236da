"""Readers that read data written with registered schemas into the declared columns. There is one class for each format."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol
from urllib.parse import urljoin

import jsonschema_rs
import numpy as np
import pyarrow as pa

from platform_assets.decoding.avro.decoder import AvroDecoder
from platform_assets.decoding.avro.types import AvroType, BadSchema, parsed
from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.registered import event_decoder
from platform_assets.decoding.decoder import DEAD_LETTER_FIELDS, DeadLetter, Decoded, Decoder, dead_letters
from platform_assets.decoding.pieces import Marks
from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.decoding.protobuf.declared import DeclaredDecoder
from platform_assets.decoding.registry import branching
from platform_assets.decoding.registry.branching import NOWHERE
from platform_assets.decoding.registry.cache import AVRO, JSON, PROTOBUF, Registered

# JSON is checked by its writer's schema: the declaration decides what is read, and the schema decides whether a value
# is admitted. The validator is written in Rust. `jsonschema` takes hundreds of times as long, and a registry's patterns
# could block it forever. The Rust validator takes linear time, and it does not fetch the target of a `$ref`.

_VALUES_PER_BATCH: Final = 512
"""Number of values that are parsed at a time."""


@dataclass(frozen=True)
class AdmittedDecoder:
    """Decodes values with `declared`. Values that the schema `text` does not admit become dead letters."""

    declared: Decoder
    text: str
    references: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> pa.Schema:
        """See `Decoder.fields`."""
        return self.declared.fields

    @cached_property
    def validator(self) -> Any:
        """The validator of parsed values. Raises BadSchema."""
        try:
            schema = json.loads(self.text)
            documents = {name: json.loads(text) for name, text in self.references.items()}
        except (ValueError, RecursionError) as error:
            raise BadSchema("$", f"it is not JSON: {error}") from error
        stated = schema if isinstance(schema, dict) else {}
        base = stated["$id"] if isinstance(stated.get("$id"), str) else None
        made = jsonschema_rs.validator_for if "$schema" in stated else jsonschema_rs.Draft7Validator
        try:
            known = {
                each: document
                for name, document in documents.items()
                for each in (name, urljoin(base, name) if base else NOWHERE + name)
            }

            branching.check({NOWHERE: schema, **known})

            def referred(uri: str) -> Any:
                if uri not in known:
                    raise ValueError("it is not among the references that the registry has for this schema")
                return known[uri]

            return made(
                schema,
                retriever=referred,
                base_uri=None if base else NOWHERE,
                validate_formats=False,
                pattern_options=jsonschema_rs.RegexOptions(),
                mask="the value",
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
            said = getattr(error, "message", None) or str(error)
            raise BadSchema("$", f"it is not a usable JSON Schema: {said}") from error

    def __getstate__(self) -> dict[str, Any]:
        # The validator cannot be pickled.
        return {"declared": self.declared, "text": self.text, "references": self.references}

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        found = self.declared.decode(values)
        return self._judged(values, found, self._refused(values, _alive(values, found)))

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        found = self.declared.decode_exactly(values)
        alive = _alive(values, found)
        return self._judged(values, found, [row for row in alive if self._fault(values[row].as_py()) is not None])

    def _refused(self, values: pa.BinaryArray, alive: list[int]) -> list[int]:
        """Return the rows whose values are not admitted."""
        refused: list[int] = []
        is_valid = self.validator.is_valid
        for begin in range(0, len(alive), _VALUES_PER_BATCH):
            rows = alive[begin : begin + _VALUES_PER_BATCH]
            texts = values.take(pa.array(rows, pa.int64())).to_pylist()
            try:
                # All of these values are JSON, because the declaration's decoder has read them.
                parsed = json.loads(b"[" + b",".join(texts) + b"]")
                refused += [row for row, value in zip(rows, parsed, strict=True) if not is_valid(value)]
            except ValueError:  # one has a number or a depth that Python or the validator cannot represent
                refused += [row for row, text in zip(rows, texts, strict=True) if self._fault(text) is not None]
        return refused

    def _fault(self, value: bytes) -> tuple[str, str] | None:
        """Return the path and the reason if `value` is not admitted, or None if it is admitted."""
        try:
            error = next(self.validator.iter_errors(json.loads(value)), None)
        except ValueError:
            return "$", "it cannot be checked: a number has too many digits, or parts are nested too deeply"
        if error is None:
            return None
        place = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path)
        rule = "/".join(map(str, error.schema_path))
        return place, f"the writer's schema does not allow this value: {error.message} (#/{rule})"

    def _judged(self, values: pa.BinaryArray, found: Decoded, refused: list[int]) -> Decoded:
        if not refused:
            return found
        letters = []
        for row in refused:
            fault = self._fault(values[row].as_py())
            assert fault is not None
            letters.append(DeadLetter(row, "not_admitted", *fault))
        void: Marks = np.zeros(len(values), np.bool_)
        void[refused] = True
        kept = pa.array(np.arange(len(values)), mask=void)
        both = pa.Table.from_batches([found.dead, dead_letters(letters)]).sort_by("row").combine_chunks()
        dead = pa.RecordBatch.from_arrays(
            [column.combine_chunks() for column in both.columns], schema=DEAD_LETTER_FIELDS
        )
        columns = pa.RecordBatch.from_arrays(
            [column.take(kept) for column in found.columns.columns], schema=found.columns.schema
        )
        return Decoded(columns, found.rescued.take(kept), dead)


def _alive(values: pa.BinaryArray, found: Decoded) -> list[int]:
    """Return the rows that are neither null nor dead."""
    alive = values.is_valid().to_numpy(zero_copy_only=False).copy()
    alive[found.dead["row"].to_numpy()] = False
    rows: list[int] = np.flatnonzero(alive).tolist()
    return rows


class Reader(Protocol):
    """The declared columns, and the conversion of values with a registered schema to these columns. It can be
    pickled."""

    @property
    def kind(self) -> str:
        """The kind of schema that is declared."""

    @property
    def fields(self) -> pa.Schema:
        """The declared columns."""

    def hint(self, value: bytes) -> str:
        """Return what to declare for a value that names no schema, to follow the fault; empty if that is unknown."""

    def decoder_for(self, schema: Registered) -> Decoder:
        """Return the decoder for data written with `schema`. Raises BadSchema if the data cannot be read as
        declared."""


@dataclass(frozen=True, slots=True)
class AvroReader:
    """Reader for data with any schema that Avro's rules can resolve to the declared schema."""

    schema: AvroType
    fields: pa.Schema
    max_bytes: int
    kind: str = AVRO

    def hint(self, value: bytes) -> str:
        """See `Reader.hint`."""
        return ""

    def decoder_for(self, schema: Registered) -> Decoder:
        """See `Reader.decoder_for`."""
        _check_kind(schema, AVRO)
        try:
            references = [json.loads(text) for text in schema.references.values()]
            writer = parsed(json.loads(schema.text), references, writes=True)
        except (ValueError, RecursionError) as error:
            raise BadSchema("$", f"it is not JSON: {error}") from error
        made = AvroDecoder(self.schema, writer, self.max_bytes)
        assert made.plan  # built here, so that BadSchema is raised here
        return made


@dataclass(frozen=True, slots=True)
class DebeziumReader:
    """Reader for change events with any schema of Debezium's connector, as Avro converters write them."""

    declared: Declared
    kind: str = AVRO

    @property
    def fields(self) -> pa.Schema:
        """See `Reader.fields`."""
        return self.declared.columns

    def hint(self, value: bytes) -> str:
        """See `Reader.hint`."""
        text = value.strip(b" \t\r\n")
        is_json = text[:1] == b"{" and text[-1:] == b"}"
        return "; the value looks like JSON: leave out `registry`, or use an Avro converter" if is_json else ""

    def decoder_for(self, schema: Registered) -> Decoder:
        """See `Reader.decoder_for`."""
        _check_kind(schema, AVRO)
        return event_decoder(self.declared, schema.text, list(schema.references.values()))


@dataclass(frozen=True, slots=True)
class JsonReader:
    """Reader that decodes JSON values as declared. The writer's schema must admit each value."""

    decoder: Decoder
    kind: str = JSON

    @property
    def fields(self) -> pa.Schema:
        """See `Reader.fields`."""
        return self.decoder.fields

    def hint(self, value: bytes) -> str:
        """See `Reader.hint`."""
        return ""

    def decoder_for(self, schema: Registered) -> Decoder:
        """See `Reader.decoder_for`."""
        _check_kind(schema, JSON)
        made = AdmittedDecoder(self.decoder, schema.text, schema.references)
        assert made.validator  # built here, so that BadSchema is raised here
        return made


@dataclass(frozen=True, slots=True)
class ProtobufReader:
    """Reader for messages of one type, identified by its full name. Fields are matched to columns by name. The messages
    can have any schema with which these fields can be read as declared."""

    message: str
    fields: pa.Schema
    max_bytes: int
    kind: str = PROTOBUF

    def hint(self, value: bytes) -> str:
        """See `Reader.hint`."""
        return ""

    def decoder_for(self, schema: Registered) -> DeclaredDecoder:
        """See `Reader.decoder_for`. Also raises SchemaCompilerError, which is retryable."""
        _check_kind(schema, PROTOBUF)
        made = DeclaredDecoder(
            descriptor_set(schema.text, schema.references), self.message, self.fields, self.max_bytes
        )
        if self.message in made.names.values():
            assert made.read is not None  # built here, so that BadSchema is raised here
        return made


def _check_kind(schema: Registered, wanted: str) -> None:
    if schema.kind != wanted:
        raise BadSchema("$", f"it is a schema of type {schema.kind[:20]}, but values are declared as {wanted}")
