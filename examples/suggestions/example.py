"""Destinations like this one: planes are users, and the airports to which they flew are items."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any, Final

from examples import flights
from examples.runner import Comparison, Example, Record, compare
from platform_assets.lake.location import Lake

DAYS: Final = 7
FIRST: Final = datetime(2013, 1, 1, 6, tzinfo=UTC)
KEPT: Final = 500
"""Number of items that are kept per user: those that the user had last."""
SUPPORT: Final = 10
"""Minimum number of users that two items have in common."""
MOST: Final = 5
"""Maximum number of suggestions per item."""
_TRIPS: Final = f"""
    SELECT tailnum, dest, time_hour::TIMESTAMPTZ + to_minutes(minute + dep_delay) AS left_at
    FROM flights WHERE month = 1 AND day <= {DAYS} AND tailnum IS NOT NULL AND dep_delay IS NOT NULL"""


def records() -> Sequence[Record]:
    """Return a record per trip, in the order of departures."""
    return [
        Record("trips", at, json.dumps({"plane": plane, "destination": dest}).encode(), plane.encode())
        for plane, dest, at in _trips()
    ]


def compared(lake: Lake) -> list[Comparison]:
    """Compare the counts, and the suggestions that follow from them, with counts from the file."""
    users, pairs = _counts()
    best = list(_best(users, pairs))
    top = "; ".join(f"{item}: {', '.join(row[2] for row in best if row[0] == item)}" for item in ("SFO", "MCO"))
    return [
        compare(lake, "derived/items", ("item", "planes"), users.items(), f"{users['SFO']:,} planes flew to SFO"),
        compare(
            lake,
            "derived/item_pairs",
            ("item", "other", "planes"),
            [(*pair, n) for pair, n in pairs.items()],
            f"{pairs['SFO', 'LAX']:,} planes flew to both SFO and LAX",
        ),
        compare(
            lake,
            "derived/suggestions",
            ("item", "rank", "other", "planes", "cosine", "jaccard"),
            best,
            f"the most similar destinations of {top}",
        ),
    ]


def _counts() -> tuple[dict[str, int], dict[tuple[str, str], int]]:
    """Return the number of users per item, and per pair of items. pandas joins the kept items with themselves."""
    import pandas as pd

    trips = pd.DataFrame([row[:2] for row in _trips()], columns=["plane", "item"])
    kept = trips.drop_duplicates(keep="last").groupby("plane").tail(KEPT)
    both = kept.merge(kept, on="plane", suffixes=("", "_other"))
    pairs = both.groupby(["item", "item_other"]).size()
    return kept.groupby("item").size().to_dict(), pairs.to_dict()


def _best(users: dict[str, int], pairs: dict[tuple[str, str], int]) -> Iterable[tuple[Any, ...]]:
    scored: dict[str, list[tuple[Decimal, str, int, Decimal]]] = defaultdict(list)
    for (item, other), n in pairs.items():
        if n >= SUPPORT and item != other:
            cosine = _rounded(n / Decimal(users[item] * users[other]).sqrt())
            jaccard = _rounded(Decimal(n) / (users[item] + users[other] - n))
            scored[item].append((-cosine, other, n, jaccard))
    for item, each in sorted(scored.items()):
        for rank, (negative, other, n, jaccard) in enumerate(sorted(each)[:MOST], 1):
            yield item, rank, other, n, -negative, jaccard


def _rounded(value: Decimal) -> Decimal:
    return value.quantize(Decimal("0.000001"), ROUND_HALF_UP)


@lru_cache
def _trips() -> list[tuple[Any, ...]]:
    return sorted(flights.query(_TRIPS), key=lambda row: (row[2], row[0], row[1]))


EXAMPLE: Final = Example("suggestions", FIRST, {"trips": 2}, records, compared)
