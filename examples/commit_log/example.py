"""Planes in the air as a key-value store: a departure puts the plane's flight, and the landing deletes it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final

from examples import flights
from examples.runner import SPEED, Comparison, Example, Record, rows_compared
from platform_assets.lake.location import Lake

DAYS: Final = 7
FIRST: Final = datetime(2013, 1, 1, tzinfo=UTC)
TABLE: Final = "changes/planes_in_the_air"
STATE: Final = """
    SELECT key, flight, destination
    FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY "window" DESC) AS age FROM changes WHERE "window" <= $1)
    WHERE age = 1 AND NOT deleted"""
"""State of the store at the end of a window: the newest change of each key. A window has one change per key."""
_FLIGHTS: Final = f"""
    SELECT tailnum, carrier || flight AS flight, dest, time_hour::TIMESTAMPTZ + to_minutes(minute + dep_delay) AS left_at,
        left_at + to_minutes(air_time) AS landed_at
    FROM flights WHERE month = 1 AND day <= {DAYS} AND tailnum IS NOT NULL AND air_time IS NOT NULL"""

_Change = tuple[datetime, str, dict[str, str] | None]
"""Time of a change, its key, and the new value, or None if the key is deleted."""


def records() -> Sequence[Record]:
    """Return the log of the store, in the order of time."""
    return [
        Record("planes_in_the_air", at, None if value is None else json.dumps(value).encode(), plane.encode())
        for at, plane, value in _log()
    ]


def compared(lake: Lake) -> list[Comparison]:
    """Compare the store at the end of each window with a dictionary to which the same changes were applied."""
    import duckdb
    from deltalake import DeltaTable

    changes = DeltaTable(f"{lake.root}/{TABLE}").to_pyarrow_table()
    connection = duckdb.connect()
    connection.register("changes", changes)
    windows = sorted(set(changes["window"].to_pylist()))
    found: list[tuple[Any, ...]] = []
    expected: list[tuple[Any, ...]] = []
    for number, (window, store) in enumerate(zip(windows, _stores(), strict=True)):
        found += [(number, *row) for row in connection.execute(STATE, [window]).fetchall()]
        expected += [(number, plane, value["flight"], value["destination"]) for plane, value in store.items()]
    sizes = [sum(1 for row in expected if row[0] == number) for number in range(len(windows))]
    return [rows_compared(TABLE, found, expected, f"planes in the air at the end of each window: {sizes}")]


@lru_cache
def _log() -> list[_Change]:
    found: list[_Change] = []
    for plane, flight, destination, left, landed in flights.query(_FLIGHTS):
        found += [(left, plane, {"flight": flight, "destination": destination}), (landed, plane, None)]
    # A plane that lands and leaves in the same minute is in the air afterwards.
    return sorted(found, key=lambda change: (change[0], change[1], change[2] is not None))


def _stores() -> Iterator[dict[str, dict[str, str]]]:
    """Yield the store at the end of each window."""
    store: dict[str, dict[str, str]] = {}
    end = FIRST + timedelta(seconds=60 * SPEED)
    for at, plane, value in _log():
        while at >= end:
            yield dict(store)
            end += timedelta(seconds=60 * SPEED)
        if value is None:
            store.pop(plane, None)
        else:
            store[plane] = value
    yield store


EXAMPLE: Final = Example("commit_log", FIRST, {"planes_in_the_air": 2}, records, compared)
