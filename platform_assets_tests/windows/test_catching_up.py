"""Many windows loaded by one Spark job: each window is exact, their order is kept, and no window blocks another."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

import pytest

from platform_assets.engines.columnar.engine import reports_of
from platform_assets.engines.columnar.work import Work
from platform_assets.errors import (
    DamagedBatchError,
    OffsetsExpiredError,
    PlatformError,
    UnreadableTimestampError,
    WorkerLostError,
)
from platform_assets.kafka.timestamps import LAST_READABLE_MS
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import EngineName
from platform_assets.windows.load import catching_up
from platform_assets.windows.load.catching_up import load_group, load_many
from platform_assets.windows.load.replacing import Loaded
from platform_assets_tests.support.engines import ONE_ENGINE
from platform_assets_tests.support.made_batches import Made, made_batch
from platform_assets_tests.support.raw_produce import produce_batch
from platform_assets_tests.support.streams import ANY_TIME, delete_before
from testbed.loads import Record, TopicLake, numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, LakeMaker

pytestmark = pytest.mark.broker

Outcomes = dict[str, Loaded | PlatformError]


@pytest.fixture(params=ONE_ENGINE)
def engine_name(request: pytest.FixtureRequest) -> EngineName:
    """The engine that a test uses: error handling is tested with both engines, everything else with one."""
    return cast(EngineName, request.param)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The windows in each job of the columnar engine, one entry per share."""
    asked: list[list[str]] = []

    def counted(spark: Any, work: Work, tasks: int) -> Generator[Any, None, None]:
        asked.append([share.window for share in work.shares])
        return reports_of(spark, work, tasks)

    monkeypatch.setattr("platform_assets.engines.columnar.engine.reports_of", counted)
    return asked


def outcomes(lk: TopicLake, keys: Sequence[str]) -> Outcomes:
    found = list(load_many(lk.loader(), keys))
    assert [key for key, _ in found] == list(keys)
    return dict(found)


def named(found: Outcomes) -> dict[str, str]:
    return {key: o.outcome if isinstance(o, Loaded) else type(o).__name__ for key, o in found.items()}


def test_windows_of_every_size_are_loaded_in_order_and_by_one_job(lake: LakeMaker, jobs: list[list[str]]) -> None:
    lk = lake(partitions=2, records_per_file=500)
    keys = [lk.window_of(numbered(n, 2, f"w{n}-")) for n in (3, 40, 2_000, 1)]
    keys.append(lk.close_window())
    lk.abort([Record(b"never")] * 3)
    keys.append(lk.close_window())
    lk.load(keys[1])
    keys += [lk.window_of(numbered(5, 2, f"late{n}-")) for n in range(12)]
    jobs.clear()
    found = outcomes(lk, keys)
    expected = dict.fromkeys(keys, "loaded") | {keys[1]: "unchanged", keys[4]: "empty"}
    assert named(found) == expected
    assert records(lk.rows()) == records(lk.committed())
    receipts = lk.ledger.receipts(lk.declaration.raw_table)
    versions = [receipts[k].table_version or 0 for k in keys if expected[k] == "loaded"]
    assert versions == sorted(versions)
    assert {receipts[k].engine for k in keys if receipts[k].ranges.size} == {lk.engine_name}
    assert not lk.orphans()
    if lk.engine_name == "columnar":
        # One job for windows that were never loaded, one for the loaded window.
        assert sorted(map(len, (set(windows) for windows in jobs))) == [1, len(keys) - 2]
    assert set(named(outcomes(lk, keys[3:5])).values()) == {"unchanged", "empty"}


def test_a_window_that_fails_holds_up_no_other(lake: LakeMaker, broker: Broker) -> None:
    lk = lake(partitions=1, config=ANY_TIME)
    keys = [lk.window_of([Record(b"gone")] * 5)]
    keys += [lk.window_of([Record(b"%d" % n)]) for n in range(3)]
    produce_batch(lk.bootstrap, lk.topic, made_batch([Made(0, timestamp=LAST_READABLE_MS + 1)]))
    keys.append(lk.close_window())
    keys += [lk.window_of([Record(b"%d" % n)]) for n in range(3)]
    delete_before(broker.bootstrap, lk.topic, 0, 2)
    found = outcomes(lk, keys)
    assert isinstance(found[keys[0]], OffsetsExpiredError)
    assert isinstance(found[keys[4]], UnreadableTimestampError)
    assert [o for o in named(found).values() if o == "loaded"] == ["loaded"] * 6
    assert {r.window for r in lk.rows()} == set(keys) - {keys[0], keys[4]}
    assert not lk.orphans()


def test_a_corrupt_batch_is_named_by_partition_and_offset_and_its_window_alone_waits(
    lake: LakeMaker, broker: Broker
) -> None:
    """A byte of the leader's segment is changed. Brokers send the segment unchecked, and readers detect the damage."""
    lk = lake(partitions=2)
    keys = [lk.window_of(some) for some in (numbered(4, 2, "a"), [Record(b"struck", partition=1)], numbered(4, 2, "b"))]
    segment = broker.segment(lk.topic, 1)
    at = segment.read_bytes().index(b"struck")

    def overwrite(byte: bytes) -> None:
        with segment.open("r+b") as file:
            file.seek(at)
            file.write(byte)

    overwrite(b"S")
    found = outcomes(lk, keys)
    assert [o for o in named(found).values() if o == "loaded"] == ["loaded"] * 2
    assert isinstance(found[keys[1]], DamagedBatchError)
    assert f"topic {lk.topic!r} partition 1 at offset 2 is damaged" in str(found[keys[1]])
    assert {r.window for r in lk.rows()} == {keys[0], keys[2]}
    assert not lk.orphans()
    overwrite(b"s")
    assert lk.load(keys[1]).outcome == "loaded"
    assert records(lk.rows()) == records(lk.committed())


