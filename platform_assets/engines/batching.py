"""Which windows are read in one query. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

_BATCH_WINDOWS: Final = 200
_BATCH_ROWS: Final = 10_000_000
"""What is read in one query: some seconds' worth, so that callers get a word in between two."""

T = TypeVar("T")


def read_together(windows: Iterable[T], rows: Callable[[T], int]) -> Iterator[list[T]]:
    """Batches in the order given: a query costs some tenths of a second, whatever it reads. Pure.

    `rows` says how many rows a window is expected to have.
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
