"""Decoding one window of a topic: each of the window's raw rows becomes either a typed row or a dead letter.

Both tables are a pure function of the raw window and the declaration. Dead letters are committed first, then decoded
rows, and then both receipts together. If the receipts are missing or name another declaration, the window is decoded
again.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.formats import decoder_of
from platform_assets.engines.decoding.engine import DecodedFiles, DecodeEngine, DecodeOrder
from platform_assets.engines.protocol import StagedFiles
from platform_assets.errors import (
    ConcurrentLoadError,
    ConfigurationError,
    DecodingDiffersError,
    FilesLostError,
    NotLoadedError,
    PlatformError,
    RepairOffsetError,
    ReplacedRowsError,
    WindowExpiredError,
)
from platform_assets.lake import dead_letter_table, decoded_table, holdings
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableLoad
from platform_assets.windows.decode.expired import record_undecoded
from platform_assets.windows.erase.erasing import Ranges, WindowEraser
from platform_assets.windows.load.receipts import DEAD_LETTERS, DECODED, Proof, empty_receipt, proof_of
from platform_assets.windows.load.replacing import Outcome, WindowReplacer, same
from platform_assets.windows.proved_files import recognised

_log = logger(__name__)
_RACES = 3
_TRIED: Final = 6
"""Number of windows that are decoded as a trial before the columns of the table are replaced."""


@dataclass(frozen=True, slots=True)
class DecodedWindow:
    """A window that is in both tables, and the result of its last decoding."""

    decoded: Receipt
    dead_letters: Receipt
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Receipts:
    """The receipts of one window in both tables. Either may be missing."""

    decoded: Receipt | None
    dead_letters: Receipt | None

    @property
    def are_there(self) -> bool:
        return self.decoded is not None and self.dead_letters is not None

    def are_of(self, declaration: str) -> bool:
        """Return True if both loads used this declaration. Windows without offsets match any declaration."""
        both = (self.decoded, self.dead_letters)
        return all(r is not None and r.made_from is not None and r.made_from.declaration == declaration for r in both)

    def are_made_from(self, raw: Receipt) -> bool:
        """Return True if the receipts describe exactly the rows that the raw table has for the window. After an
        accepted loss, the raw table has fewer rows."""
        if self.decoded is None or self.dead_letters is None:
            return False
        return self.decoded.offsets + self.dead_letters.offsets == raw.offsets


@dataclass(frozen=True, slots=True)
class Prepared:
    """A window to be decoded: its raw receipt, both tables in their state before the receipts `known` were read, the
    offsets of erased records, and the version of the decisions from which these offsets were read."""

    raw: Receipt
    order: DecodeOrder
    metadata: LoadMetadata
    letters: WindowCommit
    rows: WindowCommit
    known: Receipts
    erased: Ranges
    decided: int | None


@dataclass(frozen=True)
class WindowDecoder:
    """Decodes windows of one topic. Raises ConfigurationError if the topic has no `decode:`."""

    declaration: TopicDeclaration
    ledger: Ledger
    engine: DecodeEngine
    run_id: str = ""
    before_step: Callable[[str], None] = lambda step: None
    """Called with the name of each irreversible step, before that step. Tests use it to kill a process there."""

    @property
    def decoded(self) -> WindowReplacer:
        """Replaces windows of the decoded table."""
        return WindowReplacer(self.declaration.decoded_table, self.ledger, self.engine, self.run_id)

    @property
    def dead_letters(self) -> WindowReplacer:
        """Replaces windows of the dead-letter table."""
        return WindowReplacer(self.declaration.dead_letter_table, self.ledger, self.engine, self.run_id)

    @cached_property
    def declared(self) -> DecodeDeclaration:
        """The declaration of how records are decoded. Raises ConfigurationError if there is none."""
        if self.declaration.decode is None:
            raise ConfigurationError(
                f"topic {self.declaration.topic!r} has no `decode:` in its YAML, so it has no table "
                f"{self.declaration.decoded_table}"
            )
        return self.declaration.decode

    def decode(self, key: str) -> DecodedWindow:
        """Decode the window with this key, so that each of its raw rows is in one of the two tables.

        Raises NotLoadedError if the window is not in the raw table; SchemaChangeError, DecodingDiffersError and other
        LoadErrors, which leave both tables unchanged; ConcurrentLoadError if other loads repeatedly committed the same
        window first.
        """
        digest, before = self.declared.digest_of(key), self.receipts(key)
        for attempt in range(_RACES):
            try:
                return self._once(key)
            except ConcurrentLoadError as e:
                if attempt == _RACES - 1 or self.lost_to_another(key, digest, before):
                    raise
                _log.info("%s Doing that now, in this run.", e)
        raise AssertionError("unreachable")

    def lost_to_another(self, key: str, digest: str, before: Receipts) -> bool:
        """Return True if a declaration other than `digest` has been used to decode a window since its receipts were
        `before`.

        Nothing here shows which declaration is newer: a later run decodes with the declaration that it finds.
        """
        now = self.receipts(key)
        return now != before and now.are_there and not now.are_of(digest)

    def _once(self, key: str) -> DecodedWindow:
        d = self.declaration
        decided = decisions.version(self.ledger.lake)
        if erased := erased_of(self.ledger, d.topic, [key]).get(key):
            WindowEraser(d, self.ledger, self.run_id).erase_pending(key, erased)
        raw = self.ledger.receipts(d.raw_table, [key]).get(key)
        if raw is None:
            raise NotLoadedError(d.decoded_table.name, d.raw_table.name, key)
        if raw.is_expired:
            record_undecoded(self.ledger, d, [key])
            raise WindowExpiredError(d.decoded_table.name, key, str(d.keep or "…"), d.raw_table.name)
        self.check_repairs(raw)
        layout = self.layout()
        if raw.table_version is None:
            known = self.receipts(key)
            done = self.empty(raw, known)
            if not known.are_there:
                self.record([done])
            return done
        order = self.order(raw, self._version_with(raw, raw.table_version), layout)
        return self._decode(raw, order, erased or {}, decided)

    def check_repairs(self, raw: Receipt) -> None:
        """Raise RepairOffsetError if a declared repair lists an offset that is not in the window of `raw`."""
        for r in self.declared.repairs_of(raw.window.key):
            if r.partition not in raw.ranges.by_partition or r.offset not in raw.ranges.by_partition[r.partition]:
                raise RepairOffsetError(raw.table.name, raw.window.key, r.partition, r.offset)

    def layout(self) -> pa.Schema:
        """Create both tables, or change the columns of decoded rows as declared. Return the columns that files must
        have.

        Raises SchemaChangeError, and ReplacedRowsError if the new columns would lose rows.
        """
        d, lake, declared = self.declaration, self.ledger.lake, self.declared
        key_fields = None if declared.key is None else decoder_of(declared.key).fields
        columns = decoded_table.columns(key_fields, decoder_of(declared.value).fields)
        if not declared.loses_rows and decoded_table.is_begun_again(
            lake.table(d.decoded_table), columns, declared.replaces
        ):
            self._check_replaced(columns)
        layout = decoded_table.prepare(lake.table(d.decoded_table), d.topic, columns, declared.replaces)
        dead_letter_table.create(lake.table(d.dead_letter_table), d.topic)
        return layout

    def _check_replaced(self, columns: pa.Schema) -> None:
        """Decode a sample of the windows that have rows into the columns that would replace those of the table, and
        discard the result.

        The sample has `_TRIED` windows: the oldest, the newest, and others evenly spread between them. Raises
        ReplacedRowsError if a window would have fewer rows.
        """
        table = self.declaration.decoded_table
        entries = self.ledger.commit_rows(table, columns=["window", "rows"])
        with_rows = entries.filter(pc.greater(entries["rows"], 0)).group_by("window").aggregate([("rows", "sum")])
        rows = dict(zip(with_rows["window"].to_pylist(), with_rows["rows_sum"].to_pylist(), strict=True))
        tried, fewer = 0, dict[str, tuple[int, int]]()
        for key in _spread(sorted(rows), _TRIED):
            raw = self.ledger.receipts(self.declaration.raw_table, [key]).get(key)
            if raw is None or raw.table_version is None or raw.is_expired:
                continue
            order = self.order(raw, self._version_with(raw, raw.table_version), columns, "trial-")
            written = self.engine.decode(order)
            self.engine.delete(order)
            tried += 1
            after = written.decoded.measured.offsets.rows
            if after < rows[key]:
                fewer[key] = rows[key], after
        if fewer:
            raise ReplacedRowsError(
                table.name, self.declared.replaces or "", fewer, tried=tried, rows=sum(rows.values()), windows=len(rows)
            )

    def differences(self, key: str) -> tuple[str, ...] | None:
        """Describe, by table, how rows and dead letters would differ from the receipts if the window were decoded
        again; empty if nothing would differ. Neither the tables nor the ledger are changed.

        Returns None for a window that was not decoded with today's declaration, or has no offsets. Raises the same
        LoadErrors as `decode`.
        """
        raw, known = self.ledger.receipts(self.declaration.raw_table, [key]).get(key), self.receipts(key)
        if raw is None or raw.table_version is None or raw.is_expired or not known.are_of(self.declared.digest_of(key)):
            return None
        if known.decoded is None or known.dead_letters is None:
            raise AssertionError("unreachable: both have receipts")
        layout = decoded_table.held(self.ledger.lake.table(self.declaration.decoded_table))
        order = self.order(raw, self._version_with(raw, raw.table_version), layout, "audit-")
        written = self.engine.decode(order)
        self.engine.delete(order)
        self._check_conserved(raw, written)
        pairs = ((known.decoded, written.decoded), (known.dead_letters, written.dead_letters))
        return tuple(
            f"{receipt.table}: {_difference(receipt, now)}" for receipt, now in pairs if not same(now.measured, receipt)
        )

    def order(self, raw: Receipt, version: int, layout: pa.Schema, purpose: str = "") -> DecodeOrder:
        """Return the order to decode the window of `raw`, read at `version` of the raw table. The load's id begins with
        `purpose`."""
        return DecodeOrder(
            topic=self.declaration.topic,
            window=raw.window.key,
            version=version,
            ranges=raw.ranges,
            declaration=self.declared,
            layout=layout,
            dead_layout=dead_letter_table.columns(),
            load_id=f"{purpose}{uuid.uuid4()}",
            records_per_file=self.declaration.records_per_file,
        )

    def _version_with(self, raw: Receipt, loaded: int) -> int:
        """Return a version of the raw table that has the rows of `raw`. If the files of that load were deleted, verify
        the newest rows first."""
        folder, key = self.ledger.lake.table(raw.table), raw.window.key
        version, matches = holdings.version_and_match(folder, key, raw.files_digest, loaded)
        if not matches and not self._is_recognised(raw, version):
            replacer = WindowReplacer(raw.table, self.ledger, self.engine, self.run_id)
            if replacer.proved(raw) is None:
                raise FilesLostError(raw.table.name, key, "the table's rows differ from those that the load committed")
        return version

    def _is_recognised(self, raw: Receipt, version: int) -> bool:
        """Return True if files written by other writers are known to contain the rows of `raw`."""
        key = raw.window.key
        files = {key: holdings.files_of(self.ledger.lake.table(raw.table), key, version)}
        return recognised(self.ledger.lake, raw.table, files, [raw])[key].are(raw.files_digest)

    def _decode(self, raw: Receipt, order: DecodeOrder, erased: Ranges, decided: int | None) -> DecodedWindow:
        began = time.monotonic()
        letters, rows = self.open(order.layout, order.window)
        order = replace(
            order, window_columns=(rows.is_flat, letters.is_flat), field_ids=(rows.field_ids(), letters.field_ids())
        )
        known = self.receipts(order.window)
        window = Prepared(raw, order, self.metadata(raw, order), letters, rows, known, erased, decided)
        with self.named_conflicts(window):
            written = self.engine.decode(order)
        self.check_written(window, written)
        if self.is_current(raw, known):
            return self._again(raw, known, self._of_rows(window, written), written, letters, rows, began)
        done = self.committed(window, written, time.monotonic() - began)
        self.record([done])
        return done

    def open(self, layout: pa.Schema, window: str) -> tuple[WindowCommit, WindowCommit]:
        """Open both tables, dead letters first, before receipts are read, so that any later commit by another writer is
        a conflict.

        Raises ConcurrentLoadError if the decoded table no longer has the columns `layout`.
        """
        letters, rows = self.dead_letters.open(), self.decoded.open()
        if not rows.columns().equals(layout):
            raise ConcurrentLoadError(self.declaration.decoded_table.name, window)
        return letters, rows

    def is_current(self, raw: Receipt, known: Receipts) -> bool:
        """Return True if both tables have the window, decoded with today's declaration from exactly the rows of `raw`."""
        return known.are_of(self.declared.digest_of(raw.window.key)) and known.are_made_from(raw)

    def check_written(self, window: Prepared, written: DecodedFiles) -> None:
        """If the written files may not be committed, delete them and raise the reason."""
        with self._deleted_if_refused(written):
            self._check_conserved(window.raw, written)
            self._check_nothing_erased(window.order.window, window.erased, window.decided)
            self._check_not_expired(window.order.window)

    def committed(self, window: Prepared, written: DecodedFiles, seconds: float) -> DecodedWindow:
        """Commit the written files to both tables, regardless of what the tables contained. The caller then records the
        receipts. A run that is killed before that leaves no receipts."""
        self.before_step("dead letters")
        with self._deleted_if_refused(written, decoded_only=True):
            dead = self.dead_letters.replace(
                window.letters, window.metadata, written.dead_letters, seconds, _letters_proof(window.raw, written)
            )
        self.before_step("decoded")
        decoded = self.decoded.replace(
            window.rows, self._of_rows(window, written), written.decoded, seconds, _rows_proof(window.raw, written)
        )
        return DecodedWindow(decoded, dead, "replaced" if window.known.are_there else "loaded")

    def record(self, windows: Sequence[DecodedWindow]) -> None:
        """Record the receipts of windows in one commit, so that no window has a receipt for only one table."""
        self.before_step("receipts")
        self.ledger.record_receipts([receipt for each in windows for receipt in (each.dead_letters, each.decoded)])

    def _of_rows(self, window: Prepared, written: DecodedFiles) -> LoadMetadata:
        return replace(window.metadata, figures=written.figures or None)

    def _again(
        self,
        raw: Receipt,
        known: Receipts,
        of_rows: LoadMetadata,
        written: DecodedFiles,
        letters: WindowCommit,
        rows: WindowCommit,
        began: float,
    ) -> DecodedWindow:
        """Keep the tables' rows, repair damaged ones, or raise an error if the same declaration now gives other rows.

        Rows that were measured against other expectations are kept, and get a receipt with the figures for today's
        expectations.
        """
        if known.decoded is None or known.dead_letters is None:
            raise AssertionError("unreachable: both have receipts")
        with self._deleted_if_refused(written):
            for receipt, now in ((known.dead_letters, written.dead_letters), (known.decoded, written.decoded)):
                if not same(now.measured, receipt):
                    raise DecodingDiffersError(receipt.table.name, receipt.window.key, _difference(receipt, now))
            damaged = (
                not self.dead_letters.is_intact(known.dead_letters),
                not self.decoded.is_intact(known.decoded),
            )
        # Both tables still name the same raw load; the newest raw load has proved its rows equal.
        of_rows = replace(of_rows, made_from=known.decoded.made_from)
        metadata = replace(of_rows, figures=None)
        seconds = time.monotonic() - began
        dead, decoded, healed = known.dead_letters, known.decoded, list[Receipt]()
        if damaged[0]:
            with self._deleted_if_refused(written, decoded_only=True):
                dead = self.dead_letters.replace(
                    letters, metadata, written.dead_letters, seconds, _letters_proof(raw, written)
                )
            healed.append(dead)
        else:
            self.dead_letters.delete(written.dead_letters)
        if damaged[1]:
            decoded = self.decoded.replace(rows, of_rows, written.decoded, seconds, _rows_proof(raw, written))
            healed.append(decoded)
        else:
            self.decoded.delete(written.decoded)
        measured = list[Receipt]()
        if not damaged[1] and of_rows.figures is not None and of_rows.figures != known.decoded.figures:
            decoded = replace(known.decoded, figures=of_rows.figures)
            measured.append(decoded)
        self.ledger.record_receipts([*healed, *measured])
        return DecodedWindow(decoded, dead, "healed" if healed else "unchanged")

    def empty(self, raw: Receipt, known: Receipts) -> DecodedWindow:
        """Return the receipts of a window without offsets. If they are new, the caller records them; nothing is written
        here."""
        dead = known.dead_letters or empty_receipt(self.declaration.dead_letter_table, raw, self.run_id)
        decoded = known.decoded or empty_receipt(self.declaration.decoded_table, raw, self.run_id)
        return DecodedWindow(decoded, dead, "empty")

    def receipts(self, key: str) -> Receipts:
        """Return the receipts of a window in both tables."""
        return Receipts(self.decoded.receipt(key), self.dead_letters.receipt(key))

    def metadata(self, raw: Receipt, order: DecodeOrder) -> LoadMetadata:
        """Return the metadata of the window for the commits to both tables."""
        if raw.table_version is None:
            raise AssertionError("unreachable: windows without offsets are not decoded")
        return LoadMetadata(
            raw.topic,
            raw.topic_id,
            raw.generation,
            raw.window,
            raw.ranges,
            load_id=order.load_id,
            run_id=self.run_id,
            made_from=TableLoad(raw.table, raw.table_version, raw.load_id, self.declared.digest_of(order.window)),
        )

    @contextmanager
    def named_conflicts(self, window: Prepared) -> Iterator[None]:
        """Within the block, raise ConcurrentLoadError instead of the original error if another load has committed the
        window in the meantime: that load deletes the files of all earlier loads."""
        key = window.order.window
        try:
            yield
        except PlatformError as e:
            if window.letters.is_overtaken(key) or window.rows.is_overtaken(key):
                raise ConcurrentLoadError(self.declaration.decoded_table.name, key) from e
            raise

    def _check_conserved(self, raw: Receipt, written: DecodedFiles) -> None:
        """Raise FilesLostError if the rows of both tables are not exactly those that the raw load committed."""
        both = written.decoded.measured.offsets + written.dead_letters.measured.offsets
        if both != raw.offsets:
            detail = (
                f"the files gave {written.decoded.measured.rows:,} decoded rows and {written.dead_letters.measured.rows:,} dead "
                f"letters, but the receipt of load {raw.load_id} records {raw.rows:,} rows"
                + ("" if both.rows != raw.rows else " with other offsets")
            )
            raise FilesLostError(raw.table.name, raw.window.key, detail)

    def _check_nothing_erased(self, window: str, erased: Ranges, decided: int | None) -> None:
        """Raise ConcurrentLoadError if an operator has erased records after the raw rows were read."""
        lake, topic = self.ledger.lake, self.declaration.topic
        if decisions.version(lake, decided) != decided and (
            erased_of(self.ledger, topic, [window]).get(window, {}) != erased
        ):
            raise ConcurrentLoadError(self.declaration.decoded_table.name, window)

    def _check_not_expired(self, window: str) -> None:
        """Raise ConcurrentLoadError if upkeep has removed the raw rows as expired after they were read. A window that expires
        later is removed by the next upkeep."""
        if self.declaration.keep is None:
            return
        raw = self.ledger.receipts(self.declaration.raw_table, [window]).get(window)
        if raw is not None and raw.is_expired:
            raise ConcurrentLoadError(self.declaration.decoded_table.name, window)

    @contextmanager
    def _deleted_if_refused(self, written: DecodedFiles, *, decoded_only: bool = False) -> Iterator[None]:
        """Delete the written files if the block fails. The block commits none of them."""
        try:
            yield
        except BaseException:
            self.decoded.delete(written.decoded)
            if not decoded_only:
                self.dead_letters.delete(written.dead_letters)
            raise


def _letters_proof(raw: Receipt, written: DecodedFiles) -> Proof:
    return proof_of(raw, DECODED, written.decoded.measured.rows)


def _rows_proof(raw: Receipt, written: DecodedFiles) -> Proof:
    return proof_of(raw, DEAD_LETTERS, written.dead_letters.measured.rows)


def _difference(receipt: Receipt, now: StagedFiles) -> str:
    if now.measured.rows != receipt.rows:
        return f"{now.measured.rows:,} rows instead of the {receipt.rows:,} that load {receipt.load_id} wrote"
    what = "different content at the same offsets" if now.measured.offsets == receipt.offsets else "different offsets"
    return f"{now.measured.rows:,} rows, the same number as load {receipt.load_id}, but with {what}"


def _spread(keys: Sequence[str], most: int) -> list[str]:
    """Return up to `most` of `keys`, evenly spread, including the first and the last."""
    if len(keys) <= most:
        return list(keys)
    return [keys[i * (len(keys) - 1) // (most - 1)] for i in range(most)]
