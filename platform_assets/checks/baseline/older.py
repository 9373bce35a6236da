"""Older windows in which no check can have a finding. They are counted instead of being evaluated one by one.

Each check selects such windows with its `may_count`, which works on whole columns. So checking a new window costs
little, even in a table with many windows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.baseline.history import History, Mask
from platform_assets.lake import holdings
from platform_assets.model.windows import key_of

RECENT: Final = 24
"""Number of newest windows that are always evaluated one by one. It covers one day of hourly windows."""


class Counting(Protocol):
    """The part of a check that decides which older windows are only counted: see `checks.check.Check`."""

    @property
    def may_count(self) -> Callable[[History], Mask] | None:
        """Rule that selects windows in which the check cannot have a finding; None if it needs every window."""

    @property
    def fingerprint(self) -> str:
        """Identifier of the check and of its rule."""


@dataclass(frozen=True, slots=True)
class Older:
    """The windows that start before `until` (exclusive), if no check can have a finding in any of them.

    `holes` counts the offsets without a row, by kind; rows + holes = offsets.
    """

    until: datetime | None = None
    windows: int = 0
    rows: int = 0
    offsets: int = 0
    holes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, next_ones: Older) -> Older:
        """Return the sum of these windows and the windows in `next_ones`, which follow them."""
        return Older(
            next_ones.until or self.until,
            self.windows + next_ones.windows,
            self.rows + next_ones.rows,
            self.offsets + next_ones.offsets,
            holes_total([self.holes, next_ones.holes]),
        )


NONE: Final = Older()


def find(
    cuts: pa.Table,
    receipts: pa.Table,
    files: pa.Table,
    proved: Collection[str],
    version: int,
    checks: Collection[Counting],
    *,
    recent: int = RECENT,
) -> Older:
    """Return, oldest first, the windows that every check in `checks` allows to be counted, up to the first window that
    a check does not allow, and without the newest `recent` windows. Return NONE if there are fewer than `recent` such
    windows, because counting so few windows is not worth the effort. `cuts` and `receipts` are rows of the ledgers,
    newest entries only; `files` come from `holdings.actions`; `proved` are windows whose files are not those in their
    receipts but are known to contain the same rows; `version` is the table's newest version."""
    edges = pc.unique(cuts["edge"]).sort()
    most = len(edges) - 1 - recent
    if most < recent:
        return NONE
    history = _between(edges[: most + 1], cuts, receipts, files, proved, version)
    counted = history.loaded_as_cut.copy()
    for check in checks:
        counted &= check.may_count(history) if check.may_count is not None else False
    number = most if counted.all() else int(np.argmin(counted))
    if number < recent:
        return NONE
    return Older(
        edges[number].as_py().astimezone(UTC),
        number,
        int(history.rows[:number].sum()),
        int(history.offsets[:number].sum()),
        holes_total(holes for holes in history.holes[:number] if holes),
    )


def _between(
    edges: pa.Array, cuts: pa.Table, receipts: pa.Table, files: pa.Table, proved: Collection[str], version: int
) -> History:
    last = edges[len(edges) - 1]
    return History(
        edges,
        cuts.filter(pc.less_equal(cuts["edge"], last)),
        receipts.filter(pc.less(receipts["window_start"], last)),
        files.filter(pc.less(files[holdings.WINDOW], key_of(last.as_py()))),
        version,
        frozenset(proved),
    )


def holes_total(by_window: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Return the number of offsets without a row in all windows, by kind."""
    total: dict[str, int] = {}
    for holes in by_window:
        for kind, number in holes.items():
            total[kind] = total.get(kind, 0) + number
    return total
