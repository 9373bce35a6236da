"""The retention forecast, compared with Kafka's own rules on random logs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest

from platform_assets.model.retention import NEAR, Forecast, PartitionLog, Retention, forecast, tombstones_kept

NOW = datetime(2026, 3, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
LOG = PartitionLog(start=0, end=1_000, oldest=600, newest_timestamp=NOW - 6 * HOUR, size=100_000, rate=2.0)


def test_what_waits_for_nobody_is_overtaken_never() -> None:
    caught_up = replace(LOG, oldest=1_000)
    assert forecast(caught_up, Retention(HOUR, 1), NOW) == Forecast(0, None, None, None)
    assert not forecast(caught_up, Retention(HOUR, 1), NOW).near


def test_without_retention_nothing_is_overtaken() -> None:
    found = forecast(LOG, Retention(None, None), NOW)
    assert (found.hours, found.share, found.near) == (None, None, False)


def test_time_is_what_the_oldest_record_still_has() -> None:
    found = forecast(LOG, Retention(8 * HOUR, None), NOW)
    assert (found.by_time, found.by_size, found.share) == (2.0, None, 0.25)
    assert not found.near
    assert forecast(LOG, Retention(7 * HOUR, None), NOW).near


def test_size_is_what_comes_until_the_bytes_behind_are_enough() -> None:
    """400 offsets of 100 bytes each are not loaded. Another 72,000 bytes arrive in six minutes, at 200 bytes a second."""
    found = forecast(LOG, Retention(None, 112_000), NOW)
    assert found.by_size == pytest.approx(0.1)
    assert found.share == pytest.approx(72 / 112)
    assert found.hours == found.by_size


def test_the_nearer_bound_counts() -> None:
    found = forecast(LOG, Retention(8 * HOUR, 112_000), NOW)
    assert found.hours == found.by_size
    assert found.share == 0.25


@pytest.mark.parametrize(
    ("log", "retention", "expected"),
    [
        pytest.param(replace(LOG, newest_timestamp=NOW - 9 * HOUR), Retention(8 * HOUR, None), 0.0, id="overdue"),
        pytest.param(LOG, Retention(None, 40_000), 0.0, id="full"),
        pytest.param(LOG, Retention(timedelta(), None), 0.0, id="nothing is kept for any time"),
        pytest.param(LOG, Retention(None, 0), 0.0, id="nothing is kept by size"),
        pytest.param(replace(LOG, rate=0.0), Retention(None, 112_000), None, id="nothing comes"),
        pytest.param(replace(LOG, rate=None), Retention(None, 112_000), None, id="rate unknown"),
        pytest.param(replace(LOG, size=None), Retention(None, 112_000), None, id="size unknown"),
        pytest.param(replace(LOG, size=0), Retention(None, 112_000), None, id="nothing on disk yet"),
        pytest.param(replace(LOG, newest_timestamp=None), Retention(HOUR, None), None, id="age unknown"),
    ],
)
def test_corners(log: PartitionLog, retention: Retention, expected: float | None) -> None:
    assert forecast(log, retention, NOW).hours == expected


def test_what_is_gone_is_counted() -> None:
    found = forecast(replace(LOG, start=700), Retention(8 * HOUR, 112_000), NOW)
    assert (found.lost, found.hours, found.near) == (100, 0.0, True)
    # For a log that was emptied, never more than it once had.
    assert forecast(replace(LOG, start=1_000), Retention(HOUR, None), NOW).lost == 400


def test_a_timestamp_of_the_future_is_kept_for_longer() -> None:
    found = forecast(replace(LOG, newest_timestamp=NOW + 2 * HOUR), Retention(2 * HOUR, None), NOW)
    assert found.by_time == 4.0
    assert not found.near


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"retention.ms": "60000", "retention.bytes": "-1"}, Retention(timedelta(minutes=1), None)),
        ({"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "10"}, Retention(None, 10)),
        ({"cleanup.policy": "compact", "retention.ms": "60000", "retention.bytes": "10"}, Retention(None, None)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "60000"}, Retention(timedelta(minutes=1), None)),
        ({"retention.ms": str(2**63 - 1)}, Retention(None, None)),
        ({}, Retention(None, None)),
    ],
)
def test_retention_is_read_from_a_topics_configuration(config: dict[str, str], expected: Retention) -> None:
    assert Retention.of_config(config) == expected


# --- against Kafka's rules ------------------------------------------------------------------------------------------


@dataclass
class Segment:
    """Offsets `[start, end)`, their size in bytes, and the newest timestamp in seconds."""

    start: int
    end: int
    size: int
    newest: float


class Log:
    """A log that rolls segments at random and deletes them as Kafka does, second by second."""

    def __init__(self, rng: random.Random, retention: Retention, each: int, rate: int) -> None:
        self.rng, self.retention, self.each, self.rate = rng, retention, each, rate
        self.segments = [Segment(0, 0, 0, 0.0)]
        self.now = 0.0

    @property
    def start(self) -> int:
        return self.segments[0].start

    @property
    def end(self) -> int:
        return self.segments[-1].end

    def second(self) -> None:
        """Advance by a second: add records, sometimes roll a segment, and delete what retention allows."""
        self.now += 1
        last = self.segments[-1]
        last.end += self.rate
        last.size += self.rate * self.each
        last.newest = self.now
        if self.rng.random() < 0.2:
            self.segments.append(Segment(last.end, last.end, 0, 0.0))
        while len(self.segments) > 1 and self._expired(self.segments[0]):
            del self.segments[0]

    def _expired(self, segment: Segment) -> bool:
        late = self.retention.time is not None and self.now - segment.newest > self.retention.time.total_seconds()
        size = sum(s.size for s in self.segments)
        return late or (self.retention.size is not None and size - segment.size >= self.retention.size)

    def seen(self, oldest: int) -> PartitionLog:
        """Return the log as brokers describe it, with one batch per second."""
        written = NOW + timedelta(seconds=oldest // self.rate + 1)
        size = sum(s.size for s in self.segments)
        return PartitionLog(self.start, self.end, oldest, written, size, float(self.rate))

    def until_gone(self, oldest: int) -> Iterator[tuple[float, Forecast]]:
        """Yield each second until `oldest` is deleted, together with the forecast at that time."""
        while self.start <= oldest:
            yield self.now, forecast(self.seen(oldest), self.retention, NOW + timedelta(seconds=self.now))
            self.second()


@pytest.mark.parametrize("kind", ["time", "size", "both"])
def test_a_loss_never_comes_before_it_is_foretold_and_always_after_a_warning(rng: random.Random, kind: str) -> None:
    for _ in range(40):
        each, rate = rng.randint(1, 500), rng.randint(1, 50)
        seconds = rng.randint(20, 200)
        kept = timedelta(seconds=seconds) if kind != "size" else None
        size = each * rate * rng.randint(20, 200) if kind != "time" else None
        log = Log(rng, Retention(kept, size), each, rate)
        for _ in range(rng.randint(1, 300)):
            log.second()
        oldest = rng.randrange(log.start, log.end)
        foretold = list(log.until_gone(oldest))
        gone = log.now
        for at, found in foretold:
            assert found.hours is not None
            assert at + found.hours * 3600 <= gone + 1e-6
        assert any(found.near for _, found in foretold), (kind, oldest)
        last = foretold[-1][1]
        assert last.share is not None
        assert last.share < NEAR


# --- tombstones -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({}, None),
        ({"cleanup.policy": "delete", "delete.retention.ms": "1"}, None),
        ({"cleanup.policy": "compact"}, timedelta(days=1)),
        ({"cleanup.policy": "compact,delete", "delete.retention.ms": "5000"}, timedelta(seconds=5)),
        (
            {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.compaction.lag.ms": "7000"},
            timedelta(seconds=7),
        ),
        ({"cleanup.policy": "compact", "delete.retention.ms": str(2**63 - 1)}, None),
        ({"cleanup.policy": "compact", "min.compaction.lag.ms": str(2**63 - 1)}, None),
    ],
)
def test_tombstones_are_kept_until_compaction_may_remove_them(config: dict[str, str], kept: timedelta | None) -> None:
    assert tombstones_kept(config) == kept
