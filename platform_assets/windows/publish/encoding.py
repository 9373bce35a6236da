"""Rows of a table as keys, values and headers of Kafka records.

Each format has a module of its own, such as `json_texts` and `avro`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import product, repeat
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import (
    ConfigurationError,
    UnpublishableTextError,
    UnpublishableTombstoneError,
    UnpublishableValueError,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.publisher import Headers, Placed, Record
from platform_assets.lake.decoded_table import KEY, KEY_RESCUED, RESCUED, TOMBSTONE
from platform_assets.lake.location import Lake
from platform_assets.lake.parquet import python_values
from platform_assets.model.derived import DerivedRef
from platform_assets.model.publishing import HEADER, POSITION, WITH_SCHEMA, Part, PublishDeclaration, Side
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.windows.publish.datums import Misfit, wrong_text
from platform_assets.windows.publish.json_texts import JsonTexts

if TYPE_CHECKING:
    from platform_assets.decoding.registry.cache import Registered
    from platform_assets.windows.publish.forms import Form

OWN_COLUMNS: Final = frozenset(
    {
        *("topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "kafka_timestamp_type", "window"),
        *(TOMBSTONE, RESCUED, KEY_RESCUED),
    }
)
"""Columns of the platform, which a JSON object has only if the declaration names them."""
_OF_STATE: Final = OWN_COLUMNS | {KEY, "generation"}
_TOGETHER: Final = 256
_NO_BYTES: Final = np.zeros(1, np.uint8)
_NO_LONGS: Final = np.zeros(1, np.int64)
_SHOWN: Final = 60
_IN_CACHE: Final = 16_384
"""Number of rows that are encoded at a time. More would not stay in the processor's cache between two steps."""
_CHECKED: Final = 50_000
_CHECKED_BYTES: Final = 64 << 20
_VERSION: Final = 1
"""Changes whenever the same rows give other keys, values or headers."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Rows as records, in the order of the rows: keys, values, and the declared headers (None if there are none)."""

    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[Headers] | None
    sizes: npt.NDArray[np.int64]
    """Bytes of each record's key and value."""
    key_column: pa.LargeBinaryArray
    """The keys, as Arrow has them."""

    def __len__(self) -> int:
        return len(self.values)

    def records(self, identities: Sequence[bytes]) -> Iterator[Record]:
        """Return the records with these identities. No Python code runs for a record without declared headers."""
        last: Iterable[tuple[str, bytes | None]] = zip(repeat(HEADER), identities)
        headers: Iterable[Headers] = map(list, zip(last, strict=True))
        if self.headers is not None:
            headers = ([*declared, each] for declared, each in zip(self.headers, last, strict=True))
        return zip(self.keys, self.values, headers, strict=True)

    def placed(self, rows: pa.Table, number: int, count: int) -> Placed:
        """Return the first `count` records without an identity, each with its partition out of `number`. `rows` are the
        rows that were encoded."""
        given = self.headers if self.headers is not None else repeat(None)
        records = zip(self.keys, self.values, given)  # noqa: B905 - `repeat` has no end
        return Placed(records, partitions(self.key_column, rows, number)[:count], number)


def hidden_in(table: StateRef | DerivedRef) -> frozenset[str]:
    """Return the columns of a table without windows that a JSON object has only if the declaration names them."""
    return _OF_STATE if isinstance(table, StateRef) else frozenset()


