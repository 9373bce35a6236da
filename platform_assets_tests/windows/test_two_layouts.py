"""A lake after an upgrade: existing tables stay partitioned, and new tables next to them are flat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable

from platform_assets.lake import new_tables
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain.merging import Upkeep
from platform_assets.windows.maintain.migrating import Migration
from platform_assets_tests.support import partitioned_lake
from platform_assets_tests.support.erasures import MadeTopic, proved

KINDS: tuple[TableKind, ...] = ("raw", "decoded", "dead_letters")
LATER = "2030-01-01-00:00"


@pytest.fixture
def old(tmp_path: Path) -> MadeTopic:
    return partitioned_lake.unpacked(tmp_path)


@pytest.fixture
def new(old: MadeTopic) -> MadeTopic:
    """A topic that is declared after the upgrade, in the same lake."""
    topic = MadeTopic(old.root, "newcomers")
    topic.fill(topic.seal([{0: [(b"k", b"%d-%d" % (w, n)) for n in range(5)]} for w in range(3)]))
    return topic


def partitions(topic: MadeTopic, kind: TableKind) -> list[str]:
    return DeltaTable(topic.root / kind / topic.topic).metadata().partition_columns


def rows(topic: MadeTopic, kind: TableKind = "raw") -> list[dict[str, Any]]:
    found = pl.read_delta(str(topic.root / kind / topic.topic)).drop("topic_id")
    return found.sort("window", "kafka_partition", "kafka_offset").to_dicts()


def test_old_tables_stay_partitioned_and_new_ones_are_flat(old: MadeTopic, new: MadeTopic) -> None:
    before = {kind: rows(old, kind) for kind in KINDS}
    sealed = old.ledger.windows(old.topic)
    # The newest window was sealed by the release before and is loaded now, and an older one is loaded again.
    assert old.load(sealed[6]).outcome == "loaded"
    assert old.load(sealed[0]).outcome == "unchanged"
    old.decoder().decode(sealed[6].key)
    for kind in KINDS:
        assert partitions(old, kind) == ["window"]
        assert partitions(new, kind) == []
        assert rows(old, kind)[: len(before[kind])] == before[kind]
        files = len(DeltaTable(old.root / kind / old.topic).file_uris())
        for topic in (old, new):
            list(Upkeep(next(t for t in topic.declaration.tables if t.kind == kind), topic.ledger).run(LATER))
        assert len(DeltaTable(old.root / kind / old.topic).file_uris()) == files
    assert len(DeltaTable(new.root / "raw" / new.topic).file_uris()) == 1
    assert len(rows(new)) == 15
    proved(old)
    proved(new)


def test_a_decoded_table_keeps_the_comment_of_its_columns_of_windows(old: MadeTopic) -> None:
    """If the comment were updated, two releases that load into one table would change it repeatedly."""
    folder = old.root / "decoded" / old.topic
    version = DeltaTable(folder).version()
    (comment,) = {f.metadata["comment"] for f in DeltaTable(folder).schema().fields if f.name == "window"}
    old.load(old.ledger.windows(old.topic)[6])
    old.decoder().decode(old.ledger.windows(old.topic)[6].key)
    assert DeltaTable(folder).version() == version + 1, "one load, and no change of columns"
    assert {f.metadata["comment"] for f in DeltaTable(folder).schema().fields if f.name == "window"} == {comment}


def test_a_table_that_another_run_creates_first_is_left_as_it_is(old: MadeTopic) -> None:
    folder = old.lake.table(old.declaration.raw_table)
    before = folder.delta()
    new_tables.create(folder, before.schema(), name="another", description="another")
    assert partitions(old, "raw") == ["window"]
    assert folder.delta().version() == before.version()


def test_a_migrated_table_does_not_call_its_window_the_partition_column(old: MadeTopic) -> None:
    for kind in KINDS:
        Migration(replace(old.declaration.raw_table, kind=kind), old.ledger).run()
        (window,) = (f for f in DeltaTable(old.root / kind / old.topic).schema().fields if f.name == "window")
        assert window.metadata["comment"] == "window key and Dagster partition key"
        assert window.metadata["parquet.field.id"]
    # Decoding does not change the columns.
    sealed = old.ledger.windows(old.topic)[6]
    old.load(sealed)
    version = DeltaTable(old.root / "decoded" / old.topic).version()
    old.decoder().decode(sealed.key)
    assert DeltaTable(old.root / "decoded" / old.topic).version() == version + 1
    proved(old)
