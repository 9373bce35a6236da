"""Tables on which a Delta feature was enabled: every reader that would misread such a table refuses it until the
feature is dropped."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.compute as pc
import pytest

from platform_assets.backup import taking
from platform_assets.checks.baseline import snapshot
from platform_assets.checks.registry import CHECKS
from platform_assets.lake import datasets, holdings, load_log
from platform_assets.lake.failures import TableUnsupportedError
from platform_assets.lake.vacuum import vacuum
from platform_assets_tests.support.erasures import MadeTopic, evaluation_of, proved
from platform_assets_tests.support.made_kafka import MadeCluster, loader_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """Return a topic with two windows, loaded and decoded."""
    made = MadeTopic(tmp_path)
    sealed = made.seal([{0: [(b"k", b"%d/%d" % (w, i)) for i in range(10)]} for w in range(2)])
    made.fill(sealed)
    return made


def refusals(topic: MadeTopic) -> Iterator[Callable[[], object]]:
    """Yield every call that would misread a table whose log hides rows of its files."""
    folder, key = topic.lake.table(topic.declaration.raw_table), topic.ledger.windows(topic.topic)[0].key
    yield lambda: loader_of(topic, MadeCluster(topic)).load(key)
    yield lambda: topic.decoder(expect=()).decode(key)
    yield lambda: [list(table.files()) for table in taking.pin(topic.lake).tables]
    yield lambda: vacuum(topic.declaration.raw_table, folder, retain_hours=200)
    for check in CHECKS.values():
        yield partial(check.evaluate, evaluation_of(topic))


def held(topic: MadeTopic) -> list[bytes]:
    """Return all values, in order. Read the files through `datasets`, because delta-rs returns no dataset for a table
    that may have deletion vectors."""
    rows = datasets.of(topic.lake.table(topic.declaration.raw_table).delta()).to_table()
    found: list[bytes] = rows.sort_by([("kafka_partition", "ascending"), ("kafka_offset", "ascending")])[
        "value"
    ].to_pylist()
    return found


@pytest.mark.long
@pytest.mark.spark
def test_deletion_vectors_of_spark_are_refused_and_the_way_that_is_named_ends_with_all_rows(
    topic: MadeTopic, spark: SparkSession
) -> None:
    """delta-rs ignores deletion vectors: every check passed with half of the rows deleted, a backup lacked the vector,
    and vacuum deleted it."""
    table, values = topic.root / "raw" / topic.topic, topic.values()
    spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = true)")
    # As long as no file has a vector, nothing changes.
    proved(topic)
    spark.sql(f"DELETE FROM delta.`{table}` WHERE kafka_offset < 5")
    vectors = set(table.glob("**/deletion_vector*.bin"))
    assert vectors
    for call in refusals(topic):
        with pytest.raises(TableUnsupportedError, match=r"deletion vectors hide rows in 1 of its files.*REORG") as e:
            call()
    assert vectors <= set(table.glob("**/*.bin"))

    commands = re.findall(r"`((?:ALTER|REORG) TABLE delta\.`[^`]+` [^`]+)`", str(e.value))
    assert len(commands) == 2
    for command in commands:
        spark.sql(command)
    kafka = MadeCluster(topic)
    assert [loader_of(topic, kafka).load(w.key).outcome for w in topic.ledger.windows(topic.topic)] == [
        "healed",
        "unchanged",
    ]
    assert held(topic) == values
    proved(topic)


def protocol(topic: MadeTopic, *features: str) -> None:
    """Add required reader features to the table's protocol."""
    folder = topic.lake.table(topic.declaration.raw_table)
    asked = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    name = f"_delta_log/{load_log.version(folder) + 1:020}.json"
    folder.write(name, json.dumps({"protocol": asked}).encode())


@pytest.mark.parametrize("feature", ["typeWidening", "columnMapping", "ofTheFuture"])
def test_features_that_change_what_files_mean_are_refused_by_whatever_reads_them(
    topic: MadeTopic, feature: str
) -> None:
    """Checks with an earlier baseline also refuse the table, and no reader follows the log past the change."""
    base = snapshot.capture(topic.lake, topic.declaration.raw_table, 10)
    protocol(topic, feature)
    for call in refusals(topic):
        with pytest.raises(TableUnsupportedError, match=rf"{feature}.*DROP FEATURE"):
            call()
    assert base is not None
    assert snapshot.advance(base, topic.lake.table(topic.declaration.raw_table)) is None


def test_a_table_that_may_have_deletion_vectors_and_has_none_is_as_any_other(topic: MadeTopic) -> None:
    values = topic.values()
    protocol(topic, "deletionVectors", "timestampNtz")
    proved(topic)
    folder, (first, second) = topic.lake.table(topic.declaration.raw_table), topic.ledger.windows(topic.topic)
    of_second = datasets.of(folder.delta(), "window", second.key).to_table(filter=pc.field("window") == second.key)
    assert (of_second.num_rows, set(of_second["window"].to_pylist())) == (10, {second.key})
    (path,) = holdings.files_of(folder, first.key).paths
    (folder.path / unquote(path)).unlink()
    assert loader_of(topic, MadeCluster(topic)).load(first.key).outcome == "healed"
    assert held(topic) == values


def test_rows_that_a_vector_hides_are_refused_until_no_file_has_one(tmp_path: Path) -> None:
    """The log contains the deletion vector itself, which deletes rows 3, 4, 7, 11, 18 and 29 of a file."""
    topic = MadeTopic(tmp_path)
    topic.fill(topic.seal([{0: [(b"k", b"%d/%d" % (w, i)) for i in range(40)]} for w in range(2)]))
    folder, (first, second) = topic.lake.table(topic.declaration.raw_table), topic.ledger.windows(topic.topic)
    protocol(topic, "deletionVectors")
    (add,) = (f for f in holdings.data_files(holdings.actions(folder))[first.key])
    action = {"path": add.path, "partitionValues": {"window": first.key}, "size": add.bytes, "modificationTime": 1}
    inline = "^Bg9^0rr910000000000iXQKl0rr91000f55c8Xg0@@D72lkbi5=-{L"
    vector = {"storageType": "i", "pathOrInlineDv": inline, "sizeInBytes": 44, "cardinality": 6}
    lines = [
        {"remove": {"path": add.path, "dataChange": True, "deletionTimestamp": 1}},
        {"add": {**action, "dataChange": True, "stats": '{"numRecords":40}', "deletionVector": vector}},
    ]
    version = load_log.version(folder) + 1
    folder.write(f"_delta_log/{version:020}.json", "\n".join(map(json.dumps, lines)).encode())
    for call in refusals(topic):
        with pytest.raises(TableUnsupportedError, match=r"deletion vectors hide rows in 1 of its files.*REORG"):
            call()
    # After a purge, here by removing the file, past versions with vectors are ignored.
    lines = [{"remove": {"path": add.path, "dataChange": True, "deletionTimestamp": 1, "deletionVector": vector}}]
    folder.write(f"_delta_log/{version + 1:020}.json", json.dumps(lines[0]).encode())
    assert holdings.files_if_kept(folder, first.key, version) is None
    kafka = MadeCluster(topic)
    kafka.expire(0, 40)
    assert loader_of(topic, kafka).load(first.key).outcome == "restored"
    assert loader_of(topic, kafka).load(second.key).outcome == "unchanged"
    assert len(held(topic)) == 80
    proved(topic)
