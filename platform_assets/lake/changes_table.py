"""The table of changes: its columns, which follow from the decoded table and the topic's state, and how it is created or
changed before a load."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from platform_assets.errors import ConfigurationError
from platform_assets.lake import decoded_table
from platform_assets.lake.decoded_table import type_name
from platform_assets.lake.location import Folder
from platform_assets.lake.state_table import HISTORY_OWN
from platform_assets.model.state import RECORD_KEY, StateDeclaration

GENERATION, DELETED = "generation", "deleted"
PLACE: Final = ("topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp")
"""Columns with the position of a record."""
_NOT_VALUES: Final = (
    *PLACE, decoded_table.TOMBSTONE, decoded_table.KEY, decoded_table.RESCUED, decoded_table.KEY_RESCUED, "window",
)  # fmt: skip
_OWN: Final = (
    pa.field(GENERATION, pa.int32(), metadata={"comment": "generation of the topic that the offsets belong to"}),
    pa.field(DELETED, pa.bool_(), metadata={"comment": "whether the record deletes its key"}),
)
OWN: Final = tuple(field.name for field in _OWN)
"""Columns that the decoded table does not have."""
_KEY_TYPES: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean, pa.types.is_integer, pa.types.is_string, pa.types.is_binary, pa.types.is_date,
    pa.types.is_timestamp, pa.types.is_decimal,
)  # fmt: skip
_VERSION_TYPES: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_integer, pa.types.is_date, pa.types.is_timestamp, pa.types.is_decimal,
)  # fmt: skip


def columns(decoded: pa.Schema, state: StateDeclaration) -> pa.Schema:
    """Return the table's columns, given those of the decoded table.

    They are the position of the record, `generation`, `deleted`, the columns of the value, and the column `key` if it
    is the key of the state. Raises ConfigurationError if the declaration does not fit the decoded table.
    """
    values = [f for f in decoded if f.name not in _NOT_VALUES]
    _check(decoded, values, state)
    key = [decoded.field(RECORD_KEY)] if RECORD_KEY in state.key else []
    return pa.schema([*(decoded.field(n) for n in PLACE), *_OWN, *key, *values, decoded.field("window")])


def prepare(path: Folder, topic: str, declared: pa.Schema) -> pa.Schema:
    """Prepare the table of `topic` for rows with the columns `declared`; return the table's columns, which files must
    have.

    If columns changed in a way that existing rows do not fit, the table starts over without rows: all of its rows can
    be made again.
    """
    return decoded_table.prepare(
        path, topic, declared, decoded_table.ANY, kind="changes", last=("window",),
        description=f"Last record for each key of Kafka topic {topic} in each window, deletes included",
    )  # fmt: skip


def _check(decoded: pa.Schema, values: list[pa.Field], state: StateDeclaration) -> None:
    if state.history and (taken := [f.name for f in values if f.name.lower() in HISTORY_OWN]):
        raise ConfigurationError(
            f"history: columns {taken} have names that history/<topic> uses for its own columns: rename them"
        )
    taken = [f.name for f in values if f.name.lower() in (GENERATION, DELETED)]
    if taken:
        raise ConfigurationError(
            f"columns {taken} have names that changes/<topic> uses for its own columns: rename them"
        )
    names = [f.name for f in values]
    for name in state.key:
        if name == RECORD_KEY:
            _check_record_key(decoded)
            continue
        if name not in names:
            raise ConfigurationError(f"key: there is no column {name!r}: {_hint(name, names)}")
        kind = decoded.field(name).type
        if not any(fits(kind) for fits in _KEY_TYPES):
            raise ConfigurationError(
                f"key: column {name!r} has the type {type_name(kind)}, whose values cannot be compared exactly: a key needs "
                "whole numbers, decimals, strings, binaries, booleans, dates or timestamps"
            )
    if state.version is not None:
        _check_version(decoded, names, state.version)
    if state.has_deletes:
        _check_tombstones(decoded, state)


def _check_record_key(decoded: pa.Schema) -> None:
    if RECORD_KEY not in decoded.names or pa.types.is_struct(decoded.field(RECORD_KEY).type):
        raise ConfigurationError(
            f"key: the column {RECORD_KEY!r} has the record's key only if `decode:` declares a `key` in a format of single "
            "values, such as `key: {format: string}`"
        )
    kind = decoded.field(RECORD_KEY).type
    if not any(fits(kind) for fits in _KEY_TYPES):
        raise ConfigurationError(
            f"key: record keys have the type {type_name(kind)}, whose values cannot be compared exactly: decode them as "
            "whole numbers, strings or binaries"
        )


def _check_version(decoded: pa.Schema, names: list[str], version: str) -> None:
    if version not in names:
        raise ConfigurationError(f"order: there is no column {version!r}: {_hint(version, names)}, or `position`")
    kind = decoded.field(version).type
    if not any(fits(kind) for fits in _VERSION_TYPES):
        raise ConfigurationError(
            f"order: column {version!r} has the type {type_name(kind)}, but versions must be whole numbers, decimals, dates or "
            "timestamps, which have one order everywhere"
        )


def _check_tombstones(decoded: pa.Schema, state: StateDeclaration) -> None:
    """A tombstone has no value, so its key columns come from the record's key."""
    if RECORD_KEY in state.key:
        return
    otherwise = "" if state.deletes == "debezium" else ", or use `deletes: none`"
    if RECORD_KEY not in decoded.names:
        raise ConfigurationError(
            "deletes: a tombstone has only the record's key, which `decode:` does not decode: add a `key` to `decode:`"
            + otherwise
        )
    kind = decoded.field(RECORD_KEY).type
    of_key = {f.name: f.type for f in kind} if pa.types.is_struct(kind) else {}
    if not of_key and len(state.key) == 1:
        of_key = {state.key[0]: kind}
    for name in state.key:
        if name not in of_key:
            raise ConfigurationError(
                f"deletes: the record's key does not have the column {name!r}, so it would not be known what a tombstone "
                "deletes: decode keys with the same columns as `state: key`" + otherwise
            )
        if of_key[name] != decoded.field(name).type:
            raise ConfigurationError(
                f"deletes: {name!r} is {type_name(of_key[name])} in the record's key but {type_name(decoded.field(name).type)} "
                "in the value: declare the same type in both"
            )


def _hint(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else f"use one of {', '.join(known)}"
