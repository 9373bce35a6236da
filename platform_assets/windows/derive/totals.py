"""Proof that a table's totals changed by what changed groups add, from the files alone, without the engine that wrote them."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import derived_table
from platform_assets.lake.location import Folder
from platform_assets.model.derived import Totals


def is_balanced(
    folder: Folder, totals: Totals, removed: Iterable[str], added: Iterable[str], differences: pa.Table
) -> bool:
    """Return True if the number of rows and the sums in the files `added` are those in the files `removed` plus `differences`, and if
    each row in `added` counts at least one row of the query."""
    names = [totals.count, *totals.sums]
    before, _ = _sums(folder, names, removed)
    after, least = _sums(folder, names, added)
    due = [_whole(differences[name]) for name in names]
    return least > 0 and all(b + d == a for b, d, a in zip(before, due, after, strict=True))


def _sums(folder: Folder, names: list[str], paths: Iterable[str]) -> tuple[list[int], int]:
    """Return the sums of these columns, in units of the last digit, and the smallest value of the first column."""
    found, least = [0] * len(names), 1
    for path in paths:
        for batch in derived_table.batches(folder, path, names):
            found = [total + _whole(batch.column(name)) for total, name in zip(found, names, strict=True)]
            least = min(least, pc.min(batch.column(names[0])).as_py() or 0) if batch.num_rows else least
    return found, least


def _whole(values: pa.Array | pa.ChunkedArray) -> int:
    """Return the sum of whole numbers or decimals, in units of the last digit."""
    total = pc.sum(values).as_py()
    if total is None:
        return 0
    if isinstance(total, int):
        return total
    # Arithmetic with decimals would round to 28 digits.
    sign, digits, _ = total.as_tuple()
    return int("".join(map(str, digits))) * (-1 if sign else 1)
