"""Searching a log by batch headers: for random logs, the results equal those of a plain search, and the search stays
cheap."""

from __future__ import annotations

import random
import time

import pytest

from platform_assets.errors import BrokerUnreachableError, DamagedBatchError, EmptyAnswersError
from platform_assets.kafka.batches.fetching import FetchedPartition
from platform_assets.kafka.batches.record_batches import Batch
from platform_assets.kafka.cluster import Cluster, TopicState
from platform_assets.kafka.evidence.search import BatchSearch
from platform_assets.kafka.settings import ClientSettings
from platform_assets_tests.support.record_batches import CODECS, batch, marker, scanned

TOPIC = TopicState("t", "A" * 22, (0,))
BROKER_TIME = 10**9
"""Timestamp of every marker. It is newer than any record."""


class Log(BatchSearch):
    """A partition as a list of batches, served a few at a time as a broker would."""

    def __init__(self, batches: list[bytes], served: int = 1, log_start: int = 0) -> None:
        super().__init__(Cluster(None, ClientSettings("localhost:1")), TOPIC)
        self.batches = list(scanned(*batches))
        self.served, self._log_starts, self.fetches = served, {0: log_start}, 0

    def _fetched(self, partition: int, offset: int, end: int) -> list[Batch]:
        self.fetches += 1
        return [b for b in self.batches if b.last_offset >= offset and b.base_offset < end][: self.served]


def any_log(rng: random.Random) -> tuple[list[bytes], int]:
    """Return a random log, and its end. Each batch has one record or many, and some batches are compacted. There are
    markers and holes between the batches.

    Each record's timestamp equals its offset.
    """
    batches, offset = [], rng.choice((0, 7))
    for _ in range(rng.randrange(1, 40)):
        if rng.random() < 0.4:
            batches.append(marker(offset, 5, commit=rng.random() < 0.5, stamp=BROKER_TIME))
            offset += 1
        else:
            span = rng.choice((1, 3, 20))
            # The newest record is kept, since headers show its timestamp.
            kept = sorted({*rng.sample(range(span), rng.randrange(span)), span - 1})
            batches.append(batch(offset, kept, span=span, producer=5, codec=rng.choice([*CODECS]), stamp=offset))
            offset += span
        offset += rng.choice((0, 0, 0, 4))
    return batches, offset


@pytest.mark.parametrize("seed", range(80))
def test_the_first_record_as_new_is_found_in_any_log(seed: int) -> None:
    rng = random.Random(seed)
    batches, end = any_log(rng)
    log = Log(batches, served=rng.choice((1, 2, 5)), log_start=rng.choice((0, end // 3)))
    records = [r for b in log.batches if not b.control for r in b.timestamps()]
    for _ in range(10):
        start, moment = rng.randrange(end), rng.randrange(end + 5)
        lowest = max(start, log._log_starts[0])
        expected = next(((o, t) for o, t in records if o >= lowest and t >= moment), None)
        found = log.first_record_at(0, moment, start, end)
        assert (None if found is None else (found.offset, found.timestamp)) == expected


def test_what_lies_near_is_found_in_few_fetches_and_what_lies_far_in_twice_the_logarithm() -> None:
    batches = [piece for n in range(0, 40_000, 2) for piece in (batch(n, [0], stamp=n), marker(n + 1, 5, commit=True))]
    log = Log(batches)
    for moment, most in ((0, 1), (10, 8), (39_998, 2 * 15)):
        log.fetches = 0
        found = log.first_record_at(0, moment, 0, 40_000)
        assert found is not None
        assert found.offset == moment
        # A fetch that returns a marker is followed by another fetch.
        assert log.fetches <= 2 * most
    log.fetches = 0
    assert log.first_record_at(0, 40_000, 0, 40_000) is None
    assert log.fetches <= 4 * 15


def test_timestamps_that_go_back_and_forth_give_a_place_in_the_range(rng: random.Random) -> None:
    log = Log([batch(n, [0], stamp=rng.randrange(1000)) for n in range(200)])
    for _ in range(100):
        start, end = sorted(rng.sample(range(200), 2))
        moment = rng.randrange(1000)
        found = log.first_record_at(0, moment, start, end)
        assert found is None or (start <= found.offset < end and found.timestamp >= moment)


def test_a_marker_is_told_from_a_record() -> None:
    log = Log([batch(0, [0, 1]), marker(2, 5, commit=True), batch(7, [0])])
    assert [offset for offset in range(8) if log.is_marker(0, offset)] == [2]


class Answering(BatchSearch):
    """A partition whose fetches return `records` in order, each answer with its error code; the last answer is
    repeated."""

    def __init__(self, *records: bytes, errors: tuple[int, ...] = (0,), seconds: float = 20.0) -> None:
        super().__init__(Cluster(None, ClientSettings("localhost:1"), timeout=seconds), TOPIC)
        self.records, self.errors, self.asked = [*records], [*errors], list[int]()
        self._brokers.ask = self._ask  # type: ignore[method-assign, assignment]
        self._brokers.receive = self._receive  # type: ignore[method-assign, assignment]
        self._brokers.log_start = lambda partition: 60  # type: ignore[method-assign]
        self._log_starts = {0: 0}

    def _ask(self, partition: int, offset: int, size: int, **_: object) -> None:
        self.asked.append(offset)

    def _receive(self, *_: object) -> FetchedPartition:
        records = self.records.pop(0) if len(self.records) > 1 else self.records[0]
        error = self.errors.pop(0) if len(self.errors) > 1 else self.errors[0]
        return FetchedPartition(error, 100, 100, 0, (), memoryview(records))


def test_damage_names_topic_partition_and_offset() -> None:
    damaged = bytearray(batch(40, [0, 1]))
    damaged[-1] ^= 1
    search = Answering(bytes(damaged))
    with pytest.raises(DamagedBatchError, match=r"'t' partition 0 .*40"):
        search.first_record_at(0, 0, 40, 100)


@pytest.mark.parametrize("empty", [2, 4])
def test_an_empty_answer_does_not_show_that_there_are_no_records(empty: int) -> None:
    """After each fetch without data, another fetch looks for the batch after a gap."""
    search = Answering(*[b""] * empty, batch(40, [0, 1], stamp=5))
    found = search.first_record_at(0, 5, 40, 100)
    assert found is not None
    assert (found.offset, found.timestamp) == (40, 5)
    search = Answering(*[b""] * empty, marker(40, 5, commit=True))
    assert search.is_marker(0, 40)


def test_answers_that_stay_empty_end_the_search() -> None:
    with pytest.raises((EmptyAnswersError, BrokerUnreachableError)):
        Answering(b"", seconds=0.3).first_record_at(0, 0, 40, 100)


def test_a_batch_after_the_end_shows_that_there_are_no_records_before_it() -> None:
    search = Answering(batch(100, [0]))
    assert search.first_record_at(0, 0, 40, 100) is None
    assert not search.is_marker(0, 40)


def test_the_search_goes_on_at_the_log_start_once_the_log_has_lost_an_offset() -> None:
    search = Answering(b"", batch(60, [0], stamp=7), errors=(1, 0))
    found = search.first_record_at(0, 5, 40, 100)
    assert found is not None
    assert (found.offset, search.asked[:2]) == (60, [40, 60])


def test_the_deadline_of_the_cluster_ends_a_search() -> None:
    cluster = Cluster(None, ClientSettings("localhost:1")).with_deadline(time.monotonic())
    search = BatchSearch(cluster, TOPIC)
    with pytest.raises(BrokerUnreachableError):
        search.first_record_at(0, 0, 0, 100)
    search.close()
