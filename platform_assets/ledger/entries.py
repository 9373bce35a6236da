"""Entries of the ledgers: their values, their columns, and the conversion between values and columns."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.model import expectations
from platform_assets.model.digest import Digest
from platform_assets.model.expectations import FiguresByDigest
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.model.tables import TableLoad, TableRef
from platform_assets.model.windows import Window

CutMethod = Literal["log start", "last stable offset", "timestamp", "carried", "rebuilt", "accepted"]
"""Source of the offset in a cut: "carried" if the partition was unreachable, "accepted" if an operator accepted that a
new generation continues from there."""

ACCEPTED_LOSS: Final = "accepted loss"
ERASED: Final = "erased"
BELOW_LOG_START: Final = "below log start"
"""Kind of holes that retention had already reached when the broker was asked about them."""
"""Kinds of holes that an operator decided on: lost offsets, and erased records. Loads do not read either of these."""
Hole = Literal["accepted loss", "erased"]
EXPIRED: Final = "expired"
"""Kind of receipts of windows whose rows were removed because they are past the topic's `keep`, and of these holes."""

CommitKind = Literal["load", "empty", "rebuilt", "found", "proof", "acceptance", "expired"]

UTC_MICROS = pa.timestamp("us", tz="UTC")

CUT_COLUMNS = {
    "topic": ("string", "Kafka topic"),
    "topic_id": ("string", "Kafka topic id, as Kafka's tools print it; offsets belong to the id, not to the name"),
    "generation": ("integer", "1 for the topic's first log; each new log that an operator accepts has the next number"),
    "edge": ("timestamp", "the instant between two windows"),
    "partition": ("integer", "Kafka partition"),
    "offset": ("long", "first offset after the edge: exclusive end of the window before, start of the window after"),
    "leader_epoch": ("integer", "leader epoch that the broker gave with the offset, if any"),
    "taken": ("string", "method by which the offset was found"),
    "recorded_at": ("timestamp", "when the cut was recorded"),
    "cluster_id": ("string", "Kafka cluster id; null if it was not known, and for cuts recorded by earlier releases"),
}
COMMIT_COLUMNS = {
    "table": ("string", "lake table, as its path below the lake root"),
    "window": ("string", "window key"),
    "window_start": ("timestamp", "first instant of the window"),
    "window_end": ("timestamp", "first instant after the window"),
    "topic": ("string", "Kafka topic"),
    "topic_id": ("string", "Kafka topic id"),
    "generation": ("integer", "generation of the topic's log"),
    "kind": (
        "string",
        "load; empty (no offsets); rebuilt (from the table's commits); found (rebuilt, but no commit proves that these "
        "are all rows); proof (of an older load); acceptance (of a loss or an erasure); expired (past `keep`, without rows)",
    ),
    "partition": ("integer", "Kafka partition"),
    "start": ("long", "first offset of the range"),
    "end": ("long", "first offset after the range"),
    "rows": ("long", "rows of this partition"),
    "first_offset": ("long", "lowest offset that has a row"),
    "last_offset": ("long", "highest offset that has a row"),
    "holes": ("string", "JSON, for the whole window: number of offsets without a row, by kind; null until the broker is queried"),
    "proved_by": ("string", "how the window was proved: by load digest, by broker evidence or by reading its files again"),
    "proved_at": ("timestamp", "time of the last proof; null if there is none yet"),
    "offsets_digest": ("string", "for the whole window: decimal sum of xxhash64(partition, offset)"),
    "content_digest": ("string", "for the whole window: decimal sum of xxhash64 over every column"),
    "duplicates": ("long", "for the whole window: number of rows with an offset that another row also has, according to the load"),
    "bytes": ("long", "size of the window's files"),
    "table_version": ("long", "Delta version of the commit; null for a window without offsets"),
    "files_digest": ("string", "digest of the window's data files as committed"),
    "load_id": ("string", "unique id of the load, also in the commit's userMetadata"),
    "run_id": ("string", "Dagster run"),
    "seconds": ("double", "duration of the load"),
    "recorded_at": ("timestamp", "when this entry was written"),
    "made_from": ("string", "JSON: the load of another table from whose rows this window was made; null for raw tables"),
    "engine": ("string", "engine that read Kafka: columnar or connector; null for a window without offsets, and "
    "for loads by earlier releases"),
    "confirmed_by": ("string", "the other engine, if it has also read the window from Kafka and found the same rows; else null"),
    "table_id": ("string", "Delta's id of the table, which changes if the table is created again; null for a "
    "window without offsets, and for loads by earlier releases"),
    "expectations": ("string", "JSON, for the whole window, only in the row of its first partition: numbers of "
    "rows checked and failed, by expectation"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordedCut:
    """A cut in the ledger: `cut` at `edge`, for the topic id of `generation`.

    A generation is one lifetime of a topic's log: within a generation, no offset ever stands for two records. The first
    cut of a generation is at the same edge as the last cut of the previous generation. So an edge may have two cuts:
    the end of one window and the start of another.
    """

    topic: str
    topic_id: str
    generation: int
    edge: datetime
    cut: Cut
    taken: Mapping[int, CutMethod]
    leader_epochs: Mapping[int, int | None]
    cluster_id: str | None = None

    def is_of_cluster(self, cluster_id: str | None) -> bool:
        """Return True if the cut was taken from the cluster with that id, or if either id is unknown."""
        return self.cluster_id is None or cluster_id is None or self.cluster_id == cluster_id


@dataclass(frozen=True, slots=True)
class SealedWindow:
    """A window between two recorded edges, and the offset ranges `[start, end)` of the window."""

    topic: str
    topic_id: str
    generation: int
    window: Window
    ranges: TopicRanges
    taken: Mapping[int, CutMethod]

    @property
    def key(self) -> str:
        """The window's key."""
        return self.window.key


@dataclass(frozen=True, slots=True)
class PartitionReceipt:
    """Rows that a load put into the table for one partition: `rows` rows within `range`. The offsets are None if there
    are 0 rows."""

    range: OffsetRange
    rows: int
    first_offset: int | None
    last_offset: int | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Result of one load of one window. `bytes` is the size of the load's files, and `seconds` is the load's duration.

    The rows come from the offset ranges of its partitions in `topic_id`, which `engine` read. If `made_from` is set,
    they come from the load of those offsets into another table instead. `engine` is None if no engine read the rows, or
    if the engine was not recorded. `confirmed_by` is the other engine, if that engine has read the same rows. `figures`
    has the results of the expectations at the last measurement; None if there are no expectations. `table_id` is
    Delta's id of the table: if a table is created again, its versions start over.
    """

    table: TableRef
    topic: str
    topic_id: str
    generation: int
    window: Window
    kind: CommitKind
    partitions: Mapping[int, PartitionReceipt]
    offsets_digest: int
    content_digest: int
    duplicates: int
    bytes: int
    table_version: int | None
    files_digest: str
    load_id: str
    run_id: str
    seconds: float
    holes: Mapping[str, int] | None = None
    proved_by: str | None = None
    proved_at: datetime | None = None
    made_from: TableLoad | None = None
    engine: str | None = None
    confirmed_by: str | None = None
    figures: FiguresByDigest | None = None
    table_id: str | None = None

    @property
    def rows(self) -> int:
        """Total number of rows in all partitions."""
        return sum(p.rows for p in self.partitions.values())

    @property
    def ranges(self) -> TopicRanges:
        """The offset ranges that were loaded."""
        return TopicRanges({p: r.range for p, r in self.partitions.items()})

    @property
    def is_found(self) -> bool:
        """True if these rows were found when the ledger was rebuilt, so nothing proves that they are all the rows that
        were loaded."""
        return self.kind == "found" and self.holes is None

    @property
    def is_expired(self) -> bool:
        """True if the window has no rows because it is past the topic's `keep`."""
        return self.kind == EXPIRED

    @property
    def missing(self) -> int:
        """Number of offsets in the ranges that have no row: markers, aborted or compacted records, or losses."""
        return self.ranges.size - self.rows

    @property
    def offsets(self) -> Digest:
        """Digest of the set of offsets."""
        return Digest(self.rows, self.offsets_digest)

    @property
    def content(self) -> Digest:
        """Digest of the whole content of the rows."""
        return Digest(self.rows, self.content_digest)


def arrow_type(delta_type: str) -> pa.DataType:
    types = {"string": pa.string(), "integer": pa.int32(), "long": pa.int64(), "double": pa.float64()}
    return UTC_MICROS if delta_type == "timestamp" else types[delta_type]


def _table(columns: Mapping[str, tuple[str, str]], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([(name, arrow_type(delta_type)) for name, (delta_type, _) in columns.items()])
    return pa.Table.from_pylist(list(rows), schema=schema)


def cut_table(cuts: Sequence[RecordedCut]) -> pa.Table:
    now = datetime.now(UTC)
    return _table(
        CUT_COLUMNS,
        [
            {
                "topic": c.topic,
                "topic_id": c.topic_id,
                "generation": c.generation,
                "edge": c.edge,
                "partition": p,
                "offset": offset,
                "leader_epoch": c.leader_epochs.get(p),
                "taken": c.taken[p],
                "recorded_at": now,
                "cluster_id": c.cluster_id,
            }
            for c in cuts
            for p, offset in c.cut.offsets.items()
        ],
    )


def recorded_cuts(rows: pa.Table) -> list[RecordedCut]:
    cuts: dict[tuple[datetime, int], RecordedCut] = {}
    grouped: dict[tuple[datetime, int], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        grouped.setdefault((row["edge"].astimezone(UTC), row["generation"]), []).append(row)
    for (edge, generation), members in sorted(grouped.items()):
        cuts[edge, generation] = RecordedCut(
            topic=members[0]["topic"],
            topic_id=members[0]["topic_id"],
            generation=generation,
            edge=edge,
            cut=Cut({m["partition"]: m["offset"] for m in members}),
            taken={m["partition"]: m["taken"] for m in members},
            leader_epochs={m["partition"]: m["leader_epoch"] for m in members},
            # A ledger from an earlier release lacks the column until a cut is recorded.
            cluster_id=members[0].get("cluster_id"),
        )
    return list(cuts.values())


def windows_between(cuts: Sequence[RecordedCut]) -> list[SealedWindow]:
    return [
        SealedWindow(
            right.topic,
            right.topic_id,
            right.generation,
            Window(left.edge, right.edge),
            TopicRanges.between(left.cut, right.cut),
            right.taken,
        )
        for left, right in itertools.pairwise(cuts)
        if left.generation == right.generation
    ]


def receipt_table(receipts: Sequence[Receipt]) -> pa.Table:
    now = datetime.now(UTC)
    return _table(
        COMMIT_COLUMNS,
        [
            {
                "table": r.table.ledger_name,
                "window": r.window.key,
                "window_start": r.window.start,
                "window_end": r.window.end,
                "topic": r.topic,
                "topic_id": r.topic_id,
                "generation": r.generation,
                "kind": r.kind,
                "partition": p,
                "start": part.range.start,
                "end": part.range.end,
                "rows": part.rows,
                "first_offset": part.first_offset,
                "last_offset": part.last_offset,
                "holes": None if r.holes is None else json.dumps(dict(r.holes), sort_keys=True),
                "proved_by": r.proved_by,
                "proved_at": r.proved_at,
                "offsets_digest": str(r.offsets_digest),
                "content_digest": str(r.content_digest),
                "duplicates": r.duplicates,
                "bytes": r.bytes,
                "table_version": r.table_version,
                "files_digest": r.files_digest,
                "load_id": r.load_id,
                "run_id": r.run_id,
                "seconds": r.seconds,
                "recorded_at": now,
                "made_from": None if r.made_from is None else json.dumps(r.made_from.to_fields()),
                "engine": r.engine,
                "confirmed_by": r.confirmed_by,
                "table_id": r.table_id,
                "expectations": None if r.figures is None or p != min(r.partitions) else _json(r.figures),
            }
            for r in receipts
            for p, part in r.partitions.items()
        ],
    )


def _json(figures: FiguresByDigest) -> str:
    return json.dumps(expectations.to_fields(figures), ensure_ascii=False)


def acceptance_table(
    window: SealedWindow, ranges: Mapping[int, Sequence[OffsetRange]], reason: str, hole: Hole = ACCEPTED_LOSS
) -> pa.Table:
    """Return entries that make loads omit the lost or erased `ranges` of `window`. These entries have no rows and never
    count as a load."""
    entry = {
        "table": TableRef.raw(window.topic).ledger_name,
        "window": window.key,
        "window_start": window.window.start,
        "window_end": window.window.end,
        "topic": window.topic,
        "topic_id": window.topic_id,
        "generation": window.generation,
        "kind": "acceptance",
        "rows": 0,
        "holes": json.dumps({hole: reason}),
        "load_id": str(uuid.uuid4()),
        "recorded_at": datetime.now(UTC),
    }
    rows = [{**entry, "partition": p, "start": r.start, "end": r.end} for p, parts in ranges.items() for r in parts]
    return _table(COMMIT_COLUMNS, rows)


COLUMNS_OF_NEWEST: Final = (
    "window",
    "window_start",
    "partition",
    "load_id",
    "table_id",
    "table_version",
    "recorded_at",
)
"""Columns that `newest_entries` uses."""
IN_ORDER: Final = (("life", "ascending"), ("version", "ascending"), ("recorded_at", "ascending"))
"""Sort order for the columns of `ranked`: the last entry of a window counts."""


def ranked(rows: pa.Table) -> pa.Table:
    """Return `rows` with the columns `life`, the time of the window's newest entry with the same table id, and
    `version`.

    If a table is moved away and created again, the new table starts at version 0, and its entries take precedence over
    those of the previous table. Releases that do not know the table's id leave it empty, and may write entries between
    and after entries that have an id: while pods are upgraded, or after a downgrade. Such an entry belongs to the same
    table as the previous entry of the window.
    """
    rows = rows.append_column("version", pc.fill_null(rows["table_version"], -1))
    if len(pc.unique(rows["table_id"])) < 2:
        return rows.append_column("life", pa.repeat(pa.scalar(0, pa.int64()), rows.num_rows))
    of = _filled(rows)
    moments = of.append_column("moment", of["recorded_at"].cast(pa.int64()))
    lives = moments.group_by(["window", "of"]).aggregate([("moment", "max")])
    joined = moments.join(lives, ["window", "of"])
    # Entries before the first one with an id come from releases that did not know it, and are the oldest.
    life = pc.if_else(pc.equal(joined["of"], ""), 0, joined["moment_max"])
    return joined.append_column("life", life).select([*rows.column_names, "life"])


def _filled(rows: pa.Table) -> pa.Table:
    """Return `rows`, sorted, with the column `of`: the table id of the entry or, if it has none, of the last earlier
    entry of the window that has one."""
    ordered = rows.sort_by([("window", "ascending"), ("recorded_at", "ascending")]).combine_chunks()
    windows, ids = ordered["window"], ordered["table_id"]
    begins = pa.concat_arrays([pa.array([True]), *pc.not_equal(windows[1:], windows[:-1]).chunks])
    own = pc.if_else(begins, pc.fill_null(ids, ""), ids)
    return ordered.append_column("of", pc.fill_null_forward(own))


def newest_entries(rows: pa.Table) -> pa.Table:
    """Return, for each window, the entry with the highest version in the newest life of the table; of equal versions,
    the latest entry. The result has one row for each partition.

    One load may be recorded twice: by the run that made it, and by a run that found no receipt and added one. One entry
    may be in two files: see `folding.fold`.
    """
    if rows.num_rows == 0:
        return rows
    newest = (
        ranked(rows)
        .select(["window", "life", "version", "recorded_at", "load_id"])
        .sort_by(list(IN_ORDER))
        .group_by("window", use_threads=False)
        .aggregate([("load_id", "last"), ("recorded_at", "last")])
    )
    places = pc.index_in(rows["window"], newest["window"].combine_chunks(), skip_nulls=True)
    are_newest = (pc.equal(rows[name], newest[f"{name}_last"].take(places)) for name in ("load_id", "recorded_at"))
    found = rows.filter(pc.and_(*are_newest)).sort_by([("window_start", "ascending"), ("partition", "ascending")])
    same = pc.and_(*(pc.equal(found[name][1:], found[name][:-1]) for name in ("window_start", "partition")))
    if not pc.any(same).as_py():
        return found
    return found.filter(pa.chunked_array([pa.array([True]), *pc.invert(same).chunks]))


def receipts_in(rows: pa.Table) -> list[Receipt]:
    """Return the receipts of `rows`, which have one row for each partition of a window."""
    partitions: dict[str, dict[int, PartitionReceipt]] = {}
    figures: dict[str, FiguresByDigest | None] = {}
    first = list[int]()
    names = ("window", "partition", "start", "end", "rows", "first_offset", "last_offset", "expectations")
    columns = (rows[name].to_pylist() for name in names)
    for number, (key, partition, start, end, found, low, high, text) in enumerate(zip(*columns, strict=True)):
        if key not in partitions:
            first.append(number)
        of_window = partitions.setdefault(key, {})
        of_window[partition] = PartitionReceipt(OffsetRange(start, end), found, low, high)
        figures[key] = figures.get(key) or (None if text is None else expectations.from_fields(json.loads(text)))
    # The other columns are the same in all rows of a window.
    of_windows = rows.take(pa.array(first, pa.int64())).to_pylist()
    tables = {place: TableRef.of_ledger(*place) for place in {(row["table"], row["topic"]) for row in of_windows}}
    return [
        Receipt(
            table=tables[row["table"], row["topic"]],
            topic=row["topic"],
            topic_id=row["topic_id"],
            generation=row["generation"],
            window=Window(row["window_start"].astimezone(UTC), row["window_end"].astimezone(UTC)),
            kind=row["kind"],
            partitions=partitions[row["window"]],
            offsets_digest=int(row["offsets_digest"]),
            content_digest=int(row["content_digest"]),
            duplicates=row["duplicates"],
            bytes=row["bytes"],
            table_version=row["table_version"],
            files_digest=row["files_digest"],
            load_id=row["load_id"],
            run_id=row["run_id"],
            seconds=row["seconds"],
            holes=None if row["holes"] is None else json.loads(row["holes"]),
            proved_by=row["proved_by"],
            proved_at=row["proved_at"],
            made_from=None if row["made_from"] is None else TableLoad.from_fields(json.loads(row["made_from"])),
            engine=row["engine"],
            confirmed_by=row["confirmed_by"],
            table_id=row["table_id"],
            figures=figures[row["window"]],
        )
        for row in of_windows
    ]
