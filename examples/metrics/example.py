"""Departures as metrics. A record is sent when the plane leaves, and counts for the minute when it should have left."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from examples import flights
from examples.runner import Comparison, Example, Record, compare
from platform_assets.lake.location import Lake

DAYS: Final = 3
FIRST: Final = datetime(2013, 1, 1, 6, tzinfo=UTC)
_SCHEDULED: Final = f"""
    SELECT time_hour::TIMESTAMPTZ + to_minutes(minute) AS scheduled, dep_delay AS late, origin, carrier
    FROM flights WHERE month = 1 AND day <= {DAYS}"""


def records() -> Sequence[Record]:
    """Return a record per flight, in the order in which the flights left. A cancelled flight is reported on time."""
    found = []
    for scheduled, late, origin, carrier in flights.query(_SCHEDULED):
        value = {
            "scheduled": f"{scheduled:%Y-%m-%dT%H:%M:%SZ}",
            "minutes_late": late,
            "origin": origin,
            "carrier": carrier,
        }
        found.append(
            Record("departures", scheduled + timedelta(minutes=late or 0), json.dumps(value).encode(), carrier.encode())
        )
    return sorted(found, key=lambda record: record.at)


def compared(lake: Lake) -> list[Comparison]:
    """Compare each level of the roll-up with DuckDB's result over the file."""
    return [_level(lake, unit) for unit in ("minute", "hour", "day")]


def _level(lake: Lake, unit: str) -> Comparison:
    rows: list[tuple[Any, ...]] = flights.query(
        f"""SELECT date_trunc('{unit}', scheduled) AS {unit}, origin, count(*), count(late),
            count(*) FILTER (late > 60), sum(late)::BIGINT, max(late)
            FROM ({_SCHEDULED}) GROUP BY ALL"""
    )
    if unit == "day":
        rows = [(day.date() if isinstance(day, datetime) else day, *rest) for day, *rest in rows]
    columns = (unit, "origin", "flights", "departed", "over_an_hour_late", "minutes_late", "most_minutes_late")
    figures = f"{sum(r[2] for r in rows):,} flights, {sum(r[4] for r in rows):,} of them over an hour late"
    return compare(lake, f"derived/departures_by_{unit}", columns, rows, figures)


EXAMPLE: Final = Example("metrics", FIRST, {"departures": 2}, records, compared)
