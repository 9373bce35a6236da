"""Windows with holes, compared with a real broker after its log has moved on. By that time, some holes can be
explained, and others cannot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report.heatmap import State, heatmap_of
from platform_assets.ledger.decisions import Author
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.decide import acceptance, generations
from platform_assets_tests.support import answers
from platform_assets_tests.support.streams import create_again
from testbed import samples
from testbed.loads import Record, TopicLake, wait_until

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

Lost = Mapping[int, Sequence[OffsetRange]]


@pytest.fixture
def lake(broker: Broker, topic: TopicMaker, tmp_path: Path) -> Callable[..., TopicLake]:
    """Make topics with separate lakes, into which tests put rows without using Spark."""

    def make(config: Mapping[str, str] | None = None) -> TopicLake:
        return TopicLake(broker.bootstrap, topic(config=config), tmp_path / "lake", answers.nothing_answers)

    return make


def sealed(lk: TopicLake, *, aborted: bool = True) -> SealedWindow:
    """Seal a window that contains the records [0, 10), and then two aborted records and their marker, [10, 13)."""
    lk.send(Record(b"v%d" % n, b"k") for n in range(10))
    if aborted:
        lk.abort([Record(b"x", b"a"), Record(b"y", b"a")])
    lk.close_window()
    return lk.ledger.windows(lk.topic)[0]


def load(lk: TopicLake, window: SealedWindow, offsets: Sequence[int] = range(10)) -> None:
    """Commit and record a load of these offsets. The other offsets are not explained yet."""
    samples.loaded(lk.root, window, {0: offsets})


def check(lk: TopicLake) -> CheckResult:
    return CHECKS["every_offset_accounted_for"].evaluate(evaluation(lk))


def evaluation(lk: TopicLake) -> Evaluation:
    return Evaluation(
        lk.declaration, lk.ledger, Orchestration(), lambda: lk.settings, lambda: lk.cluster,
        answers.unanswered(lk.root, lk.topic).engine,
    )  # fmt: skip


def receipt(lk: TopicLake, window: SealedWindow) -> Receipt:
    return lk.ledger.receipts(lk.declaration.raw_table)[window.key]


def delete_before(broker: Broker, lk: TopicLake, offset: int) -> None:
    from confluent_kafka import TopicPartition

    for future in broker.admin.delete_records([TopicPartition(lk.topic, 0, offset)]).values():
        future.result(30)


def named(check_result: CheckResult) -> list[tuple[str, tuple[OffsetRange, ...]]]:
    return [(f.kind, f.ranges) for f in check_result.findings]


# --- accepted losses ------------------------------------------------------------------------------------------------


def test_an_accepted_loss_is_a_hole_of_its_own_kind(lake: Callable[..., TopicLake]) -> None:
    """Kafka still has the records that were accepted as lost. For example, the reader may be unable to represent their
    timestamps."""
    lk = lake()
    window = sealed(lk)
    lk.ledger.record_acceptance(window, {0: (OffsetRange(3, 5),)}, "cannot be read")
    load(lk, window, [0, 1, 2, 5, 6, 7, 8, 9])
    check_result = check(lk)

    assert check_result.passed, check_result
    assert receipt(lk, window).holes == {"accepted loss": 2, "aborted records": 2, "abort markers": 1}
    assert "2 offsets accepted as lost" in check_result.headline
    assert dict(check_result.figures)["holes_accepted_loss"] == 2
    heatmap = heatmap_of(evaluation(lk).facts(), check_result.findings)
    assert list(heatmap.counts) == [State.ACCEPTED]
    assert "1 with an accepted loss" in heatmap.sentence
    assert check(lk).passed


def test_a_loss_beyond_the_accepted_one_is_named(lake: Callable[..., TopicLake]) -> None:
    lk = lake()
    window = sealed(lk)
    lk.ledger.record_acceptance(window, {0: (OffsetRange(3, 5),)}, "cannot be read")
    load(lk, window, [0, 1, 2, 5, 6, 7, 8])
    assert named(check(lk)) == [("record not in the table", (OffsetRange(9, 10),))]


def test_a_row_within_an_accepted_loss_is_a_row_as_before(lake: Callable[..., TopicLake]) -> None:
    """The loss was accepted for a window that had been loaded."""
    lk = lake()
    window = sealed(lk)
    load(lk, window)
    lk.ledger.record_acceptance(window, {0: (OffsetRange(0, 11),)}, "by mistake")
    assert check(lk).passed
    assert receipt(lk, window).holes == {"accepted loss": 1, "aborted records": 1, "abort markers": 1}


def test_what_expired_can_be_accepted_while_the_rest_of_the_window_is_there(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake()
    window = sealed(lk)
    delete_before(broker, lk, 4)
    losses = acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [dict(loss.ranges) for loss in losses] == [{0: (OffsetRange(0, 4),)}]
    acceptance.accept(window, losses, Author("a test", "too late"), lk.ledger)
    load(lk, window, range(4, 10))
    assert check(lk).passed
    assert receipt(lk, window).holes == {"accepted loss": 4, "aborted records": 2, "abort markers": 1}


# --- retention and compaction between the load and the check ----------------------------------------------------------


def test_rows_whose_records_have_expired_since_the_load_are_no_anomaly(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake()
    window = sealed(lk)
    load(lk, window)
    delete_before(broker, lk, 4)
    assert check(lk).passed
    assert receipt(lk, window).holes == {"aborted records": 2, "abort markers": 1}


def test_holes_that_expired_before_anybody_asked_are_not_explained(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    """The missing offsets may have been markers, aborted records, or records that the load lost."""
    lk = lake()
    window = sealed(lk)
    load(lk, window)
    delete_before(broker, lk, 12)
    check_result = check(lk)

    (finding,) = check_result.findings
    assert (finding.kind, finding.alarming, check_result.passed) == ("could not tell", False, False)
    assert "2 offsets without a row fell below the log start" in finding.detail
    assert f"platform-assets accept-loss raw/{lk.topic} {window.key} --reason" in finding.remedy
    assert receipt(lk, window).holes == {"below log start": 2, "abort markers": 1}
    # Known explanations are kept, whatever retention deletes later, and whether or not brokers can be queried.
    delete_before(broker, lk, 13)
    assert [f.detail for f in check(lk).findings] == [finding.detail]

    # The named remedy works, and does not accept rows as lost that the table has.
    losses = acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [dict(loss.ranges) for loss in losses] == [{0: (OffsetRange(10, 13),)}]
    acceptance.accept(window, losses, Author("a test", "nothing to be done"), lk.ledger)
    accepted = check(lk)
    assert accepted.passed, accepted
    assert receipt(lk, window).holes == {"accepted loss": 3}


def test_rows_whose_records_were_compacted_away_since_the_load_are_no_anomaly(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake(
        {
            "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "50",
            "min.compaction.lag.ms": str(10**9),
        }
    )  # fmt: skip
    window = sealed(lk, aborted=False)
    load(lk, window, range(9))
    compact(broker, lk)
    assert named(check(lk)) == []
    found = receipt(lk, window)
    assert found.holes == {"compacted away": 1}
    assert str(found.proved_by).startswith("broker evidence; ")


def test_a_row_that_no_record_can_have_been_is_named_though_the_topic_is_compacted(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake(
        {
            "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "50",
            "min.compaction.lag.ms": str(10**9),
        }
    )  # fmt: skip
    window = sealed(lk)
    load(lk, window, [*range(10), 12])
    assert named(check(lk)) == [("row without a record", (OffsetRange(12, 13),))]


def configure(broker: Broker, lk: TopicLake, name: str, value: str) -> None:
    from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, lk.topic, incremental_configs=[entry])
    for future in broker.admin.incremental_alter_configs([resource]).values():
        future.result(30)


def compact(broker: Broker, lk: TopicLake, kept: Sequence[int] = ()) -> None:
    """Let the log cleaner remove all records except for the newest record of each key. Of the first ten records, only
    those in `kept` remain."""
    configure(broker, lk, "min.compaction.lag.ms", "0")
    # A newer segment, since the active one is never compacted.
    lk.send([Record(b"new", b"k")])

    def thinned() -> bool:
        lk.send([Record(b"newer", b"k")])
        return [row.offset for row in lk.committed() if row.offset < 10] == list(kept)

    wait_until("the log is compacted", thinned)


def test_no_loss_is_accepted_of_a_loaded_window_that_is_explained(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake()
    window = sealed(lk)
    load(lk, window)
    assert check(lk).passed
    delete_before(broker, lk, 12)
    assert acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings) == []


def test_records_that_the_brokers_have_lost_without_a_reason_are_accepted_as_the_finding_says(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    """A topic may have been compacted for a while. Its current policy does not explain why the records are missing."""
    lk = lake(
        {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.001",
            "segment.ms": "100",
            "min.compaction.lag.ms": "0",
        }
    )
    kept = (1, 3, 5, 7, 9)
    lk.send(Record(b"v%d" % n, b"own %d" % n if n in kept else b"k") for n in range(10))
    lk.close_window()
    (window,) = lk.ledger.windows(lk.topic)
    compact(broker, lk, kept)
    configure(broker, lk, "cleanup.policy", "delete")
    load(lk, window, kept)
    (finding,) = check(lk).findings
    assert finding.kind == "unexplained offsets"
    assert f"platform-assets accept-loss raw/{lk.topic} {window.key} --reason" in finding.remedy
    losses = acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [(loss.offsets, dict(loss.ranges)) for loss in losses] == [(5, {0: finding.ranges})]
    acceptance.accept(window, losses, Author("a test", "compacted once"), lk.ledger)
    assert check(lk).passed
    assert receipt(lk, window).holes == {"accepted loss": 5}
    assert acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings) == []


# --- another log under the topic's name -------------------------------------------------------------------------------


def test_holes_of_a_log_that_is_gone_are_accepted_with_the_new_generation(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    """The holes were never explained, but the rows of the window are not lost."""
    lk = lake()
    window = sealed(lk)
    load(lk, window)
    create_again(broker, lk.topic)
    found = generations.find(lk.topic, lk.ledger, lk.cluster)
    assert found is not None
    assert [(lost.loaded, dict(lost.ranges)) for lost in found.lost] == [(True, {0: (OffsetRange(10, 13),)})]
    generations.accept(found, Author("a test", "made again"), lk.ledger)
    assert check(lk).passed
    assert receipt(lk, window).holes == {"accepted loss": 3}
    assert generations.find(lk.topic, lk.ledger, lk.cluster) is None


def test_holes_of_a_log_that_is_gone_which_nobody_accepted_are_named_with_what_to_do(
    lake: Callable[..., TopicLake], broker: Broker
) -> None:
    lk = lake()
    window = sealed(lk)
    create_again(broker, lk.topic)
    found = generations.find(lk.topic, lk.ledger, lk.cluster)
    assert found is not None
    generations.accept(replace(found, lost=()), Author("a test", "made again"), lk.ledger)
    load(lk, window)
    (finding,) = check(lk).findings
    assert (finding.kind, "3 offsets without a row" in finding.detail) == ("could not tell", True)
    assert f"platform-assets accept-loss raw/{lk.topic} {window.key} --reason" in finding.remedy
    losses = acceptance.find_losses(window, lk.ledger, lk.cluster, lk.settings)
    assert [dict(loss.ranges) for loss in losses] == [{0: (OffsetRange(10, 13),)}]
    acceptance.accept(window, losses, Author("a test", "never to be known"), lk.ledger)
    assert check(lk).passed
