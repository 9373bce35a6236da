"""What a person reads first of a window in Dagster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args

import dagster as dg
import pytest

from platform_assets.orchestration import metadata
from platform_assets.windows.replacing import Outcome
from testbed import samples

WINDOW = samples.sealed("t", "2026-01-01-00:00", p0=(0, 1500), p1=(7, 7))
ROWS = {0: range(1490)}


@pytest.mark.parametrize(
    ("holes", "rest"),
    [
        (None, "; the check every_offset_accounted_for says what became of the other 10."),
        ({"commit markers": 4, "aborted records": 6}, "; the others: 4 commit markers, 6 aborted records."),
    ],
)
def test_summary_accounts_for_every_offset(holes: Mapping[str, int] | None, rest: str) -> None:
    told = metadata.of_receipt(samples.receipt(WINDOW, ROWS, holes=holes), "loaded", "/lake/raw/t")

    assert (
        told[metadata.SUMMARY] == f"Loaded for the first time: 1,490 rows for 1,500 offsets in 2 Kafka partitions{rest}"
    )


def test_summary_of_a_dense_window_and_of_an_empty_one() -> None:
    empty = samples.sealed("t", "2026-01-01-00:00", p0=(7, 7))

    dense = metadata.of_receipt(samples.receipt(WINDOW, holes={}), "unchanged", "")[metadata.SUMMARY]
    assert dense == (
        "Read again and proved equal, so nothing was written: 1,500 rows for 1,500 offsets in 2 Kafka partitions, "
        "one for each."
    )
    nothing = metadata.of_receipt(samples.receipt(empty, {}), "empty", "")[metadata.SUMMARY]
    assert nothing == "Nothing to load: 0 rows for 0 offsets in 1 Kafka partition."


def test_every_outcome_has_words() -> None:
    for outcome in get_args(Outcome):
        assert metadata.of_receipt(samples.receipt(WINDOW), outcome, "")[metadata.OUTCOME] == outcome


def test_the_engine_that_loaded_is_named_where_it_is_known() -> None:
    assert metadata.of_receipt(samples.receipt(WINDOW, engine="connector"), "kept", "")[metadata.ENGINE] == "connector"
    assert metadata.ENGINE not in metadata.of_receipt(samples.receipt(WINDOW), "loaded", "")


def test_window_and_table_link_to_each_other() -> None:
    sealed = metadata.of_sealed(WINDOW)
    loaded = metadata.of_receipt(samples.receipt(WINDOW), "loaded", "")

    assert sealed[metadata.TARGET] == dg.MetadataValue.asset(dg.AssetKey(["raw", "t"]))
    assert loaded[metadata.SOURCE] == dg.MetadataValue.asset(dg.AssetKey(["kafka", "t"]))
    assert next(iter(sealed)) == next(iter(loaded)) == metadata.SUMMARY
