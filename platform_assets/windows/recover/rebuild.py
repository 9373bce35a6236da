"""Rebuilding a ledger from the tables' own commits, after the ledger was lost or rolled back.

The cuts between loaded windows are in the commits' metadata. Windows whose commits have left the log are restored from
the rows: any cut between the last row of a window and the first row of the next window gives the same rows. Edges
between two loaded windows that have no offsets between them belonged to windows without offsets. No new cut is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from platform_assets.engines.batching import batched_windows
from platform_assets.engines.protocol import LoadEngine, TableReader
from platform_assets.errors import FilesLostError, LedgerConflictError, LedgerCorruptError, PlatformError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.lake.standing import standing
from platform_assets.ledger.entries import ERASED, Receipt, RecordedCut
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import Cut, TopicRanges, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import closed_edges, key_of
from platform_assets.windows.load.receipts import empty_receipt, receipt_of
from platform_assets.windows.recover.expired_loads import newest_loads, with_expired


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """Entries that were restored for one topic."""

    topic: str
    cuts: int
    receipts: int
    merged: tuple[str, ...]
    """Windows that now span several earlier windows, which were sealed but not loaded."""
    unread: tuple[FilesLostError, ...]
    """Errors of the windows whose receipts are still missing."""
    found: tuple[str, ...] = ()
    """Windows whose loads have left the table's log. Rows that were deleted or erased earlier may be missing from these
    windows."""
    first: Mapping[int, int] = field(default_factory=dict)
    """Start offset of the first window, by partition, if only the rows show it. Offsets of 0 are left out."""


def rebuild(
    declaration: TopicDeclaration,
    ledger: Ledger,
    engine: LoadEngine,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Rebuilt:
    """Restore the ledger entries of one topic that its raw table proves and the ledger lacks. Running it again is safe.

    Receipts are recorded as they are restored, so another call continues after an interruption. `progress` is called
    with a text that says what is being read. Raises LedgerCorruptError if the table's commits contradict each other or
    the existing entries of the ledger. Also raises whatever reading the table raises, except for lost files.
    """
    ledger.create()
    table = ledger.lake.table(declaration.raw_table)
    newest = ledger.newest_cut(declaration.topic)
    sealed = {w.key: w for w in ledger.windows(declaration.topic)}
    in_log = newest_loads(table)
    loads = with_expired(table, declaration, in_log, sealed)
    _check_agree(declaration.topic, ledger, loads)
    cuts, merged = cuts_of(declaration, loads, newest)
    if cuts and not ledger.record_cuts(cuts, newest.edge if newest is not None else None):
        raise LedgerConflictError(
            f"another process is recording cuts of topic {declaration.topic!r}: stop the topic's sensor, then rebuild again"
        )
    _restore_erasures(declaration.topic, ledger, loads)
    known = ledger.receipts(declaration.raw_table)
    with_files = {load.metadata.window.key for load in loads}
    empty = [
        w
        for w in ledger.windows(declaration.topic)
        if not w.ranges.size and w.key not in known and w.key not in with_files
    ]
    ledger.record_receipts([empty_receipt(declaration.raw_table, w, "") for w in empty])
    newer = _newer(in_log, known, load_log.table_id(table)) if in_log else set()
    lacking = [load for load in loads if load.metadata.window.key not in known or load.metadata.window.key in newer]
    restored, unread, found_rows = 0, list[FilesLostError](), list[str]()
    for found in _receipts(declaration, ledger.lake, lacking, engine, progress):
        receipts = [outcome for outcome in found if isinstance(outcome, Receipt)]
        unread += [outcome for outcome in found if isinstance(outcome, FilesLostError)]
        ledger.record_receipts(receipts)
        restored += len(receipts)
        found_rows += [receipt.window.key for receipt in receipts if receipt.is_found]
    first = _made_up_start(newest, cuts, loads)
    return Rebuilt(declaration.topic, len(cuts), restored, merged, tuple(unread), tuple(sorted(found_rows)), first)


def _newer(in_log: Sequence[LoadCommit], known: Mapping[str, Receipt], table_id: str) -> set[str]:
    """Return the windows that were loaded again, or had records erased, after their receipts were recorded. An older
    ledger does not have these later commits."""
    found = set[str]()
    for load in in_log:
        r = known.get(load.metadata.window.key)
        if r is None or r.load_id == load.metadata.load_id:
            continue
        if r.table_version is None or r.table_version < load.version or r.table_id not in (None, table_id):
            found.add(load.metadata.window.key)
    return found


def _made_up_start(
    newest: RecordedCut | None, cuts: Sequence[RecordedCut], loads: Sequence[LoadCommit]
) -> dict[int, int]:
    """Return the first cut, by partition, if it was derived only from rows. Offsets of 0 are left out."""
    if newest is not None or not cuts or not loads[0].metadata.found or loads[0].metadata.first_cut is not None:
        return {}
    return {p: offset for p, offset in cuts[0].cut.offsets.items() if offset}


def _restore_erasures(topic: str, ledger: Ledger, loads: Sequence[LoadCommit]) -> None:
    """Record the erased offsets that the newest load of each window lists, so that no load restores those records."""
    named = {load.metadata.window.key: load.metadata.erased for load in loads if load.metadata.erased}
    known = erased_of(ledger, topic, list(named)) if named else {}
    lacking = [
        (window, {p: subtract(parts, known.get(window.key, {}).get(p, ())) for p, parts in named[window.key].items()})
        for window in ledger.windows(topic)
        if window.key in named
    ]
    ledger.record_acceptances(
        [(w, r) for w, r in lacking if any(r.values())], "named by the table's own commits", ERASED
    )


def cuts_of(
    declaration: TopicDeclaration, loads: Sequence[LoadCommit], newest: RecordedCut | None
) -> tuple[list[RecordedCut], tuple[str, ...]]:
    """Return the cuts after `newest` that `loads` (ascending) imply, and the windows that merge several earlier
    windows. Pure.

    Raises LedgerCorruptError if two loads overlap.
    """
    cuts: list[RecordedCut] = []
    merged: list[str] = []
    at = newest
    for load in loads:
        m = load.metadata
        if at is not None and m.window.end <= at.edge:
            continue
        start = Cut({p: r.start for p, r in m.ranges.items()})
        if at is None:
            # If the first cut is not known, everything before the first load may have been sealed and not loaded.
            edge, first = m.first_cut or (declaration.first_edge, Cut(dict.fromkeys(start.offsets, 0)))
            at = _cut(m, *((edge, first) if edge < m.window.start else (m.window.start, start)))
            cuts.append(at)
        if m.generation > at.generation:
            # Offsets of windows of the previous log that were never loaded can no longer be known.
            edge, first = m.first_cut or (m.window.start, start)
            cuts += [_cut(m, e, at.cut, of=at) for e in closed_edges(declaration.schedule, at.edge, edge)]
            at = _cut(m, max(edge, at.edge), first)
            cuts.append(at)
        if at.edge < m.window.start:
            between = closed_edges(declaration.schedule, at.edge, m.window.start)
            if at.cut.offsets == {p: o for p, o in start.offsets.items() if p in at.cut.offsets or o}:
                cuts += [_cut(m, edge, at.cut) for edge in between[:-1]]
            elif len(between) > 1:
                merged.append(key_of(at.edge))
            at = _cut(m, m.window.start, at.cut.grow(start.offsets, start.offsets))
            cuts.append(at)
        if any(start.at(p) < at.cut.at(p) for p in start.offsets):
            raise LedgerCorruptError(f"window {m.window} of {m.topic!r} overlaps the one before it in the table's log")
        at = _cut(m, m.window.end, Cut({p: r.end for p, r in m.ranges.items()}))
        cuts.append(at)
    return cuts, tuple(merged)


def _cut(metadata: LoadMetadata, edge: datetime, cut: Cut, *, of: RecordedCut | None = None) -> RecordedCut:
    return RecordedCut(
        metadata.topic,
        metadata.topic_id if of is None else of.topic_id,
        metadata.generation if of is None else of.generation,
        edge,
        cut,
        dict.fromkeys(cut.offsets, "rebuilt"),
        dict.fromkeys(cut.offsets, None),
    )


def _check_agree(topic: str, ledger: Ledger, loads: Sequence[LoadCommit]) -> None:
    windows: Mapping[str, TopicRanges] = {w.key: w.ranges for w in ledger.windows(topic)}
    for load in loads:
        m = load.metadata
        if m.window.key in windows and windows[m.window.key] != m.ranges:
            raise LedgerCorruptError(
                f"window {m.window} of topic {topic!r}: the ledger has {windows[m.window.key].triples()}, but the "
                f"table's commit {load.version} has {m.ranges.triples()}. Move _ledger away and rebuild it from the "
                "tables alone."
            )


def _receipts(
    declaration: TopicDeclaration,
    lake: Lake,
    loads: Sequence[LoadCommit],
    engine: LoadEngine,
    progress: Callable[[str], None],
) -> Iterator[list[Receipt | FilesLostError]]:
    """Yield the receipt of each load, in batches that are read in one query.

    Rows that OPTIMIZE has moved are read from their new files. Rows that were changed later are read at the version of
    their load.
    """
    if not loads:
        return
    table = lake.table(declaration.raw_table)
    newest = load_log.version(table)
    opened = rows.Opened.at(table, newest)
    table_id = load_log.table_id(table)
    loads = [replace(load, table_id=table_id) for load in loads]
    stand = standing(table, loads, newest)
    # Windows unchanged since their load can be read together, at the newest version.
    unchanged, changed = list[LoadCommit](), list[LoadCommit]()
    for load in stand.values():
        (unchanged if is_unchanged(load, newest, opened.files) else changed).append(load)
    batches = [(batch, newest) for batch in batched_windows(unchanged, lambda load: load.metadata.ranges.size)]
    batches += [([load], load.version) for load in changed]
    loaded = {load.metadata.window.key: load for load in loads}
    done = 0
    for batch, version in batches:
        done += len(batch)
        progress(f"reading windows up to {batch[-1].metadata.window} ({done:,} of {len(loads):,})")
        by_key = {load.metadata.window.key: load for load in batch}
        began = time.monotonic()
        measured = dict(measured_at(engine, lake, declaration.raw_table, list(by_key), version))
        seconds = (time.monotonic() - began) / len(batch)
        found = list[Receipt | FilesLostError]()
        for key, outcome in measured.items():
            at = opened if version == newest else None
            # The files of OPTIMIZE may be damaged while those of the load still exist.
            if isinstance(outcome, FilesLostError) and loaded[key] is not by_key[key]:
                by_key[key], at = loaded[key], None
                outcome = dict(measured_at(engine, lake, declaration.raw_table, [key], loaded[key].version))[key]
            found.append(_receipt(declaration, lake, by_key[key], outcome, seconds, at))
        yield found


def measured_at(
    reader: TableReader, lake: Lake, table: TableRef, keys: Sequence[str], version: int
) -> Iterator[tuple[str, Measured | PlatformError]]:
    """Yield the measures of `reader`. If the log no longer has a version, yield FilesLostError for each of its windows."""
    folder = lake.table(table)
    if version < load_log.version(folder) and holdings.files_if_kept(folder, keys[0], version) is None:
        for key in keys:
            yield key, FilesLostError(table.name, key, f"the table's log no longer has version {version}")
        return
    yield from reader.measure(table, keys, version)


def is_unchanged(load: LoadCommit, newest: int, files: Mapping[str, WindowFiles]) -> bool:
    """Return True if the window is unchanged since this load in version `newest` of the table, which has `files`."""
    added = load_log.added_files(load)
    now = files.get(load.metadata.window.key, holdings.NO_FILES)
    return load.version == newest or (added is not None and added[0].digest == now.digest)


def _receipt(
    declaration: TopicDeclaration,
    lake: Lake,
    load: LoadCommit,
    measured: Measured | PlatformError,
    seconds: float,
    opened: rows.Opened | None,
) -> Receipt | FilesLostError:
    if isinstance(measured, FilesLostError):
        return measured
    if isinstance(measured, PlatformError):
        raise measured
    return receipt_of(lake, declaration.raw_table, load, measured, kind="rebuilt", seconds=seconds, opened=opened)
