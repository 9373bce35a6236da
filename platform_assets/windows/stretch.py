"""Ranges of a topic, given by windows, by offsets or by the records' timestamps, and the sealed windows that they touch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from platform_assets.errors import ConfigurationError, UnknownWindowError, ranges_text
from platform_assets.lake import load_log
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span, edge_of


@dataclass(frozen=True, slots=True)
class ByKeys:
    """Windows by their keys: each of `names` is a key, or `A..B` for all from A to B, both inclusive."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByOffsets:
    """Offsets of one partition of the topic's newest generation."""

    partition: int
    offsets: OffsetRange


@dataclass(frozen=True, slots=True)
class ByTimestamps:
    """Records with a timestamp in `[since, until)`; both are timezone-aware."""

    since: datetime
    until: datetime

    def __post_init__(self) -> None:
        if self.since >= self.until:
            raise ConfigurationError(
                f"the range from {_text(self.since)} until {_text(self.until)} is empty: its start is not before its end"
            )


Stretch = ByKeys | ByOffsets | ByTimestamps


@dataclass(frozen=True, slots=True)
class Touched:
    """The sealed windows that a range touches, ascending. `note` has a remark for the user, if any."""

    windows: tuple[SealedWindow, ...]
    note: str = ""


def find(stretch: Stretch, topic: str, ledger: Ledger) -> Touched:
    """Return the sealed windows of `topic` that `stretch` touches.

    Raises UnknownWindowError for a key or a range of keys without a sealed window, and ConfigurationError for offsets that are not in
    a sealed window.
    """
    if isinstance(stretch, ByKeys):
        found = {w.key: w for name in stretch.names for w in _named(name, topic, ledger)}
        return Touched(tuple(found[key] for key in sorted(found)))
    if isinstance(stretch, ByOffsets):
        return _with_offsets(stretch, topic, ledger)
    return Touched(tuple(_with_timestamps(stretch, topic, ledger)))


def _named(name: str, topic: str, ledger: Ledger) -> Sequence[SealedWindow]:
    if ".." in name:
        try:
            span = Span.parse(name)
        except ValueError as e:
            raise UnknownWindowError(topic, name, "a range of windows is A..B, with keys YYYY-MM-DD-HH:MM") from e
        start = None if span.first is None else edge_of(span.first)
        windows = [w for w in ledger.windows(topic, start) if w.key in span]
        if not windows:
            raise UnknownWindowError(topic, name, "the ledger has no sealed window from the first key to the last")
        return windows
    try:
        window = ledger.window(topic, name)
    except ValueError as e:
        raise UnknownWindowError(topic, name, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
    if window is None:
        raise UnknownWindowError(topic, name, "the ledger has no sealed window with that key")
    return [window]


def _with_offsets(stretch: ByOffsets, topic: str, ledger: Ledger) -> Touched:
    partition, wanted = stretch.partition, stretch.offsets
    newest = ledger.newest_cut(topic)
    of_generation = [w for w in ledger.windows(topic) if newest is not None and w.generation == newest.generation]
    held = {w.key: r for w in of_generation if (r := w.ranges.by_partition.get(partition)) is not None}
    touched = tuple(w for w in of_generation if w.key in held and held[w.key].intersect(wanted) is not None)
    asked = ranges_text([(partition, wanted.start, wanted.end)])
    if not touched:
        known = (
            ranges_text([(partition, *_bounds(list(held.values())))]) if held else f"nothing of partition {partition}"
        )
        raise ConfigurationError(
            f"{asked} of topic {topic!r} are in no sealed window: the windows of its newest generation hold {known}"
        )
    outside = wanted.minus(held[w.key] for w in touched)
    named = ranges_text((partition, r.start, r.end) for r in outside)
    return Touched(touched, f"{named} are in no sealed window" if outside else "")


def _bounds(ranges: Sequence[OffsetRange]) -> tuple[int, int]:
    return min(r.start for r in ranges), max(r.end for r in ranges)


def _with_timestamps(stretch: ByTimestamps, topic: str, ledger: Ledger) -> Iterator[SealedWindow]:
    """Yield windows that hold such a record, by the statistics of the table's files, and those of that time without a file.

    Any window may hold any timestamp; if nothing was loaded, only the window's own time is known.
    """
    folder = ledger.lake.table(TableRef.raw(topic))
    spans: dict[str, bool] = {}
    if load_log.exists(folder):
        actions = load_log.file_actions(folder)
        names = ("partition.window", "min.kafka_timestamp", "max.kafka_timestamp")
        columns = [actions[n].to_pylist() if n in actions.column_names else [None] * actions.num_rows for n in names]
        for key, oldest, newest in zip(*columns, strict=True):
            # A file without statistics of its timestamps may hold any.
            inside = oldest is None or newest is None or (oldest < stretch.until and newest >= stretch.since)
            spans[key] = spans.get(key, False) or inside
    for window in ledger.windows(topic):
        of_that_time = window.window.start < stretch.until and window.window.end > stretch.since
        if spans.get(window.key, of_that_time):
            yield window


def _text(time: datetime) -> str:
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
