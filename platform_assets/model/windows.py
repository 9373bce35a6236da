"""Window boundaries (edges) and window keys, in UTC. No I/O.

A window `[start, end)` lies between two neighboring edges of a cron schedule. The window's key is its start. So even if
the length of the window changes, the key still identifies one instant, and the ledger records the window's end.
"""

from __future__ import annotations

import functools
import itertools
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from croniter import CroniterBadDateError, croniter

from platform_assets.errors import WindowKeyError

_REMEMBERED: Final = 4096
"""Number of cached results for each function below. Many topics share a schedule, so a tick requests the same results
repeatedly."""

_DAY: Final = timedelta(days=1)

KEY_FORMAT = "%Y-%m-%d-%H:%M"
"""Format of a window key, which is also the Dagster partition key. The key is in UTC and precise to the minute, because
a cron edge is not more precise."""

_DRAWN = re.compile(r"(?<![A-Z])[RH](?![A-Z])", re.IGNORECASE)
_NEAREST = re.compile(r"(?<![A-Z])(?:\d+|L)?W(?:\d+)?(?![A-Z])", re.IGNORECASE)
"""Cron's syntax for the weekday nearest to a day of the month. Dagster does not support it."""


@dataclass(frozen=True, slots=True, order=True)
class Window:
    """The time between two edges, `[start, end)`. Both edges are timezone-aware and in UTC."""

    start: datetime
    end: datetime

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise ValueError(f"a window must end after it starts: {self.start} to {self.end}")

    @property
    def key(self) -> str:
        """Key of the window, which is also its Dagster partition key."""
        return key_of(self.start)

    def __str__(self) -> str:
        return self.key


@dataclass(frozen=True, slots=True)
class Span:
    """A span of window keys from `first` to `last`, both inclusive. None means no bound."""

    first: str | None = None
    last: str | None = None

    @classmethod
    def parse(cls, text: str) -> Span:
        """Parse `A..B`, `A..`, `..B` or `A`. Raises ValueError."""
        first, dots, last = text.partition("..")
        span = cls(first or None, (last if dots else first) or None)
        keys = [edge_of(key) for key in (span.first, span.last) if key is not None]
        if not keys or sorted(keys) != keys:
            raise ValueError(f"{text!r} must have the form A..B, A.., ..B or A, where A is not after B")
        return span

    def __contains__(self, key: str) -> bool:
        return (self.first is None or self.first <= key) and (self.last is None or key <= self.last)


def key_of(edge: datetime) -> str:
    """Return the key of the window that starts at `edge`."""
    return edge.astimezone(UTC).strftime(KEY_FORMAT)


def edge_of(key: str) -> datetime:
    """Return the instant that a key stands for. Raises WindowKeyError for anything but the exact form of
    `KEY_FORMAT`."""
    try:
        # `strptime` takes several times as long. What else `fromisoformat` accepts is refused below.
        edge = datetime.fromisoformat(f"{key[:10]}T{key[11:]}").replace(tzinfo=UTC)
    except ValueError as e:
        raise WindowKeyError(key) from e
    if key_of(edge) != key:
        raise WindowKeyError(key)
    return edge


@functools.lru_cache(maxsize=_REMEMBERED)
def is_cron(schedule: str) -> bool:
    """Return True if `schedule` is a cron schedule with five fields, and if it ticks at least once. A sixth field is
    refused, because it would be more precise than a key. croniter's R and H fields are refused, because they stand for
    random times that differ between processes. The W field is refused because Dagster refuses it too."""
    drawn_or_nearest = _DRAWN.search(schedule) or _NEAREST.search(schedule)
    if len(schedule.split()) != 5 or drawn_or_nearest or not croniter.is_valid(schedule):
        return False
    try:
        first_edge(schedule, datetime(2000, 1, 1, tzinfo=UTC))
    except CroniterBadDateError:
        return False
    return True


