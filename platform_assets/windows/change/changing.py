"""Making the changes of one window: the record of each key that counts, deletes included.

Changes are a pure function of the decoded window and the topic's `state:`. They are made after the decoded window is
committed. If the receipt is missing, or names another load of the decoded window or another declaration, they are made
again.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.formats import decoder_of
from platform_assets.errors import (
    ConcurrentLoadError,
    ConfigurationError,
    DecodingDiffersError,
    FilesLostError,
    NotLoadedError,
)
from platform_assets.lake import changes_table, decoded_table, delta_log, holdings, load_log
from platform_assets.lake.delta_log import Anchor
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions, followed
from platform_assets.ledger.entries import EXPIRED, Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.expectations import FiguresByDigest
from platform_assets.model.logs import logger
from platform_assets.model.state import REFUSED, SUPERSEDED, StateDeclaration
from platform_assets.model.tables import TableLoad
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.load.receipts import Proof, empty_receipt
from platform_assets.windows.load.replacing import Loaded, WindowReplacer, same

if TYPE_CHECKING:
    from platform_assets.engines.changes import ChangesEngine, ChangesFiles

_log = logger(__name__)
MADE_BY: Final = "offsets of the decoded load"
"""Proof of a window's changes: each of the decoded rows is a change, superseded, or refused."""
_RACES: Final = 3
_LOAD_ID: Final = '"load_id": ?"(?P<load>[^"]*)"'
_DECLARATION: Final = '"declaration": ?"(?P<declaration>[^"]*)"'


