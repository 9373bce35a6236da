"""The other engine confirms a load, or a finding reports that the two engines disagree."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from platform_assets.checks import confirming
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.rules import deep_audit
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.protocol import LoadEngine, Order, StagedFiles
from platform_assets.errors import PlatformError
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt
from platform_assets.model.declaration import EngineName
from platform_assets.model.offsets import Cut, OffsetRange
from platform_assets_tests.support.every_kind import EVERY_KIND
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from testbed.loads import Record, TopicLake, numbered

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker


def evaluation(lk: TopicLake, **changes: Any) -> Evaluation:
    def engine(name: EngineName) -> LoadEngine:
        return choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, name)

    given: dict[str, Any] = {"engine_by_name": engine, **changes}
    return Evaluation(
        lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster, lk.engine, **given
    )


def receipts(lk: TopicLake) -> dict[str, Receipt]:
    return lk.ledger.receipts(lk.declaration.raw_table)


@pytest.mark.spark
def test_each_engine_confirms_what_the_other_loaded_once(lake: LakeMaker, broker: Broker) -> None:
    lk = lake(partitions=2)
    keys = [lk.window_of(numbered(9, 2, f"{n}-")) for n in range(4)]
    keys.append(lk.close_window())
    lk.abort([Record(b"never")] * 2)
    keys.append(lk.close_window())
    for number, key in enumerate(keys):
        engine = choose_engine(
            Lake.at(lk.root), lambda: lk.settings, lk.spark, "columnar" if number % 2 else "connector"
        )
        lk.loader(engine=engine).load(key)
    # Kafka no longer has some records of the first window, so it cannot be read again.
    delete_before(broker.bootstrap, lk.topic, 0, 1)
    rows, version = [r.whole for r in lk.rows()], lk.version()
    found = deep_audit.evaluate(evaluation(lk))
    assert found.passed
    assert dict(found.figures)["windows_confirmed"] == 3
    assert dict(found.figures)["rows_compared"] == 27
    assert "27 rows compared with the records that a plain consumer returned" in found.headline
    assert "1 window confirmed by the columnar engine after a load by the connector engine" in found.headline
    assert "2 windows confirmed by the connector engine after a load by the columnar engine" in found.headline
    confirmed = {k: (r.engine, r.confirmed_by) for k, r in receipts(lk).items() if r.confirmed_by}
    assert confirmed == {
        keys[1]: ("columnar", "connector"),
        keys[2]: ("connector", "columnar"),
        keys[3]: ("columnar", "connector"),
    }
    assert ([r.whole for r in lk.rows()], lk.version()) == (rows, version)
    assert not lk.orphans()
    assert dict(deep_audit.evaluate(evaluation(lk)).figures)["windows_confirmed"] == 0
    assert {k: (r.engine, r.confirmed_by) for k, r in receipts(lk).items() if r.confirmed_by} == confirmed


@pytest.mark.long
def test_windows_of_which_the_log_was_cut_off_are_not_read_again(lake: LakeMaker) -> None:
    """The offsets of these records now belong to other records under the same topic id. Records before the cut are
    unchanged."""
    lk = lake()
    kept, cut_off = (lk.window_of(numbered(4, stem=f"{n}-")) for n in range(2))
    for key in (kept, cut_off):
        lk.load(key)
    newest = lk.ledger.newest_cut(lk.topic)
    assert newest is not None
    assert lk.ledger.record_cuts([replace(newest, generation=2, cut=Cut({0: 6}))], newest.edge)
    assert dict(deep_audit.evaluate(evaluation(lk)).figures)["windows_confirmed"] == 1
    assert [key for key, r in receipts(lk).items() if r.confirmed_by] == [kept]


def test_rows_of_every_kind_are_those_that_a_plain_consumer_gets(lake: LakeMaker) -> None:
    lk = lake(partitions=2, config=ANY_TIME)
    key = lk.window_of(EVERY_KIND)
    lk.load(key)
    found = deep_audit.evaluate(evaluation(lk))
    assert found.passed, found
    assert dict(found.figures)["rows_compared"] == len(EVERY_KIND)


class Forgetful(SparkEngine):
    """An engine that skips the first record of each partition."""

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        fewer = []
        for order in orders:
            first = {p: (OffsetRange(r.start, r.start + 1),) for p, r in order.records.ranges.items()}
            fewer.append(replace(order, records=replace(order.records, without=first)))
        yield from super().write_many(fewer, records_per_file)


def test_an_engine_that_reads_other_rows_is_found_and_changes_nothing(lake: LakeMaker) -> None:
    lk = lake()
    key = lk.window_of(numbered(5))
    columnar = choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, "columnar")
    lk.loader(engine=columnar).load(key)
    before = lk.rows()
    found = deep_audit.evaluate(
        evaluation(lk, engine_by_name=lambda name: Forgetful(Lake.at(lk.root), lambda: lk.settings, lk.spark))
    )
    assert [(f.kind, f.window) for f in found.findings] == [("engines disagree", key)]
    assert "4 rows, but the columnar engine loaded 5" in found.findings[0].detail
    assert found.alarming
    assert receipts(lk)[key].confirmed_by is None
    assert lk.rows() == before
    assert not lk.orphans()


def test_the_sample_is_bounded_by_windows_offsets_and_time_and_compacted_topics_are_left_out(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(4, stem=f"{n}-")) for n in range(4)]
    for key in keys:
        lk.load(key)
    known = list(receipts(lk).values())
    assert not confirming.confirm(evaluation(lk, budget=-1.0), known).receipts
    monkeypatch.setattr(confirming, "SAMPLE_WINDOWS", 2)
    assert [r.window.key for r in confirming.confirm(evaluation(lk), known).receipts] == keys[:2]
    monkeypatch.setattr(confirming, "SAMPLE_OFFSETS", 1)
    assert [r.window.key for r in confirming.confirm(evaluation(lk), known[2:]).receipts] == keys[2:3]
    compacted = lake(config={"cleanup.policy": "compact"})
    key = compacted.window_of([Record(b"v", b"k")])
    compacted.load(key)
    assert confirming.confirm(evaluation(compacted), list(receipts(compacted).values())) == confirming.NOTHING
