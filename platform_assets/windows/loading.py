"""Loading one window: seal it, read it, commit it, and write down what was committed.

A first load is one pass. A re-load stages what it reads and compares it with the ledger before the table changes.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal, TypeVar

from platform_assets.engines.spark import failures, raw
from platform_assets.engines.spark.session import suit
from platform_assets.errors import (
    ConcurrentLoadError,
    FilesLostError,
    LoadError,
    LostForGoodError,
    OffsetsExpiredError,
    ReloadDiffersError,
    Terminal,
    TimestampOverflowError,
    TopicRecreatedError,
    TruncationError,
    UnreadableTimestampError,
    ranges_text,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.kafka.timestamps import unreadable_records
from platform_assets.lake import load_log, rows
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut, OffsetRange
from platform_assets.windows import differences, sealing
from platform_assets.windows.receipts import empty_receipt, receipt_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
_RACES = 3
_VERSIONS_LOOKED_AT = 50
T = TypeVar("T")

Outcome = Literal["loaded", "empty", "unchanged", "healed", "restored"]
"""loaded: first load; empty: no offsets; unchanged: proved equal; healed: proved equal, and written again from Kafka;
restored: from a past version of the table, since Kafka no longer has the records."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A window that is in the table, and what the last load did to have it there."""

    receipt: Receipt
    outcome: Outcome


