"""Loading one window of a topic into its raw table: seal the window, make sure that Kafka has its records, and replace
its rows.

`replacing` has the steps shared by all tables; this module has the steps of raw tables, which involve Kafka.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from urllib.parse import quote

from platform_assets.engines.protocol import LoadEngine, Records, StagedFiles
from platform_assets.errors import (
    ClusterChangedError,
    ConcurrentLoadError,
    DamagedBatchError,
    ExpiredForGoodError,
    LoadError,
    LostForGoodError,
    OffsetsExpiredError,
    ReloadDiffersError,
    Terminal,
    TopicMissingError,
    TopicRecreatedError,
    TruncationError,
    UnprovedRowsError,
    UnrecordedLoadError,
    WindowExpiredError,
    ranges_text,
)
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import holdings, load_log, raw_table, rows
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.ledger import cut_ranges, decisions, erasure_rules
from platform_assets.ledger.entries import EXPIRED, Receipt, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges, common, merge_named, ranges_of, subtract
from platform_assets.windows.decide import carrying_out, generations
from platform_assets.windows.erase import erased_keys
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.load import sealing, truncation
from platform_assets.windows.load.gathering import Gatherer, Left
from platform_assets.windows.load.receipts import empty_receipt, expired_receipt
from platform_assets.windows.load.replacing import Loaded, WindowReplacer

_log = logger(__name__)
_RACES = 5

Losses = Mapping[int, tuple[OffsetRange, ...]]
"""Offsets to omit, by partition."""


@dataclass(frozen=True, slots=True)
class LogBounds:
    """By partition, the first offset that the brokers still have, and the last stable offset (exclusive end)."""

    starts: Mapping[int, int]
    ends: Mapping[int, int]


@dataclass(frozen=True)
class Loader:
    """Loads windows of one topic."""

    declaration: TopicDeclaration
    cluster: Cluster
    ledger: Ledger
    engine: LoadEngine
    run_id: str = ""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @property
    def table(self) -> Folder:
        """The folder of the raw table."""
        return self.ledger.lake.table(self.declaration.raw_table)

    @property
    def replacer(self) -> WindowReplacer:
        """Replaces windows of the raw table."""
        return WindowReplacer(self.declaration.raw_table, self.ledger, self.engine, self.run_id)

    def gatherer(self, sealed: SealedWindow, commit: WindowCommit) -> Gatherer:
        """Return the gatherer of the remaining rows of a window that `commit` replaces."""
        per_file = self.declaration.records_per_file
        return Gatherer(self.replacer, self.cluster, self.engine, per_file, sealed, commit.is_flat, commit.field_ids())

    def load(self, key: str) -> Loaded:
        """Load the window with this key, so that the table has each of the window's records exactly once.

        Raises the errors of `sealing.sealed_window`; OffsetsExpiredError, UnreadableTimestampError, TruncationError,
        ReloadDiffersError and other LoadErrors, which leave the table unchanged; ConcurrentLoadError if other runs
        repeatedly committed the same window first; CommitOutcomeUnknownError if the connection to the engine broke.
        """
        deadline = time.monotonic() + 60
        self.ledger.create()
        carrying_out.carry_out(self.ledger, self.declaration.topic)
        sealed = sealing.sealed_window(self.declaration, self.cluster, self.ledger, key, self.now(), deadline=deadline)
        raw_table.create(self.table, self.declaration.topic)
        for attempt in range(_RACES):
            try:
                return self._load(sealed)
            except ConcurrentLoadError as e:
                if attempt == _RACES - 1:
                    raise
                _log.info("%s Doing that now, in this run.", e)
        raise AssertionError("unreachable")

    def _load(self, sealed: SealedWindow) -> Loaded:
        erasure_rules.apply(self.ledger, [sealed])
        erased, eraser = self.erased(sealed), WindowEraser(self.declaration, self.ledger, self.run_id)
        if erased:
            eraser.erase_pending(sealed.key, erased)
        loaded = self._load_without(sealed)
        came_back = loaded.outcome in ("restored", "kept", "healed")
        if loaded.outcome in ("restored", "kept"):
            # These rows do not come from this load, so they were not searched for erased keys.
            files = holdings.files_of(self.table, sealed.key).paths
            erased_keys.record_found(self.ledger, self.table, files, sealed)
        if came_back and (erased := self.erased(sealed)) and eraser.erase_pending(sealed.key, erased):
            # A damaged window was restored to its state before the erasure.
            return Loaded(self.replacer.receipt(sealed.key) or loaded.receipt, loaded.outcome)
        return loaded

    def erased(self, sealed: SealedWindow) -> Losses:
        """Return the offsets of a window's erased records, by partition."""
        return erased_of(self.ledger, sealed.topic, [sealed.key]).get(sealed.key, {})

    def _load_without(self, sealed: SealedWindow) -> Loaded:
        replacer = self.replacer
        # Opened before anything else is read: an erasure recorded later commits to the window, which is a conflict.
        commit = replacer.open()
        decided, accepted = self.decided(), self.ledger.accepted_losses(self.declaration.raw_table, sealed.key)
        known = replacer.receipt(sealed.key)
        receipt = self._unless_expired(sealed, commit, known)
        if not sealed.ranges.size:
            if commit.holds(sealed.key):
                # A rebuilt ledger may know the window only from files, which are lost.
                replacer.drop_lost_files(commit, self.metadata(sealed))
            return Loaded(
                receipt or self._record(empty_receipt(self.declaration.raw_table, sealed, self.run_id)), "empty"
            )
        metadata = replace(self.metadata(sealed), erased=self.erased(sealed) if accepted else {})
        if receipt is None or receipt.kind == "empty":
            receipt = replacer.recover(commit, metadata)
        has_expired = known is not None and known.is_expired
        if receipt is not None:
            if has_expired:
                # Rows that are back, even in the same files, have to be recorded again: the newest entry says that there are none.
                receipt = replace(receipt, files_digest="")
            try:
                loaded = self._load_again(sealed, commit, receipt, metadata, accepted, decided)
            except (LostForGoodError, UnrecordedLoadError) as e:
                if known is not None and has_expired and not commit.holds(sealed.key):
                    raise ExpiredForGoodError(known.table.name, sealed.key, receipt.rows) from e
                raise
            if has_expired and loaded.outcome in ("unchanged", "kept"):
                # A ledger that is rebuilt later would take the removal, the newest commit of the window, for its last load.
                metadata = replace(metadata, found=receipt.is_found)
                return Loaded(replacer.committed_again(commit, loaded.receipt, metadata), loaded.outcome)
            return loaded
        needed = sealed.ranges.non_empty()
        try:
            self.check_held(sealed, needed, accepted)
        except OffsetsExpiredError as e:
            self._check_only_in_kafka(sealed, commit, e)
            if known is not None and has_expired:
                removed = (known.holes or {}).get(EXPIRED, 0)
                raise ExpiredForGoodError(known.table.name, sealed.key, removed) from e
            raise
        check = self.last_check(sealed, needed, accepted, decided)
        return replacer.first(commit, metadata, self._writer(commit, sealed, accepted), check)

    def _unless_expired(self, sealed: SealedWindow, commit: WindowCommit, receipt: Receipt | None) -> Receipt | None:
        """Return the receipt of a window; if its rows were removed as expired and `keep` was lengthened since, the one before.

        Raises WindowExpiredError if the window is past `keep`. If upkeep died before it recorded the receipt, that is
        done first.
        """
        if receipt is None or (receipt.rows and commit.holds(sealed.key)):
            return receipt
        keep = self.declaration.keep
        is_past = keep is not None and keep.is_past(sealed.window.end, self.now())
        if not receipt.is_expired:
            # Without `keep`, a missing file is damage, which must not cost a search of the log.
            since = {sealed.key: receipt.table_version or 0} if is_past and receipt.rows else {}
            made = load_log.expiries_since(self.table, since).get(sealed.key)
            if made is None:
                return receipt
            receipt = self._record(expired_receipt(receipt, made.version, made.metadata.load_id, commit.table_id))
        if is_past:
            raise WindowExpiredError(self.declaration.raw_table.name, sealed.key, str(keep))
        return self.ledger.receipts_before_expiry(receipt.table, [sealed.key]).get(sealed.key)

    def _check_only_in_kafka(self, sealed: SealedWindow, commit: WindowCommit, expired: OffsetsExpiredError) -> None:
        """Raise UnprovedRowsError, from `expired`, if the table has, or may have, rows at the expired offsets."""
        files = commit.files_of(sealed.key) if commit.holds(sealed.key) else holdings.NO_FILES
        held, whole = rows.readable_offsets(self.table, sealed.key, files.paths)
        lost = merge_named(expired.lost)
        if not whole or any(common(ranges_of(held.get(p, ())), parts) for p, parts in lost.items()):
            name = self.declaration.raw_table.name
            raise UnprovedRowsError(name, sealed.key, files.rows, None, ranges_text(expired.lost)) from expired

    def _load_again(
        self,
        sealed: SealedWindow,
        commit: WindowCommit,
        receipt: Receipt,
        metadata: LoadMetadata,
        accepted: Losses,
        decided: int | None,
    ) -> Loaded:
        if receipt.ranges != sealed.ranges:
            raise ReloadDiffersError(
                sealed.topic, sealed.key, f"the receipt covers offsets {receipt.ranges.triples()}, but the cuts of the window cover "
                f"{sealed.ranges.triples()}. The ledger contradicts itself; restore it from a backup"
            )  # fmt: skip
        began, metadata = time.monotonic(), replace(metadata, found=receipt.is_found)
        try:
            return self._from_one_place(sealed, commit, receipt, metadata, accepted, decided)
        except LostForGoodError as e:
            cause: LostForGoodError | UnrecordedLoadError = e
        except UnrecordedLoadError as e:
            if e.new:
                raise
            cause = e
        ways = [*self._left_out(sealed, accepted), *self._left_out_before(sealed, accepted)]
        found = self.gatherer(sealed, commit).gathered(receipt, metadata.load_id, ways)
        if isinstance(found, Left):
            self._check_cluster(sealed.topic)
            raise (
                cause if isinstance(cause, UnrecordedLoadError) else found.refusal(receipt, cause, self.erased(sealed))
            )
        return self.replacer.restored(commit, receipt, metadata, found, began)

    def _check_cluster(self, topic: str) -> None:
        """Raise ClusterChangedError: until an operator decides, nothing shows whether the other cluster has the rows."""
        with suppress(TopicMissingError, TopicRecreatedError):
            sealing.checked_state(self.cluster, topic, self.ledger.newest_cut(topic))

    def _from_one_place(
        self,
        sealed: SealedWindow,
        commit: WindowCommit,
        receipt: Receipt,
        metadata: LoadMetadata,
        accepted: Losses,
        decided: int | None,
    ) -> Loaded:
        """Keep, repair or restore the window, using rows from Kafka alone or from a single version of the table.

        Raises LostForGoodError or UnrecordedLoadError if no single source has all rows.
        """
        # Retention loses nothing where there are no rows, so Kafka only needs to have the span of the rows.
        spans = {
            p: OffsetRange.closed(part.first_offset, part.last_offset)
            for p, part in receipt.partitions.items()
            if part.first_offset is not None and part.last_offset is not None
        }
        needed = TopicRanges(spans)
        try:
            bounds = self.check_held(sealed, needed, accepted)
        except (
            OffsetsExpiredError, TruncationError, TopicRecreatedError, TopicMissingError, ClusterChangedError
        ) as e:  # fmt: skip
            return self._from_the_past(sealed, commit, receipt, metadata, e)
        # Kafka has nothing below the log start and, by the check above, no row was there.
        below = {p: OffsetRange(0, start) for p, start in bounds.starts.items()}
        check = self.last_check(sealed, needed, accepted, decided)
        refused: LoadError | None = None
        for out in self._left_out(sealed, accepted):
            without = {p: (start, *out.get(p, ())) for p, start in below.items()}
            try:
                return self.replacer.again(commit, receipt, metadata, self._writer(commit, sealed, without), check)
            except DamagedBatchError as e:
                if refused is not None:
                    raise refused from e
                return self._from_the_past(sealed, commit, receipt, metadata, e)
            except (ReloadDiffersError, LostForGoodError, UnrecordedLoadError) as e:
                refused = refused or e
        assert refused is not None
        raise refused

    def _left_out(self, sealed: SealedWindow, accepted: Losses) -> list[Losses]:
        """Return the losses that the load of the receipt may have omitted: all of `accepted`, or fewer.

        The receipt may be older than an erasure, because a damaged window blocks the erasure. Once the window is
        repaired, `_load` continues the erasure.
        """
        ways = [accepted]
        if erased := self.erased(sealed):
            unfinished = decisions.unfinished_erasures(self.ledger.lake, sealed.topic).get(sealed.key)
            for some in ({} if unfinished is None else unfinished.ranges, erased):
                less = {p: subtract(parts, some.get(p, ())) for p, parts in accepted.items()}
                ways += [less] if less not in ways else []
        return ways

    def _left_out_before(self, sealed: SealedWindow, accepted: Losses) -> list[Losses]:
        """Return the offsets that a load would have omitted before each erasure in the window, from the newest erasure
        to the oldest.

        The receipt may be from any time between two erasures, because an erasure that found no rows does not change the
        receipt.
        """
        found, later = list[Losses](), list[Sequence[int]]()
        for decision in reversed(decisions.decisions(self.ledger.lake, sealed.topic, ("erase",))):
            if triples := decision.details["offsets"].get(sealed.key):
                later += triples
                since = merge_named(later)
                found.append({p: subtract(parts, since.get(p, ())) for p, parts in accepted.items()})
        return found

    def _from_the_past(
        self,
        sealed: SealedWindow,
        commit: WindowCommit,
        receipt: Receipt,
        metadata: LoadMetadata,
        cause: LoadError | Terminal,
    ) -> Loaded:
        """Keep the window as it is in the table or, if it is damaged, restore it from a past version, because Kafka no
        longer has its records.

        Raises `cause` if the table is intact and the log is not the one that was read or has a damaged batch, and
        LostForGoodError or UnrecordedLoadError if no version has the recorded rows.
        """
        expired = cause.lost if isinstance(cause, OffsetsExpiredError) else None
        intact = self.replacer.proved(receipt)
        if intact is not None:
            if expired is None:
                raise cause
            return Loaded(intact, "kept")
        gone = str(cause) if expired is None else f"it no longer holds {ranges_text(expired)}"
        kafka = (
            f"cannot be used: {str(cause).rstrip('.')}"
            if expired is None
            else f"no longer holds {ranges_text(expired)}"
        )
        return self.replacer.restore(commit, receipt, metadata, gone, kafka=kafka)

    def decided(self) -> int | None:
        """Return the version of the table of decisions. Call this before reading `accepted`; see `last_check`."""
        return decisions.version(self.ledger.lake)

    def last_check(
        self, sealed: SealedWindow, needed: TopicRanges, accepted: Losses, decided: int | None
    ) -> Callable[[], None]:
        """Return the final check, to be called before the commit. It covers facts that may have changed while the
        window was read.

        `needed` is the result of `check_held` before the read. The check requests the topic's id again, because Spark's
        connector reads by name. It also requests the end of the log again, because a new leader may have truncated the
        log in the meantime and written other records at these offsets. The offsets `accepted` were not read, and
        `decided` was taken before `accepted` was read: records that an operator has erased since then must not be
        committed, because the written files were not searched for the erased keys. Raises whatever `bounds` raises, and
        ConcurrentLoadError.
        """
        rules = erasure_rules.of(self.ledger, sealed.topic).keys_for(sealed)

        def check() -> None:
            newest = self.ledger.newest_cut(sealed.topic)
            state = sealing.checked_state(self.cluster, sealed.topic, newest)
            ends = {p: left.end for p, left in self._in_todays_log(sealed, needed).items()}
            if ends:
                truncation.stable_offsets(self.cluster, state, newest, ends)
            lake, table = self.ledger.lake, self.declaration.raw_table
            if decisions.version(lake, decided) != decided and (
                self.ledger.accepted_losses(table, sealed.key) != accepted
                or erasure_rules.of(self.ledger, sealed.topic).keys_for(sealed) != rules
            ):
                raise ConcurrentLoadError(table.name, sealed.key)

        return check

    def bounds(self, topic: str, needed: Mapping[int, int]) -> LogBounds:
        """Return the bounds of the topic's log, after checking that the topic is the one in the ledger, and that its
        log still has everything before `needed` unchanged since the cut.

        `needed` has exclusive ends by partition. Raises whatever `truncation.stable_offsets` raises.
        """
        newest = self.ledger.newest_cut(topic)
        state = sealing.checked_state(self.cluster, topic, newest)
        starts = {p: f.offset for p, f in self.cluster.log_starts(state).items()}
        ends = truncation.stable_offsets(self.cluster, state, newest, needed)
        return LogBounds(starts, {p: f.offset for p, f in ends.items()})

    def check_held(
        self, sealed: SealedWindow, needed: TopicRanges, accepted: Losses, bounds: LogBounds | None = None
    ) -> LogBounds:
        """Before a window is read, check that Kafka still has `needed`. Return the bounds of the topic's log.

        If `bounds` are not given, they are requested from Kafka, unless the log was replaced and nothing of the window
        can be read.
        """
        inside = generations.within_log(self.ledger, sealed)
        gone = {p: wanted.minus([inside[p], *accepted.get(p, ())]) for p, wanted in needed.items()}
        if any(gone.values()):
            lost = [(p, r.start, r.end) for p, parts in gone.items() for r in parts]
            raise self._expired(sealed, lost, generations.FORMER_LOG)
        left_of = _before_ends(needed, inside)
        if not left_of and not any(r.size for r in inside.values()):
            return LogBounds({}, {})
        bounds = bounds or self.bounds(sealed.topic, {p: wanted.end for p, wanted in left_of.items()})
        for partition, wanted in left_of.items():
            if partition in bounds.ends and bounds.ends[partition] < wanted.end:
                raise TruncationError(sealed.topic, partition, wanted.end, bounds.ends[partition])
        expired = {p: wanted.before(bounds.starts[p]) for p, wanted in left_of.items() if p in bounds.starts}
        lost = [(p, left.start, left.end) for p, r in expired.items() for left in r.minus(accepted.get(p, ()))]
        if lost:
            raise self._expired(sealed, lost)
        return bounds

    def _in_todays_log(self, sealed: SealedWindow, needed: TopicRanges) -> dict[int, OffsetRange]:
        return _before_ends(needed, generations.within_log(self.ledger, sealed))

    def _expired(self, sealed: SealedWindow, lost: list[tuple[int, int, int]], why: str = "") -> OffsetsExpiredError:
        remedy = (
            f'To accept the loss, run `platform-assets accept-loss {self.declaration.raw_table} {sealed.key} --reason "…"`; the next '
            "load then reads the remaining records, and the loss is recorded in the ledger."
        )
        return OffsetsExpiredError(sealed.topic, sealed.key, lost, remedy, why)

    def records(self, commit: WindowCommit, sealed: SealedWindow, without: Losses) -> Records:
        """Return the records to read for a window that `commit` replaces: all records that are still in the topic's
        log, except `without`."""
        beyond = generations.beyond_log(self.ledger, sealed)
        skipped = {p: (*without.get(p, ()), *beyond.get(p, ())) for p in sealed.ranges.by_partition}
        return Records(
            sealed.topic,
            sealed.topic_id,
            sealed.key,
            sealed.ranges,
            skipped,
            window_column=commit.is_flat,
            field_ids=commit.field_ids(),
        )

    def _writer(self, commit: WindowCommit, sealed: SealedWindow, without: Losses) -> Callable[[str], StagedFiles]:
        return partial(self._write, sealed, self.records(commit, sealed, without))

    def _write(self, sealed: SealedWindow, records: Records, load_id: str) -> StagedFiles:
        table = self.declaration.raw_table
        return self.without_erased_keys(
            sealed, self.engine.write(records, table, load_id, self.declaration.records_per_file)
        )

    def without_erased_keys(self, sealed: SealedWindow, written: StagedFiles) -> StagedFiles:
        """Return `written` if it contains no record that a rule by key erases.

        Otherwise record such records in the ledger, delete the written files, and raise ConcurrentLoadError, so that
        the load starts over.
        """
        if erased_keys.record_found(self.ledger, self.table, (quote(f.path) for f in written.files), sealed):
            self.replacer.delete(written)
            raise ConcurrentLoadError(self.declaration.raw_table.name, sealed.key)
        return written

    def metadata(self, sealed: SealedWindow, first_cut: tuple[datetime, Cut] | None = None) -> LoadMetadata:
        """Return the metadata, with a new id, that a load of the window would commit. If `first_cut` is not given, it
        is looked up."""
        return LoadMetadata(
            sealed.topic,
            sealed.topic_id,
            sealed.generation,
            sealed.window,
            sealed.ranges,
            load_id=str(uuid.uuid4()),
            run_id=self.run_id,
            first_cut=first_cut or self.first_cut(sealed),
        )

    def first_cut(self, sealed: SealedWindow) -> tuple[datetime, Cut]:
        """Return the first edge of the window's generation, and the cut at this edge."""
        return cut_ranges.first_cut(self.ledger, sealed.topic, sealed.generation, sealed.window.start)

    def _record(self, receipt: Receipt) -> Receipt:
        self.ledger.record_receipts([receipt])
        return receipt


def _before_ends(needed: TopicRanges, inside: Mapping[int, OffsetRange]) -> dict[int, OffsetRange]:
    """Return the parts of `needed` before the end of `inside`, by partition; empty ranges are omitted."""
    return {p: left for p, wanted in needed.items() if (left := wanted.before(inside[p].end)).size}