def test_what_another_run_loads_meanwhile_is_proved_and_not_doubled(lake: LakeMaker) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(4, stem=f"{n}-")) for n in range(5)]
    loading = load_many(lk.loader(), keys)
    first, _ = next(loading)
    assert first == keys[0]
    assert lk.load(keys[2]).outcome == "loaded"
    rest = dict(loading)
    assert named(rest) == {k: "unchanged" if k == keys[2] else "loaded" for k in keys[1:]}
    assert records(lk.rows()) == records(lk.committed())
    assert not lk.orphans()


def test_what_was_not_loaded_when_its_caller_stopped_leaves_no_file(lake: LakeMaker) -> None:
    lk = lake()
    keys = [lk.window_of(numbered(4, stem=f"{n}-")) for n in range(8)]
    loading = load_many(lk.loader(), keys)
    assert next(loading)[0] == keys[0]
    loading.close()  # type: ignore[attr-defined]
    assert {r.window for r in lk.rows()} == {keys[0]}
    assert not lk.orphans()
    assert named(outcomes(lk, keys[1:])) == dict.fromkeys(keys[1:], "loaded")


@pytest.mark.parametrize("engine_name", ["columnar"])
def test_a_job_that_dies_goes_on_with_what_it_has_not_given(lake: LakeMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    """First, a task has many windows, so the faulty window is unknown. Later, each window has its own task."""
    from pyspark.errors import PySparkException

    lk = lake()
    keys = [lk.window_of(numbered(4, stem=f"{n}-")) for n in range(6)]
    begun = list[list[str]]()

    def dying(spark: Any, work: Work, tasks: int) -> Generator[Any, None, None]:
        begun.append([share.window for share in work.shares])
        for report in reports_of(spark, work, tasks):
            if len(begun) < 3 and work.shares[report.share].window == keys[3]:
                task = 0 if len(begun) == 1 else report.share
                raise PySparkException(
                    f"Task {task} in stage 7.0 failed 1 times: Python worker exited unexpectedly (crashed)"
                )
            yield report

    monkeypatch.setattr("platform_assets.engines.columnar.engine.reports_of", dying)
    found = outcomes(lk, keys)
    assert isinstance(found[keys[3]], WorkerLostError)
    assert f"window {keys[3]}" in str(found[keys[3]])
    assert named(found) == dict.fromkeys(keys, "loaded") | {keys[3]: "WorkerLostError"}
    # Tasks of a dead job may still write files, which no commit refers to and VACUUM deletes.
    assert begun == [keys, keys[3:], keys[4:]], "what was given is not read again"
    assert lk.load(keys[3]).outcome == "loaded"
    assert records(lk.rows()) == records(lk.committed())


@pytest.mark.long
@pytest.mark.parametrize("engine_name", ["columnar"])
def test_receipts_of_many_topics_are_recorded_together_and_those_that_a_killed_run_lacks_are_found(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is killed after its commits and before it records their receipts: the table has each window once, and no
    window is read a second time."""
    lakes = [lake(partitions=2) for _ in range(3)]
    keys = {lk.topic: [lk.window_of(numbered(4, 2, stem=f"{lk.topic} {n}-")) for n in range(4)] for lk in lakes}
    engine = lakes[0].engine
    wanted = [(lk.loader(engine=engine), keys[lk.topic]) for lk in lakes]
    monkeypatch.setattr(catching_up, "RECEIPTS_AT_ONCE", 5)
    record, recorded = Ledger.record_receipts, list[int]()

    def killed(ledger: Ledger, receipts: Sequence[Receipt]) -> None:
        if recorded:
            raise KeyboardInterrupt
        recorded.append(len(receipts))
        record(ledger, receipts)

    monkeypatch.setattr(Ledger, "record_receipts", killed)
    given = list[str]()
    with pytest.raises(KeyboardInterrupt):
        given += (key for _, key, _ in load_group(wanted))
    assert recorded == [5]
    # Only windows in the ledger are reported.
    assert len(given) == 5
    monkeypatch.setattr(Ledger, "record_receipts", record)
    versions = [lk.version() for lk in lakes]
    assert sum(len({r.window for r in lk.rows()}) for lk in lakes) == 10
    outcomes = [o.outcome for _, _, o in load_group(wanted) if isinstance(o, Loaded)]
    assert sorted(outcomes) == ["loaded"] * 2 + ["unchanged"] * 10
    # Committed windows are not committed again.
    assert [lk.version() - before for lk, before in zip(lakes, versions, strict=True)] == [0, 0, 2]
    for lk in lakes:
        assert records(lk.rows()) == records(lk.committed())
        assert set(lk.ledger.receipts(lk.declaration.raw_table)) == set(keys[lk.topic])
        assert not lk.orphans()
