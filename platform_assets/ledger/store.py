"""The two ledgers: `cuts`, which assigns offsets to edges, and `commits`, which records what each load put into a
table.

Both are small Delta tables under `<lake root>/_ledger`, written without Spark. A cut is recorded by compare-and-set:
each commit to `cuts` carries a Delta application transaction `cuts/<topic>` whose version is the newest edge in epoch
seconds. The look-up of the newest edge and the commit go through one table handle, so a stale handle is refused and the
loser reads the winner's cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError
from deltalake.schema import PrimitiveType

from platform_assets.errors import LedgerCorruptError
from platform_assets.lake import datasets, delta_log, failures
from platform_assets.lake.location import Lake
from platform_assets.ledger import appending, folding, known_files, newest_cuts, pruning, version
from platform_assets.ledger.entries import (
    ACCEPTED_LOSS,
    COLUMNS_OF_NEWEST,
    COMMIT_COLUMNS,
    CUT_COLUMNS,
    EXPIRED,
    UTC_MICROS,
    Hole,
    Receipt,
    RecordedCut,
    SealedWindow,
    acceptance_table,
    arrow_type,
    newest_entries,
    receipt_table,
    receipts_in,
    recorded_cuts,
    windows_between,
)
from platform_assets.ledger.recording import Proposed, app_id, record
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange, merge_named
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of, key_of

_log = logger(__name__)


class Ledger:
    """The ledgers under one lake root. An instance may be shared and kept. A new instance, and `create`, make the next
    read check that what this process knows about the files is still correct."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._cuts, self._commits = lake.cuts, lake.commits
        self._doubt()

    @property
    def lake(self) -> Lake:
        """The lake of the ledger."""
        return self._lake

    def create(self) -> None:
        """Create missing tables. Raises LakeNotWritableError and LedgerNewerError."""
        version.bring_up(self._lake)
        self._doubt()
        for path, columns, partition in ((self._cuts, CUT_COLUMNS, "topic"), (self._commits, COMMIT_COLUMNS, "table")):
            if delta_log.exists(path):
                continue
            path.create_delta(
                Schema(_fields(columns)),
                partition_by=partition,
                name=path.name,
                description=(__doc__ or "").splitlines()[0],
                configuration={"delta.enableDeletionVectors": "false"},
            )

    def _doubt(self) -> None:
        for files in (known_files.of_cuts(self._lake), known_files.of_commits(self._lake)):
            files.doubt()

    # --- cuts -------------------------------------------------------------------------------------------------

    def newest_edges(self, topics: Iterable[str]) -> dict[str, datetime]:
        """Return the newest recorded edge of each topic that has a recorded edge.

        The ledger is followed from commit to commit, so a call costs nothing while nothing is recorded. The result is
        only a hint: `record_cuts` decides what is recorded.
        """
        asked = list(topics)
        versions = newest_cuts.of(self._cuts).versions(app_id(t) for t in asked)
        return {t: datetime.fromtimestamp(v, UTC) for t in asked if (v := versions.get(app_id(t))) is not None}

    def newest_cut(self, topic: str) -> RecordedCut | None:
        """Return the cut at the newest edge of `topic`; None if no cut was ever recorded."""
        edge = self.newest_edges([topic]).get(topic)
        known = newest_cuts.of(self._cuts)
        cut = known.cut(topic)
        if edge is not None and (cut is None or cut.edge != edge):
            cut = self._newest_known(topic, edge) or self._newest_cut(self._cuts.delta(), topic)
            if cut is not None:
                known.keep(cut)
        return None if edge is None else cut

    def cuts(self, topic: str, start: datetime | None = None, end: datetime | None = None) -> list[RecordedCut]:
        """Return the recorded cuts at edges in `[start, end]`, both ends inclusive, in ascending order."""
        version.check(self._lake)
        return recorded_cuts(known_files.of_cuts(self._lake).rows(topic, start=start, end=end))

    def cut_rows(self, topic: str, start: datetime | None = None) -> pa.Table:
        """Return the rows of `cuts` for one topic, one row per edge and partition, in no particular order; only edges
        from `start` on. A row may be there twice: see `folding.fold`."""
        version.check(self._lake)
        return known_files.of_cuts(self._lake).rows(topic, start=start)

    def edges(self, topic: str, start: datetime | None = None) -> list[str]:
        """Return the keys of all recorded edges of `topic` from `start` on, in ascending order. The window that starts
        at the last edge is not sealed yet."""
        version.check(self._lake)
        edges = known_files.of_cuts(self._lake).rows(topic, ["edge"], start=start)["edge"]
        return [key_of(e) for e in pc.unique(edges).sort().to_pylist()]

    def windows(self, topic: str, start: datetime | None = None, end: datetime | None = None) -> list[SealedWindow]:
        """Return the sealed windows within `[start, end]`, in ascending order."""
        return windows_between(self.cuts(topic, start, end))

    def window(self, topic: str, key: str) -> SealedWindow | None:
        """Return the sealed window with this key; None if no recorded edge starts the window, or if no recorded edge
        ends it yet."""
        start = edge_of(key)
        rows = self.cut_rows(topic, start)
        edges = pc.unique(rows["edge"]).sort()[:2]
        near = rows.filter(pc.is_in(rows["edge"], edges))
        found = windows_between(recorded_cuts(near))
        return found[0] if found and found[0].window.start == start else None

    def record_cuts(self, cuts: Sequence[RecordedCut], after: datetime | None) -> bool:
        """Record the cuts of one topic, in ascending order of edge, if the topic's newest recorded edge is still
        `after`.

        Either all cuts are recorded, in one commit, or none. False means that another process was first, possibly with
        a new generation that starts at the same edge: read its cuts and continue from them. Raises LedgerCorruptError
        if the edges of the cuts do not ascend, or if offsets decrease.
        """
        return bool(self.record_cuts_of_many([Proposed(tuple(cuts), after)]))

    def record_cuts_of_many(self, proposed: Sequence[Proposed]) -> frozenset[str]:
        """Record cuts of several topics in one commit; return the topics whose cuts were recorded. Other writers were
        faster for the other topics."""
        known = newest_cuts.of(self._cuts)
        with known.handle() as handle, self._cuts.writing():
            recorded = record(
                self._cuts, known, handle, proposed, self._newest_cut, lambda h: _complete(h, CUT_COLUMNS)
            )
            if recorded:
                folding.fold(self._cuts, handle, "topic", recorded)
        return recorded

    def _newest_known(self, topic: str, edge: datetime) -> RecordedCut | None:
        """Return the newest cut at `edge` from the known files; None if later cuts were recorded since, or if there is
        no cut."""
        version.check(self._lake)
        cuts = recorded_cuts(known_files.of_cuts(self._lake).rows(topic, start=edge))
        return cuts[-1] if {cut.edge for cut in cuts} == {edge} else None

    def _newest_cut(self, handle: DeltaTable, topic: str) -> RecordedCut | None:
        version = handle.transaction_version(app_id(topic))
        if version is None:
            return None
        edge = datetime.fromtimestamp(version, UTC)
        cuts = recorded_cuts(self._cut_rows(handle, topic, edge, None))
        if {c.edge for c in cuts} != {edge}:
            raise LedgerCorruptError(
                f"the ledger records {edge:%Y-%m-%d %H:%M}Z as the newest window boundary of topic {topic!r}, but "
                f"the cuts of the topic end at "
                f"{[str(c.edge) for c in cuts] or 'none'}: restore _ledger/cuts or run `platform-assets rebuild-ledger`"
            )
        return cuts[-1]

    def _cut_rows(self, handle: DeltaTable, topic: str, start: datetime | None, end: datetime | None) -> pa.Table:
        condition = pc.field("topic") == topic
        if start is not None:
            condition &= pc.field("edge") >= pa.scalar(start, UTC_MICROS)
        if end is not None:
            condition &= pc.field("edge") <= pa.scalar(end, UTC_MICROS)
        return _rows(handle, condition, partition=("topic", topic))

    # --- commits ----------------------------------------------------------------------------------------------

    def record_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Append receipts of loads. If a window has several entries, the entry with the highest version counts."""
        if not receipts:
            return
        handle = self._append(receipt_table(receipts))
        for table in sorted({r.table for r in receipts}):
            new_rows = sum(len(r.partitions) for r in receipts if r.table == table and r.kind == "proof")
            if new_rows:
                self._prune(handle, table, new_rows)
        folding.fold(self._commits, handle, "table", {r.table.ledger_name for r in receipts})

    def commit_rows(
        self,
        table: TableRef,
        keys: Sequence[str] | None = None,
        start: datetime | None = None,
        columns: Sequence[str] | None = None,
    ) -> pa.Table:
        """Return the rows of `commits` that count: the newest entry of each window, one row for each partition.

        The rows are those of all windows, of the windows in `keys`, or of the windows that start at `start` or later.
        With `columns`, only these columns are read, and the few columns that determine the newest entry; the other
        columns, which are most of a ledger's bytes, are not read.
        """
        version.check(self._lake)
        read = None if columns is None else sorted({*columns, *COLUMNS_OF_NEWEST, "kind"})
        among = None if keys is None else [edge_of(key) for key in keys]
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, read, start=start, among=among)
        return newest_entries(rows.filter(pc.not_equal(rows["kind"], "acceptance")))

    def receipts(self, table: TableRef, keys: Sequence[str] | None = None) -> dict[str, Receipt]:
        """Return the newest receipt of each loaded window, by key: for all windows, or for the windows in `keys`."""
        return {r.window.key: r for r in receipts_in(self.commit_rows(table, keys))}

    def receipts_before_expiry(self, table: TableRef, keys: Sequence[str]) -> dict[str, Receipt]:
        """Return the newest receipt of each of the windows `keys` before its rows were removed as expired, by key."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, among=[edge_of(key) for key in keys])
        others = pc.invert(pc.is_in(rows["kind"], pa.array(["acceptance", EXPIRED])))
        return {r.window.key: r for r in receipts_in(newest_entries(rows.filter(others)))}

    def receipt_of(self, table: TableRef, key: str, load_id: str) -> Receipt | None:
        """Return the newest receipt of one load of a window, also after later loads; None if the ledger does not have
        it."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, among=[edge_of(key)])
        mine = pc.and_(pc.not_equal(rows["kind"], "acceptance"), pc.equal(rows["load_id"], load_id))
        found = receipts_in(newest_entries(rows.filter(mine)))
        return found[0] if found else None

    def past_loads(self, table: TableRef, key: str) -> list[tuple[int, str]]:
        """Return the table version and the id of every load of a window that the ledger has an entry of, in ascending
        order of version."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, among=[edge_of(key)])
        loads = rows.filter(pc.and_(pc.not_equal(rows["kind"], "acceptance"), pc.is_valid(rows["table_version"])))
        return sorted(set(zip(loads["table_version"].to_pylist(), loads["load_id"].to_pylist(), strict=True)))

    def all_loads(self, table: TableRef) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
        """Return the window and the id of every load that the ledger has an entry of, and the windows whose rows were removed as
        expired. The result takes one read, whatever the number of windows."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, ["kind", "load_id", "window"])
        rows = rows.filter(pc.not_equal(rows["kind"], "acceptance"))
        expired = rows.filter(pc.equal(rows["kind"], EXPIRED))["window"].unique().to_pylist()
        return frozenset(zip(rows["window"].to_pylist(), rows["load_id"].to_pylist(), strict=True)), frozenset(expired)

    def first_load(self, table: TableRef, key: str) -> str | None:
        """Return the id of the first load of a window that the ledger has an entry of; None if there is none."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, among=[edge_of(key)])
        loads = rows.filter(pc.not_equal(rows["kind"], "acceptance")).sort_by("recorded_at")
        return loads["load_id"][0].as_py() if loads.num_rows else None

    def record_acceptance(self, window: SealedWindow, ranges: Mapping[int, Sequence[OffsetRange]], reason: str) -> None:
        """Record that the loss of `ranges` in `window`, by partition, was accepted, and the reason."""
        self.record_acceptances([(window, ranges)], reason)

    def record_acceptances(
        self,
        losses: Sequence[tuple[SealedWindow, Mapping[int, Sequence[OffsetRange]]]],
        reason: str,
        hole: Hole = ACCEPTED_LOSS,
    ) -> None:
        """Record accepted losses in several windows in one commit. Depending on `hole`, record erased records instead."""
        if losses:
            self._append(pa.concat_tables([acceptance_table(w, ranges, reason, hole) for w, ranges in losses]))

    def accepted_losses(self, table: TableRef, key: str) -> dict[int, tuple[OffsetRange, ...]]:
        """Return the ranges of a window, by partition, whose loss an operator accepted or whose records were erased."""
        return self.accepted_losses_of(table, [key]).get(key, {})

    def accepted_losses_of(self, table: TableRef, keys: Sequence[str]) -> dict[str, dict[int, tuple[OffsetRange, ...]]]:
        """Return the accepted and erased ranges of several windows, by key. Windows without such ranges are omitted."""
        version.check(self._lake)
        rows = known_files.of_commits(self._lake).rows(table.ledger_name, among=[edge_of(key) for key in keys])
        accepted: dict[str, list[tuple[int, int, int]]] = {}
        for row in rows.filter(pc.equal(rows["kind"], "acceptance")).to_pylist():
            accepted.setdefault(row["window"], []).append((row["partition"], row["start"], row["end"]))
        return {window: merge_named(parts) for window, parts in accepted.items()}

    def _append(self, entries: pa.Table) -> DeltaTable:
        """Add `entries` to the ledger of loads; return the handle that committed these entries."""
        with self._commits.writing():
            handle = self._commits.delta()
            try:
                _complete(handle, COMMIT_COLUMNS)
            except CommitFailedError:
                # Another process has added the columns first, or will be refused for the same reason.
                handle = self._commits.delta()
                if _lacking(handle, COMMIT_COLUMNS):
                    raise
            return appending.append(self._commits, handle, entries, set(entries["table"].to_pylist()))

    # --- both -------------------------------------------------------------------------------------------------

    def _prune(self, handle: DeltaTable, table: TableRef, new_rows: int) -> None:
        """Remove superseded proofs once they are the majority of a table's entries, so that audits do not slow down
        reads.

        `handle` is at the commit that wrote `new_rows` rows of proofs.
        """
        with self._commits.reading():
            adds = pa.table(handle.get_add_actions(flatten=True))
        of_table = adds.filter(pc.equal(adds["partition.table"], table.ledger_name))
        small = of_table.filter(pc.less(of_table["size_bytes"], folding.SIZES[0] // 2))
        # Small batches come one by one, and are counted once, when they are folded.
        fold_is_due = small.num_rows >= folding.AT_FILES
        new = max(new_rows, pc.sum(small["num_records"]).as_py() or 0) if fold_is_due else new_rows
        if not pruning.is_worth_reading(pc.sum(of_table["num_records"]).as_py() or 0, new):
            return
        try:
            condition, partition = pc.field("table") == table.ledger_name, ("table", table.ledger_name)
            batches = pruning.superseded_batches(_rows(handle, condition, pruning.COLUMNS, partition=partition))
            if batches:
                pruning.remove(handle, table.ledger_name, batches, folding.FOLDED)
                folding.tidy(self._commits, handle)
        except failures.RAISED as e:
            # Another process wrote in the meantime: nothing was removed, and the next proofs try again.
            _log.info("did not remove superseded proofs of %s this time: %s", table, e)


def _rows(
    handle: DeltaTable, condition: pc.Expression, columns: list[str] | None = None, *, partition: tuple[str, str]
) -> pa.Table:
    """Return rows of one partition of a ledger; files of other partitions are not opened."""
    name, value = partition
    with failures.reading(datasets.path_of(handle)):
        dataset = datasets.of(handle, name, value)
        lacking = [field.name for field in _lacking(handle, COMMIT_COLUMNS)] if name == "table" else []
        there = None if columns is None else [column for column in columns if column not in lacking]
        rows = dataset.to_table(filter=condition, columns=there)
    for added in lacking:
        if columns is None or added in columns:
            rows = rows.append_column(added, pa.nulls(rows.num_rows, arrow_type(COMMIT_COLUMNS[added][0])))
    return rows


def _fields(columns: Mapping[str, tuple[str, str]]) -> list[Field]:
    return [Field(n, PrimitiveType(t), metadata={"comment": c}) for n, (t, c) in columns.items()]


def _lacking(ledger: DeltaTable, columns: Mapping[str, tuple[str, str]]) -> list[Field]:
    """Return the columns of this release that `ledger` lacks because it comes from an earlier release."""
    known = {field.name for field in ledger.schema().fields}
    return [field for field in _fields(columns) if field.name not in known]


def _complete(ledger: DeltaTable, columns: Mapping[str, tuple[str, str]]) -> None:
    """Add the columns that the ledger of an earlier release lacks. Raises CommitFailedError if another process has
    written in the meantime."""
    if lacking := _lacking(ledger, columns):
        ledger.alter.add_columns(lacking)
