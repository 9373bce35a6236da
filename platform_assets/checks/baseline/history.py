"""Columns that describe many windows of one table. Checks use them to decide which windows to skip. No I/O.

Apart from `model/offsets.py`, this is the only module with arithmetic on the offsets of windows. It works on whole
columns, and ranges are `[start, end)` here too.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import holdings
from platform_assets.model.windows import key_of

Numbers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
"""One truth value for each window of a `History`, in the order of its keys."""

ABSENT: Final = -1
"""Stands for null in the ledger, and for partitions that a window does not have."""


@dataclass(frozen=True, slots=True)
class _Cuts:
    """One cut per window boundary (edge).

    `names` and `offsets` have a row for each edge and a column for each partition. `names` is the number of ledger rows
    for the partition at that edge, where rows with the same offset count once, and 2 stands for any higher number.
    `offsets` is the offset of the partition, which is 0 if there are no such rows, as in `Cut.at`. `log` has one number
    per edge: the number of the cut's log, or ABSENT if the ledger rows belong to several logs.
    """

    names: Numbers
    offsets: Numbers
    log: Numbers


@dataclass(frozen=True)
class History:
    """The windows between `edges`, which ascend. There is one window fewer than there are edges.

    `cuts` and `receipts` are rows of the ledgers, newest entries only; `files` are rows of `holdings.actions`. All
    three cover all of these windows, and also anything else that lies between the edges. `version` is the table's
    newest version. A window in `proved` has files other than those that its receipt lists, but they are known to
    contain the same rows. Arrays have one row per window; arrays by partition also have one column for each of
    `partitions`, ascending.
    """

    edges: pa.Array
    cuts: pa.Table
    receipts: pa.Table
    files: pa.Table
    version: int
    proved: frozenset[str] = frozenset()

    @cached_property
    def keys(self) -> list[str]:
        """Keys of the windows."""
        return [key_of(edge) for edge in self.edges.to_pylist()[:-1]]

    @cached_property
    def partitions(self) -> Numbers:
        """Every Kafka partition that a cut lists."""
        return _numbers(pc.unique(self.cuts["partition"]).sort())

    # --- facts of each window and partition -------------------------------------------------------------------

    @cached_property
    def has_partition(self) -> Mask:
        """By window and partition: true if the window has the partition. A partition may have been added to the topic
        later."""
        present: Mask = self._ends.names[1:] > 0
        return present

    @cached_property
    def start(self) -> Numbers:
        """By window and partition: the offset of the cut at the window's start; 0 if the partition was added later."""
        return self._starts.offsets[:-1]

    @cached_property
    def end(self) -> Numbers:
        """By window and partition: the offset of the cut at the window's end, exclusive."""
        return self._ends.offsets[1:]

    def by_partition(self, name: str) -> Numbers:
        """Return the numeric column `name` of the receipts, by window and partition; ABSENT if there is no receipt."""
        at, column = self._places
        found = np.full(self.has_partition.shape, ABSENT, dtype=np.int64)
        inside = at >= 0
        found[at[inside], column[inside]] = _numbers(self.receipts[name])[inside]
        return found

    def by_window(self, name: str) -> list[Any]:
        """Return the receipt column `name`, by window. The column must have the same value in all partitions of a
        window. The value is None if there is no receipt."""
        found: list[Any] = [None] * len(self.keys)
        for at, value in zip(self._places[0].tolist(), self.receipts[name].to_pylist(), strict=True):
            if at >= 0:
                found[at] = value
        return found

    @cached_property
    def offsets(self) -> Numbers:
        """Number of offsets in each window, summed over all partitions."""
        return np.asarray((self.end - self.start).sum(axis=1))

    @cached_property
    def rows(self) -> Numbers:
        """Number of rows in each window according to its receipt, summed over all partitions."""
        return np.asarray(np.maximum(self.by_partition("rows"), 0).sum(axis=1))

    @cached_property
    def holes(self) -> list[dict[str, int] | None]:
        """For each window, the number of offsets without a row, by kind; None if the window's offsets are not accounted
        for."""
        read: dict[str, dict[str, int]] = {}
        texts = self.by_window("holes")
        for text in texts:
            if text is not None and text not in read:
                read[text] = json.loads(text)
        return [None if text is None else read[text] for text in texts]

    # --- conditions that several checks share -----------------------------------------------------------------

    @cached_property
    def loaded_as_cut(self) -> Mask:
        """True for each window whose two cuts ascend and have the same topic id and generation, and which has one
        receipt, with exactly the ranges between these cuts."""
        starts, ends, size = self._starts, self._ends, len(self.keys)
        once = np.asarray(((starts.names[:-1] <= 1) & (ends.names[1:] <= 1)).all(axis=1), dtype=bool)
        grows = np.asarray((self.end >= self.start).all(axis=1), dtype=bool)
        grows &= np.asarray(((starts.names[:-1] == 0) | (ends.names[1:] > 0)).all(axis=1), dtype=bool)
        of_one_log = (starts.log[:-1] == ends.log[1:]) & (starts.log[:-1] != ABSENT)
        at, column = self._places
        inside = at >= 0
        receipts = np.zeros(self.has_partition.shape, dtype=np.int64)
        np.add.at(receipts, (at[inside], column[inside]), 1)
        one_each = (receipts == self.has_partition).all(axis=1)
        absent = ~self.has_partition
        as_cut = ((self.by_partition("start") == self.start) | absent).all(axis=1)
        as_cut &= ((self.by_partition("end") == self.end) | absent).all(axis=1)
        closing = _numbers(self.edges.cast(pa.int64()))[1:, None]
        as_cut &= ((self.by_partition("window_end") == closing) | absent).all(axis=1)
        one_id = np.ones(size, dtype=bool)
        one_id[at[inside & (self._logs_of(self.receipts) != starts.log[at])]] = False
        return np.asarray(grows & once & of_one_log & one_each & as_cut & one_id & self._without_strays)

    @cached_property
    def rows_inside(self) -> Mask:
        """True for each window in which no partition has more rows than offsets, and the first and last rows of each
        partition are within the partition's range."""
        rows, first, last = (self.by_partition(name) for name in ("rows", "first_offset", "last_offset"))
        fit = (rows >= 0) & (rows <= self.end - self.start)
        within = (rows == 0) | ((first >= self.start) & (last < self.end))
        return np.asarray(((fit & within) | ~self.has_partition).all(axis=1))

    @cached_property
    def files_as_recorded(self) -> Mask:
        """True for each window whose data files are those that its receipt lists, or are proved to contain the same
        rows, and whose number of rows equals the number in the receipt."""
        found = holdings.window_files(self.files)
        expected = zip(self.keys, self.by_window("files_digest"), self.rows.tolist(), strict=True)
        return np.array(
            [
                key in self.proved or found.get(key, holdings.NO_FILES).match(digest, rows)
                for key, digest, rows in expected
            ],
            dtype=bool,
        )

    # --- places in the columns --------------------------------------------------------------------------------

    @cached_property
    def _logs(self) -> list[tuple[str, int]]:
        """Every pair of a topic id and a generation that a cut lists. The position of a pair in this list is the number
        of the log."""
        pairs = zip(self.cuts["topic_id"].to_pylist(), self.cuts["generation"].to_pylist(), strict=True)
        return sorted(set(pairs))

    def _logs_of(self, entries: pa.Table) -> Numbers:
        """Return, for each row of `entries`, the number of its log; ABSENT if no cut lists this log."""
        generations = _numbers(entries["generation"])
        found = np.full(entries.num_rows, ABSENT, dtype=np.int64)
        for number, (topic_id, generation) in enumerate(self._logs):
            found[_mask(pc.equal(entries["topic_id"], topic_id)) & (generations == generation)] = number
        return found

    @cached_property
    def _starts(self) -> _Cuts:
        """The cuts at the windows' starts. If an edge has cuts of two generations, the cut of the later generation is
        used."""
        return self._cuts_of(later=True)

    @cached_property
    def _ends(self) -> _Cuts:
        """The cuts at the windows' ends. If an edge has cuts of two generations, the cut of the earlier generation is
        used."""
        return self._cuts_of(later=False)

    def _cuts_of(self, *, later: bool) -> _Cuts:
        shape = (len(self.edges), self.partitions.size)
        at = np.searchsorted(_numbers(self.edges.cast(pa.int64())), _numbers(self.cuts["edge"].cast(pa.int64())))
        column = np.searchsorted(self.partitions, _numbers(self.cuts["partition"]))
        generation = _numbers(self.cuts["generation"])
        wanted = np.full(shape[0], ABSENT if later else np.iinfo(np.int64).max, dtype=np.int64)
        (np.maximum if later else np.minimum).at(wanted, at, generation)
        chosen = generation == wanted[at]
        at, column = at[chosen], column[chosen]
        names, offsets = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        of_rows = _numbers(self.cuts["offset"])[chosen]
        names[at, column], offsets[at, column] = 1, of_rows
        others = offsets[at, column] != of_rows
        names[at[others], column[others]] = 2
        logs = self._logs_of(self.cuts)[chosen]
        first, last = (
            np.full(shape[0], np.iinfo(np.int64).max, dtype=np.int64),
            np.full(shape[0], ABSENT, dtype=np.int64),
        )
        np.minimum.at(first, at, logs)
        np.maximum.at(last, at, logs)
        return _Cuts(names, offsets, np.where(first == last, first, ABSENT))

    @cached_property
    def _places(self) -> tuple[Numbers, Numbers]:
        """Return, for each receipt row, the positions of its window and its partition in the arrays; ABSENT for both if
        no cut lists the window or the partition."""
        starts = _numbers(self.receipts["window_start"].cast(pa.int64()))
        partitions = _numbers(self.receipts["partition"])
        edges = _numbers(self.edges.cast(pa.int64()))[:-1]
        at = np.minimum(np.searchsorted(edges, starts), edges.size - 1)
        column = np.minimum(np.searchsorted(self.partitions, partitions), self.partitions.size - 1)
        known = (edges[at] == starts) & (self.partitions[column] == partitions)
        return np.where(known, at, ABSENT), np.where(known, column, ABSENT)

    @cached_property
    def _without_strays(self) -> Mask:
        """Return False for each window to which a stray receipt or file belongs. A receipt or file is stray if no cut
        lists its window or its partition."""
        found = np.ones(len(self.keys), dtype=bool)
        stray = self.receipts.filter(pa.array(self._places[0] == ABSENT))
        keys = {*stray["window"].to_pylist(), *self.files[holdings.WINDOW].to_pylist()} - set(self.keys)
        keys |= set(stray["window"].to_pylist())
        for key in keys:
            at = bisect_left(self.keys, key)
            found[at if at < len(self.keys) and self.keys[at] == key else max(at - 1, 0)] = False
        return found


def _numbers(column: pa.Array | pa.ChunkedArray) -> Numbers:
    """Return the column as 64-bit integers. Timestamps become microseconds, and null becomes ABSENT."""
    whole = pc.fill_null(column.cast(pa.int64()), ABSENT)
    return np.asarray(
        whole.to_numpy(zero_copy_only=False) if isinstance(whole, pa.Array) else whole.to_numpy(), dtype=np.int64
    )


def _mask(column: pa.Array | pa.ChunkedArray) -> Mask:
    whole = pc.fill_null(column, False)
    return np.asarray(
        whole.to_numpy(zero_copy_only=False) if isinstance(whole, pa.Array) else whole.to_numpy(), dtype=bool
    )
