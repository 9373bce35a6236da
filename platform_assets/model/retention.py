"""Time until retention deletes records that are not loaded: pure arithmetic. Kafka deletes whole segments, the oldest
first. When the limit is a time, Kafka deletes a segment once its newest timestamp is older than `retention.ms`. When
the limit is a size, Kafka deletes a segment once it is followed by at least `retention.bytes` bytes. Clients cannot
find out where segments begin. Both forecasts therefore assume a segment that ends with the record itself, which gives
the earliest possible time. Records cannot be lost earlier than that, unless the configuration, the rate or the brokers'
clock changes, or someone deletes records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

NEAR: Final = 0.25
"""Threshold for the share of the retention that is left. Below this threshold, someone should act."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Retention of a topic: records are kept for at least `time`, and at least `size` bytes are kept per partition.
    None means no limit."""

    time: timedelta | None
    size: int | None

    @classmethod
    def of_config(cls, config: Mapping[str, str]) -> Retention:
        """Read the retention from a topic's effective configuration, which uses Kafka's names."""
        if "delete" not in config.get("cleanup.policy", "delete"):
            return cls(None, None)
        milliseconds, size = int(config.get("retention.ms", "-1")), int(config.get("retention.bytes", "-1"))
        # Kafka takes up to 2^63 - 1 ms, Python's time deltas end at a billion days.
        unbounded = milliseconds < 0 or milliseconds > _MOST / timedelta(milliseconds=1)
        return cls(None if unbounded else timedelta(milliseconds=milliseconds), None if size < 0 else size)


def tombstones_kept(config: Mapping[str, str]) -> timedelta | None:
    """Return the least time for which Kafka keeps a tombstone, read from a topic's effective configuration; None if
    there is no limit.

    Compaction removes a tombstone once `delete.retention.ms` has passed since the tombstone was first compacted, and
    compacts no record before it is `min.compaction.lag.ms` old.
    """
    if "compact" not in config.get("cleanup.policy", ""):
        return None
    names = {"delete.retention.ms": 86_400_000, "min.compaction.lag.ms": 0}
    milliseconds = sum(int(config.get(name, default)) for name, default in names.items())
    return None if milliseconds > _MOST / timedelta(milliseconds=1) else timedelta(milliseconds=milliseconds)


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """Known facts about the log of one partition, which contains the offsets `[start, end)`.

    `oldest` is the first offset that is not loaded, and `newest_timestamp` is the highest timestamp in the batch that
    contains this offset. `size` is the log's size in bytes, and `rate` is the number of new offsets per second. A value
    is None if it is not known.
    """

    start: int
    end: int
    oldest: int
    newest_timestamp: datetime | None = None
    size: int | None = None
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The earliest time when retention can delete records of a partition that are not loaded.

    `lost` is the number of offsets that are already deleted. `by_time` and `by_size` are hours from now, or 0 if
    records can be deleted at any moment. They are None if the limit does not apply, if no records are waiting, or if
    the time is not known. `share` is the remaining share of the retention, for the limit that is reached first. It is
    from 0 to 1, but can exceed 1 if a timestamp is ahead of the clock. `share` can also be None, for the same reasons
    as `by_time` and `by_size`.
    """

    lost: int
    by_time: float | None
    by_size: float | None
    share: float | None

    @property
    def hours(self) -> float | None:
        """Hours until the earlier of the two times; 0 if offsets are lost; None if neither time is known."""
        if self.lost:
            return 0.0
        return min((h for h in (self.by_time, self.by_size) if h is not None), default=None)

    @property
    def near(self) -> bool:
        """True if someone should act: offsets are lost, or little of the retention is left."""
        return self.lost > 0 or (self.share is not None and self.share < NEAR)


def forecast(log: PartitionLog, retention: Retention, now: datetime) -> Forecast:
    """Return a forecast of the time when retention can delete the record at `log.oldest`."""
    if log.oldest >= log.end:
        return Forecast(0, None, None, None)
    lost = max(min(log.start, log.end) - log.oldest, 0)
    if lost:
        return Forecast(lost, None, None, 0.0)
    by_time, time_share = _by_time(log, retention, now)
    by_size, size_share = _by_size(log, retention)
    share = min((s for s in (time_share, size_share) if s is not None), default=None)
    return Forecast(0, by_time, by_size, share)


def _by_time(log: PartitionLog, retention: Retention, now: datetime) -> tuple[float | None, float | None]:
    if retention.time is None or log.newest_timestamp is None:
        return None, None
    left = max(retention.time - (now - log.newest_timestamp), timedelta())
    return left / timedelta(hours=1), left / retention.time if retention.time else 0.0


def _by_size(log: PartitionLog, retention: Retention) -> tuple[float | None, float | None]:
    if retention.size is None or log.size is None:
        return None, None
    each = log.size / (log.end - log.start)
    room = max(retention.size - each * (log.end - log.oldest), 0.0)
    share = room / retention.size if retention.size else 0.0
    if not room:
        return 0.0, share
    if not log.rate or not each:
        return None, share
    return room / (each * log.rate) / 3600, share


_MOST: Final = timedelta(days=36_500)
"""Retention of a century or more counts as unlimited."""