@dataclass(frozen=True)
class WindowChanger:
    """Makes the changes of windows of one topic. Raises ConfigurationError if the topic has no `state:`."""

    declaration: TopicDeclaration
    ledger: Ledger
    run_id: str = ""
    before_step: Callable[[str], None] = lambda step: None
    """Called with the name of each irreversible step, before that step. Tests use it to kill a process there."""

    @cached_property
    def engine(self) -> ChangesEngine:
        """The engine that writes changes. It loads compiled code, which a code location does not need."""
        from platform_assets.engines.changes import ChangesEngine

        return ChangesEngine(self.ledger.lake)

    @property
    def changes(self) -> WindowReplacer:
        """Replaces windows of the table of changes."""
        return WindowReplacer(self.declaration.changes_table, self.ledger, self.engine, self.run_id)

    @cached_property
    def declared(self) -> tuple[DecodeDeclaration, StateDeclaration]:
        """The declarations of decoding and of the state. Raises ConfigurationError if there is no state."""
        d = self.declaration
        if d.decode is None or d.state is None:
            raise ConfigurationError(
                f"topic {d.topic!r} has no `state:` in its YAML, so it has no table {d.changes_table}: add `state:` and `decode:`"
            )
        return d.decode, d.state

    def make(self, key: str) -> Loaded:
        """Make the changes of the window with this key.

        Raises NotLoadedError if the window is not decoded; FilesLostError if the decoded rows are not those of their
        load; DecodingDiffersError; ConcurrentLoadError if other loads repeatedly committed the window first; and
        ConfigurationError if the declared `snapshots` need a topic with one partition.
        """
        for attempt in range(_RACES):
            try:
                return self._once(key)
            except ConcurrentLoadError as e:
                if attempt == _RACES - 1:
                    raise
                _log.info("%s Doing that now, in this run.", e)
        raise AssertionError("unreachable")

    def layout(self) -> pa.Schema:
        """Create the table, or change its columns as declared. Return the columns that files must have."""
        d = self.declaration
        return changes_table.prepare(self.ledger.lake.table(d.changes_table), d.topic, self._columns)

    def difference(self, key: str) -> str | None:
        """Make the changes of a window again, and discard them. Describe how they differ from the receipt; None if they
        do not differ, or if the receipt is missing or outdated. Neither the table nor the ledger is changed."""
        known, decoded = self.changes.receipt(key), self._decoded(key)
        if known is None or decoded is None or decoded.table_version is None or not self.is_current(known, decoded):
            return None
        layout = pa.schema(self.ledger.lake.table(self.declaration.changes_table).delta().schema().to_arrow())
        written = self._written(decoded, layout, f"audit-{uuid.uuid4()}", window_column=False)
        self.changes.delete(written.changes)
        return None if same(written.changes.measured, known) else _difference(known, written)

    def begun_at(self) -> int:
        """Return the version of the table at which it last started over; 0 if it never did."""
        return decoded_table.begun_at(self.ledger.lake.table(self.declaration.changes_table))

    def is_current(self, known: Receipt, decoded: Receipt, begun: int | None = None) -> bool:
        """Return True if changes with the receipt `known` are those of this load of the decoded window, and the table has not
        started over since. `begun` is the result of `begun_at`, if it is known."""
        if decoded.table_version is None or decoded.is_expired:
            return known.rows == 0
        begun = self.begun_at() if begun is None else begun
        if known.rows and (known.table_version is None or known.table_version < begun):
            return False
        return known.made_from is not None and known.made_from.load_id == decoded.load_id and (
            known.made_from.declaration == self.declared[1].digest
        )  # fmt: skip

    @cached_property
    def _columns(self) -> pa.Schema:
        decode, state = self.declared
        key_fields = None if decode.key is None else decoder_of(decode.key).fields
        return changes_table.columns(decoded_table.columns(key_fields, decoder_of(decode.value).fields), state)

    def _decoded(self, key: str) -> Receipt | None:
        return self.ledger.receipts(self.declaration.decoded_table, [key]).get(key)

    def _check_partitions(self, decoded: Receipt) -> None:
        """Raise ConfigurationError if nothing tells which records of the window come before the beginning of a snapshot."""
        others = [p for p, part in decoded.ranges.items() if p and part.size]
        if others and self.declared[1].has_sweeps:
            d = self.declaration
            raise ConfigurationError(
                f"{d.changes_table}: window {decoded.window.key} has offsets of partition {others[0]}, and `snapshots: whole` "
                "needs a topic with one partition. Leave `snapshots` out under `state`, and compare the table with "
                f"`platform-assets compare-postgres {d.topic}` after a snapshot; or follow the table with another connector "
                "into a new topic with one partition."
            )

    def _once(self, key: str) -> Loaded:
        d, lake = self.declaration, self.ledger.lake
        decided = decisions.version(lake)
        if erased := erased_of(self.ledger, d.topic, [key]).get(key):
            WindowEraser(d, self.ledger, self.run_id).erase_pending(key, erased)
        layout = self.layout()
        # Opened before the receipts are read: a later commit by others is a conflict.
        opened = self.changes.open()
        known, decoded = self.changes.receipt(key), self._decoded(key)
        if decoded is None:
            raise NotLoadedError(d.changes_table.name, d.decoded_table.name, key)
        if decoded.table_version is None or decoded.is_expired:
            return self._without_rows(decoded, known)
        self._check_partitions(decoded)
        if not opened.columns().equals(layout):
            raise ConcurrentLoadError(d.changes_table.name, key)
        began, load_id = time.monotonic(), str(uuid.uuid4())
        written = self._written(decoded, layout, load_id, window_column=opened.is_flat, field_ids=opened.field_ids())
        try:
            now_erased = erased_of(self.ledger, d.topic, [key]).get(key)
            if decisions.version(lake, decided) != decided and now_erased != erased:
                raise ConcurrentLoadError(d.changes_table.name, key)
            is_same = known is not None and same(written.changes.measured, known)
            is_current = known is not None and self.is_current(known, decoded)
            if known is not None and is_current and not is_same:
                raise DecodingDiffersError(d.changes_table.name, key, _difference(known, written))
            # Equal rows of a load without a receipt are written again, because nothing else tells that they are equal.
            is_kept = known is not None and is_same and self.changes.is_intact(known) and not any(
                load_log.is_of_other_load(path, key, known.load_id) for path in opened.files_of(key).paths
            )  # fmt: skip
        except BaseException:
            self.changes.delete(written.changes)
            raise
        made_from = self._made_from(decoded)
        if known is not None and is_kept and known.made_from is not None:
            self.changes.delete(written.changes)
            if not is_current:
                # The decoded window was written again with the same rows for each key.
                known = replace(
                    known, made_from=made_from, figures=written.figures, holes=holes_of(decoded, written.figures)
                )
                self.ledger.record_receipts([known])
            return Loaded(known, "unchanged")
        metadata = LoadMetadata(
            decoded.topic,
            decoded.topic_id,
            decoded.generation,
            decoded.window,
            decoded.ranges,
            load_id=load_id,
            run_id=self.run_id,
            made_from=made_from,
            figures=written.figures,
        )
        self.before_step("changes")
        try:
            receipt = self.changes.replace(
                opened,
                metadata,
                written.changes,
                time.monotonic() - began,
                Proof(holes_of(decoded, written.figures), MADE_BY),
            )
        except BaseException:
            if not opened.is_made(metadata):
                self.changes.delete(written.changes)
            raise
        self.before_step("receipt")
        self.ledger.record_receipts([receipt])
        return Loaded(receipt, "loaded" if known is None else "healed" if is_current else "replaced")

    def _made_from(self, decoded: Receipt) -> TableLoad:
        if decoded.table_version is None:
            raise AssertionError("unreachable: windows without offsets have no changes")
        return TableLoad(decoded.table, decoded.table_version, decoded.load_id, self.declared[1].digest)

    def _without_rows(self, decoded: Receipt, known: Receipt | None) -> Loaded:
        """Return a receipt without rows for a window without offsets, or whose decoded rows were removed as expired."""
        if known is not None and known.rows == 0:
            return Loaded(known, "empty")
        if decoded.is_expired:
            receipt = replace(
                decoded,
                table=self.declaration.changes_table,
                table_version=None,
                table_id=None,
                load_id=str(uuid.uuid4()),
                run_id=self.run_id,
                engine=None,
                made_from=None,
            )
        else:
            receipt = empty_receipt(self.declaration.changes_table, decoded, self.run_id)
        self.ledger.record_receipts([receipt])
        return Loaded(receipt, "empty")

    def _written(self, decoded: Receipt, layout: pa.Schema, load_id: str, **of_files: object) -> ChangesFiles:
        """Write the changes of a window, and check that they were made from exactly the rows of `decoded`."""
        from platform_assets.engines.changes import ChangesOrder
        from platform_assets.lake.field_ids import NO_IDS

        d, key = self.declaration, decoded.window.key
        order = ChangesOrder(
            topic=d.topic,
            window=key,
            version=load_log.version(self.ledger.lake.table(d.decoded_table)),
            generation=decoded.generation,
            state=self.declared[1],
            layout=layout,
            load_id=load_id,
            records_per_file=d.records_per_file,
            partitions=len(decoded.ranges.by_partition),
            **{"field_ids": NO_IDS, **of_files},  # type: ignore[arg-type]
        )
        try:
            written = self.engine.write(order)
        except FilesLostError as e:
            self._check_still(decoded)
            raise e
        if not same(written.source, decoded):
            self.changes.delete(written.changes)
            self._check_still(decoded)
            raise FilesLostError(
                d.decoded_table.name, key, "the table's rows differ from those that the load committed"
            )
        return written

    def _check_still(self, decoded: Receipt) -> None:
        """Raise ConcurrentLoadError if the window was decoded again in the meantime."""
        now = self._decoded(decoded.window.key)
        if now is None or now.load_id != decoded.load_id:
            raise ConcurrentLoadError(self.declaration.changes_table.name, decoded.window.key)


