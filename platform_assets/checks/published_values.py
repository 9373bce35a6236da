"""Judgement of the encoding of published records, by readers that share no code with the publisher's encoder.

Rows are read as Python values through delta-rs, and keys, values and headers of records with Python's `json`, `decimal`
and `datetime`. A value is right if its text has exactly the row's value, in the form that is declared.
"""

from __future__ import annotations

import json
import math
import struct
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake.decoded_table import KEY, TOMBSTONE
from platform_assets.lake.location import Folder
from platform_assets.lake.parquet import python_values
from platform_assets.model.publishing import HEADER, WITH_SCHEMA, Part, PublishDeclaration, Side
from platform_assets.model.tables import TableRef

Sampled = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
"""Key, value and headers of a record, as a consumer returned them."""


class Reader(Protocol):
    """Reads keys and values whose format has a schema, without the publisher's encoder."""

    def agrees(
        self,
        side: Side,
        given: bytes,
        row: Mapping[str, Any],
        types: Mapping[str, pa.DataType],
        wanted: set[str] | None,
    ) -> bool:
        """Return True if a key or value has the content of a row, in exactly the columns `wanted`, if they are known.
        `types` are those of the row's columns."""


_HIDDEN: Final = frozenset(
    ["topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type", "window"]
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNREADABLE: Final = (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError)


def rows_of(folder: Folder, version: int, key: str, places: Sequence[tuple[int, int]]) -> pa.Table:
    """Return the rows of a window at these places, as delta-rs and Arrow read them."""
    offsets = pa.array({offset for _, offset in places}, pa.int64())
    wanted = (pc.field("window") == key) & pc.field("kafka_offset").isin(offsets)
    return folder.delta(version).to_pyarrow_dataset().to_table(filter=wanted)


def disagreements(
    declaration: PublishDeclaration,
    rows: pa.Table,
    records: Mapping[tuple[int, int], Sampled],
    hidden: frozenset[str],
    read: Reader | None = None,
) -> Iterator[str]:
    """Yield a sentence for each record that does not have the content of its row. `hidden` are further columns that a JSON
    object only has if they are declared. `read` reads keys and values whose format has a schema, and raises the errors of
    `RegistryClient.schema`."""
    types = {f.name: f.type for f in rows.schema}
    for row in python_rows(rows):
        at = (row["kafka_partition"], row["kafka_offset"])
        if (record := records.get(at)) is not None:
            yield from of_row(declaration, row, types, record, _HIDDEN | hidden, f"row {at}", read)


def python_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield rows as Python values, with Arrow's numbers for dates and times outside the years 1 to 9999."""
    columns = [python_values(column.combine_chunks()) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.column_names, values, strict=True))


def of_row(
    declaration: PublishDeclaration,
    row: dict[str, Any],
    types: Mapping[str, pa.DataType],
    record: Sampled,
    hidden: frozenset[str],
    name_of_row: str,
    read: Reader | None = None,
) -> Iterator[str]:
    """Yield a sentence for each part of a record that does not have the content of a row. `types` are those of the columns,
    and `hidden` are the columns that a JSON object only has if they are declared. `read` is as for `disagreements`."""
    key, value, headers = record
    is_tombstone = row.get(TOMBSTONE) if isinstance(declaration.table, TableRef) else False
    if is_tombstone and declaration.key is not None:
        row = row | _from_record_key(declaration.key, row)
    right_value = value is None if is_tombstone else _is_part(declaration, "value", row, types, value, hidden, read)
    if not right_value:
        yield f"the value {_shown(value)} is not that of {name_of_row}"
    right_key = key is None if declaration.key is None else _is_part(declaration, "key", row, types, key, hidden, read)
    if not right_key:
        yield f"the key {_shown(key)} is not that of {name_of_row}"
    given = [(name, text) for name, text in headers if name != HEADER]
    if [name for name, _ in given] != [name for name, _ in declaration.headers]:
        yield f"the headers of {name_of_row} are {', '.join(name for name, _ in given)}"
        return
    for (name, column), (_, text) in zip(declaration.headers, given, strict=True):
        if not _is_text(declaration, text, row[column], types[column]):
            yield f"the header {name} has {_shown(text)}, which is not that of {name_of_row}"


