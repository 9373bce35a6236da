"""The decoded table: its columns, which follow from the declaration, and how it is created or changed before a load.

All columns are nullable, because a tombstone has no values. The metadata of a column says whether it is required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Schema
from deltalake.exceptions import CommitFailedError

from platform_assets.errors import ConfigurationError, SchemaChangeError, TableRefusedError
from platform_assets.lake import failures, field_ids, holdings, load_log, new_tables
from platform_assets.lake.location import Folder
from platform_assets.lake.parquet import check_apart
from platform_assets.model.tables import TableKind

# Differences between a declared schema and a table's: additions, null in old rows, and all others, which are refused.
# Pure. Old files stay as they are, so a column keeps its place, its name and its type for as long as the table exists.

REQUIRED: Final = "platform_assets.required"
"""Metadata of a column that has a value in each row except in tombstones. Delta's own constraint would refuse
tombstones."""

_NAMES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
    pa.date32(): "DATE",
}
Fields = dict[str, pa.Field]


def type_name(kind: pa.DataType) -> str:
    """Return a type in the syntax of Spark's DDL."""
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{f.name}: {type_name(f.type)}' for f in kind)}>"
    if pa.types.is_list(kind):
        return f"ARRAY<{type_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"MAP<{type_name(kind.key_type)}, {type_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    return "TIMESTAMP" if pa.types.is_timestamp(kind) else _NAMES.get(kind, str(kind))


def fingerprint(schema: pa.Schema) -> str:
    """Return a fingerprint of a table's columns: their names, their types and which columns are required. Comments do
    not matter."""
    text = "\n".join(f"{f.name} {type_name(f.type)} {is_required(f)}" for f in schema)
    return sha256(text.encode()).hexdigest()[:12]


def is_required(field: pa.Field) -> bool:
    """Return True if a column was declared `NOT NULL`."""
    return (field.metadata or {}).get(REQUIRED.encode()) == b"true"


def breaking(table: pa.Schema, declared: pa.Schema) -> tuple[str, ...]:
    """Return the changes, other than additions, that `declared` makes to the columns of `table`: one sentence each, in
    the order of the table."""
    return tuple(_breaking({f.name: f for f in table}, {f.name: f for f in declared}, ""))


def merged(table: pa.Schema, declared: pa.Schema, last: tuple[str, ...] = ()) -> pa.Schema:
    """Return the columns of `table` in their order, then the columns that `declared` adds, then `last`. Comments are as
    declared.

    None of the changes may be `breaking`.
    """
    fields = _merged(list(table), list(declared))
    return pa.schema([f for f in fields if f.name not in last] + [f for name in last for f in fields if f.name == name])


def _breaking(table: Fields, declared: Fields, below: str) -> Iterator[str]:
    added = [f for name, f in declared.items() if name not in table]
    for name, field in table.items():
        place = f"{below}{name}"
        now = declared.get(name)
        if now is None:
            alike = [f.name for f in added if f.type == field.type]
            renamed = f", or renamed to {below}{alike[0]}" if len(alike) == 1 else ""
            yield f"{place} {type_name(field.type)} is dropped{renamed}"
            continue
        yield from _retyped(field.type, now.type, place)
        if is_required(now) and not is_required(field):
            yield f"{place} becomes NOT NULL, but rows of the table may have no value in it"


def _retyped(table: pa.DataType, declared: pa.DataType, place: str) -> Iterator[str]:
    if pa.types.is_struct(table) and pa.types.is_struct(declared):
        yield from _breaking({f.name: f for f in table}, {f.name: f for f in declared}, f"{place}.")
    elif pa.types.is_list(table) and pa.types.is_list(declared):
        yield from _retyped(table.value_type, declared.value_type, f"{place}[]")
    elif pa.types.is_map(table) and pa.types.is_map(declared):
        yield from _retyped(table.item_type, declared.item_type, f"{place}{{}}")
    elif table != declared:
        yield f"{place} is {type_name(table)} in the table but {type_name(declared)} in the declaration"


def _merged(table: list[pa.Field], declared: list[pa.Field]) -> list[pa.Field]:
    now = {f.name: f for f in declared}
    known = {f.name for f in table}
    kept = [now[f.name].with_type(_merged_type(f.type, now[f.name].type)) for f in table]
    return kept + [f for f in declared if f.name not in known]


def _merged_type(table: pa.DataType, declared: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(table):
        return pa.struct(_merged(list(table), list(declared)))
    if pa.types.is_list(table):
        return pa.list_(table.value_field.with_type(_merged_type(table.value_type, declared.value_type)))
    if pa.types.is_map(table):
        return pa.map_(table.key_type, table.item_field.with_type(_merged_type(table.item_type, declared.item_type)))
    return table


KEY, VALUE, RESCUED, KEY_RESCUED, TOMBSTONE = "key", "value", "rescued", "key_rescued", "tombstone"
_BEFORE: Final = (
    pa.field("topic_id", pa.string(), metadata={"comment": "Kafka topic id that the offsets belong to"}),
    pa.field("kafka_partition", pa.int32(), metadata={"comment": "Kafka partition"}),
    pa.field("kafka_offset", pa.int64(), metadata={"comment": "Kafka offset, unique within topic id and partition"}),
    pa.field("kafka_timestamp", pa.timestamp("us", tz="UTC"), metadata={"comment": "timestamp of the record, to the millisecond"}),
    pa.field(TOMBSTONE, pa.bool_(), metadata={"comment": "whether the record has no value, so that its columns are null"}),
)  # fmt: skip
_RESCUED: Final = pa.field(
    RESCUED, pa.string(), metadata={"comment": "JSON object of the fields of the value that are not declared; null without any"}
)  # fmt: skip
_KEY_RESCUED: Final = pa.field(KEY_RESCUED, pa.string(), metadata={"comment": "the same of the key"})  # plain: allow
_WINDOW: Final = pa.field("window", pa.string(), metadata={"comment": "window key and Dagster partition key"})
LAST: Final = (RESCUED, KEY_RESCUED, "window")
_OWN: Final = frozenset({f.name for f in _BEFORE} | {KEY, *LAST})
_ATTEMPTS: Final = 20
_CHANGE: Final = "platform_assets_schema"
_BEGUN: Final = b"platform_assets.begun_at"
"""Metadata of the column `window` of a table that started over: the version at which it did."""
ANY: Final = "any"
"""Replaces a table's columns whatever they are, for a table whose rows can all be made again."""


def columns(key: pa.Schema | None, value: pa.Schema) -> pa.Schema:
    """Return the table's columns, given the columns of the key and value decoders.

    If a key has one column named `value`, as in the formats of single values, it becomes the column `key`; any other
    key becomes a struct. Raises ConfigurationError if a column has a name that the platform reserves, or if two columns
    have the same path.
    """
    taken = [f.name for f in value if f.name.lower() in _OWN]
    if taken:
        raise ConfigurationError(f"columns {taken} have reserved names ({', '.join(sorted(_OWN))}): rename them")
    fields = [*_BEFORE]
    if key is not None:
        fields.append(_key_field(key))
    fields += [_nullable(f, "of the value") for f in value]
    fields.append(_RESCUED)
    if key is not None and not is_single(key):
        fields.append(_KEY_RESCUED)
    check_apart(fields)
    return pa.schema([*fields, _WINDOW])


def is_single(fields: pa.Schema) -> bool:
    """Return True if a decoder's columns are a single value that has no name of its own."""
    return list(fields.names) == [VALUE]


def prepare(
    path: Folder,
    topic: str,
    declared: pa.Schema,
    replaces: str | None,
    *,
    kind: TableKind = "decoded",
    last: tuple[str, ...] = LAST,
    description: str = "",
) -> pa.Schema:
    """Prepare the table of `topic` for rows with the columns `declared`; return the table's columns, which files must
    have.

    Creates the table if it is missing, and adds new columns before the columns `last`. Raises SchemaChangeError for any
    other change, unless `replaces` is the fingerprint of the table's columns, or `ANY`. In that case, the table starts
    over without rows, and its past versions keep the previous rows. `kind` is the table's kind.
    """
    name = f"{kind}/{topic}"
    if not load_log.exists(path):
        new_tables.create(
            path,
            Schema.from_arrow(declared),
            name=f"{kind}_{topic}",
            description=description
            or f"Records of Kafka topic {topic} as typed rows; those that could not be decoded are in dead_letters/{topic}",
        )
    for _ in range(_ATTEMPTS):
        handle = path.delta()
        now = pa.schema(handle.schema().to_arrow())
        changes = breaking(now, declared)
        if changes and replaces not in (ANY, fingerprint(now)):
            with path.reading():
                files = pa.table(handle.get_add_actions(flatten=True))
            held = holdings.by_window(path, files, flat=holdings.is_flat(handle))
            rows, windows = pc.sum(files["num_records"]).as_py() or 0, len(pc.unique(held[holdings.WINDOW]))
            raise SchemaChangeError(name, changes, fingerprint(now), rows, windows, handle.version())
        wanted = declared if changes else merged(now, declared, last)
        # Its comment is the table's own: two releases that load into one table would keep changing it.
        wanted = wanted.set(wanted.get_field_index(holdings.WINDOW), now.field(holdings.WINDOW))
        if changes:
            at = wanted.get_field_index(holdings.WINDOW)
            begun = {**(wanted.field(at).metadata or {}), _BEGUN: b"%d" % (handle.version() + 1)}
            wanted = wanted.set(at, wanted.field(at).with_metadata(begun))
        if holdings.is_flat(handle):
            wanted = field_ids.assigned(wanted, now)
        if wanted.equals(now, check_metadata=True):
            return now
        what = {
            "from": fingerprint(now),
            "to": fingerprint(wanted),
            "begun_again": bool(changes),
        }
        try:
            with path.writing():
                handle.create_write_transaction(
                    [],
                    "overwrite",
                    Schema.from_arrow(wanted),
                    partition_by=handle.metadata().partition_columns,
                    # No window is in an empty list, so no file is removed. Of a flat table, any other filter would remove files
                    # without statistics.
                    partition_filters=None if changes else [("window", "in", [])],
                    commit_properties=CommitProperties(
                        custom_metadata={"userMetadata": json.dumps({_CHANGE: what})}, max_commit_retries=0
                    ),
                )
        except CommitFailedError as e:
            if path.delta().version() == handle.version():
                raise TableRefusedError(name, failures.reason_of(e)) from e
    raise TableRefusedError(name, "other writers kept committing to it while its columns were being changed")


def is_begun_again(path: Folder, declared: pa.Schema, replaces: str | None) -> bool:
    """Return True if `prepare` would start the table over without its rows."""
    if replaces is None or not load_log.exists(path):
        return False
    now = held(path)
    return replaces == fingerprint(now) and bool(breaking(now, declared))


def is_start_over(user_metadata: str | None) -> bool:
    """Return True if the commit with this `userMetadata` is one with which a table started over without rows."""
    try:
        fields = json.loads(user_metadata or "null")
    except json.JSONDecodeError:
        return False
    what = fields.get(_CHANGE) if isinstance(fields, dict) else None
    return isinstance(what, dict) and bool(what.get("begun_again"))


def begun_at(path: Folder) -> int:
    """Return the version at which the table last started over without rows; 0 if it never did."""
    if not load_log.exists(path):
        return 0
    return int((held(path).field(holdings.WINDOW).metadata or {}).get(_BEGUN, b"0"))


def held(path: Folder, version: int | None = None) -> pa.Schema:
    """Return the table's columns, by default those that it has now. Raises VersionGoneError."""
    return pa.schema(path.delta(version).schema().to_arrow())


def _key_field(key: pa.Schema) -> pa.Field:
    if is_single(key):
        return _nullable(key.field(0).with_name(KEY), "the key")
    struct = pa.struct([_nullable(f, "") for f in key])
    return pa.field(KEY, struct, metadata={"comment": "the key; null where there was none"})


def _nullable(field: pa.Field, comment: str) -> pa.Field:
    """Return the field in the form that a table uses: nullable at every depth and, if it was required, marked as
    required in its metadata."""
    given = {k.decode(): v.decode() for k, v in (field.metadata or {}).items()}
    kept = {"comment": given.get("comment") or comment} if given.get("comment") or comment else {}
    if not field.nullable:
        kept[REQUIRED] = "true"
    return pa.field(field.name, nullable_type(field.type), metadata=kept or None)


def nullable_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with everything in it nullable, as in the table and its files."""
    if pa.types.is_struct(kind):
        return pa.struct([_nullable(f, "") for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", nullable_type(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, nullable_type(kind.item_type))
    return kind
