"""Migrating tables of a lake in an object store, where a migration's single commit is a conditional write."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from platform_assets.lake import holdings
from platform_assets.model.tables import TableKind
from platform_assets.windows.maintain.migrating import Migrated, Migration
from platform_assets_tests.support.erasures import MadeTopic, proved
from testbed.object_store import ObjectStore

pytestmark = pytest.mark.cluster


@pytest.fixture
def topic(store: ObjectStore, partitioned: None) -> MadeTopic:
    """Return a topic with partitioned tables that have two windows each. The topic's lake is in the store."""
    name = f"lake-{uuid.uuid4().hex[:12]}"
    made = MadeTopic(store.bucket / name, address=store.root(name))
    made.fill(made.seal([{0: [(b"k", b"v-%d" % w), (b"k", b"\xff")], 1: [(None, None)]} for w in range(2)]))
    return made


def test_a_file_is_written_only_if_the_store_has_none(topic: MadeTopic) -> None:
    folder = topic.lake.table(topic.declaration.raw_table)
    assert folder.write_new("_migration/a", b"1")
    assert not folder.write_new("_migration/a", b"2")
    assert folder.read("_migration/a") == b"1"


def test_tables_are_migrated_by_one_of_two_runs_and_stay_proved(topic: MadeTopic) -> None:
    kinds: tuple[TableKind, ...] = ("raw", "decoded", "dead_letters")
    before = {kind: sorted(topic.values(kind), key=repr) for kind in kinds}
    for kind in kinds:
        table = replace(topic.declaration.raw_table, kind=kind)
        folder = topic.lake.table(table)
        version = folder.delta().version()

        def run(_: int) -> Migrated:
            return Migration(table, topic.ledger, 1).run()  # noqa: B023  (ends within the loop's body)

        with ThreadPoolExecutor(2) as both:
            done = list(both.map(run, range(2)))
        assert sorted(d.version is None for d in done) == [False, True]
        assert folder.delta().version() == version + 1
        assert holdings.is_flat(folder.delta())
        assert folder.files("_migration") == []
        assert sorted(topic.values(kind), key=repr) == before[kind]
    proved(topic)
    assert [topic.load(w).outcome for w in topic.ledger.windows(topic.topic)] == ["unchanged"] * 2
