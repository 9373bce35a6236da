"""Grouping of windows into queries. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

_BATCH_WINDOWS: Final = 200
_BATCH_ROWS: Final = 10_000_000
"""Maximum rows per query. Reading these rows takes only a few seconds, so callers soon regain control."""

T = TypeVar("T")


def batched_windows(windows: Iterable[T], rows: Callable[[T], int]) -> Iterator[list[T]]:
    """Group windows into batches, in the order of `windows`. Each batch is read by one query, because each query has an
    overhead of a few tenths of a second. Pure.

    `rows` returns the expected number of rows in a window.
    """
    batch: list[T] = []
    rows_in_batch = 0
    for window in windows:
        if batch and (len(batch) == _BATCH_WINDOWS or rows_in_batch + rows(window) > _BATCH_ROWS):
            yield batch
            batch, rows_in_batch = [], 0
        batch.append(window)
        rows_in_batch += rows(window)
    if batch:
        yield batch