def _from_record_key(part: Part, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of the declared key that a row without a value has only in its record's key."""
    key = row.get(KEY)
    names = part.columns or tuple(row)
    if not part.columns and part.schema is not None:
        names = tuple(each["name"] for each in json.loads(part.schema)["fields"])
    whole = key if isinstance(key, dict) else {names[0]: key} if len(names) == 1 else {}
    return {name: whole.get(name) for name in names if name != KEY and row[name] is None}


def _shown(value: bytes | None) -> str:
    return ascii(value)[:60]


def _is_part(
    d: PublishDeclaration,
    side: Side,
    row: Mapping[str, Any],
    types: Mapping[str, pa.DataType],
    given: bytes | None,
    hidden: frozenset[str],
    read: Reader | None,
) -> bool:
    part = d.sides[side]
    if part.format in WITH_SCHEMA:
        if read is None or given is None:
            return False
        wanted = set(part.columns) or (
            None if part.schema is not None else {name for name in types if name not in hidden}
        )
        return read.agrees(side, given, row, types, wanted)
    if part.format != "json":
        return _is_text(d, given, row[part.columns[0]], types[part.columns[0]])
    names = list(part.columns) or [name for name in types if name not in hidden]
    try:
        found = json.loads(given or b"", parse_float=_Literal, parse_int=_Literal, object_pairs_hook=_Object)
    except _UNREADABLE:
        return False
    if not isinstance(found, _Object) or [name for name, _ in found.pairs] != names:
        return False
    return all(_is_same(d, value, row[name], types[name]) for name, value in found.pairs)


def _is_text(d: PublishDeclaration, given: bytes | None, value: Any, kind: pa.DataType) -> bool:
    """Return True if bytes are a value as text, without the quotes that JSON would have."""
    if (far := _far_date(value, kind)) is not None and given == far.encode():
        return True
    value = _near(value, kind)
    if value is None or given is None:
        return value is None and given is None
    if isinstance(value, bytes):
        return given == value
    try:
        text = given.decode()
        if isinstance(value, str):
            return text == value
        if isinstance(value, Decimal):
            return _is_decimal(text, value)
        if isinstance(value, datetime | date):
            return _is_same(d, text, value, kind)
        found = json.loads(text, parse_float=_Literal, parse_int=_Literal, object_pairs_hook=_Object)
        return _is_same(d, found, value, kind)
    except _UNREADABLE:
        return False


class _Literal(str):
    """The text of a number in JSON."""

    __slots__ = ()


class _Object:
    """The members of a JSON object, in order, also if names repeat."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs


def _is_decimal(text: str, value: Decimal) -> bool:
    found = Decimal(text)
    return found == value and "e" not in text.lower() and found.is_finite()


def _is_same(d: PublishDeclaration, found: Any, value: Any, kind: pa.DataType) -> bool:
    """Return True if parsed JSON is this value of a row."""
    if type(found) is str and found == _far_date(value, kind):
        return True
    value = _near(value, kind)
    if value is None:
        return found is None
    if isinstance(value, float) and not math.isfinite(value):
        return found is None and d.non_finite == "null"
    try:
        judge = next(each for of, each in _JUDGES if isinstance(value, of))
        return judge(d, found, value, kind)
    except (StopIteration, *_UNREADABLE):
        return False


def _near(value: Any, kind: pa.DataType) -> Any:
    """Return a time or date that is a number as what it is, and as NaN if JSON does not have it; and any other value as it
    is."""
    if type(value) is not int or not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return value
    try:
        if pa.types.is_date32(kind):
            return _EPOCH.date() + timedelta(days=value)
        return _EPOCH + timedelta(microseconds=value)
    except OverflowError:
        return math.nan


def _far_date(value: Any, kind: pa.DataType) -> str | None:
    """Return the text that earlier versions published of a date outside the years 1 to 9999; None for other values."""
    if type(value) is not int or not pa.types.is_date32(kind) or not isinstance(_near(value, kind), float):
        return None
    return str(pa.scalar(value, kind).cast(pa.string()))


def _is_float(d: PublishDeclaration, found: Any, value: float, kind: pa.DataType) -> bool:
    if not isinstance(found, _Literal):
        return False
    if pa.types.is_float32(kind):
        return struct.pack("f", float(found)) == struct.pack("f", value)
    return struct.pack("d", float(found)) == struct.pack("d", value)


def _is_number(d: PublishDeclaration, found: Any, value: Decimal, kind: pa.DataType) -> bool:
    wanted = _Literal if d.decimals == "number" else str
    return type(found) is wanted and _is_decimal(found, value)


def _is_time(d: PublishDeclaration, found: Any, value: datetime, kind: pa.DataType) -> bool:
    return type(found) is str and found.endswith("Z") and datetime.fromisoformat(found) == value


def _is_object(d: PublishDeclaration, found: Any, value: Mapping[str, Any], kind: pa.DataType) -> bool:
    types = {f.name: f.type for f in kind}
    return (
        isinstance(found, _Object)
        and [name for name, _ in found.pairs] == list(types)
        and all(_is_same(d, each, value[name], types[name]) for name, each in found.pairs)
    )


def _is_list(d: PublishDeclaration, found: Any, value: list[Any], kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        if not pa.types.is_string(kind.key_type):
            return isinstance(found, _Object) and len(found.pairs) <= len(value)
        pairs = dict(value)
        return (
            isinstance(found, _Object)
            and dict(found.pairs).keys() == pairs.keys()
            and all(_is_same(d, each, pairs[name], kind.item_type) for name, each in found.pairs)
        )
    return (
        isinstance(found, list)
        and len(found) == len(value)
        and all(_is_same(d, f, v, kind.value_type) for f, v in zip(found, value, strict=True))
    )


_JUDGES: Final[Sequence[tuple[type, Callable[[PublishDeclaration, Any, Any, pa.DataType], bool]]]] = (
    (bool, lambda d, found, value, kind: found is value),
    (int, lambda d, found, value, kind: isinstance(found, _Literal) and str(found) == str(value)),
    (float, _is_float),
    (str, lambda d, found, value, kind: type(found) is str and found == value),
    (Decimal, _is_number),
    (bytes, lambda d, found, value, kind: type(found) is str and b64decode(found, validate=True) == value),
    (datetime, _is_time),
    (date, lambda d, found, value, kind: type(found) is str and date.fromisoformat(found) == value),
    (dict, _is_object),
    (list, _is_list),
)
