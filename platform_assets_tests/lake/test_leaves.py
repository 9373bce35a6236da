"""Paths in Parquet files: each column of a table has one, whatever the column's name is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.components.decode_block import decode_declaration
from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding.task import encodings
from platform_assets.errors import ConfigurationError


def declared(value: str, key: str | None = None) -> Any:
    """Return a topic whose `decode:` block is read as `check` reads it."""
    block: dict[str, Any] = {"value": {"format": "json", "schema": value}}
    return decode_declaration(block if key is None else block | {"key": {"format": "json", "schema": key}})


@pytest.mark.parametrize(
    ("value", "key", "path"),
    [
        ("`a.b` STRING, a STRUCT<b: BIGINT>", None, "a.b"),
        ("a STRUCT<b: BIGINT>, `A.B` BIGINT", None, "A.B"),
        ("x STRUCT<`a.b`: STRING, a: STRUCT<b: BIGINT>>", None, "x.a.b"),
        ("`a.list.element` STRING, a ARRAY<INT>", None, "a.list.element"),
        ("`key.id` STRING", "id BIGINT, more INT", "key.id"),
    ],
)
def test_columns_of_one_path_are_refused_when_they_are_declared(value: str, key: str | None, path: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"'{path}' occurs twice, .* Leave out one of the two"):
        declared(value, key)


def test_what_the_error_advises_keeps_both_values(tmp_path: Path) -> None:
    declaration = declared("a STRUCT<b: BIGINT>")
    found = decoder_of(declaration.value).decode(pa.array([b'{"a.b": "x", "a": {"b": 5}}'], pa.binary()))
    assert found.columns.to_pylist() == [{"a": {"b": 5}}]
    assert json.loads(found.rescued[0].as_py()) == {"a.b": "x"}
    declaration = declared("`a.b` STRING, c STRUCT<b: BIGINT>")
    found = decoder_of(declaration.value).decode(pa.array([b'{"a.b": "x", "c": {"b": 5}}'], pa.binary()))
    dictionaries, deltas = encodings(found.columns.schema)
    written = pa.Table.from_batches([found.columns])
    columns = dict.fromkeys(deltas, "DELTA_BINARY_PACKED")
    pq.write_table(written, tmp_path / "x.parquet", use_dictionary=list(dictionaries), column_encoding=columns)
    assert pq.read_table(tmp_path / "x.parquet").to_pylist() == [{"a.b": "x", "c": {"b": 5}}]
