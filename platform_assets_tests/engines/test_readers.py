"""Spark, delta-rs, polars and DuckDB read tables loaded by either engine, and decoded tables. For each version, all
readers return the same rows."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from platform_assets.decoding.protobuf.compiler import descriptor_set
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.decoding.engine import DecodeEngine
from platform_assets.lake.field_ids import ids_of
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import ENGINES, EngineName, TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.windows.decode.decoding import WindowDecoder
from platform_assets_tests.support.avro_data import written
from platform_assets_tests.support.engines import ONE_ENGINE
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.field_ids import field_ids_in
from platform_assets_tests.support.proto_data import class_of
from platform_assets_tests.support.readers import in_order, readers
from testbed.loads import Record, TopicLake, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=ENGINES)
def loaded(request: pytest.FixtureRequest, lake: LakeMaker) -> TopicLake:
    """Load a window with records of every kind, which creates version 1, and another window, which creates version 2."""
    lk = lake(partitions=2, config={"retention.ms": "-1"})
    name: EngineName = request.param
    engine = choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, name)
    for sent in (EVERY_KIND, numbered(30, 2)):
        lk.loader(engine=engine).load(lk.window_of(sent))
    return lk


def test_every_reader_finds_the_same_rows_at_each_version(loaded: TopicLake, spark: SparkSession) -> None:
    path = str(loaded.table)
    for version, count in ((1, len(EVERY_KIND)), (2, len(EVERY_KIND) + 30)):
        found = {reader: in_order(read(path, version)) for reader, read in readers(spark).items()}
        assert len(found["delta-rs"]) == count
        for reader, rows in found.items():
            assert rows == found["delta-rs"], f"{reader} at version {version}"


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("engine_name", ONE_ENGINE)
def test_files_of_flat_tables_have_field_ids_and_strangers_who_lose_them_change_no_row(
    lake: LakeMaker, spark: SparkSession, engine_name: EngineName
) -> None:
    """Spark writes no field ids for list elements, and its OPTIMIZE writes no field ids at all."""
    lk = lake(partitions=2, config={"retention.ms": "-1"})
    key = lk.window_of(EVERY_KIND)
    lk.loader().load(key)
    path = str(lk.table)
    ids = ids_of(pa.schema(DeltaTable(path).schema().to_arrow()))
    without = {("headers", "element")} if engine_name == "connector" else set()
    for file in DeltaTable(path).file_uris():
        found = dict(field_ids_in(file))
        assert found == {p: n for p, n in ids.pairs if p not in without}
    before = {reader: in_order(read(path, DeltaTable(path).version())) for reader, read in readers(spark).items()}
    assert len(before["delta-rs"]) == len(EVERY_KIND)
    spark.sql(f"OPTIMIZE delta.`{path}`").collect()
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN value COMMENT 'of another'").collect()
    now = DeltaTable(path)
    assert ids_of(pa.schema(now.schema().to_arrow())) == ids, "the ids are in the table's metadata"
    assert now.metadata().configuration.get("delta.columnMapping.mode") is None
    for reader, rows in before.items():
        assert in_order(readers(spark)[reader](path, now.version())) == rows == before["delta-rs"], reader
    assert lk.loader().load(key).outcome == "unchanged"


def test_statistics_are_those_of_the_rows(loaded: TopicLake) -> None:
    table = DeltaTable(str(loaded.table))
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = table.to_pyarrow_table()
    for action in actions.to_pylist():
        held = rows.filter(pc.equal(rows["window"], action.get("partition.window", action.get("min.window"))))
        assert action["num_records"] == held.num_rows
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp"):
            bounds = pc.min_max(held[name]).as_py()
            assert (action[f"min.{name}"], action[f"max.{name}"]) == (bounds["min"], bounds["max"]), name
            assert action[f"null_count.{name}"] == 0


TYPED: Final = (
    "id BIGINT NOT NULL, yes BOOLEAN, tiny TINYINT, small SMALLINT, whole INT, real FLOAT, ratio DOUBLE, price DECIMAL(9, 2), "
    "vast DECIMAL(38, 10), name STRING, bytes BINARY, day DATE, moment TIMESTAMP, tags ARRAY<STRING>, "
    "parts ARRAY<STRUCT<a: INT, b: DECIMAL(12, 2), c: ARRAY<DATE>>>, place STRUCT<x: DOUBLE, at: TIMESTAMP>, "
    "labels MAP<STRING, STRUCT<n: INT, t: TIMESTAMP>>, counts ARRAY<MAP<STRING, DATE>>"
)
"""Columns of each type whose values can be written in JSON."""
FULL: Final = """{"id": 9223372036854775807, "yes": true, "tiny": -128, "small": 32767, "whole": -2147483648, "real": 1.5,
 "ratio": -1e-300, "price": 1234567.89, "vast": -1234567890123456789012345678.0123456789, "name": "träume 😀", "bytes": "aGkA",
 "day": "0001-01-01", "moment": "9999-12-31T23:59:59.999999Z", "tags": ["a", "", null],
 "place": {"x": 0.1, "at": "1582-10-14T00:00:00Z"},
 "labels": {"b": {"n": 1, "t": "2024-02-29T00:00:00Z"}, "": null, "é": {}}, "counts": [{"x": "0001-01-01"}, {}, null],
 "parts": [{"a": 1, "b": 0.01, "c": ["1582-10-15", null]}, {"a": null, "b": null, "c": []}, null]}"""


def test_decoded_tables_of_every_type_are_the_same_for_every_reader(lake: LakeMaker, spark: SparkSession) -> None:
    lk = lake(partitions=2)
    declaration = replace(lk.declaration, decode=DecodeDeclaration(FormatSpec("json", {"schema": TYPED})))
    values = [
        FULL,
        '{"id": -1}',
        '{"id": 0, "tags": [], "parts": [], "place": {}, "labels": {}, "counts": []}',
        '{"id": "no number"}',
    ]
    records = [Record(value.encode(), b"k", n % 2) for n, value in enumerate(values)]
    _decode_twice(lk, declaration, records)
    _compare(lk, spark, {"decoded": 3, "dead_letters": 1})


MAPS: Final = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "counts", "type": {"type": "map", "values": "long"}},
        {"name": "notes", "type": ["null", {"type": "map", "values": {"type": "array", "items": ["null", "double"]}}]},
    ],
}
PROTO: Final = 'syntax = "proto3"; message Key { map<string, sint32> ids = 1; map<int32, bool> flags = 2; }'


def test_maps_of_avro_and_protobuf_are_maps_for_every_reader(lake: LakeMaker, spark: SparkSession) -> None:
    lk = lake(partitions=2)
    described = base64.b64encode(descriptor_set(PROTO, {})).decode()
    decode = DecodeDeclaration(
        FormatSpec("avro", {"schema": MAPS, "maps": "map"}),
        FormatSpec("protobuf", {"descriptor_set": described, "message": "Key", "maps": "map"}),
    )
    values = [
        {"counts": {"b": 1, "a": -1, "": 0}, "notes": {"é": [0.5, None], "x": []}},
        {"counts": {}, "notes": None},
        {"counts": {"b": 2}, "notes": {}},
    ]
    keys = [class_of(PROTO, "Key")(ids={"k": 1, "j": 2}, flags={3: True}), class_of(PROTO, "Key")(), None]
    records = [
        Record(written(MAPS, value), None if key is None else key.SerializeToString(), n % 2)
        for n, (key, value) in enumerate(zip(keys, values, strict=True))
    ]
    _decode_twice(lk, replace(lk.declaration, decode=decode), records)
    _compare(lk, spark, {"decoded": 3})
    found = lk.spark().read.format("delta").load(str(lk.root / "decoded" / lk.topic))
    assert {"counts": "map<string,bigint>", "notes": "map<string,array<double>>"}.items() <= dict(found.dtypes).items()
    row, *_ = found.selectExpr("counts['a'] a", "notes['é'][0] e", "key.ids['k'] k").where("a IS NOT NULL").collect()
    assert tuple(row) == (-1, 0.5, 1)


def _decode_twice(lk: TopicLake, declaration: TopicDeclaration, records: list[Record]) -> None:
    """Load and decode two windows that contain the same records."""
    for _ in range(2):
        key = lk.window_of(records)
        lk.load(key)
        WindowDecoder(declaration, lk.ledger, DecodeEngine(Lake.at(lk.root), lk.spark)).decode(key)


def _compare(lk: TopicLake, spark: SparkSession, counts: Mapping[str, int]) -> None:
    """Compare the rows that all readers find in the tables. `counts` contains the number of rows per window for each
    kind of table."""
    for kind, a_window in counts.items():
        path = str(lk.root / kind / lk.topic)
        newest = DeltaTable(path).version()
        for version, count in ((newest - 1, a_window), (newest, 2 * a_window)):
            found = {reader: _sorted(read(path, version)) for reader, read in readers(spark).items()}
            assert len(found["delta-rs"]) == count
            for reader, rows in found.items():
                assert rows == found["delta-rs"], f"{kind} by {reader} at version {version}"


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    found = [_plain(dict(row)) for row in rows]
    return sorted(found, key=lambda row: (row["window"], row["kafka_partition"], row["kafka_offset"]))


def _plain(value: Any) -> Any:
    """Convert a value to a common form, regardless of the reader that it comes from."""
    if value == {}:
        return []  # an empty map, as some readers return it
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in sorted(value.items())}
    if isinstance(value, list) and value and all(isinstance(each, tuple) for each in value):
        return {name: _plain(each) for name, each in sorted(value)}  # a map, as Arrow returns it
    if isinstance(value, list) and value and all(isinstance(e, dict) and e.keys() == {"key", "value"} for e in value):
        return {
            e["key"]: _plain(e["value"]) for e in sorted(value, key=lambda e: str(e["key"]))
        }  # a map, as polars returns it
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    return value