def edges_from(schedule: str, start: datetime) -> Iterator[datetime]:
    """Yield the edges at or after `start` in ascending order, without ever ending."""
    # croniter returns only times strictly after its base.
    ticks = croniter(schedule, start.astimezone(UTC) - timedelta(microseconds=1), ret_type=datetime)
    while True:
        yield ticks.get_next(datetime)


@functools.lru_cache(maxsize=_REMEMBERED)
def first_edge(schedule: str, start: datetime) -> datetime:
    """Return the first edge at or after `start`."""
    return next(edges_from(schedule, start))


@functools.lru_cache(maxsize=_REMEMBERED)
def longest_window(schedule: str, start: datetime) -> timedelta:
    """Return the length of the longest of the next hundred windows, counted from the first edge at or after `start`.

    With one window per weekday, a hundred windows cover more than three months.
    """
    edges = itertools.islice(edges_from(schedule, start), 101)
    return max(after - before for before, after in itertools.pairwise(edges))


def closed_edges(schedule: str, after: datetime, now: datetime, limit: int | None = None) -> list[datetime]:
    """Return the edges in `(after, now]`, that is, the edges that have passed since `after`, in ascending order. Return
    only the first `limit` of them if `limit` is set."""
    return list(_closed(schedule, after, now, limit))


@functools.lru_cache(maxsize=_REMEMBERED)
def _closed(schedule: str, after: datetime, now: datetime, limit: int | None) -> tuple[datetime, ...]:
    following = edges_from(schedule, after + timedelta(microseconds=1))
    closed = itertools.takewhile(lambda edge: edge <= now, following)
    return tuple(itertools.islice(closed, limit))


def count_edges(schedule: str, start: datetime, end: datetime) -> int:
    """Return the number of edges in `[start, end)`. This is fast for any span, because days are counted, not edges: in
    UTC, every day that has edges has them at the same times."""
    start, end = start.astimezone(UTC), end.astimezone(UTC)
    if start >= end:
        return 0
    minute, hour, *day = schedule.split()
    times, days = _times_of_day(minute, hour), " ".join(["0", "0", *day])
    first_day, last_day = (time.replace(hour=0, minute=0, second=0, microsecond=0) for time in (start, end))
    number = len(times) * _number_of_days(days, first_day, last_day)
    number -= bisect_left(times, start - first_day) * _number_of_days(days, first_day, first_day + _DAY)
    return number + bisect_left(times, end - last_day) * _number_of_days(days, last_day, last_day + _DAY)


@functools.lru_cache(maxsize=_REMEMBERED)
def _times_of_day(minute: str, hour: str) -> tuple[timedelta, ...]:
    """Return the times since midnight of a day's edges, in ascending order."""
    (minutes, hours, *_), _ = croniter.expand(f"{minute} {hour} * * *")
    each = (_spelt_out(hours, 24), _spelt_out(minutes, 60))
    return tuple(sorted({timedelta(hours=h, minutes=m) for h, m in itertools.product(*each)}))


def _spelt_out(values: list[int | str], number: int) -> list[int]:
    return list(range(number)) if "*" in values else [int(value) for value in values]


def _number_of_days(days: str, first: datetime, last: datetime) -> int:
    """Return the number of days in `[first, last)`, two midnights, on which the schedule `days` has an edge."""
    return (last - first).days if days == "0 0 * * *" else _walked(days, first, last)


def _walked(schedule: str, start: datetime, end: datetime) -> int:
    try:
        return sum(1 for _ in itertools.takewhile(lambda edge: edge < end, edges_from(schedule, start)))
    except CroniterBadDateError:
        return 0


@functools.lru_cache(maxsize=_REMEMBERED)
def window_starting_at(schedule: str, edge: datetime) -> Window | None:
    """Return the window of `schedule` that starts at `edge`, or None if `edge` is not an edge of the schedule."""
    pair = list(itertools.islice(edges_from(schedule, edge), 2))
    return Window(pair[0], pair[1]) if pair[0] == edge else None


def milliseconds(edge: datetime) -> int:
    """Return the time in Kafka's unit, which is milliseconds since the epoch."""
    return round(edge.timestamp() * 1000)