@dataclass(frozen=True)
class Loader:
    """All that loading windows of one topic needs; `spark` is called when a session is first needed."""

    declaration: TopicDeclaration
    settings: ClientSettings
    cluster: Cluster
    ledger: Ledger
    spark: Callable[[], SparkSession]
    run_id: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def lake(self) -> Lake:
        """The lake of the table and of its ledger."""
        return self.ledger.lake

    @property
    def table(self) -> Folder:
        """Where the raw table is."""
        return self.lake.table(self.declaration.raw_table)

    def load(self, key: str) -> Loaded:
        """Load the window with this key, so that the table holds it exactly once.

        Raises the errors of `sealing.sealed_window`; OffsetsExpiredError, UnreadableTimestampError, TruncationError,
        ReloadDiffersError and other LoadErrors, which leave the table as it was; ConcurrentLoadError where other runs
        kept committing the same window first; CommitOutcomeUnknownError where Spark went away.
        """
        deadline = time.monotonic() + 60
        self.ledger.create()
        sealed = sealing.sealed_window(self.declaration, self.cluster, self.ledger, key, self.now(), deadline=deadline)
        raw.create_table(self.table, self.declaration.topic)
        for attempt in range(_RACES):
            try:
                return self._load(sealed)
            except ConcurrentLoadError as e:
                if attempt == _RACES - 1:
                    raise
                _log.info("%s Comparing with it now.", e)
        raise AssertionError("unreachable")

    def _load(self, sealed: SealedWindow) -> Loaded:
        receipt = self.ledger.receipts(self.declaration.raw_table, [sealed.key]).get(sealed.key)
        if not sealed.ranges.size:
            return Loaded(receipt or self._record(empty_receipt(sealed, self.run_id)), "empty")
        if receipt is None or receipt.kind == "empty":
            receipt = self._mended(sealed)
        if receipt is None:
            return self._first_load(sealed)
        return self._reload(sealed, receipt)

    # --- first load -------------------------------------------------------------------------------------------

    def _first_load(self, sealed: SealedWindow) -> Loaded:
        began = time.monotonic()
        accepted = self.ledger.accepted_losses(self.declaration.raw_table, sealed.key)
        self._check_log(sealed, {p: r for p, r in sealed.ranges.items() if r.size}, accepted)
        metadata = self._metadata(sealed)
        measured = self._spark_call(
            sealed, lambda spark: raw.overwrite_window(self._frame(spark, sealed, accepted), self.table, metadata)
        )
        commit = load_log.find_load(self.table, metadata.load_id)
        if commit is None:
            raise ReloadDiffersError(
                sealed.topic, sealed.key, f"Spark reported a commit, and the log has none of load {metadata.load_id}"
            )
        return Loaded(self._record(self._receipt(commit, measured, began)), "loaded")

    # --- re-load ----------------------------------------------------------------------------------------------

    def _reload(self, sealed: SealedWindow, receipt: Receipt) -> Loaded:
        began = time.monotonic()
        accepted = self.ledger.accepted_losses(self.declaration.raw_table, sealed.key)
        if receipt.ranges != sealed.ranges:
            raise ReloadDiffersError(
                sealed.topic, sealed.key, f"the receipt is of {receipt.ranges.triples()}, the cuts of the window are "
                f"{sealed.ranges.triples()}; the ledger contradicts itself, restore it from a backup"
            )  # fmt: skip
        # What holds no row cannot be lost by retention, so only the span of the rows has to be there still.
        spans = {
            p: OffsetRange(part.first_offset, part.last_offset + 1)
            for p, part in receipt.partitions.items()
            if part.first_offset is not None and part.last_offset is not None
        }
        try:
            starts = self._check_log(sealed, spans, accepted)
        except (OffsetsExpiredError, TruncationError, TopicRecreatedError) as e:
            return self._restored(sealed, receipt, e)
        metadata = self._metadata(sealed)
        staging = self.lake.root / "_staging" / sealed.topic / metadata.load_id
        # Below the log start there is nothing to ask for, and by the check above nothing that had a row.
        below = {p: (OffsetRange(0, start), *accepted.get(p, ())) for p, start in starts.items()}
        try:
            staged = self._spark_call(sealed, lambda spark: raw.write_files(self._frame(spark, sealed, below), staging))
            sealing.checked_state(self.cluster, sealed.topic, self.ledger.newest_cut(sealed.topic))
            if not _same(staged, receipt):
                raise self._difference(sealed, receipt, staged, staging)
            if self._intact(sealed, receipt):
                return Loaded(receipt, "unchanged")
            written = self._spark_call(
                sealed,
                lambda spark: raw.overwrite_window(
                    spark.read.schema(_schema(spark, self.table)).parquet(str(staging)), self.table, metadata
                ),
            )
        finally:
            staging.delete()
        return Loaded(self._written_again(sealed, receipt, metadata, written, began), "healed")

    def _restored(self, sealed: SealedWindow, receipt: Receipt, cause: LoadError | Terminal) -> Loaded:
        """The window from a past version of the table, where it is damaged and Kafka no longer has its records.

        Raises `cause` where the table is intact, and LostForGoodError where no version has the recorded rows.
        """
        if self._intact(sealed, receipt):
            if isinstance(cause, OffsetsExpiredError):
                remedy = f"Nothing needs doing: the table still holds all {receipt.rows} rows, proved by their digests."
                raise OffsetsExpiredError(sealed.topic, sealed.key, cause.lost, remedy) from cause
            raise cause
        began = time.monotonic()
        for version in self._past_versions(sealed, receipt):
            try:
                if not _same(self._measured_at(sealed, version), receipt):
                    continue
                metadata = self._metadata(sealed)
                written = self._spark_call(
                    sealed,
                    lambda spark, v=version, m=metadata: raw.overwrite_window(  # type: ignore[misc]
                        raw.window_frame(spark, self.table, sealed.key, v), self.table, m
                    ),
                )
            except FilesLostError as e:
                _log.info("version %d of %s is no way back: %s", version, receipt.table, e)
                continue
            return Loaded(self._written_again(sealed, receipt, metadata, written, began), "restored")
        gone = f"it no longer holds {ranges_text(cause.lost)}" if isinstance(cause, OffsetsExpiredError) else str(cause)
        raise LostForGoodError(receipt.table.name, sealed.key, receipt.rows, gone) from cause

    def _past_versions(self, sealed: SealedWindow, receipt: Receipt) -> Iterator[int]:
        """Versions in which the window had other files than now: that of the receipt, then the newest first."""
        current = load_log.version(self.table)
        recorded = [] if receipt.table_version is None else [receipt.table_version]
        oldest = max(current - _VERSIONS_LOOKED_AT, -1)
        seen = {load_log.files_of(self.table, sealed.key).digest}
        for version in (*recorded, *range(current - 1, oldest, -1)):
            files = load_log.files_of(self.table, sealed.key, version)
            if files.digest not in seen:
                seen.add(files.digest)
                yield version

    def _written_again(
        self, sealed: SealedWindow, receipt: Receipt, metadata: LoadMetadata, written: raw.Measured, began: float
    ) -> Receipt:
        commit = load_log.find_load(self.table, metadata.load_id)
        if commit is None or not _same(written, receipt):
            raise ReloadDiffersError(sealed.topic, sealed.key, "the rows changed while they were written")
        again = self._receipt(commit, written, began)
        # The same offsets have the same holes: what was proved of them stays proved.
        return self._record(replace(again, holes=receipt.holes, proved_by=receipt.proved_by))

    def _difference(
        self, sealed: SealedWindow, receipt: Receipt, staged: raw.Measured, staging: Folder
    ) -> ReloadDiffersError:
        held, gone, new = self._held(sealed, receipt), "", ""
        if held is not None and held.offsets != staged.offsets:
            kept, now = rows.offsets_of(self.table, sealed.key), rows.offsets_in_files(staging)
            gone, new = rows.named(rows.difference(kept, now)), rows.named(rows.difference(now, kept))
        text = differences.told(receipt, staged, held, gone=gone, new=new)
        return ReloadDiffersError(sealed.topic, sealed.key, text)

    def _untouched(self, receipt: Receipt) -> bool:
        return load_log.files_of(self.table, receipt.window.key).digest == receipt.files_digest

    def _intact(self, sealed: SealedWindow, receipt: Receipt) -> bool:
        """Whether the table's rows of the window are those of the receipt: by the log first, then by reading them."""
        held = self._held(sealed, receipt)
        return held is not None and _same(held, receipt)

    def _held(self, sealed: SealedWindow, receipt: Receipt) -> raw.Measured | None:
        """What the table's rows of the window come to; None where its files are not those of the receipt, or are lost."""
        if not self._untouched(receipt):
            return None
        try:
            return self._measured_at(sealed, load_log.version(self.table))
        except FilesLostError as e:
            _log.info("%s", e)
            return None

    def _measured_at(self, sealed: SealedWindow, version: int) -> raw.Measured:
        return self._spark_call(
            sealed, lambda spark: raw.measure(raw.window_frame(spark, self.table, sealed.key, version))
        )

    # --- shared -----------------------------------------------------------------------------------------------

    def _mended(self, sealed: SealedWindow) -> Receipt | None:
        """The receipt of a commit that the ledger lacks, because a run ended between the two; None without one.

        None also where its files are lost: what it held can then be had from Kafka alone, by the window's cuts.
        """
        files = load_log.files_of(self.table, sealed.key)
        if not files.paths:
            return None
        commit = next((c for c in load_log.load_commits(self.table) if c.metadata.window.key == sealed.key), None)
        if commit is None or commit.metadata.ranges != sealed.ranges or commit.metadata.topic_id != sealed.topic_id:
            return None
        began = time.monotonic()
        try:
            measured = self._measured_at(sealed, commit.version)
        except FilesLostError as e:
            _log.warning(
                "the ledger has no entry of this window to compare with, it is loaded as if for the first time: %s", e
            )
            return None
        _log.info("window %s was committed as version %d and not in the ledger", sealed.key, commit.version)
        return self._record(self._receipt(commit, measured, began))

    def _check_log(
        self,
        sealed: SealedWindow,
        needed: Mapping[int, OffsetRange],
        accepted: Mapping[int, tuple[OffsetRange, ...]],
    ) -> dict[int, int]:
        """Make sure that Kafka still has `needed`, before anything is read; gives the log starts by partition."""
        state = sealing.checked_state(self.cluster, sealed.topic, self.ledger.newest_cut(sealed.topic))
        starts = {p: f.offset for p, f in self.cluster.log_starts(state).items()}
        ends = {p: f.offset for p, f in self.cluster.last_stable_offsets(state).items()}
        for partition, wanted in needed.items():
            if partition in ends and ends[partition] < wanted.end:
                raise TruncationError(sealed.topic, partition, wanted.end, ends[partition])
        below = {
            p: OffsetRange(wanted.start, min(starts[p], wanted.end))
            for p, wanted in needed.items()
            if p in starts and starts[p] > wanted.start
        }
        lost = [(p, left.start, left.end) for p, r in below.items() for left in r.minus(accepted.get(p, ()))]
        if lost:
            table = self.declaration.raw_table
            remedy = (
                f'Accept the loss with `platform-assets accept-loss {table} {sealed.key} --reason "…"`; the window then '
                "loads what is left, and the loss stays in the ledger."
            )
            raise OffsetsExpiredError(sealed.topic, sealed.key, lost, remedy)
        return starts

    def _frame(
        self, spark: SparkSession, sealed: SealedWindow, without: Mapping[int, tuple[OffsetRange, ...]]
    ) -> DataFrame:
        reads = raw.excluded(sealed.ranges, without)
        if not reads:
            return spark.read.format("delta").load(str(self.table)).limit(0)
        frame = raw.kafka_frame(
            spark,
            self.settings.java(),
            sealed.topic,
            sealed.topic_id,
            sealed.key,
            reads,
            self.declaration.reader_options,
        )
        files = -(-sealed.ranges.size // self.declaration.records_per_file)
        # Few files for small windows; a large one keeps one file a Kafka partition, whose statistics then say all.
        return frame.coalesce(files) if files < len(sealed.ranges.non_empty().by_partition) else frame

    def _spark_call(self, sealed: SealedWindow, call: Callable[[SparkSession], T]) -> T:
        from grpc import RpcError
        from pyspark.errors import PySparkException

        try:
            spark = self.spark()
            suit(spark, sealed.ranges.size)
            return call(spark)
        except (PySparkException, RpcError) as e:
            error = failures.named(e, self.declaration.raw_table, sealed.key, str(self.lake))
            if not isinstance(error, TimestampOverflowError):
                raise error from e
            records = unreadable_records(self.settings, sealed.topic, sealed.ranges)
            if not records:
                raise error from e
            raise UnreadableTimestampError(sealed.topic, sealed.key, records) from e

    def _metadata(self, sealed: SealedWindow) -> LoadMetadata:
        return LoadMetadata(
            sealed.topic,
            sealed.topic_id,
            sealed.generation,
            sealed.window,
            sealed.ranges,
            load_id=str(uuid.uuid4()),
            run_id=self.run_id,
            first_cut=self._first_cut(sealed.topic),
        )

    def _first_cut(self, topic: str) -> tuple[datetime, Cut]:
        # Asking up to the declared first edge prunes by file statistics; `start` may have been changed since, though.
        first = self.ledger.cuts(topic, end=self.declaration.first_edge) or self.ledger.cuts(topic)
        return first[0].edge, first[0].cut

    def _receipt(self, commit: LoadCommit, measured: raw.Measured, began: float) -> Receipt:
        return receipt_of(
            self.lake,
            self.declaration.raw_table,
            commit,
            measured,
            kind="load" if commit.metadata.run_id == self.run_id else "rebuilt",
            seconds=time.monotonic() - began,
        )

    def _record(self, receipt: Receipt) -> Receipt:
        self.ledger.record_receipts([receipt])
        return receipt


def _same(measured: raw.Measured, receipt: Receipt) -> bool:
    return measured.offsets == receipt.offsets and measured.content == receipt.content


def _schema(spark: SparkSession, table: Folder) -> StructType:
    return spark.read.format("delta").load(str(table)).schema
