"""Loading one window of a topic into its raw table: seal it, make sure that Kafka has it, and have its rows replaced.

What is the same for every table is in `replacing`; here is what raw tables have to do with Kafka.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from platform_assets.engines.protocol import LoadEngine, Records, Written
from platform_assets.errors import (
    ConcurrentLoadError,
    LoadError,
    OffsetsExpiredError,
    ReloadDiffersError,
    Terminal,
    TopicRecreatedError,
    TruncationError,
    ranges_text,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.windows import sealing
from platform_assets.windows.receipts import empty_receipt
from platform_assets.windows.replacing import Loaded, WindowReplacer

_log = logging.getLogger(__name__)
_RACES = 3

Losses = Mapping[int, tuple[OffsetRange, ...]]
"""Offsets that are not to be read, by partition."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """By partition, the first offset that the brokers still have, and the end, exclusive, of what is stable."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True)
class Loader:
    """All that loading windows of one topic needs."""

    declaration: TopicDeclaration
    cluster: Cluster
    ledger: Ledger
    engine: LoadEngine
    run_id: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def table(self) -> Folder:
        """Where the raw table is."""
        return self.ledger.lake.table(self.declaration.raw_table)

    @property
    def replacer(self) -> WindowReplacer:
        """What replaces windows of the raw table."""
        return WindowReplacer(self.declaration.raw_table, self.ledger, self.engine, self.run_id)

    def load(self, key: str) -> Loaded:
        """Load the window with this key, so that the table holds it exactly once.

        Raises the errors of `sealing.sealed_window`; OffsetsExpiredError, UnreadableTimestampError, TruncationError,
        ReloadDiffersError and other LoadErrors, which leave the table as it was; ConcurrentLoadError where other runs
        kept committing the same window first; CommitOutcomeUnknownError where the engine went away.
        """
        deadline = time.monotonic() + 60
        self.ledger.create()
        sealed = sealing.sealed_window(self.declaration, self.cluster, self.ledger, key, self.now(), deadline=deadline)
        raw_table.create(self.table, self.declaration.topic)
        for attempt in range(_RACES):
            try:
                return self._load(sealed)
            except ConcurrentLoadError as e:
                if attempt == _RACES - 1:
                    raise
                _log.info("%s Comparing with it now.", e)
        raise AssertionError("unreachable")

    def _load(self, sealed: SealedWindow) -> Loaded:
        replacer = self.replacer
        commit = replacer.open()
        receipt = replacer.receipt(sealed.key)
        if not sealed.ranges.size:
            return Loaded(
                receipt or self._record(empty_receipt(self.declaration.raw_table, sealed, self.run_id)), "empty"
            )
        metadata = self.metadata(sealed, self.first_cut(sealed.topic))
        if receipt is None or receipt.kind == "empty":
            receipt = replacer.recover(metadata)
        accepted = self.ledger.accepted_losses(self.declaration.raw_table, sealed.key)
        if receipt is not None:
            return self._load_again(sealed, commit, receipt, metadata, accepted)
        self.check_held(sealed, sealed.ranges.non_empty(), accepted, self.bounds(sealed.topic))
        return replacer.first(commit, metadata, self._writer(sealed, accepted), self.id_check(sealed))

    def _load_again(
        self, sealed: SealedWindow, commit: WindowCommit, receipt: Receipt, metadata: LoadMetadata, accepted: Losses
    ) -> Loaded:
        if receipt.ranges != sealed.ranges:
            raise ReloadDiffersError(
                sealed.topic, sealed.key, f"the receipt is of {receipt.ranges.triples()}, the cuts of the window are "
                f"{sealed.ranges.triples()}; the ledger contradicts itself, restore it from a backup"
            )  # fmt: skip
        # What holds no row cannot be lost by retention, so only the span of the rows has to be there still.
        spans = {
            p: OffsetRange.closed(part.first_offset, part.last_offset)
            for p, part in receipt.partitions.items()
            if part.first_offset is not None and part.last_offset is not None
        }
        try:
            bounds = self.bounds(sealed.topic)
            self.check_held(sealed, TopicRanges(spans), accepted, bounds)
        except (OffsetsExpiredError, TruncationError, TopicRecreatedError) as e:
            return self._from_the_past(sealed, commit, receipt, metadata, e)
        # Below the log start there is nothing to ask for, and by the check above nothing that had a row.
        below = {p: (OffsetRange(0, start), *accepted.get(p, ())) for p, start in bounds.starts.items()}
        return self.replacer.again(commit, receipt, metadata, self._writer(sealed, below), self.id_check(sealed))

    def _from_the_past(
        self,
        sealed: SealedWindow,
        commit: WindowCommit,
        receipt: Receipt,
        metadata: LoadMetadata,
        cause: LoadError | Terminal,
    ) -> Loaded:
        """The window as the table has it, or from a past version where it is damaged: Kafka no longer has its records.

        Raises `cause` where the table is intact and the log is not the one that was read, and LostForGoodError where no
        version has the recorded rows.
        """
        expired = cause.lost if isinstance(cause, OffsetsExpiredError) else None
        if self.replacer.is_intact(receipt):
            if expired is None:
                raise cause
            return Loaded(receipt, "kept")
        gone = str(cause) if expired is None else f"it no longer holds {ranges_text(expired)}"
        return self.replacer.restore(commit, receipt, metadata, gone)

    def id_check(self, sealed: SealedWindow) -> Callable[[], None]:
        """Kafka is read by the topic's name: what was read is of the old topic or a new one, so the id is asked again."""

        def check() -> None:
            sealing.checked_state(self.cluster, sealed.topic, self.ledger.newest_cut(sealed.topic))

        return check

    def bounds(self, topic: str) -> LogBounds:
        """What the brokers have of the topic, which is the one that the ledger knows."""
        state = sealing.checked_state(self.cluster, topic, self.ledger.newest_cut(topic))
        return LogBounds(
            {p: f.offset for p, f in self.cluster.log_starts(state).items()},
            {p: f.offset for p, f in self.cluster.last_stable_offsets(state).items()},
        )

    def check_held(self, sealed: SealedWindow, needed: TopicRanges, accepted: Losses, bounds: LogBounds) -> None:
        """Make sure that Kafka still has `needed` of a window, before anything is read."""
        for partition, wanted in needed.items():
            if partition in bounds.ends and bounds.ends[partition] < wanted.end:
                raise TruncationError(sealed.topic, partition, wanted.end, bounds.ends[partition])
        below = {p: wanted.before(bounds.starts[p]) for p, wanted in needed.items() if p in bounds.starts}
        lost = [(p, left.start, left.end) for p, r in below.items() for left in r.minus(accepted.get(p, ()))]
        if lost:
            table = self.declaration.raw_table
            remedy = (
                f'Accept the loss with `platform-assets accept-loss {table} {sealed.key} --reason "…"`; the window then '
                "loads what is left, and the loss stays in the ledger."
            )
            raise OffsetsExpiredError(sealed.topic, sealed.key, lost, remedy)

    def _writer(self, sealed: SealedWindow, without: Losses) -> Callable[[str], Written]:
        records = Records(sealed.topic, sealed.topic_id, sealed.key, sealed.ranges, without)
        return partial(self._write, records)

    def _write(self, records: Records, load_id: str) -> Written:
        return self.engine.write(records, self.declaration.raw_table, load_id, self.declaration.records_per_file)

    def metadata(self, sealed: SealedWindow, first_cut: tuple[datetime, Cut]) -> LoadMetadata:
        """What a load of the window would commit, with an id of its own."""
        return LoadMetadata(
            sealed.topic,
            sealed.topic_id,
            sealed.generation,
            sealed.window,
            sealed.ranges,
            load_id=str(uuid.uuid4()),
            run_id=self.run_id,
            first_cut=first_cut,
        )

    def first_cut(self, topic: str) -> tuple[datetime, Cut]:
        """The topic's first edge, and its cut."""
        # Asking up to the declared first edge prunes by file statistics; `start` may have been changed since, though.
        first = self.ledger.cuts(topic, end=self.declaration.first_edge) or self.ledger.cuts(topic)
        return first[0].edge, first[0].cut

    def _record(self, receipt: Receipt) -> Receipt:
        self.ledger.record_receipts([receipt])
        return receipt
