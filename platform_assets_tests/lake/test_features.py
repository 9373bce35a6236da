"""Tables on which somebody has switched on a feature of Delta: refused by whatever would misread them, until it is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from platform_assets.backup import pinning
from platform_assets.checks.registry import CHECKS
from platform_assets.lake.failures import TableUnsupportedError
from platform_assets.lake.vacuum import vacuum
from platform_assets_tests.support.erasures import MadeTopic, evaluation_of
from platform_assets_tests.support.made_kafka import MadeCluster, loader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with two windows that are loaded and decoded."""
    made = MadeTopic(tmp_path)
    sealed = made.seal([{0: [(b"k", b"%d/%d" % (w, i)) for i in range(10)]} for w in range(2)])
    made.fill(sealed)
    return made


def refusals(topic: MadeTopic) -> Iterator[Callable[[], object]]:
    """All that would misread a table with rows that its files have and its log hides."""
    folder, key = topic.lake.table(topic.declaration.raw_table), topic.ledger.windows(topic.topic)[0].key
    yield lambda: loader_of(topic, MadeCluster(topic)).load(key)
    yield lambda: topic.decoder(expect=()).decode(key)
    yield lambda: [list(table.files()) for table in pinning.pin(topic.lake).tables]
    yield lambda: vacuum(topic.declaration.raw_table, folder, retain_hours=200)
    for check in CHECKS.values():
        yield partial(check.evaluate, evaluation_of(topic))


@pytest.mark.spark
def test_deletion_vectors_of_spark_are_refused_and_the_way_that_is_named_ends_with_all_rows(
    topic: MadeTopic, spark: SparkSession
) -> None:
    """delta-rs hides them: each check passed with half the rows deleted, a backup lacked the vector, and vacuum deleted it."""
    table, values = topic.root / "raw" / topic.topic, topic.values()
    name = f"delta.`{table}`"
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    spark.sql(f"DELETE FROM {name} WHERE kafka_offset < 5")
    vectors = set(table.glob("**/deletion_vector*.bin"))
    assert vectors
    for call in refusals(topic):
        with pytest.raises(TableUnsupportedError, match=r"deletionVectors.*DROP FEATURE"):
            call()
    assert vectors <= set(table.glob("**/*.bin"))

    spark.sql(f"ALTER TABLE {name} DROP FEATURE deletionVectors")
    print(DeltaTable(table).protocol().reader_features, DeltaTable(table).protocol().writer_features)
    loader = loader_of(topic, MadeCluster(topic))
    assert {loader.load(w.key).outcome for w in topic.ledger.windows(topic.topic)} == {"healed", "unchanged"}
    assert topic.values() == values
