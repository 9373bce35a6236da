"""Window metadata that Dagster shows first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import dagster as dg
import pytest

from platform_assets.orchestration import events
from platform_assets.orchestration.names import OUTCOME
from platform_assets.windows.load.replacing import Outcome
from testbed import samples

WINDOW = samples.sealed("t", "2026-01-01-00:00", p0=(0, 1500), p1=(7, 7))
ROWS = {0: range(1490)}


@pytest.mark.parametrize(
    ("holes", "rest"),
    [
        (None, "; the check every_offset_accounted_for accounts for the other 10 offsets."),
        ({"commit markers": 4, "aborted records": 6}, "; the other offsets: 4 commit markers, 6 aborted records."),
    ],
)
def test_summary_accounts_for_every_offset(holes: Mapping[str, int] | None, rest: str) -> None:
    told = events.of_receipt(samples.receipt(WINDOW, ROWS, holes=holes), "loaded", "/lake/raw/t")

    assert (
        told[events.SUMMARY] == f"Loaded for the first time: 1,490 rows for 1,500 offsets in 2 Kafka partitions{rest}"
    )


def test_summary_of_a_dense_window_and_of_an_empty_one() -> None:
    empty = samples.sealed("t", "2026-01-01-00:00", p0=(7, 7))

    dense = events.of_receipt(samples.receipt(WINDOW, holes={}), "unchanged", "")[events.SUMMARY]
    assert dense == (
        "Read again and proved equal to the recorded load, so nothing was written: 1,500 rows for 1,500 offsets "
        "in 2 Kafka partitions, one row per offset."
    )
    nothing = events.of_receipt(samples.receipt(empty, {}), "empty", "")[events.SUMMARY]
    assert nothing == "Nothing to load: 0 rows for 0 offsets in 1 Kafka partition."


def test_every_outcome_has_words() -> None:
    for outcome in get_args(Outcome):
        assert events.of_receipt(samples.receipt(WINDOW), outcome, "")[OUTCOME] == outcome


def test_the_engine_that_loaded_is_named_where_it_is_known() -> None:
    assert events.of_receipt(samples.receipt(WINDOW, engine="connector"), "kept", "")[events.ENGINE] == "connector"
    assert events.ENGINE not in events.of_receipt(samples.receipt(WINDOW), "loaded", "")


def test_window_and_table_link_to_each_other() -> None:
    sealed = events.of_sealed(WINDOW)
    loaded = events.of_receipt(samples.receipt(WINDOW), "loaded", "")

    assert sealed[events.TARGET] == dg.MetadataValue.asset(dg.AssetKey(["raw", "t"]))
    assert loaded[events.SOURCE] == dg.MetadataValue.asset(dg.AssetKey(["kafka", "t"]))
    assert next(iter(sealed)) == next(iter(loaded)) == events.SUMMARY