def stale_windows(ledger: Ledger, declaration: TopicDeclaration) -> list[str]:
    """Return, in order, the windows whose changes were made from another load of the decoded window, with another
    declaration, or before the table started over, or were lost with a damaged file, or whose rows come from a load that
    ended before its receipt. Windows without changes are excluded.

    The result is remembered until the ledger has new entries of one of the two tables, or the table of changes has a new
    version. Raises whatever reading the ledger raises.
    """
    if declaration.state is None:
        return []
    commits, digest = followed.of(ledger.lake.commits), declaration.state.digest
    place, folder = (ledger.lake, declaration.topic), ledger.lake.table(declaration.changes_table)
    with _lock:
        known = _known.get(place)
    if known is not None and known.digest == digest and known.commits is not None and _is_newest(folder, known.table):
        tables = (declaration.changes_table, declaration.decoded_table)
        since = [commits.entries_since(known.commits, table.ledger_name) for table in tables]
        if all(each is not None and not each[1] for each in since):
            return list(known.windows)
    # Asked for first: entries and versions that come later are read again.
    at, table = commits.newest(), delta_log.newest_anchor(folder)
    found = _stale(ledger, declaration, digest)
    with _lock:
        _known[place] = _Known(at, table, digest, tuple(found))
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The stale windows with `commits` as the last commit of the ledger of loads, `table` as that of the table of changes, and
    a state with this digest."""

    commits: Anchor | None
    table: Anchor | None
    digest: str
    windows: tuple[str, ...]


_known: dict[tuple[Lake, str], _Known] = {}
_lock = threading.Lock()


def _is_newest(folder: Folder, known: Anchor | None) -> bool:
    """Return True if `known` still is the newest commit of a table; None stands for a table without any. Reads one commit."""
    if known is None:
        return not delta_log.exists(folder)
    return delta_log.anchor(folder, known.version) == known and not folder.has(delta_log.name_of(known.version + 1))


def _stale(ledger: Ledger, declaration: TopicDeclaration, digest: str) -> list[str]:
    d = declaration
    made = ledger.commit_rows(d.changes_table, columns=["made_from", "table_version", "rows", "load_id"])
    decoded = ledger.commit_rows(d.decoded_table, columns=["load_id", "table_version", "kind"])
    # Windows without offsets, and those whose decoded rows were removed as expired, have no changes to make.
    decoded = decoded.filter(pc.and_(pc.is_valid(decoded["table_version"]), pc.not_equal(decoded["kind"], EXPIRED)))
    decoded = decoded.group_by(["window", "load_id"]).aggregate([])
    made = made.group_by(["window", "made_from", "table_version", "load_id"]).aggregate([("rows", "sum")])
    folder = ledger.lake.table(d.changes_table)
    held = holdings.actions(folder) if load_log.exists(folder) else None
    loads = dict(zip(made["window"].to_pylist(), made["load_id"].to_pylist(), strict=True))
    lacking = frozenset[str]() if held is None else load_log.of_other_loads(held, loads)
    other = lacking.intersection(decoded["window"].to_pylist())
    decoded = decoded.filter(pc.is_in(decoded["window"], made["window"].combine_chunks()))
    if not decoded.num_rows:
        return sorted(other)
    own = made.take(pc.index_in(decoded["window"], made["window"].combine_chunks()))
    found = own["made_from"].combine_chunks()
    made_from = pc.struct_field(pc.extract_regex(found, _LOAD_ID), "load")
    declared = pc.struct_field(pc.extract_regex(found, _DECLARATION), "declaration")
    # A window without rows loses none, and gets no new version.
    begun = decoded_table.begun_at(folder)
    is_lost = pc.is_in(own["window"], _lost(folder, own, held))
    is_held = pc.and_(pc.greater_equal(own["table_version"], begun), pc.invert(is_lost))
    is_held = pc.or_(pc.equal(own["rows_sum"], 0), is_held).combine_chunks()
    is_current = pc.and_(pc.equal(made_from, decoded["load_id"].combine_chunks()), pc.equal(declared, digest))
    is_current = pc.and_(pc.fill_null(is_current, False), pc.fill_null(is_held, False))
    return sorted(other.union(decoded["window"].filter(pc.invert(is_current)).to_pylist()))


def _lost(folder: Folder, receipts: pa.Table, files: pa.Table | None) -> pa.Array:
    """Return the windows with rows, by their `receipts`, that have none of the table's `files`. A damaged file that windows
    share takes the rows of all with it, and only the window whose load replaced that file gets a receipt. Windows that upkeep
    has just removed as expired are left out: their receipts follow."""
    rows = receipts.filter(pc.greater(receipts["rows_sum"], 0))
    if not rows.num_rows or files is None:
        return rows["window"].combine_chunks()
    held = pc.unique(files[holdings.WINDOW].combine_chunks())
    rows = rows.filter(pc.and_(pc.invert(pc.is_in(rows["window"], held)), pc.is_valid(rows["table_version"])))
    gone = dict(zip(rows["window"].to_pylist(), rows["table_version"].to_pylist(), strict=True))
    return pa.array(sorted({*gone} - {*load_log.expiries_since(folder, gone)}), pa.string())


def unmade(ledger: Ledger, declaration: TopicDeclaration, missing: Collection[str]) -> list[str]:
    """Return those of `missing` windows, which have no changes, that are decoded."""
    if not missing:
        return []
    decoded = ledger.commit_rows(declaration.decoded_table, sorted(missing), columns=["window"])
    return sorted(set(decoded["window"].to_pylist()))


def holes_of(decoded: Receipt, figures: FiguresByDigest) -> dict[str, int]:
    """Return the offsets of a window without a change by kind: those without a decoded row, superseded and refused
    ones."""
    own = {name: figures[name].failing for name in (SUPERSEDED, *REFUSED) if name in figures}
    return {kind: n for kind, n in {**(decoded.holes or {}), **own}.items() if n}


def _difference(receipt: Receipt, written: ChangesFiles) -> str:
    now = written.changes.measured
    if now.rows != receipt.rows:
        return f"{now.rows:,} rows instead of the {receipt.rows:,} that load {receipt.load_id} wrote"
    return f"{now.rows:,} rows, the same number as load {receipt.load_id}, but with different content"
