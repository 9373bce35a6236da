"""Declarations of a state: columns of the changes, and what is refused with a reason and a fix."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.lake import changes_table, decoded_table
from platform_assets.model.state import StateDeclaration

VALUE = pa.schema(
    [
        ("id", pa.int64()), ("region", pa.string()), ("seen", pa.timestamp("us", tz="UTC")), ("share", pa.float64()),
        ("tags", pa.list_(pa.string())), ("version", pa.int64()), ("name", pa.string()),
    ]
)  # fmt: skip
OF_KEY = pa.schema([("id", pa.int64()), ("region", pa.string())])
TEXT_KEY = pa.schema([("value", pa.string())])


def columns(record_key: pa.Schema | None = None, value: pa.Schema = VALUE, **given: Any) -> pa.Schema:
    return changes_table.columns(decoded_table.columns(record_key, value), StateDeclaration(**given))


def test_a_change_has_its_position_the_generation_the_delete_flag_and_the_value() -> None:
    found = columns(OF_KEY, key=("id", "region"))
    assert found.names == [
        "topic_id", "kafka_partition", "kafka_offset", "kafka_timestamp", "generation", "deleted", *VALUE.names, "window",
    ]  # fmt: skip


def test_the_records_key_is_a_column_only_if_it_is_the_key_of_the_state() -> None:
    assert "key" in columns(TEXT_KEY, key=("key",)).names
    assert "key" not in columns(TEXT_KEY, key=("name",)).names


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"key": ()}, "lists no column"),
        ({"key": ("id", "id")}, "given twice"),
        ({"key": ("key", "id")}, "whole key of a record"),
        ({"key": ("idd",), "deletes": "none"}, "did you mean 'id'"),
        ({"key": ("share",), "deletes": "none"}, "DOUBLE"),
        ({"key": ("tags",), "deletes": "none"}, "ARRAY<STRING>"),
        ({"key": ("id",), "order": "versions", "deletes": "none"}, "did you mean .version."),
        ({"key": ("id",), "order": "name", "deletes": "none"}, "STRING"),
        ({"key": ("id",), "order": "version"}, "no column 'version'"),
        ({"key": ("id",), "keep": "first"}, "keep: first"),
        ({"key": ("id",), "keep": "first", "deletes": "debezium"}, "use `keep: last`"),
        ({"key": ("id",), "order": "version", "deletes": "debezium"}, "use `order: position`$"),
        ({"key": ("id",), "keep": "newest"}, "last, first"),
        ({"key": ("id",), "deletes": "op = 'd'"}, "tombstone, debezium, none"),
        ({"key": ("key",)}, "single values"),
        ({"key": ("id",)}, "add a `key` to `decode:`, or use `deletes: none`"),
        ({"key": ("id",), "deletes": "debezium"}, "add a `key` to `decode:`$"),
    ],
)
def test_a_declaration_that_cannot_work_is_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        columns(**given)


def test_a_tombstone_needs_the_keys_columns_in_the_same_types() -> None:
    with pytest.raises(ConfigurationError, match="does not have the column 'name'"):
        columns(OF_KEY, key=("id", "name"))
    with pytest.raises(ConfigurationError, match="STRING in the record's key but BIGINT"):
        columns(TEXT_KEY, key=("id",))
    assert "id" in columns(TEXT_KEY, key=("id",), deletes="none").names
    assert "name" in columns(TEXT_KEY, key=("name",)).names


def test_names_of_the_tables_own_columns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="rename"):
        columns(None, pa.schema([("id", pa.int64()), ("Deleted", pa.bool_())]), key=("id",), deletes="none")


def test_the_digest_covers_the_whole_declaration() -> None:
    declared = [
        StateDeclaration(("id",)), StateDeclaration(("id", "region")), StateDeclaration(("id",), deletes="none"),
        StateDeclaration(("id",), deletes="none", keep="first"), StateDeclaration(("id",), "version", "none"),
        StateDeclaration(("id",), deletes="debezium"), StateDeclaration(("id",), deletes="debezium", operation="op"),
    ]  # fmt: skip
    assert len({each.digest for each in declared}) == len(declared)
