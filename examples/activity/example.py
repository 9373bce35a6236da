"""Planes as users: each departure is an event of a user. The judge of sessions and funnel is plain Python."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from examples import flights
from examples.runner import Comparison, Example, Record, compare
from platform_assets.lake.location import Lake

DAYS: Final = 7
FIRST: Final = datetime(2013, 1, 1, 6, tzinfo=UTC)
GAP: Final = timedelta(hours=24)
"""Longest time between two events of a session."""
STEP: Final = timedelta(days=3)
"""Longest time between the beginnings of two sessions in the funnel."""
_EVENTS: Final = f"""
    SELECT tailnum, time_hour::TIMESTAMPTZ + to_minutes(minute + dep_delay) AS left_at, origin, dest
    FROM flights WHERE month = 1 AND day <= {DAYS} AND tailnum IS NOT NULL AND dep_delay IS NOT NULL"""

_Session = tuple[str, int, datetime, datetime, int]


def records() -> Sequence[Record]:
    """Return an event per departure, in the order of departures."""
    found = []
    for plane, at, origin, destination in _events():
        value = {"plane": plane, "at": f"{at:%Y-%m-%dT%H:%M:%SZ}", "origin": origin, "destination": destination}
        found.append(Record("plane_events", at, json.dumps(value).encode(), plane.encode()))
    return found


def compared(lake: Lake) -> list[Comparison]:
    """Compare daily active planes, sessions and the funnel."""
    daily = flights.query(
        f"SELECT left_at::DATE AS day, count(DISTINCT tailnum), count(*) FROM ({_EVENTS}) GROUP BY ALL"
    )
    found, steps = _sessions(), _funnel()
    reached = ", ".join(f"{sum(step):,}" for step in zip(*(row[1:] for row in steps), strict=True))
    return [
        compare(lake, "derived/active_planes_by_day", ("day", "planes", "departures"), daily,
                f"{max(row[1] for row in daily):,} planes on the busiest day"),
        compare(lake, "derived/plane_sessions", ("plane", "session", "started", "ended", "departures"), found,
                f"{len({s[0] for s in found}):,} planes"),
        compare(lake, "derived/plane_funnel", ("first_day", "planes", "came_back", "came_back_twice"), steps,
                f"{reached} planes in the three steps"),
    ]  # fmt: skip


@lru_cache
def _events() -> list[tuple[Any, ...]]:
    return sorted(flights.query(_EVENTS), key=lambda row: (row[1], row[0]))


def _sessions() -> list[_Session]:
    times: dict[str, list[datetime]] = defaultdict(list)
    for plane, at, *_ in _events():
        times[plane].append(at)
    found: list[_Session] = []
    for plane, each in times.items():
        sessions: list[list[datetime]] = []
        for at in each:
            if sessions and at - sessions[-1][-1] <= GAP:
                sessions[-1].append(at)
            else:
                sessions.append([at])
        found += [(plane, n, s[0], s[-1], len(s)) for n, s in enumerate(sessions, 1)]
    return found


def _funnel() -> list[tuple[date, int, int, int]]:
    begun: dict[str, list[datetime]] = defaultdict(list)
    for plane, _, started, *_ in _sessions():
        begun[plane].append(started)
    counts: dict[date, list[int]] = defaultdict(lambda: [0, 0, 0])
    for each in begun.values():
        of_day = counts[each[0].astimezone(UTC).date()]
        of_day[0] += 1
        if len(each) > 1 and each[1] - each[0] <= STEP:
            of_day[1] += 1
            if len(each) > 2 and each[2] - each[1] <= STEP:
                of_day[2] += 1
    return [(day, first, second, third) for day, (first, second, third) in counts.items()]


EXAMPLE: Final = Example("activity", FIRST, {"plane_events": 2}, records, compared)
