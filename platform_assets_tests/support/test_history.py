"""The history checker names each fault that is added to a correct history, and finds nothing in a correct history."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support.history import Anomaly, Name, Row, Send, check_history

PARTITIONS = 3
FATES = ("ok", "aborted", "refused", "arrived", "located", "vanished", "marker")
"""Possible fates of an offset or of a send. The outcome of "arrived", "located" and "vanished" sends is unknown to the
producer. It knows the offset of a "located" send."""


@dataclass
class History:
    """A history, and its offsets without a record: markers, aborted records, failed sends."""

    sends: list[Send]
    rows: list[Row]
    ranges: list[TopicRanges]
    free: list[tuple[int, int]]

    def check(self) -> list[Anomaly]:
        return check_history(self.sends, self.rows, self.ranges)

    def rows_of(self, outcome: str) -> list[Row]:
        values = {s.value for s in self.sends if s.outcome == outcome}
        return [r for r in self.rows if r.value in values]

    def ends(self) -> dict[int, int]:
        return {p: max(r.by_partition[p].end for r in self.ranges) for p in range(PARTITIONS)}


def clean(rng: random.Random) -> History:
    """Make the history of an exactly-once sink. At each offset, there is a record with some outcome, or a marker."""
    sends: list[Send] = []
    rows: list[Row] = []
    free: list[tuple[int, int]] = []
    ends = dict.fromkeys(range(PARTITIONS), 0)
    cuts = [dict(ends)]
    for number in range(rng.randint(60, 120)):
        partition, value = rng.randrange(PARTITIONS), f"value {number}".encode()
        at = ends[partition]
        # Every fate occurs in each history, because each fault needs a suitable place.
        fate = FATES[number] if number < len(FATES) else rng.choice(FATES)
        if fate == "ok":
            sends.append(Send(value, partition, at, "ok"))
        elif fate == "aborted":
            sends.append(Send(value, partition, at, "failed"))
        elif fate == "refused":
            sends.append(Send(value, partition, None, "failed"))
        elif fate == "located":
            sends.append(Send(value, partition, at, "unknown"))
        elif fate in ("arrived", "vanished"):
            sends.append(Send(value, partition, None, "unknown"))
        if fate in ("ok", "arrived", "located"):
            rows.append(Row(partition, at, value))
        if fate in ("aborted", "marker"):
            free.append((partition, at))
        if fate not in ("refused", "vanished"):
            ends[partition] += 1
        if rng.random() < 0.1:
            cuts.append(dict(ends))
    cuts.append(ends)
    windows = [
        TopicRanges({p: OffsetRange(left[p], right[p]) for p in left}) for left, right in itertools.pairwise(cuts)
    ]
    for part in (sends, rows, windows):
        rng.shuffle(part)
    return History(sends, rows, windows, free)


def swap(rng: random.Random, h: History, old: Row, *new: Row) -> None:
    h.rows.remove(old)
    h.rows.extend(new)
    rng.shuffle(h.rows)


# --- faults: each changes a clean history and tells the anomalies that have to be found, with the value concerned ---

Found = list[tuple[Name, bytes]]


def row_lost(rng: random.Random, h: History) -> Found:
    row = rng.choice(h.rows_of("ok"))
    swap(rng, h, row)
    return [("lost-write", row.value)]


def row_doubled(rng: random.Random, h: History) -> Found:
    row = rng.choice(h.rows_of("ok"))
    swap(rng, h, row, row, row)
    return [("duplicate", row.value)]


def row_of_unknown_outcome_doubled(rng: random.Random, h: History) -> Found:
    row = rng.choice(h.rows_of("unknown"))
    swap(rng, h, row, row, row)
    return [("duplicate", row.value)]


def value_at_two_offsets(rng: random.Random, h: History) -> Found:
    row, (partition, offset) = rng.choice(h.rows_of("ok")), rng.choice(h.free)
    swap(rng, h, row, row, Row(partition, offset, row.value))
    return [("duplicate", row.value), ("inconsistent-offset", row.value)]


def two_values_at_one_offset(rng: random.Random, h: History) -> Found:
    # A value of unknown outcome that never arrived now shows up on top of another one.
    arrived = {r.value for r in h.rows}
    ghost = rng.choice([s for s in h.sends if s.outcome == "unknown" and s.value not in arrived])
    row = rng.choice([r for r in h.rows_of("ok") if r.partition == ghost.partition])
    h.rows.append(Row(row.partition, row.offset, ghost.value))
    first = min(row.value, ghost.value)
    return [("duplicate", first), ("inconsistent-offset", first)]


def aborted_record_read(rng: random.Random, h: History) -> Found:
    send = rng.choice([s for s in h.sends if s.outcome == "failed" and s.offset is not None])
    assert send.offset is not None
    h.rows.append(Row(send.partition, send.offset, send.value))
    return [("aborted-read", send.value)]


def row_moved(rng: random.Random, h: History) -> Found:
    row = rng.choice(h.rows_of("ok"))
    offset = rng.choice([o for p, o in h.free if p == row.partition])
    swap(rng, h, row, replace(row, offset=offset))
    return [("inconsistent-offset", row.value)]


def row_of_unknown_outcome_moved(rng: random.Random, h: History) -> Found:
    located = {s.value for s in h.sends if s.outcome == "unknown" and s.offset is not None}
    row = rng.choice([r for r in h.rows if r.value in located])
    partition, offset = rng.choice(h.free)
    swap(rng, h, row, Row(partition, offset, row.value))
    return [("inconsistent-offset", row.value)]


def value_replaced(rng: random.Random, h: History) -> Found:
    row = rng.choice(h.rows_of("ok"))
    swap(rng, h, row, replace(row, value=b"foreign"))
    return [("inconsistent-offset", b"foreign"), ("lost-write", row.value), ("unseen", b"foreign")]


def row_that_nobody_sent(rng: random.Random, h: History) -> Found:
    partition, offset = rng.choice(h.free)
    h.rows.append(Row(partition, offset, b"foreign"))
    return [("unseen", b"foreign")]


def acknowledged_behind_the_ranges(rng: random.Random, h: History) -> Found:
    partition = rng.randrange(PARTITIONS)
    h.sends.append(Send(b"late", partition, h.ends()[partition], "ok"))
    return [("unseen", b"late")]


def row_behind_the_ranges(rng: random.Random, h: History) -> Found:
    partition = rng.randrange(PARTITIONS)
    h.sends.append(Send(b"late", partition, None, "unknown"))
    h.rows.append(Row(partition, h.ends()[partition], b"late"))
    return [("unseen", b"late")]


FAULTS: list[Callable[[random.Random, History], Found]] = [
    row_lost, row_doubled, row_of_unknown_outcome_doubled, value_at_two_offsets, two_values_at_one_offset,
    aborted_record_read, row_moved, row_of_unknown_outcome_moved, value_replaced, row_that_nobody_sent,
    acknowledged_behind_the_ranges, row_behind_the_ranges,
]  # fmt: skip


def test_clean_histories_are_clean(rng: random.Random) -> None:
    for _ in range(200):
        assert clean(rng).check() == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_else_is(
    rng: random.Random, fault: Callable[[random.Random, History], Found]
) -> None:
    tried = 0
    while tried < 30:
        history = clean(rng)
        try:
            expected = fault(rng, history)
        except IndexError:
            continue  # this history has nothing of the kind that the fault needs
        assert sorted((a.name, a.value) for a in history.check()) == sorted(expected)
        tried += 1


def test_every_name_has_a_fault_of_its_own(rng: random.Random) -> None:
    seen: Counter[str] = Counter()
    for fault in FAULTS:
        found: Found = []
        while not found:
            try:
                found = fault(rng, clean(rng))
            except IndexError:
                continue
        if len(found) == 1:
            seen[found[0][0]] += 1
    assert set(seen) == {"lost-write", "duplicate", "aborted-read", "inconsistent-offset", "unseen"}


def test_an_unknown_outcome_may_be_there_or_not() -> None:
    send, ranges = Send(b"v", 0, None, "unknown"), [TopicRanges({0: OffsetRange(0, 5)})]
    assert check_history([send], [], ranges) == []
    assert check_history([send], [Row(0, 3, b"v")], ranges) == []
    assert [a.name for a in check_history([send], [Row(1, 3, b"v")], ranges)] == ["inconsistent-offset", "unseen"]


def test_two_acknowledgements_of_one_offset_are_inconsistent() -> None:
    """This would be a fault of Kafka itself. The table, which can contain only one of the values, is not the only
    suspect."""
    sends = [Send(b"a", 0, 2, "ok"), Send(b"b", 0, 2, "ok")]
    found = check_history(sends, [Row(0, 2, b"a")], [TopicRanges({0: OffsetRange(0, 5)})])
    assert [(a.name, a.value) for a in found] == [("inconsistent-offset", b"a"), ("lost-write", b"b")]


def test_the_end_of_a_range_is_outside_of_it() -> None:
    ranges = [TopicRanges({0: OffsetRange(0, 2)}), TopicRanges({0: OffsetRange(3, 4)})]
    sends = [Send(str(o).encode(), 0, o, "ok") for o in range(5)]
    found = check_history(sends, [], ranges)
    assert {a.offset for a in found if a.name == "lost-write"} == {0, 1, 3}
    assert {a.offset for a in found if a.name == "unseen"} == {2, 4}


def test_a_history_that_tells_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="sent twice"):
        check_history([Send(b"v", 0, 1, "ok"), Send(b"v", 0, None, "failed")], [], [])
    with pytest.raises(ValueError, match="without an offset"):
        Send(b"v", 0, None, "ok")
