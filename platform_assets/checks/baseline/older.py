"""Windows that need no closer look: older ones whose cuts, receipts and files agree in every number.

They are compared column by column, without a value for each of them, so that the checks of a new window cost little in a
table of many. Where anything at all is out of the ordinary, nothing is taken for granted and every window is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.lake import load_log

RECENT: Final = 24
"""The newest windows, which are always looked at one by one: a day of hours."""

_INT = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Older:
    """Windows that start before `until`: each sealed, loaded as recorded, and every offset of it accounted for.

    `holes` are offsets without a row by kind; rows + holes = offsets.
    """

    until: datetime | None = None
    windows: int = 0
    rows: int = 0
    offsets: int = 0
    holes: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, next_ones: Older) -> Older:
        """These and those that follow on them."""
        return Older(
            next_ones.until or self.until,
            self.windows + next_ones.windows,
            self.rows + next_ones.rows,
            self.offsets + next_ones.offsets,
            holes_total([self.holes, next_ones.holes]),
        )


NONE: Final = Older()


def find(cuts: pa.Table, receipts: pa.Table, files: pa.Table, recent: int = RECENT) -> Older:
    """All windows but the `recent` newest, where they are all in order; NONE where one is not, or there are too few.

    `cuts` and `receipts` are rows of the ledgers, newest entries only, and `files` is of `load_log.file_actions`.
    """
    edges = pc.unique(cuts["edge"]).sort()
    count = len(edges) - 1 - recent
    if count < recent:
        return NONE
    until = edges[count]
    log = _log(cuts, len(edges))
    held = receipts.filter(pc.less(receipts["window_start"], until))
    if log is None or held.num_rows != count * log.partitions.size:
        return NONE
    keys = _in_order(held, log, _numbers(edges.cast(pa.int64())), count)
    if keys is None or not _as_recorded(held, files, keys, log.partitions.size):
        return NONE
    holes = _holes(held["holes"].take(pa.array(range(0, held.num_rows, log.partitions.size))))
    rows = pc.sum(held["rows"]).as_py()
    offsets = int((log.offsets[count] - log.offsets[0]).sum())
    return Older(until.as_py().astimezone(UTC), count, rows, offsets, holes)


@dataclass(frozen=True, slots=True)
class _Log:
    """Cuts as numbers: `offsets` has a row an edge and a column a partition."""

    topic_id: str
    partitions: _INT
    offsets: _INT


def _log(cuts: pa.Table, edges: int) -> _Log | None:
    """The cuts, where they are all of one topic id and the same partitions, and never shrink."""
    topic_ids = pc.unique(cuts["topic_id"])
    partitions = _numbers(pc.unique(cuts["partition"]).sort())
    if len(topic_ids) != 1 or len(pc.unique(cuts["generation"])) != 1 or cuts.num_rows != edges * partitions.size:
        return None
    ordered = cuts.sort_by([("edge", "ascending"), ("partition", "ascending")])
    offsets = _numbers(ordered["offset"]).reshape(edges, partitions.size)
    same = (_numbers(ordered["partition"]).reshape(edges, partitions.size) == partitions).all()
    return _Log(topic_ids[0].as_py(), partitions, offsets) if same and (np.diff(offsets, axis=0) >= 0).all() else None


def _in_order(held: pa.Table, log: _Log, edges: _INT, count: int) -> list[str] | None:
    """The windows' keys, where each receipt says what the cuts do, its rows lie inside and all is accounted for."""
    size = log.partitions.size

    def column(name: str) -> _INT:
        return _numbers(held[name].cast(pa.int64())).reshape(count, size)

    needed = ("start", "end", "rows", "duplicates", "holes", "files_digest")
    if any(held[name].null_count for name in needed) or pc.unique(held["topic_id"]).to_pylist() != [log.topic_id]:
        return None
    start, end, rows = column("start"), column("end"), column("rows")
    with_rows = rows > 0
    first = _numbers(pc.fill_null(held["first_offset"], -1)).reshape(count, size)
    last = _numbers(pc.fill_null(held["last_offset"], -1)).reshape(count, size)
    totals = {text: sum(json.loads(text).values()) for text in pc.unique(held["holes"]).to_pylist()}
    holes = np.array([totals[text] for text in held["holes"].to_pylist()[::size]], dtype=np.int64)
    sound = (
        (column("partition") == log.partitions).all()
        and (column("window_start") == edges[:count, None]).all()
        and (column("window_end") == edges[1 : count + 1, None]).all()
        and (start == log.offsets[:count]).all()
        and (end == log.offsets[1 : count + 1]).all()
        and (rows <= end - start).all()
        and ((first >= start) & (last < end))[with_rows].all()
        and not column("duplicates").any()
        and (rows.sum(axis=1) + holes == (end - start).sum(axis=1)).all()
    )
    return list(held["window"].to_pylist()[::size]) if sound else None


def _as_recorded(held: pa.Table, files: pa.Table, keys: list[str], partitions: int) -> bool:
    """Whether the windows' files are those of their receipts, with as many rows, and no file is of another window."""
    of_old = files.filter(pc.less_equal(files["partition.window"], keys[-1]))
    found = load_log.window_files(of_old)
    if found.keys() - set(keys):
        return False
    digests = held["files_digest"].to_pylist()[::partitions]
    rows = _numbers(held["rows"]).reshape(-1, partitions).sum(axis=1).tolist()
    return all(
        found.get(key, load_log.NO_FILES).are(digest, number)
        for key, digest, number in zip(keys, digests, rows, strict=True)
    )


def _holes(texts: pa.ChunkedArray) -> dict[str, int]:
    entries = pc.value_counts(texts).to_pylist()
    return holes_total({kind: n * e["counts"] for kind, n in json.loads(e["values"]).items()} for e in entries)


def holes_total(by_window: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Offsets without a row by kind, of all windows together."""
    total: dict[str, int] = {}
    for holes in by_window:
        for kind, number in holes.items():
            total[kind] = total.get(kind, 0) + number
    return total


def _numbers(column: pa.Array | pa.ChunkedArray) -> _INT:
    return np.asarray(
        column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()
    ).astype(np.int64)
