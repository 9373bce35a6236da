"""`cluster_by`: merged files of decoded tables are sorted, and their bounds let readers skip files. Older files do not
change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from platform_assets.components.decode_block import decode_declaration
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows.maintain.upkeep import TableUpkeep
from platform_assets_tests.support.erasures import DECODE, MadeTopic, proved
from testbed import samples

pytestmark = pytest.mark.usefixtures("flat")

WINDOWS, EACH = 6, 12
STATISTICS = "delta.dataSkippingStatsColumns"


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """A topic with windows whose values are not sorted."""
    made = MadeTopic(tmp_path / "lake")
    made.fill(
        made.seal(
            [
                {p: [(b"k", b"%03d" % (n * 7 % 12 * 10 + w)) for n in range(EACH)] for p in (0, 1)}
                for w in range(WINDOWS)
            ]
        )
    )
    return made


def upkeep(topic: MadeTopic, cluster_by: tuple[str, ...], **options: Any) -> int:
    declaration = replace(topic.declaration, decode=replace(DECODE, cluster_by=cluster_by))
    found = TableUpkeep.of(declaration.decoded_table, topic.ledger, declaration, **options)
    done = found.run(samples.edge(10_000))
    assert done is not None
    assert not done.damaged
    return done.merged_files


def values(topic: MadeTopic) -> list[list[str]]:
    """Return the values of each file in the order of its rows."""
    table = DeltaTable(topic.root / "decoded" / topic.topic)
    return [pq.ParquetFile(uri).read(["value"])["value"].to_pylist() for uri in table.file_uris()]


def actions(topic: MadeTopic) -> list[dict[str, Any]]:
    table = DeltaTable(topic.root / "decoded" / topic.topic)
    return list(pa.table(table.get_add_actions(flatten=True)).to_pylist())


def test_rows_are_sorted_and_the_log_has_their_bounds(topic: MadeTopic) -> None:
    before = sorted(value for file in values(topic) for value in file)
    assert all(file != sorted(file) for file in values(topic))
    assert upkeep(topic, ("value", "kafka_timestamp")) == WINDOWS
    assert values(topic) == [before]
    (file,) = actions(topic)
    assert (file["min.value"], file["max.value"], file["null_count.value"]) == (before[0], before[-1], 0)
    configuration = DeltaTable(topic.root / "decoded" / topic.topic).metadata().configuration
    assert configuration[STATISTICS] == "kafka_partition,kafka_offset,kafka_timestamp,window,value"
    proved(topic)
    assert upkeep(topic, ("value", "kafka_timestamp")) == 0


def test_a_change_applies_to_new_merges_only(topic: MadeTopic) -> None:
    size = max(file["size_bytes"] for file in actions(topic))
    assert upkeep(topic, (), target=2 * size + 1) == WINDOWS
    before = values(topic)
    assert len(before) == 2
    assert upkeep(topic, ("value",), target=2 * size + 1) == 0
    assert values(topic) == before


def test_raw_tables_and_dead_letters_stay_in_order_of_their_places(topic: MadeTopic) -> None:
    declaration = replace(topic.declaration, decode=replace(DECODE, cluster_by=("value",)))
    assert [declaration.cluster_by(table) for table in declaration.tables] == [(), ("value",), ()]
    TableUpkeep.of(declaration.raw_table, topic.ledger, declaration).run(samples.edge(10_000))
    places = ["window", "kafka_partition", "kafka_offset"]
    found = pl.scan_delta(str(topic.root / "raw" / topic.topic)).select(places).collect().rows()
    assert found == sorted(found)


VALUE = {"format": "json", "schema": "a BIGINT, b STRING, c STRUCT<d: INT>, e DOUBLE"}


def test_columns_are_those_of_the_table_and_decide_no_row() -> None:
    plain = decode_declaration({"value": VALUE})
    found = decode_declaration({"value": VALUE, "cluster_by": ["b", "kafka_timestamp"]})
    assert found.cluster_by == ("b", "kafka_timestamp")
    assert (found.digest, found.fingerprint) == (plain.digest, plain.fingerprint)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a", "cluster_by: must be a list of columns"),
        ([], "cluster_by: must be a list of columns"),
        (["nope"], "cluster_by: there is no column 'nope': use one of"),
        (["a", "a"], "cluster_by: 'a' is given twice"),
        (["c"], "cluster_by: column 'c' has the type STRUCT<d: INT>, but files can be sorted only by whole numbers"),
        (["e"], "cluster_by: column 'e' has the type DOUBLE, but"),
        (["a", "b", "window", "topic_id", "kafka_offset"], "cluster_by: lists 5 columns"),
    ],
)
def test_other_columns_are_refused_by_name(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        decode_declaration({"value": VALUE, "cluster_by": given})


def test_a_file_size_out_of_bounds_is_refused() -> None:
    assert TopicDeclaration("t", "0 * * * *", samples.START).target_file_size == 128 << 20
    with pytest.raises(
        ConfigurationError, match="target_file_size of topic 't' is 1,000 bytes, but must be from 1 MB to 4 GB"
    ):
        TopicDeclaration("t", "0 * * * *", samples.START, target_file_size=1000)
