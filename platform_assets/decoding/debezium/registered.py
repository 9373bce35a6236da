"""Change events in Avro, each with the id of a schema in a registry.

A schema is turned into the form of Connect's JSON schemas (`connect`), and each event into the object that the JSON
converter would have written. So both forms become the same rows and dead letters, by the same code (`exact`). The fast
path reads a block with the Avro kernel, and converts whole columns (`arrays`). It leaves unclear events to that code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from platform_assets.decoding.avro import exact as avro
from platform_assets.decoding.avro.decoder import decode_faults
from platform_assets.decoding.avro.plan import Struct
from platform_assets.decoding.avro.resolution import plan_of_all
from platform_assets.decoding.avro.types import BadName, BadSchema, parsed
from platform_assets.decoding.by_value import decoded
from platform_assets.decoding.debezium.connect import Schema, as_java, connect_schema, json_form
from platform_assets.decoding.debezium.declaration import Declared
from platform_assets.decoding.debezium.exact import SOURCE, Columns, Row, change_of, columns_of
from platform_assets.decoding.debezium.schemas import as_written, contradiction
from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.json.faults import Fault, place
from platform_assets.model.debezium import CREATE, DELETE, READ, TRUNCATE, UPDATE

if TYPE_CHECKING:
    from platform_assets.decoding.avro.fast import Program
    from platform_assets.decoding.pieces import Bytes, Marks

_BEFORE: Final = "before"
_AFTER: Final = "after"
_WITH_ROW: Final = tuple(map(ord, (CREATE, READ, UPDATE)))


def event_decoder(d: Declared, text: str, references: Sequence[str]) -> EventDecoder:
    """Return the decoder for events with the schema `text`, which may use the names in `references`. Raises BadSchema."""
    try:
        document, others = json.loads(text), [json.loads(each) for each in references]
        writer = parsed(document, others, writes=True)
    except BadName as error:
        setting = f"{'field' if error.of_field else 'schema'}.name.adjustment.mode"
        raise BadSchema(error.place, f"{error.what}: set the connector's `{setting}` to `avro`") from error
    except (ValueError, RecursionError) as error:
        raise BadSchema("$", f"it is not JSON: {error}") from error
    plan = plan_of_all(writer)  # limits the number of parts before anything else follows the schema
    return EventDecoder(d, plan, _checked(connect_schema(document, others)))


def _checked(schema: Schema) -> Schema:
    """Raise BadSchema if the rows before and after a change have different schemas, which the connector never writes."""
    parts = _fields(schema)
    rows = [parts[name].get("fields") for name in (_BEFORE, _AFTER) if name in parts]
    if any(each != rows[0] for each in rows):
        raise BadSchema("$", f"{_BEFORE} and {_AFTER} have different fields")
    return schema


def _fields(schema: Schema | None) -> dict[str, Schema]:
    return {each["field"]: each for each in (schema or {}).get("fields", [])}


@dataclass(frozen=True)
class EventDecoder:
    """Decodes change events of one schema. `plan` reads them, and `schema` says what they mean."""

    declared: Declared
    plan: Struct
    schema: Schema

    @property
    def fields(self) -> pa.Schema:
        """The columns of the row, then those of the facts."""
        return self.declared.columns

    def __reduce__(self) -> tuple[type[EventDecoder], tuple[Declared, Struct, Schema]]:
        """The readers of columns are functions, which are made again."""
        return EventDecoder, (self.declared, self.plan, self.schema)

    @cached_property
    def _parts(self) -> dict[str, Schema]:
        return _fields(self.schema)

    @cached_property
    def _row(self) -> dict[str, Schema]:
        """The schemas of the row's fields."""
        return _fields(self._parts.get(_AFTER)) or _fields(self._parts.get(_BEFORE))

    def _settings(self, field: pa.Field) -> tuple[Declared, int]:
        d = self.declared
        return as_written(self._row[field.name], field.type, d) if field.name in self._row else (d, 1)

    @cached_property
    def _columns(self) -> Columns:
        return columns_of(self.declared, self._settings)

    @cached_property
    def _mismatch(self) -> tuple[str, str] | None:
        """The column whose schema contradicts the declaration, and why."""
        for field in self.declared.row:
            if field.name in self._row:
                detail = contradiction(self._row[field.name], field.type, self.declared)
                if detail is not None:
                    return field.name, detail
        return None

    @cached_property
    def _undeclared(self) -> tuple[str, ...]:
        """Fields of the row that are not declared, or that have such fields in them."""
        known = {field.name: field.type for field in self.declared.row}
        return tuple(n for n, each in self._row.items() if n not in known or _lacks(each, known[n]))

    @cached_property
    def _program(self) -> Program:
        from platform_assets.decoding.avro.fast import compiled

        return compiled(self.plan)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`."""
        return decoded(self.fields, values, self._read)

    def _read(self, value: bytes) -> tuple[Row, str | None]:
        found = avro.read(self.plan, value, self.declared.max_bytes)
        document = json_form(self.schema, found)
        try:
            row, image = change_of(self.declared, document, self._columns, lambda: self._mismatch)
        except Fault as fault:
            fault.locate()
            raise
        return row, self._rescued(found[image]) if image else None

    def _rescued(self, row: Mapping[str, Any]) -> str | None:
        """Return a JSON object with the undeclared fields of a row, as the exact path of JSON returns them; None if it has none."""
        known = {field.name: field.type for field in self.declared.row}
        found = {}
        for name in self._undeclared:
            written = json_form(self._row[name], row[name], as_java, _all_pairs)
            if name not in known:
                found[name] = written
            else:
                found.update(_inner(self._row[name], known[name], written, (name,)))
        return json.dumps(found, ensure_ascii=False, separators=(",", ":")) if found else None

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        from platform_assets.decoding.avro.fast import read_block
        from platform_assets.decoding.fallback import with_fallback
        from platform_assets.decoding.pieces import pieces_of

        pieces = pieces_of(values)
        block = read_block(self._program, pieces, self.declared.max_bytes)
        dead, undecided = decode_faults(self._program, block, pieces, self.declared.max_bytes)
        columns, rescued, unclear = self._converted(block.read)
        return with_fallback(self, values, columns, undecided | unclear, rescued=rescued, dead=dead)

    def _converted(self, read: pa.StructArray) -> tuple[list[pa.Array], pa.Array, Marks]:
        """Return the columns of the events that were read, their rescued fields, and marks of the undecided events."""
        from platform_assets.decoding.debezium.arrays import shaped, with_placeholders
        from platform_assets.decoding.debezium.fast import facts, mark_unclear

        d = self.declared
        parts = dict(zip(read.type.names, read.flatten(), strict=True))
        is_event = read.is_valid().to_numpy(zero_copy_only=False)
        undecided = np.zeros(len(read), np.uint8)
        operations = self._operations(parts, len(read))
        is_delete, is_truncate = operations == ord(DELETE), operations == ord(TRUNCATE)
        has_after = np.isin(operations, _WITH_ROW)
        undecided[is_event & ~(is_delete | is_truncate | has_after)] = 1
        images = self._images(parts, has_after, is_delete)
        has_row = np.zeros(len(read), np.bool_) if images is None else images.is_valid().to_numpy(zero_copy_only=False)
        must_have = is_event & ~is_truncate
        undecided[must_have if self._mismatch else must_have & ~has_row] = 1
        before = parts.get(_BEFORE)
        has_before = (
            np.zeros(len(read), np.bool_) if before is None else before.is_valid().to_numpy(zero_copy_only=False)
        )
        partial = (operations == ord(UPDATE)) & ~has_before
        fields = {} if images is None else dict(zip(images.type.names, images.flatten(), strict=True))
        columns = []
        for field in d.row:
            own, unit = self._settings(field)
            if field.name not in fields or self._mismatch:
                column = pa.nulls(len(read), field.type)
            else:
                column, marks = shaped(fields[field.name], self._row[field.name], field.type, own, unit)
                undecided[marks] = 1
                undecided[with_placeholders(fields[field.name], self._columns.placeholders)] = 1
            mark_unclear(column, field, own, operations, partial, undecided)
            columns.append(column)
        columns += facts(self._source(parts, len(read), undecided), operations, undecided)
        return columns, self._rescued_of(fields, has_row & (undecided == 0)), is_event & (undecided != 0)

    def _operations(self, parts: Mapping[str, pa.Array], count: int) -> Bytes:
        """Return the code of each operation, or 0."""
        found = parts.get("op")
        if found is None or not pa.types.is_string(found.type):
            return np.zeros(count, np.uint8)
        coded = found.dictionary_encode()
        codes = [ord(each) if len(each) == 1 and each.isascii() else 0 for each in coded.dictionary.to_pylist()]
        operations: Bytes = np.array([*codes, 0], np.uint8)[coded.indices.fill_null(len(codes)).to_numpy()]
        return operations

    def _images(self, parts: Mapping[str, pa.Array], has_after: Marks, is_delete: Marks) -> pa.StructArray | None:
        """Return the rows that count: before a delete, and after any other change. The result is null for events
        without a row, or None if the schema has no rows."""
        before, after = (
            found if (found := parts.get(name)) is not None and self._parts[name]["type"] == "struct" else None
            for name in (_BEFORE, _AFTER)
        )
        known = [each.type for each in (after, before) if each is not None]
        if not known:
            return None
        earlier, later = (pa.nulls(has_after.size, known[0]) if each is None else each for each in (before, after))
        if has_after.all():
            return later
        # The last one is null, for events without a row.
        count = has_after.size
        order = np.where(has_after, np.arange(count), np.where(is_delete, count + np.arange(count), 2 * count))
        return pa.concat_arrays([later, earlier, pa.nulls(1, known[0])]).take(pa.array(order))

    def _source(self, parts: Mapping[str, pa.Array], count: int, undecided: Bytes) -> dict[str, pa.Array]:
        """Return the fields of `SOURCE`."""
        from platform_assets.decoding.debezium.arrays import shaped

        source, schema = parts.get("source"), self._parts.get("source")
        found = {field.name: pa.nulls(count, field.type) for field in SOURCE}
        if source is None or schema is None:
            return found
        if schema["type"] != "struct":
            undecided[source.is_valid().to_numpy(zero_copy_only=False)] = 1
            return found
        schemas, arrays = _fields(schema), dict(zip(source.type.names, source.flatten(), strict=True))
        for field in SOURCE:
            if field.name in arrays:
                found[field.name], marks = shaped(arrays[field.name], schemas[field.name], field.type, self.declared, 1)
                undecided[marks] = 1
        return found

    def _rescued_of(self, fields: Mapping[str, pa.Array], rows: Marks) -> pa.StringArray:
        """Return the undeclared fields of the marked rows."""
        names = [name for name in self._undeclared if name in fields]
        at = np.flatnonzero(rows)
        if not names or not at.size:
            return pa.nulls(rows.size, pa.string())
        lists = [fields[name].take(pa.array(at)).to_pylist() for name in names]
        texts = [self._rescued(dict(zip(names, row, strict=True))) for row in zip(*lists, strict=True)]
        places = np.zeros(rows.size, np.int64)
        places[at] = np.arange(at.size)
        return pa.array(texts, pa.string()).take(pa.array(places, mask=~rows))


def _all_pairs(pairs: list[tuple[str, Any]]) -> Any:
    """Return a map as an object or, if it has a key twice, as a list of pairs."""
    made = dict(pairs)
    return made if len(made) == len(pairs) else [{"key": key, "value": value} for key, value in pairs]


def _lacks(schema: Schema, kind: pa.DataType) -> bool:
    """Return True if values with this schema have fields that the declared type lacks."""
    if schema["type"] == "array":
        return bool(pa.types.is_list(kind)) and _lacks(schema["items"], kind.value_type)
    if schema["type"] == "map":
        return bool(pa.types.is_map(kind)) and _lacks(schema["values"], kind.item_type)
    if schema["type"] != "struct" or not pa.types.is_struct(kind):
        return False
    known = {field.name: field.type for field in kind}
    return any(name not in known or _lacks(each, known[name]) for name, each in _fields(schema).items())


def _inner(schema: Schema, kind: pa.DataType, value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the undeclared fields in a value of a declared column, with the paths to them."""
    if value is None or not _lacks(schema, kind):
        return
    if schema["type"] == "array":
        for index, each in enumerate(value):
            yield from _inner(schema["items"], kind.value_type, each, (*path, index))
    elif schema["type"] == "map":
        for name, each in value.items():
            yield from _inner(schema["values"], kind.item_type, each, (*path, name))
    else:
        known = {field.name: field.type for field in kind}
        for name, each in _fields(schema).items():
            if name in known:
                yield from _inner(each, known[name], value[name], (*path, name))
            else:
                yield place((*path, name)), value[name]
