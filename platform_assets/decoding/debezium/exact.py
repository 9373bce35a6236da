"""The exact path: it decodes one change event at a time, and decides every case."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import pyarrow as pa

from platform_assets.decoding.debezium.declaration import FACTS, Declared
from platform_assets.decoding.debezium.scalars import are_bytes, is_placeholder, scalars
from platform_assets.decoding.debezium.schemas import mismatch
from platform_assets.decoding.decoder import DecodeFault
from platform_assets.decoding.json.exact import Facts, Read, Twice, parsed, reader, rescue, text_at
from platform_assets.decoding.json.faults import Fault, brief
from platform_assets.decoding.json.scalars import EARLIEST, LATEST, scalar_reader
from platform_assets.model.debezium import DELETE, OPERATIONS, TRUNCATE, UPDATE

Row = Mapping[str, Any]
_PAYLOAD: Final = "payload"
_PREFIX: Final = 5
"""Number of bytes before a value that names its schema in a registry."""
_LONG_PREFIX: Final = 9
"""The same with Apicurio's ids of 8 bytes."""
_REMEDY: Final = "Run ALTER TABLE … REPLICA IDENTITY FULL, after which later records contain it"
SOURCE: Final = pa.schema(
    [
        ("lsn", pa.int64()),
        ("sequence", pa.string()),
        ("txId", pa.int64()),
        ("ts_us", pa.int64()),
        ("snapshot", pa.string()),
        ("ts_ms", pa.int64()),
    ]
)
"""Fields of an event's source that become facts."""
_SOURCE: Final = reader(pa.struct(list(SOURCE)), lambda kind: scalar_reader(kind, None, "strict"))


@lru_cache(maxsize=16)
def event_reader(d: Declared) -> Callable[[bytes], tuple[Row, str | None]]:
    """Return the function that decodes one value: it returns the columns, and the row's undeclared fields as a string.
    It raises DecodeFault."""
    columns = columns_of(d, lambda field: (d, d.unit(field.name)))

    def read(value: bytes) -> tuple[Row, str | None]:
        try:
            text, document = parsed(value, d.max_bytes, d.max_depth)
        except DecodeFault as fault:
            if fault.reason == "malformed" and value[:1] == b"\0":
                raise DecodeFault("malformed", _of_a_registry(value)) from None
            raise
        try:
            return _event(d, text, document, columns)
        except Fault as fault:
            fault.locate()
            raise

    return read


def _of_a_registry(value: bytes) -> str:
    """Return the detail for a value that begins with a byte 0, as values with a schema's id do and JSON never does."""
    what = "the value begins with the byte 0x00, which is not JSON"
    if len(value) < _PREFIX:
        return what
    number = int.from_bytes(value[1:_PREFIX], "big")
    if value[_PREFIX if number else _LONG_PREFIX :].lstrip()[:1] == b"{":
        return (
            f"{what} but a registry's prefix, and JSON follows: this format supports a registry only with "
            "Avro, so use Connect's JsonConverter or an Avro converter"
        )
    if number == 0:
        return f"{what} but may be Avro with an 8-byte id of Apicurio: declare `registry: true` and `id: apicurio`"
    return f"{what} but may be Avro with a registry's prefix for schema {number}: declare `registry: true`"


class _Column(NamedTuple):
    """A column of the row, and whether null may stand for a TOASTed value that was not sent."""

    name: str
    nullable: bool
    may_be_unsent: bool
    read: Read


class Columns(NamedTuple):
    """The columns of the row. `placeholders` and `content` are the texts and the bytes that stand for a TOASTed value
    that was not sent."""

    each: list[_Column]
    placeholders: tuple[str, ...]
    content: bytes


def columns_of(d: Declared, settings: Callable[[pa.Field], tuple[Declared, int]]) -> Columns:
    """Return the columns of the row. `settings` returns the modes with which a column's values are written, and the
    number of nanoseconds in the unit of its timestamps."""
    each = []
    for field in d.row:
        own, unit = settings(field)
        read = reader(field.type, scalars(own, unit))
        each.append(_Column(field.name, field.nullable, own.may_be_unsent(field.type), read))
    return Columns(each, d.placeholders(), d.placeholder_bytes)


def _event(d: Declared, text: str, document: dict[str, Any], columns: Columns) -> tuple[Row, str | None]:
    _refuse_twice(document)
    path: tuple[str, ...] = ()
    schema = document.get("schema")
    if document.get("op") is None and isinstance(document.get(_PAYLOAD), dict):
        document, path = document[_PAYLOAD], (_PAYLOAD,)
    try:
        row, image = change_of(d, document, columns, lambda: mismatch(schema, d) if path else None)
    except Fault as fault:
        fault.parts += path
        raise
    return row, rescue(text_at(text, *path, image), d.row) if image else None


