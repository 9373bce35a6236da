"""Times of the demo's rows. This module does no I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from platform_assets.model.windows import milliseconds

Rows = npt.NDArray[np.int64]
"""Row numbers, ascending."""

BACKLOG_TENTHS: Final = 9
"""Share of each topic's rows, in tenths, that belong to the backlog, that is, whose times are before the demo's first
start."""

BACKLOG_TIME: Final = timedelta(minutes=30)
"""Time between the first backlog row and the demo's first start."""

MARGIN: Final = timedelta(minutes=1)
"""Time between the topics' first window boundary and the first backlog row."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The rows of one topic over time: a backlog before `start`, and live rows from then on.

    Attributes:
        start: time of the demo's first start, timezone-aware; the same in every later run.
        rows: number of rows.
    """

    start: datetime
    rows: int

    @property
    def backlog(self) -> int:
        """Number of backlog rows: rows `[0, backlog)` are the backlog, and rows `[backlog, rows)` are live."""
        return self.rows * BACKLOG_TENTHS // 10

    def timestamps(self, rows: Rows) -> Rows:
        """Return timestamps of backlog rows, in ms since the epoch. They ascend in even steps, and are all before
        `start`."""
        first = milliseconds(self.start - BACKLOG_TIME)
        return first + rows * round(BACKLOG_TIME.total_seconds() * 1000) // max(self.backlog, 1)


def first_edge(start: datetime) -> datetime:
    """Return the start of the topics' first window: the time of the first backlog record, minus a margin, rounded down
    to the whole minute."""
    return (start - BACKLOG_TIME - MARGIN).replace(second=0, microsecond=0)


@dataclass(frozen=True, slots=True)
class Transaction:
    """Rows sent in one transaction. Before the transaction is committed, it is sent completely and aborted, `aborted`
    times."""

    rows: Rows
    aborted: int


TRANSACTION_ROWS: Final = (200, 600)
"""Minimum and maximum number of rows in a transaction."""

ABORTED_SHARE: Final = 0.06
"""Share of transactions that are aborted once before they are committed."""


def transactions(rows: Rows, seed: int) -> Iterator[Transaction]:
    """Divide `rows` into transactions of random sizes. The same seed gives the same transactions."""
    chance = random.Random(seed)
    edges = [0]
    while edges[-1] < len(rows):
        edges.append(min(edges[-1] + chance.randint(*TRANSACTION_ROWS), len(rows)))
    for start, end in pairwise(edges):
        yield Transaction(rows[start:end], int(chance.random() < ABORTED_SHARE))


def missing_rows(total: int, present: Sequence[int] | Rows) -> Rows:
    """Return, in ascending order, the row numbers in `[0, total)` that are not in `present`."""
    absent = np.ones(total, dtype=bool)
    absent[np.asarray(present, dtype=np.int64)] = False
    return np.flatnonzero(absent).astype(np.int64)
