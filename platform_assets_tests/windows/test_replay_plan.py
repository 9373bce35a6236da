"""Entries of a replay plan: each follows from the window's receipt and the records that Kafka still has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.replay.replaying import Deed, PlannedWindow
from testbed import samples

WINDOW = samples.sealed("orders", "2026-01-01-00:00", p0=(10, 20), p1=(0, 0))
EMPTY = samples.sealed("orders", "2026-01-01-01:00", p0=(20, 20), p1=(0, 0))
RECEIPT = samples.receipt(WINDOW, {0: [13, 15, 18]})


def ranges(*bounds: tuple[int, int]) -> Mapping[int, tuple[OffsetRange, ...]]:
    return {0: tuple(OffsetRange(*b) for b in bounds)} if bounds else {}


@pytest.mark.parametrize(
    ("loaded", "gone", "accepted", "deed"),
    [
        (False, [], [], "load"),
        (False, [(10, 11)], [], "refuse"),
        (False, [(10, 12)], [(10, 11)], "refuse"),
        (False, [(10, 12)], [(10, 12)], "load"),
        (True, [], [], "compare"),
        # Nothing can be missing before the first row.
        (True, [(10, 13)], [], "compare"),
        (True, [(10, 14)], [], "keep"),
        (True, [(10, 14)], [(12, 14)], "compare"),
        (True, [(19, 20)], [], "compare"),
        (True, [(10, 20)], [], "keep"),
    ],
)
def test_what_is_done_in_place(
    loaded: bool, gone: Iterable[tuple[int, int]], accepted: Iterable[tuple[int, int]], deed: Deed
) -> None:
    found = ranges(*gone)
    held = {0: WINDOW.ranges.by_partition[0].minus(found.get(0, ()))}
    planned = PlannedWindow(WINDOW, RECEIPT if loaded else None, held, found, ranges(*accepted))
    assert planned.deed == deed
    details = planned.details()
    assert details["records"] == (3 if loaded else None)
    assert details["kafka_has"] == 10 - sum(end - start for start, end in details["gone"].get("0", []))


def test_a_window_without_offsets_needs_nothing() -> None:
    assert PlannedWindow(EMPTY, None, {}, {}, {}).deed == "empty"
