"""Grouping windows into runs: each window is in one run, and a run has only adjacent windows, within limits."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from datetime import timedelta

import dagster as dg

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.windows import KEY_FORMAT, Window, key_of
from platform_assets.orchestration.planning import LoadRequest, grouped, listed, packed
from testbed.samples import START, edge, sealed

HOURLY, BY_MINUTE = "0 * * * *", "* * * * *"
MINUTE = timedelta(minutes=1)


def hours(*sizes: int) -> list[SealedWindow]:
    """Return hourly windows with these numbers of offsets, one window per number."""
    return [sealed("t", key_of(edge(n)), p0=(0, size)) for n, size in enumerate(sizes)]


def spans(
    windows: list[SealedWindow], loaded: set[str] | None = None, *, schedule: str = HOURLY, offsets: int, most: int
) -> list[tuple[str, str]]:
    found = grouped(windows, loaded or set(), schedule=schedule, max_offsets=offsets, max_windows=most)
    return [(r.first[-5:], r.last[-5:]) for r in found]


def test_a_run_takes_windows_up_to_its_number_of_records() -> None:
    windows = hours(4, 6, 1, 30, 2, 8)
    assert spans(windows, offsets=10, most=9) == [
        ("00:00", "01:00"), ("02:00", "02:00"), ("03:00", "03:00"), ("04:00", "05:00")
    ]  # fmt: skip


def test_a_run_takes_no_more_windows_than_allowed() -> None:
    assert spans(hours(0, 0, 0, 0, 0), offsets=10, most=2) == [
        ("00:00", "01:00"), ("02:00", "03:00"), ("04:00", "04:00")
    ]  # fmt: skip


def test_a_window_that_is_loaded_parts_the_runs_before_and_after_it() -> None:
    windows = hours(1, 1, 1, 1)
    assert spans(windows, {windows[1].key}, offsets=10, most=9) == [("00:00", "00:00"), ("02:00", "03:00")]
    assert spans(windows, {w.key for w in windows}, offsets=10, most=9) == []
    assert spans([], offsets=10, most=9) == []


def test_every_window_that_is_not_loaded_is_in_one_run_that_names_it(rng: random.Random) -> None:
    """The test reads a run's windows as Dagster does: all partitions from the first to the last."""
    partitions = dg.TimeWindowPartitionsDefinition(START, KEY_FORMAT, cron_schedule=HOURLY, timezone="UTC")
    for _ in range(50):
        windows = hours(*(rng.choice((0, 1, 5, 200)) for _ in range(rng.randrange(30))))
        loaded = {w.key for w in windows if rng.random() < 0.3}
        bound, most = rng.randrange(1, 400), rng.randrange(1, 8)
        found = list(grouped(windows, loaded, schedule=HOURLY, max_offsets=bound, max_windows=most))
        named = [partitions.get_partition_keys_in_range(dg.PartitionKeyRange(r.first, r.last)) for r in found]
        assert [k for keys in named for k in keys] == [w.key for w in windows if w.key not in loaded]
        size = {w.key: w.ranges.size for w in windows}
        for request, keys in zip(found, named, strict=True):
            assert (request.windows, request.offsets) == (len(keys), sum(size[k] for k in keys))
            assert len(keys) <= most
            assert request.offsets <= bound or len(keys) == 1


def test_hourly_windows_of_the_past_are_not_named_by_a_range_of_minutes() -> None:
    """Windows are one minute long from 02:00 on. Between 00:00 and 01:00, Dagster would now find sixty partitions."""
    minutes = [replace(hours(1)[0], window=Window(edge(2) + n * MINUTE, edge(2) + (n + 1) * MINUTE)) for n in range(3)]
    found = spans([*hours(1, 1), *minutes], schedule=BY_MINUTE, offsets=10, most=9)
    assert found == [("00:00", "00:00"), ("01:00", "01:00"), ("02:00", "02:02")]


def test_windows_that_are_no_partitions_any_more_are_not_asked_for() -> None:
    """Windows are one minute long until 00:02, and hourly from then on: 00:00 and 01:00 are partitions; 00:01 and 00:02
    are not."""
    window = hours(1)[0]
    starts = [START, START + MINUTE, START + 2 * MINUTE, edge(1), edge(2), edge(3)]
    windows = [replace(window, window=Window(a, b)) for a, b in itertools.pairwise(starts)]
    assert spans(windows, schedule=HOURLY, offsets=10, most=9) == [("00:00", "00:00"), ("01:00", "02:00")]


