"""The algebra of ranges compared with sets of integers, cuts that only grow, and the detection of gaps and overlaps
between windows."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping

import numpy as np
import pytest

from platform_assets.model.offsets import (
    Cut,
    OffsetRange,
    TilingFault,
    TopicRanges,
    common,
    lag,
    merge,
    ranges_of,
    repeats,
    size_of,
    subtract,
    text_of,
    tiling_faults,
)

ROUNDS = 300
BIG = (2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1)


def some_range(rng: random.Random, below: int = 40) -> OffsetRange:
    start, end = sorted((rng.randrange(below), rng.randrange(below)))
    return OffsetRange(start, end)


def some_ranges(rng: random.Random) -> list[OffsetRange]:
    return [some_range(rng) for _ in range(rng.randrange(6))]


def members(*ranges: OffsetRange) -> set[int]:
    return {offset for r in ranges for offset in range(r.start, r.end)}


def fewest(offsets: set[int]) -> int:
    """Return the number of maximal runs in a set."""
    return sum(o - 1 not in offsets for o in offsets)


def topic_ranges(**ranges: tuple[int, int]) -> TopicRanges:
    return TopicRanges({int(name[1:]): OffsetRange(*bounds) for name, bounds in ranges.items()})


# --- ranges ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "end"), [(-1, 0), (1, 0), (-2, -1), (5, 4)])
def test_a_range_that_runs_backwards_or_below_zero_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange(start, end)


def test_the_end_of_a_range_is_outside_and_its_start_inside() -> None:
    r = OffsetRange(3, 5)
    assert [o for o in range(8) if o in r] == [3, 4]
    assert (r.size, str(r)) == (2, "[3, 5)")
    assert OffsetRange(3, 3).size == 0
    assert 3 not in OffsetRange(3, 3)


def test_intersection_equals_that_of_sets(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        left, right = some_range(rng), some_range(rng)
        both = left.intersect(right)
        assert (set() if both is None else members(both)) == members(left) & members(right)
        assert both is None or both.size


def test_several_ranges_less_others_and_in_common_with_others_equal_sets(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        ranges, others = some_ranges(rng), some_ranges(rng)
        for found, expected in (
            (subtract(ranges, others), members(*ranges) - members(*others)),
            (common(ranges, others), members(*ranges) & members(*others)),
        ):
            assert members(*found) == expected
            assert len(found) == fewest(expected)
            assert list(found) == sorted(found)
            assert size_of(found) == len(expected)


def test_a_span_holds_its_first_and_its_last_offset() -> None:
    assert OffsetRange.closed(3, 3) == OffsetRange(3, 4)
    assert OffsetRange.closed(0, 2**62) == OffsetRange(0, 2**62 + 1)
    with pytest.raises(ValueError, match="not a range"):
        OffsetRange.closed(5, 3)


def test_repeats_are_the_rows_beyond_the_first_of_each_offset(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        offsets = sorted(rng.randrange(12) for _ in range(rng.randrange(20)))
        found = repeats(np.array(offsets, dtype=np.int64))
        assert len(found) == len(offsets) - len(set(offsets))
        assert set(found.tolist()) == {o for o in offsets if offsets.count(o) > 1}


def test_lag_counts_from_what_is_held_and_is_never_negative() -> None:
    assert (lag(10, 7), lag(10, None), lag(10, 10), lag(10, 12)) == (3, 10, 0, 0)


def test_ranges_beyond_the_limit_are_counted_in_text() -> None:
    ranges = [OffsetRange(n, n + 1) for n in range(0, 8, 2)]
    assert text_of(ranges, 2) == "[0, 1), [2, 3) and 2 more ranges"
    assert text_of(ranges) == "[0, 1), [2, 3), [4, 5), [6, 7)"


def test_difference_equals_that_of_sets_in_the_fewest_ascending_pieces(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        whole, others = some_range(rng), some_ranges(rng)
        left = whole.minus(others)
        assert members(*left) == members(whole) - members(*others)
        assert len(left) == fewest(members(*left))
        assert list(left) == sorted(left)


def test_merging_keeps_the_offsets_in_the_fewest_ascending_pieces(rng: random.Random) -> None:
    for _ in range(ROUNDS):
        ranges = some_ranges(rng)
        merged = merge(ranges)
        assert members(*merged) == members(*ranges)
        assert len(merged) == fewest(members(*ranges))
        assert list(merged) == sorted(merged)
        assert ranges_of(rng.sample(sorted(members(*ranges)) * 2, 2 * len(members(*ranges)))) == merged


# --- cuts -----------------------------------------------------------------------------------------------------------


def test_a_cut_cannot_be_changed_nor_changes_with_what_it_was_made_from() -> None:
    given = {1: 7, 0: 5}
    cut = Cut(given)
    given[0] = 99
    assert dict(cut.offsets) == {0: 5, 1: 7}
    assert list(cut.offsets) == [0, 1]
    with pytest.raises(TypeError):
        cut.offsets[0] = 1  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        cut.offsets = {}  # type: ignore[misc]


@pytest.mark.parametrize("offsets", [{-1: 0}, {0: -1}])
def test_a_cut_below_zero_is_refused(offsets: dict[int, int]) -> None:
    with pytest.raises(ValueError, match="cannot have a negative"):
        Cut(offsets)


def test_a_partition_younger_than_the_cut_stands_at_zero() -> None:
    assert Cut({0: 4}).at(1) == 0


@pytest.mark.parametrize(
    ("cut", "wanted", "ceiling", "grown"),
    [
        pytest.param({0: 5}, {0: 9}, {0: 20}, {0: 9}, id="as wanted"),
        pytest.param({0: 5}, {0: 3}, {0: 20}, {0: 5}, id="never before the last cut"),
        pytest.param({0: 5}, {0: 30}, {0: 20}, {0: 20}, id="never past the ceiling"),
        pytest.param({0: 5}, {0: 9}, {0: 2}, {0: 5}, id="a ceiling that went backwards loses to the last cut"),
        pytest.param({0: 5, 1: 7}, {0: 9}, {0: 20}, {0: 9, 1: 7}, id="out of reach: carried forward"),
        pytest.param({0: 5}, {0: 9, 1: 4}, {0: 20, 1: 6}, {0: 9, 1: 4}, id="a new partition"),
        pytest.param({0: 5}, {0: 9, 1: 8}, {0: 20, 1: 6}, {0: 9, 1: 6}, id="a new partition under its ceiling"),
        pytest.param({0: 5}, {0: 9}, {}, {0: 9}, id="no ceiling"),
    ],
)
def test_growing(cut: dict[int, int], wanted: dict[int, int], ceiling: dict[int, int], grown: dict[int, int]) -> None:
    assert Cut(cut).grow(wanted, ceiling) == Cut(grown)


def test_cuts_grown_by_any_answers_only_grow_and_tile_the_log(rng: random.Random) -> None:
    """This holds whatever the brokers answer: adjacent windows share the cut between them, and no window ends above the
    highest end that was seen."""
    for _ in range(ROUNDS):
        cuts = [Cut({p: rng.randrange(10) for p in range(rng.randrange(1, 4))})]
        highest = dict(cuts[0].offsets)
        for _ in range(6):
            reached = [p for p in range(5) if rng.random() < 0.7]
            ends = {p: rng.randrange(60) for p in reached}
            cuts.append(cuts[-1].grow({p: rng.randrange(60) for p in reached}, ends))
            highest |= {p: max(highest.get(p, 0), end) for p, end in ends.items()}
        windows = [(str(i), TopicRanges.between(a, b)) for i, (a, b) in enumerate(itertools.pairwise(cuts))]
        assert tiling_faults(windows) == ()
        assert all(offset <= highest[p] for cut in cuts for p, offset in cut.offsets.items())
        for partition, end in cuts[-1].offsets.items():
            held = [r for _, ranges in windows for p, r in ranges.items() if p == partition]
            assert sum(r.size for r in held) == end - cuts[0].at(partition)
            assert members(*held) == set(range(cuts[0].at(partition), end))


def test_a_regression_is_an_end_before_the_cut() -> None:
    cut = Cut({0: 5, 1: 7, 2: 9})
    assert cut.regressions({0: 5, 1: 6, 3: 0}) == ((1, 7, 6),)
    assert cut.regressions({0: 6, 1: 7, 2: 100}) == ()


# --- windows of a topic ---------------------------------------------------------------------------------------------


def test_ranges_between_cuts_start_at_zero_where_a_partition_was_added() -> None:
    ranges = TopicRanges.between(Cut({0: 3, 1: 4}), Cut({0: 3, 1: 9, 2: 6}))
    assert ranges.triples() == ((0, 3, 3), (1, 4, 9), (2, 0, 6))
    assert ranges.size == 11
    assert ranges.non_empty().triples() == ((1, 4, 9), (2, 0, 6))


@pytest.mark.parametrize(("start", "end"), [({0: 3}, {0: 2}), ({0: 3, 1: 0}, {0: 5})])
def test_a_cut_that_shrank_or_lost_a_partition_makes_no_window(start: dict[int, int], end: dict[int, int]) -> None:
    with pytest.raises(ValueError, match=r"not a range|lacks partitions \[1\]"):
        TopicRanges.between(Cut(start), Cut(end))


TILED = [
    ("a", topic_ranges(p0=(5, 9), p1=(0, 4))),
    ("b", topic_ranges(p0=(9, 9), p1=(4, 8))),
    ("c", topic_ranges(p0=(9, 12), p1=(8, 8), p2=(0, 3))),
]


def damaged(index: int, changes: Mapping[int, tuple[int, int]]) -> list[tuple[str, TopicRanges]]:
    windows = list(TILED)
    key, ranges = windows[index]
    windows[index] = (
        key,
        TopicRanges({**ranges.by_partition, **{p: OffsetRange(*bounds) for p, bounds in changes.items()}}),
    )
    return windows


def test_windows_that_share_their_cuts_tile() -> None:
    assert tiling_faults(TILED) == ()
    assert tiling_faults([]) == ()


@pytest.mark.parametrize(
    ("windows", "fault"),
    [
        pytest.param(damaged(1, {1: (6, 8)}), TilingFault("gap", 1, 4, 6, "a", "b"), id="gap"),
        pytest.param(damaged(1, {1: (3, 8)}), TilingFault("overlap", 1, 3, 4, "a", "b"), id="overlap"),
        pytest.param(damaged(2, {2: (1, 3)}), TilingFault("gap", 2, 0, 1, "b", "c"), id="a late partition off zero"),
        pytest.param([TILED[0], TILED[2]], TilingFault("gap", 1, 4, 8, "a", "c"), id="a window is lost"),
    ],
)
def test_a_fault_in_a_tiling_is_named(windows: list[tuple[str, TopicRanges]], fault: TilingFault) -> None:
    assert tiling_faults(windows) == (fault,)


def test_a_partition_that_pauses_goes_on_where_it_was() -> None:
    paused = [TILED[0], ("b", topic_ranges(p0=(9, 9))), ("c", topic_ranges(p0=(9, 12), p1=(4, 8)))]
    assert tiling_faults(paused) == ()
    assert tiling_faults([*paused[:2], ("c", topic_ranges(p1=(0, 8)))]) == (TilingFault("overlap", 1, 0, 4, "b", "c"),)
