"""Differences between a declared schema and a table's schema: additions are applied; all other changes are reported and
refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from platform_assets.errors import ConfigurationError, SchemaChangeError
from platform_assets.lake import decoded_table, load_log
from platform_assets.lake.location import Folder

VALUE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("legs", pa.list_(pa.struct([("carrier", pa.string()), ("delay", pa.int16())]))),
    ]
)


def table_at(folder: Path) -> Folder:
    return Folder.at(folder / "decoded" / "flights")


def prepared(folder: Path, value: pa.Schema, replaces: str | None = None) -> pa.Schema:
    return decoded_table.prepare(table_at(folder), "flights", decoded_table.columns(None, value), replaces)


def version(folder: Path) -> int:
    return load_log.version(table_at(folder))


def legs(*fields: tuple[str, pa.DataType]) -> pa.Schema:
    return VALUE.set(2, pa.field("legs", pa.list_(pa.struct(list(fields)))))


def test_the_same_columns_commit_nothing(tmp_path: Path) -> None:
    first = prepared(tmp_path, VALUE)
    assert prepared(tmp_path, VALUE).equals(first, check_metadata=True)
    assert version(tmp_path) == 0


def test_table_has_comments_and_a_place_for_tombstones(tmp_path: Path) -> None:
    prepared(tmp_path, VALUE)
    delta = table_at(tmp_path).delta()
    assert all(field.nullable and field.metadata["comment"] for field in delta.schema().fields)
    assert delta.metadata().partition_columns == []
    assert delta.metadata().configuration["delta.isolationLevel"] == "Serializable"


def test_added_columns_come_behind_those_that_there_are(tmp_path: Path) -> None:
    """This holds at every nesting depth and wherever the columns are declared, so the hashing order stays the same."""
    prepared(tmp_path, VALUE)
    more = legs(("gate", pa.string()), ("delay", pa.int16()), ("carrier", pa.string())).insert(
        0, pa.field("year", pa.int32(), nullable=False)
    )
    held = prepared(tmp_path, more)
    assert held.names[5:] == ["id", "name", "legs", "year", "rescued", "window"]
    assert [f.name for f in held.field("legs").type.value_type] == ["carrier", "delay", "gate"]
    assert version(tmp_path) == 1
    assert pa.schema(table_at(tmp_path).delta().schema().to_arrow()).equals(held)
    assert prepared(tmp_path, more).equals(held)
    assert version(tmp_path) == 1


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        (VALUE.remove(1), "name STRING is dropped"),
        (VALUE.set(1, pa.field("title", pa.string())), "name STRING is dropped, or renamed to title"),
        (
            VALUE.set(0, pa.field("id", pa.int32(), nullable=False)),
            "id is BIGINT in the table but INT in the declaration",
        ),
        (
            VALUE.set(0, pa.field("id", pa.decimal128(20, 2))),
            r"id is BIGINT in the table but DECIMAL\(20, 2\) in the declaration",
        ),
        (VALUE.set(1, pa.field("name", pa.string(), nullable=False)), "name becomes NOT NULL"),
        (legs(("carrier", pa.string())), r"legs\[\]\.delay SMALLINT is dropped"),
        (legs(("carrier", pa.string()), ("delay", pa.int8())), r"legs\[\]\.delay is SMALLINT .* but TINYINT"),
        (
            VALUE.set(2, pa.field("legs", pa.list_(pa.string()))),
            r"legs\[\] is STRUCT<carrier: STRING, delay: SMALLINT>",
        ),
    ],
)
def test_other_changes_are_refused_until_they_are_declared(tmp_path: Path, declared: pa.Schema, text: str) -> None:
    before = prepared(tmp_path, VALUE)
    with pytest.raises(SchemaChangeError, match=text) as refused:
        prepared(tmp_path, declared)
    assert version(tmp_path) == 0
    with pytest.raises(SchemaChangeError):
        prepared(tmp_path, declared, "another table's")
    assert f"`replaces: {refused.value.held}`" in str(refused.value)
    assert "The table has no rows." in str(refused.value)
    after = prepared(tmp_path, declared, refused.value.held)
    assert after.equals(decoded_table.columns(None, declared))
    assert not after.equals(before, check_metadata=True)
    assert prepared(tmp_path, declared, refused.value.held).equals(after)
    assert version(tmp_path) == 1


def test_optional_column_that_was_required_is_no_break(tmp_path: Path) -> None:
    prepared(tmp_path, VALUE)
    held = prepared(tmp_path, VALUE.set(0, pa.field("id", pa.int64())))
    assert not decoded_table.is_required(held.field("id"))


@pytest.mark.parametrize("name", ["window", "Kafka_Offset", "key", "RESCUED"])
def test_names_of_the_platform_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"columns \\['{name}'\\] have reserved names"):
        decoded_table.columns(None, pa.schema([(name, pa.string())]))


def test_keys_are_one_column() -> None:
    single = decoded_table.columns(pa.schema([pa.field("value", pa.string(), nullable=False)]), VALUE)
    assert single.field("key").type == pa.string()
    several = decoded_table.columns(pa.schema([("a", pa.int32()), ("b", pa.string())]), VALUE)
    assert several.field("key").type == pa.struct([("a", pa.int32()), ("b", pa.string())])
    assert several.names[-3:] == ["rescued", "key_rescued", "window"]