def test_windows_of_two_generations_are_not_in_one_run() -> None:
    windows = hours(1, 1, 1, 1)
    windows[2:] = [replace(w, generation=2) for w in windows[2:]]
    found = list(grouped(windows, set(), schedule=HOURLY, max_offsets=10, max_windows=9))
    assert [(r.first[-5:], r.last[-5:], r.generation) for r in found] == [("00:00", "01:00", 1), ("02:00", "03:00", 2)]


def test_the_same_windows_give_the_same_key_and_others_another() -> None:
    request = LoadRequest("2026-01-01-00:00", "2026-01-01-05:00", 1, 6, 100)
    same = replace(request, windows=1, offsets=5)
    assert request.run_key("raw/t") == same.run_key("raw/t") == "raw/t/1/2026-01-01-00:00..2026-01-01-05:00"
    others = [replace(request, first="x"), replace(request, last="x"), replace(request, generation=2)]
    assert len({r.run_key("raw/t") for r in [request, *others]} | {request.run_key("raw/u")}) == 5


def test_partitions_of_a_window_count_together() -> None:
    window = replace(hours(1)[0], ranges=TopicRanges({0: OffsetRange(5, 9), 1: OffsetRange(0, 7)}))
    (request,) = grouped([window], set(), schedule=HOURLY, max_offsets=1, max_windows=1)
    assert request.offsets == 11


def test_windows_that_are_named_one_by_one_need_not_be_neighbours() -> None:
    windows = hours(4, 6, 1, 30, 2, 8)
    del windows[1]
    found = list(listed(windows, max_offsets=10, max_windows=2))
    assert [r.listed for r in found] == [
        (windows[0].key, windows[1].key), (windows[2].key,), (windows[3].key, windows[4].key)
    ]  # fmt: skip
    assert [r.offsets for r in found] == [5, 30, 10]
    assert len({r.run_key("raw/t") for r in found}) == 3


def test_lists_with_the_same_ends_have_keys_of_their_own() -> None:
    windows = hours(1, 1, 1)
    (whole,) = listed(windows, max_offsets=10, max_windows=9)
    (without,) = listed([windows[0], windows[2]], max_offsets=10, max_windows=9)
    (ranged,) = grouped(windows, (), schedule=HOURLY, max_offsets=10, max_windows=9)
    assert (whole.first, whole.last) == (without.first, without.last) == (ranged.first, ranged.last)
    assert len({r.run_key("raw/t") for r in (whole, without, ranged)}) == 3


def request(topic: str, windows: int, offsets: int = 1, attempt: int = 1, most: int = 0) -> tuple[str, LoadRequest]:
    return topic, LoadRequest("k", "k", 1, windows, offsets, attempt, listed=("k",) * windows, most=most)


def packs(given: list[tuple[str, LoadRequest]], max_windows: int = 10, max_offsets: int = 100) -> list[list[str]]:
    found = packed(given, max_offsets=max_offsets, max_windows=max_windows)
    return [[topic for topic, _ in run] for run in found]


def test_windows_of_many_topics_share_runs_within_both_bounds() -> None:
    assert packs([]) == []
    assert packs([request(name, 4) for name in "abcde"]) == [["a", "b"], ["c", "d"], ["e"]]
    assert packs([request("a", 1, 60), request("b", 1, 60), request("c", 1, 40)]) == [["a"], ["b", "c"]]
    assert packs([request("a", 1), request("large", 1, 1_000), request("b", 1)]) == [["a"], ["large"], ["b"]]


def test_what_failed_is_apart_from_what_never_did_and_narrows_down_what_ends_runs_abruptly() -> None:
    failed = [
        request("failed", 1, attempt=2),
        request("suspect", 1, attempt=2, most=2),
        request("other", 1, attempt=2, most=2),
    ]
    more = [request("guilty", 1, attempt=4, most=1), *failed, request("new", 1)]
    assert packs(more) == [["new"], ["failed"], ["suspect", "other"], ["guilty"]]