def partitions(keys: pa.LargeBinaryArray, rows: pa.Table, number: int) -> npt.NDArray[np.int32]:
    """Return the partition of each record out of `number`: for records with a key, that of Kafka's Java client. Records
    without a key stay together in groups of up to 256 by the position of their rows, so that batches are full."""
    from platform_assets.kernels.published import partitions_of

    found = np.empty(len(keys), np.int32)
    _, bounds, data = keys.buffers()
    edges = np.frombuffer(bounds, np.int64, keys.offset + len(keys) + 1)[keys.offset :] if len(keys) else _NO_LONGS
    values = np.frombuffer(data, np.uint8) if data is not None and data.size else _NO_BYTES
    partitions_of(values, edges, number, found)
    if keys.null_count:
        partition, offset = (rows[name].to_numpy() for name in POSITION)
        spread = ((partition + offset // _TOGETHER) % number).astype(np.int32)
        found = np.where(keys.is_valid().to_numpy(zero_copy_only=False), found, spread)
    return found


@dataclass(frozen=True)
class Encoder:
    """Encodes rows with the columns `schema` as `declaration` says. `heads` are the bytes before the data of keys and
    values that name their schema. With `past`, rows were published before, maybe by a version that refused less: nothing is
    refused. Raises ConfigurationError for unknown columns, and for columns that a schema does not
    have."""

    declaration: PublishDeclaration
    schema: pa.Schema
    heads: Mapping[Side, bytes] = field(default_factory=dict)
    past: bool = False

    def __post_init__(self) -> None:
        named = [c for part in (self.declaration.key, self.declaration.value) if part for c in part.columns]
        named += [column for _, column in self.declaration.headers]
        if unknown := sorted(set(named) - set(self.schema.names)):
            raise ConfigurationError(
                f"{self.declaration.table} has no column {', '.join(map(repr, unknown))}; its columns are: "
                f"{', '.join(self.schema.names)}"
            )
        assert self.forms is not None  # made here, so that the error is raised here

    @cached_property
    def forms(self) -> dict[Side, Form]:
        """The forms of keys and values whose format has a schema."""
        # Compiled code, which definitions do not need.
        from platform_assets.windows.publish import forms

        d, found = self.declaration, dict[Side, forms.Form]()
        for side, part in d.sides.items():
            if part.format in WITH_SCHEMA:
                hidden = () if part.columns else self._hidden
                fields = [each for each in self.schema if each.name not in hidden or part.schema is not None]
                try:
                    found[side] = forms.form(part.format, fields, part.columns, part.schema, d.name_of(side))
                    if part.registry:
                        found[side].check_named()
                except ConfigurationError as e:
                    raise ConfigurationError(f"{side} of {d.name}: {e}") from e
        return found

    def naming_schemas(self, lake: Lake, cluster: Cluster, *, send: bool, topic_id: str | None = None) -> Encoder:
        """Return an encoder whose keys and values name their schemas, if that is declared. By default, `topic_id` is the id
        that the topic has now; `send` is as for `SchemaIds.heads`. Raises the errors of `SchemaIds.heads`."""
        d = self.declaration
        if not any(part.registry for part in d.sides.values()):
            return self
        # Compiled code, which definitions do not need.
        from platform_assets.windows.publish.schema_ids import SchemaIds, is_unused

        if topic_id is None:
            topic_id = cluster.topic(d.topic).topic_id
        ids = SchemaIds(d, lake, topic_id, is_unused=lambda: is_unused(cluster, d.topic))
        return replace(self, heads=ids.heads(self.schemas, send=send))

    @property
    def schemas(self) -> dict[Side, Registered]:
        """The schemas of keys and values whose format has one."""
        from platform_assets.decoding.registry.cache import Registered

        return {side: Registered(form.kind, form.text) for side, form in self.forms.items()}

    def columns_of(self, side: Side) -> list[str]:
        """Return the names of the columns in a key or value."""
        return self._of(side)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that `encode` needs, without those that give a row's position."""
        wanted = [c for side in self.declaration.sides for c in self._of(side)]
        wanted += [c for _, c in self.declaration.headers]
        if self._marks_tombstones(self.schema.names):
            wanted += [TOMBSTONE, *([KEY] if self.declaration.key and KEY in self.schema.names else [])]
        return list(dict.fromkeys(wanted))

    @property
    def wanted(self) -> pa.Schema:
        """The columns named by `columns`, with their types."""
        return pa.schema([self.schema.field(name) for name in self.columns])

    def check(self, rows: pa.Table) -> None:
        """Raise UnpublishableRowError if the key of a tombstone, or a value in a column, cannot be published."""
        rows = self._with_keys_of_tombstones(rows)
        self._check_texts(rows)
        for side, form in self.forms.items():
            for part in _parts(rows) if form.may_refuse else ():
                self._with_schema(form, side, part)
        as_text = [c for side in self.declaration.sides if side not in self.forms for c in self._of(side)]
        for name in dict.fromkeys([*as_text, *(column for _, column in self.declaration.headers)]):
            self._texts.check(rows[name], name)

    def _check_texts(self, rows: pa.Table) -> None:
        """Raise UnpublishableTextError for a text that is not UTF-8, unless the rows were published before."""
        for name in () if self.past else self.columns:
            if (row := wrong_text(rows[name])) is not None:
                d = self.declaration
                raise UnpublishableTextError(d.topic, d.table.name, self._row_named(rows, row), name)

    @cached_property
    def digest(self) -> str:
        """A digest of everything that decides which records the same rows give: of the declaration, the types of the
        columns and this encoder's version."""
        return self._digest(self.declaration.sides)

    @cached_property
    def digests(self) -> frozenset[str]:
        """`digest`, and the digests of other declarations that give the same records: with the columns that a key or value
        has, named or by default."""
        choices = []
        for side, part in self.declaration.sides.items():
            alike = [part]
            if part.schema is None and part.format not in ("text", "bytes"):
                alike += [replace(part, columns=columns) for columns in (tuple(self._of(side)), ())]
            choices.append([(side, each) for each in alike])
        return frozenset(self._digest(dict(parts)) for parts in product(*choices))

    def _digest(self, parts: Mapping[Side, Part]) -> str:
        d = self.declaration
        key, value = (self._plain_part(part) for part in (parts.get("key"), parts["value"]))
        form = (key, value, d.headers, d.tombstones, d.decimals, d.non_finite)
        columns = [(name, str(self.schema.field(name).type)) for name in self.columns]
        text = repr((_VERSION, form, columns))
        if TOMBSTONE in self.schema.names and not isinstance(d.table, TableRef):
            # Earlier versions deleted the keys of rows in which this column is true.
            text += " tombstone is a value"
        for side, schema in self.schemas.items():
            text += f" {side} {schema.fingerprint}"
        return sha256(text.encode()).hexdigest()[:32]

    @staticmethod
    def _plain_part(part: Part | None) -> Part | None:
        """Return a part without what does not change its records."""
        return None if part is None else replace(part, register=False, subject=None)

    def encode(self, rows: pa.Table) -> Encoded:
        """Encode the rows. Raises UnpublishableRowError if a number is not finite, or a time or date is not in the years 1
        to 9999, and the declaration refuses it; also for a tombstone without the declared key, and a text that is not UTF-8 in a
        table without windows."""
        starts = range(0, max(rows.num_rows, 1), _IN_CACHE)
        return _together([self._encode(rows.slice(start, _IN_CACHE)) for start in starts])

    def _encode(self, rows: pa.Table) -> Encoded:
        rows = self._with_keys_of_tombstones(rows)
        d = self.declaration
        if not isinstance(d.table, TableRef):
            # `check` is called for tables with windows only.
            self._check_texts(rows)
        keys = pa.chunked_array([pa.nulls(rows.num_rows, pa.large_binary())])
        if d.key is not None:
            keys = self._part("key", rows)
        headers = None
        if d.headers:
            named = [(name, self._single(rows[column], "text", column).to_pylist()) for name, column in d.headers]
            headers = [[(name, each[at]) for name, each in named] for at in range(rows.num_rows)]
        values = self._part("value", rows)
        if self._marks_tombstones(rows.column_names) and pc.any(rows[TOMBSTONE]).as_py():
            values = pc.if_else(pc.fill_null(rows[TOMBSTONE], False), pa.scalar(None, values.type), values)
        sizes = sum(pc.fill_null(pc.binary_length(each), 0).to_numpy().astype(np.int64) for each in (keys, values))
        column = _whole(keys)
        return Encoded(_listed(column), _listed(_whole(values)), headers, sizes, column)

    def _with_keys_of_tombstones(self, rows: pa.Table) -> pa.Table:
        """Return rows in which the columns of the declared key come from the record's key wherever a tombstone, which has
        no value, lacks them."""
        if self.declaration.key is None or not self._marks_tombstones(rows.column_names):
            return rows
        if not pc.any(rows[TOMBSTONE]).as_py():
            return rows
        names = self._of("key")
        for name in names:
            column = rows[name]
            lacking = pc.and_(pc.fill_null(rows[TOMBSTONE], False), pc.is_null(column))
            if name == KEY or not pc.any(lacking).as_py():
                continue
            found = self._of_record_key(rows, name, column.type, len(names))
            if found is None:
                raise UnpublishableTombstoneError(self.declaration.topic, self.declaration.table.name, name)
            filled = pc.if_else(lacking, found, column)
            rows = rows.set_column(rows.column_names.index(name), name, filled)
        return rows

    def _of_record_key(self, rows: pa.Table, name: str, kind: pa.DataType, columns: int) -> pa.ChunkedArray | None:
        """Return the part of the record's key that is column `name`; None if the key has no such part."""
        if KEY not in rows.column_names:
            return None
        key = rows[KEY]
        if pa.types.is_struct(key.type):
            at = key.type.get_field_index(name)
            return pc.struct_field(key, [at]) if at >= 0 and key.type.field(at).type == kind else None
        return key if columns == 1 and key.type == kind else None

    def _marks_tombstones(self, columns: Sequence[str]) -> bool:
        """Return True if a column tells which rows are records without a value: that of the platform in decoded tables. In
        a state or derived table, a column with this name is one like any other."""
        return TOMBSTONE in columns and isinstance(self.declaration.table, TableRef)

    @property
    def _hidden(self) -> frozenset[str]:
        table = self.declaration.table
        return OWN_COLUMNS if isinstance(table, TableRef) else hidden_in(table)

    def _of(self, side: Side) -> list[str]:
        if side in self.forms:
            return list(self.forms[side].columns)
        return list(self.declaration.sides[side].columns) or [n for n in self.schema.names if n not in self._hidden]

    def _part(self, side: Side, rows: pa.Table) -> pa.ChunkedArray:
        if side in self.forms:
            return pa.chunked_array([self._with_schema(self.forms[side], side, rows)])
        part, names = self.declaration.sides[side], self._of(side)
        if part.format != "json":
            return self._single(rows[names[0]], part.format, names[0])
        return pa.chunked_array([self._texts.objects(rows, names)])

    def _with_schema(self, form: Form, side: Side, rows: pa.Table) -> pa.LargeBinaryArray:
        alive = np.full(rows.num_rows, not self.past)
        if side == "value" and self._marks_tombstones(rows.column_names):
            alive &= ~pc.fill_null(rows[TOMBSTONE], False).to_numpy(zero_copy_only=False)
        try:
            return form.encode(rows, alive, self.heads.get(side, b""))
        except Misfit as e:
            d = self.declaration
            raise UnpublishableValueError(d.topic, d.table.name, self._row_named(rows, e.row), e.place, e.what) from e

    def _row_named(self, rows: pa.Table, row: int) -> str:
        if all(name in rows.column_names for name in POSITION):
            partition, offset = (rows[name][row].as_py() for name in POSITION)
            return f"of partition {partition} and offset {offset}"
        names = self._of("key") if self.declaration.key is not None else rows.column_names
        values = (ascii(python_values(rows[name].slice(row, 1).combine_chunks())[0])[:_SHOWN] for name in names)
        return "with " + ", ".join(f"{name} = {value}" for name, value in zip(names, values, strict=True))

    def _single(self, column: pa.ChunkedArray, kind: str, name: str) -> pa.ChunkedArray:
        """Return one column as bytes; nulls stay nulls. Text shows values as JSON does, without quotes."""
        if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
            return column.cast(pa.large_binary())
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            return column.cast(pa.large_binary())
        if kind == "bytes":
            raise ConfigurationError(
                f"column {name!r} of {self.declaration.table} is {column.type}, which has no bytes of its own: use format text"
            )
        return pa.chunked_array([self._texts.plain(column, name)])

    @property
    def _texts(self) -> JsonTexts:
        return JsonTexts(self.declaration, self.past)


def _together(parts: Sequence[Encoded]) -> Encoded:
    if len(parts) == 1:
        return parts[0]
    return Encoded(
        [key for part in parts for key in part.keys],
        [value for part in parts for value in part.values],
        None if parts[0].headers is None else [each for part in parts for each in part.headers or ()],
        np.concatenate([part.sizes for part in parts]),
        pa.concat_arrays([part.key_column for part in parts]),
    )


def _parts(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in parts whose texts Arrow can join: it allows 2 GiB."""
    start = 0
    while start < rows.num_rows:
        part = rows.slice(start, _CHECKED)
        while part.num_rows > 1 and part.nbytes > _CHECKED_BYTES:
            part = part.slice(0, part.num_rows // 2)
        yield part
        start += part.num_rows


def _whole(column: pa.ChunkedArray) -> pa.LargeBinaryArray:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


def _listed(column: pa.LargeBinaryArray) -> list[bytes | None]:
    found: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return found


def fitting(sizes: npt.NDArray[np.int64], room: int) -> int:
    """Return how many of `sizes` end with the one that brings their sum to `room`: all of them if the sum is smaller,
    and at least one."""
    return min(int(np.searchsorted(np.cumsum(sizes), room)) + 1, len(sizes))
