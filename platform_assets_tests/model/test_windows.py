"""Window boundaries and keys: they are identical to Dagster's partitions, half-open, and never ambiguous."""

from __future__ import annotations

import itertools
import random
from datetime import UTC, datetime, timedelta, timezone

import dagster as dg
import pytest
from dagster._utils.schedules import is_valid_cron_string

from platform_assets.model.windows import (
    KEY_FORMAT,
    Window,
    closed_edges,
    count_edges,
    edge_of,
    edges_from,
    first_edge,
    is_cron,
    key_of,
    milliseconds,
    window_starting_at,
)

SCHEDULES = (
    "* * * * *", "*/7 * * * *", "0 * * * *", "17 * * * *", "0,10,55 */5 * * *", "0 0 * * *", "30 4 * * MON-FRI",
    "0 0 * * 7", "0 0 1 * *", "0 0 L * *", "0 0 1 * 1", "0 12 * * THU", "5 6 * MAR *",
)  # fmt: skip
MOMENT = timedelta(microseconds=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def some_time(rng: random.Random) -> datetime:
    return at("2023-01-01T00:00") + timedelta(seconds=rng.randrange(4 * 366 * 86_400), microseconds=rng.randrange(10))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_edges_and_keys_are_those_of_dagsters_partitions(schedule: str, rng: random.Random) -> None:
    for _ in range(5):
        start = some_time(rng)
        first = first_edge(schedule, start)
        assert first >= start
        now = first + 40 * rng.random() * (next(edges_from(schedule, first + MOMENT)) - first)
        edges = [first, *closed_edges(schedule, first, now)]
        partitions = dg.TimeWindowPartitionsDefinition(
            start=first, fmt=KEY_FORMAT, cron_schedule=schedule, timezone="UTC"
        )
        assert partitions.get_partition_keys(current_time=now) == [key_of(e) for e in edges[:-1]]
        for left, right in itertools.pairwise(edges[:20]):
            assert window_starting_at(schedule, left) == Window(left, right)
            theirs = partitions.time_window_for_partition_key(key_of(left))
            assert (theirs.start.timestamp(), theirs.end.timestamp()) == (left.timestamp(), right.timestamp())


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_walk_over_closed_edges_gives_each_edge_once(schedule: str, rng: random.Random) -> None:
    """This holds however often and late the sensor looks: no boundary is repeated, omitted or early."""
    newest = first_edge(schedule, some_time(rng))
    begin, walked = newest, [newest]
    length = next(edges_from(schedule, newest + MOMENT)) - newest
    now = newest
    for _ in range(20):
        now += rng.choice((0, 0.5, 1, 10)) * rng.random() * length
        limit = rng.choice((None, 1, 5))
        found = closed_edges(schedule, newest, now, limit)
        assert all(newest < e <= now for e in found)
        assert limit is None or len(found) <= limit
        walked += found
        newest = walked[-1]
    assert walked == list(itertools.islice(edges_from(schedule, begin), len(walked)))


def test_an_edge_closes_at_its_own_instant_and_not_before() -> None:
    edge = at("2026-01-01T05:00")
    before = edge - timedelta(hours=1)
    assert closed_edges("0 * * * *", before, edge - MOMENT) == []
    assert closed_edges("0 * * * *", before, edge) == [edge]
    assert closed_edges("0 * * * *", edge, edge) == []
    assert closed_edges("0 * * * *", edge - MOMENT, edge) == [edge]


def test_the_first_edge_is_the_start_itself_where_that_is_an_edge() -> None:
    edge = at("2026-01-01T05:00")
    assert first_edge("0 * * * *", edge) == edge
    assert first_edge("0 * * * *", edge + MOMENT) == at("2026-01-01T06:00")
    assert first_edge("0 * * * *", edge.astimezone(timezone(timedelta(hours=5, minutes=30)))) == edge


def test_a_window_starts_at_an_edge_only() -> None:
    edge = at("2026-01-01T05:00")
    assert window_starting_at("0 * * * *", edge) == Window(edge, at("2026-01-01T06:00"))
    assert window_starting_at("0 * * * *", at("2026-01-01T05:01")) is None
    assert window_starting_at("0 * * * *", edge + MOMENT) is None


def test_a_window_without_length_is_refused() -> None:
    edge = at("2026-01-01T05:00")
    for end in (edge, edge - MOMENT):
        with pytest.raises(ValueError, match="must end after it starts"):
            Window(edge, end)


def test_a_key_names_its_edge_and_back(rng: random.Random) -> None:
    for _ in range(300):
        edge = some_time(rng).replace(second=0, microsecond=0)
        elsewhere = edge.astimezone(timezone(timedelta(minutes=rng.randrange(-800, 800))))
        assert edge_of(key_of(elsewhere)) == edge
        assert Window(edge, edge + MOMENT).key == str(Window(edge, edge + MOMENT)) == key_of(edge)


def test_keys_sort_as_their_edges_do(rng: random.Random) -> None:
    edges = [some_time(rng).replace(second=0, microsecond=0) for _ in range(300)]
    assert [key_of(e) for e in sorted(edges)] == sorted(key_of(e) for e in edges)


@pytest.mark.parametrize(
    "key",
    [
        "", "2026-01-01", "2026-01-01-05", "2026-01-01T05:00", "2026-01-01-05:00:00", "2026-1-1-5:0",
        "2026-02-30-00:00",
        "2026-01-01-24:00", "2026-01-01-05:60", " 2026-01-01-05:00", "2026-01-01-05:00 ",
        "2026-01-01-05:00\n",
        "../../etc/passwd", "2026-01-01-05:00' OR '1'='1", "２０２６-01-01-05:00", "0000-01-01-00:00",
    ],
)  # fmt: skip
def test_a_key_in_any_other_form_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not a window key"):
        edge_of(key)


@pytest.mark.parametrize(
    "schedule",
    [
        "", "hourly", "@hourly", "* * * *", "* * * * * *", "60 * * * *", "0 25 * * *", "* * * * MONDAY-", "a b c d e",
        "0 0 30 2 *", "0 0 31 4,6 *",
        "R * * * *", "0 r * * *", "R(0-10) * * * *", "H * * * *", "h/5 * * * *",
    ],
)  # fmt: skip
def test_what_is_no_cron_of_five_fields_or_never_or_randomly_ticks_is_refused(schedule: str) -> None:
    assert not is_cron(schedule)


def test_whatever_is_taken_for_a_cron_is_one_of_dagsters(rng: random.Random) -> None:
    """croniter accepts more expressions than Dagster does, for example `15w`: the weekday nearest to day 15."""
    pieces = [
        "*",
        "0",
        "1-3",
        "*/2",
        "1,5",
        "L",
        "15w",
        "w15",
        "LW",
        "?",
        "1#2",
        "L5",
        "JAN",
        "MON",
        "TUE-FRI",
        "7",
        "1w,2",
        "@",
    ]
    assert not is_cron("0 0 15w * *")
    for _ in range(2_000):
        schedule = " ".join(rng.choice(pieces) if rng.random() < 0.4 else "*" for _ in range(5))
        assert not is_cron(schedule) or is_valid_cron_string(schedule), schedule


@pytest.mark.parametrize("schedule", [*SCHEDULES, "0 0 29 2 *", "0  0 * * *"])
def test_what_dagster_takes_as_well_is_a_cron(schedule: str) -> None:
    assert is_cron(schedule)
    dg.TimeWindowPartitionsDefinition(
        start=at("2024-02-29T00:00"), fmt=KEY_FORMAT, cron_schedule=schedule, timezone="UTC"
    )


def test_milliseconds_are_exact_for_edges_far_off() -> None:
    assert milliseconds(at("1970-01-01T00:01")) == 60_000
    assert milliseconds(at("9999-12-31T23:59")) == 253_402_300_740_000
    assert milliseconds(at("2026-01-01T00:00") + timedelta(milliseconds=7)) == 1_767_225_600_007


@pytest.mark.parametrize(
    "schedule",
    [
        "0 * * * *",
        "*/7 3-9 * * 1-5",
        "0 0 1 * *",
        "5 4 31 * 1",
        "0 0 29 2 *",
        "30 2,14 * 1-3 *",
        "0 12 * * 5#2",
        "0 0 l * *",
    ],
)
def test_edges_are_counted_as_they_are_walked(schedule: str, rng: random.Random) -> None:
    for _ in range(5):
        start = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(minutes=rng.randrange(800_000))
        end = start + timedelta(minutes=rng.randrange(60_000))
        walked = itertools.takewhile(lambda edge, end=end: edge < end, edges_from(schedule, start))  # type: ignore[misc]
        assert count_edges(schedule, start, end) == len(list(walked))