def change_of(
    d: Declared,
    document: dict[str, Any],
    columns: Columns,
    mismatched: Callable[[], tuple[str, str] | None],
) -> tuple[Row, str | None]:
    """Return the columns of an event and, if its row has undeclared fields, the name of the field with that row.
    `mismatched` returns the column in which the event's schema contradicts the declaration, and why. Raises DecodeFault.
    """
    _refuse_twice(document)
    operation = document.get("op")
    if type(operation) is not str or operation not in OPERATIONS:
        raise _no_change(document, operation)
    facts = _facts(d, operation, document.get("source"))
    if operation == TRUNCATE:
        return {**dict.fromkeys(d.row.names), **facts}, None
    image = "before" if operation == DELETE else "after"
    found = document.get(image)
    if not isinstance(found, dict):
        raise _no_row(found, image)
    try:
        wrong = mismatched()
        if wrong is not None:
            raise Fault("wrong_type", wrong[1], wrong[0])
        before = document.get("before") if operation == UPDATE else found
        row, lacking = _row(found, columns, before, is_delete=operation == DELETE)
    except Fault as fault:
        fault.parts.append(image)
        raise
    return {**row, **facts}, image if lacking else None


def _row(image: dict[str, Any], columns: Columns, before: Any, *, is_delete: bool) -> tuple[dict[str, Any], bool]:
    """Return the columns of the row, and True if the row has undeclared fields. `before` is the row before an update, and
    otherwise the row itself. If it is None, the row may lack TOASTed values."""
    _refuse_twice(image)
    placeholders, content = columns.placeholders, columns.content
    row: dict[str, Any] = {}
    seen, there = Facts(), 0
    for name, nullable, may_be_unsent, read in columns.each:
        there += name in image
        value = image.get(name)
        if value is None:
            if not nullable and not is_delete:
                raise Fault("missing", "is null, but required" if name in image else "is absent, but required", name)
            # The connector writes each column that the table has, so an absent one did not exist yet.
            if may_be_unsent and name in image and before is None:
                raise Fault(
                    "missing",
                    f"is null, or was not sent: for an unchanged TOASTed value of this type, the connector writes null. {_REMEDY}",
                    name,
                )
            row[name] = None
            continue
        if is_placeholder(value, placeholders, content):
            raise _unsent(name)
        try:
            row[name] = found = read(value, seen)
        except Fault as fault:
            fault.parts.append(name)
            raise
        if type(found) is list and len(found) == len(content):
            # Each byte becomes true in an array of booleans, and so do elements of a row that was sent whole. The row before
            # may have only the columns of an index.
            is_known = isinstance(before, Mapping) and before.get(name) is not None
            all_true = not is_known and all(each is True for each in found)
            if all_true or are_bytes(found, content):
                raise _unsent(name)
    return row, seen.lacking or there < len(image)


def _unsent(name: str) -> Fault:
    return Fault(
        "missing", f"PostgreSQL did not send this TOASTed value, because the update did not change it. {_REMEDY}", name
    )


def _facts(d: Declared, operation: str, source: Any) -> Row:
    try:
        found = dict.fromkeys(SOURCE.names) if source is None else _SOURCE(source, Facts())
        micros = found["ts_us"]
        if micros is None and found["ts_ms"] is not None:
            micros = found["ts_ms"] * 1_000
        if micros is not None and not EARLIEST <= micros <= LATEST:
            raise Fault("out_of_range", f"{brief(micros)} microseconds are outside of the years 1 to 9999", "ts_us")
    except Fault as fault:
        fault.parts.append("source")
        raise
    values = (operation, found["lsn"], found["sequence"], found["txId"], micros, found["snapshot"])
    return dict(zip(d.facts.names, values, strict=True))


assert len(FACTS) == 6, "one value for each fact"


def _refuse_twice(value: dict[str, Any]) -> None:
    if type(value) is Twice:
        raise Fault("malformed", "the field occurs twice", value.name)


def _no_row(found: Any, image: str) -> Fault:
    if found is None:
        why = (
            "the delete has no row: set the table's REPLICA IDENTITY to DEFAULT with a primary key, or to FULL"
            if image == "before"
            else "the change has no row"
        )
        return Fault("missing", why, image)
    return Fault("wrong_type", f"found {brief(found)}, where an object was expected", image)


def _no_change(document: dict[str, Any], operation: Any) -> DecodeFault:
    """Return the fault of a value that is no change of a row. It names the kind of record if that is known."""
    what = "the value has no `op`, so it is not a change event"
    if operation == "m":
        what = "the value is a message of pg_logical_emit_message, not a change of a row"
    elif operation is not None:
        return Fault("wrong_type", f"found {brief(operation)}, where one of {', '.join(OPERATIONS)} was expected", "op")
    elif "status" in document and "id" in document:
        what = "the value is transaction metadata, not a change of a row"
    elif "tableChanges" in document or "ddl" in document:
        what = "the value is a schema change, not a change of a row"
    elif document.keys() <= {"ts_ms", "ts_us", "ts_ns"}:
        what = "the value is a heartbeat, not a change of a row"
    elif "before" not in document and "after" not in document:
        what += "; a transform such as ExtractNewRecordState may have removed the envelope. Then use `format: json`"
        return DecodeFault("wrong_type", what)
    return DecodeFault(
        "wrong_type", f"{what}: keep such records in a topic of their own, and decode it with `format: json`"
    )
