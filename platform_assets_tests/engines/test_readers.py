"""Tables that either engine loaded, read by Spark, delta-rs, polars and DuckDB: the same rows at each version."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable

from platform_assets.engines.choice import choose_engine
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import EngineName
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.readers import in_order, readers
from testbed.loads import TopicLake, numbered

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from platform_assets_tests.conftest import LakeMaker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


@pytest.fixture(params=["columnar", "connector"])
def loaded(request: pytest.FixtureRequest, lake: LakeMaker) -> TopicLake:
    """Version 1 has a window with records of every kind, version 2 another window besides."""
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


def test_statistics_are_those_of_the_rows(loaded: TopicLake) -> None:
    table = DeltaTable(str(loaded.table))
    actions = pa.table(table.get_add_actions(flatten=True))
    rows = table.to_pyarrow_table()
    for action in actions.to_pylist():
        held = rows.filter(pc.equal(rows["window"], action["partition.window"]))
        assert action["num_records"] == held.num_rows
        for name in ("kafka_partition", "kafka_offset", "kafka_timestamp"):
            bounds = pc.min_max(held[name]).as_py()
            assert (action[f"min.{name}"], action[f"max.{name}"]) == (bounds["min"], bounds["max"]), name
            assert action[f"null_count.{name}"] == 0
