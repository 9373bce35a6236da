"""Rebuilding a ledger from the tables' own commits, after it was lost or rolled back.

The cuts between loaded windows are in the commits' metadata. Windows whose commits have left the log are restored
from the rows: any cut between the last row of a window and the first of the next gives the same rows again. Edges
between two loaded windows at which nothing lies were windows without offsets. No new cut is taken.
"""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.batching import read_together
from platform_assets.engines.protocol import LoadEngine, TableReader
from platform_assets.errors import FilesLostError, LedgerConflictError, LedgerCorruptError, PlatformError
from platform_assets.lake import load_log, rows
from platform_assets.lake.load_log import LoadCommit, LoadMetadata, WindowFiles
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.standing import standing
from platform_assets.ledger.entries import ERASED, Receipt, RecordedCut
from platform_assets.ledger.erased import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import Cut, TopicRanges, subtract
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, closed_edges, edge_of, edges_from, key_of
from platform_assets.windows.receipts import empty_receipt, receipt_of


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was restored for one topic."""

    topic: str
    cuts: int
    receipts: int
    merged: tuple[str, ...]
    """Windows that now reach over several former ones: those were sealed, and none of them loaded."""
    unread: tuple[FilesLostError, ...]
    """Why the receipts of other windows are still lacking."""


def rebuild(
    declaration: TopicDeclaration,
    ledger: Ledger,
    engine: LoadEngine,
    *,
    progress: Callable[[str], None] = lambda text: None,
) -> Rebuilt:
    """Restore the entries of one topic that its raw table proves and the ledger lacks. Running it again is safe.

    Receipts are recorded as they are restored, so one that is cut short goes on where it was. `progress` is called with what is
    being read. Raises LedgerCorruptError where the table's commits contradict each other or what the ledger still has, and
    what reading the table raises, but for lost files.
    """
    ledger.create()
    table = ledger.lake.table(declaration.raw_table)
    newest = ledger.newest_cut(declaration.topic)
    loads = with_expired(table, declaration, newest_loads(table))
    _check_agree(declaration.topic, ledger, loads)
    cuts, merged = cuts_of(declaration, loads, newest)
    if cuts and not ledger.record_cuts(cuts, newest.edge if newest is not None else None):
        raise LedgerConflictError(
            f"another process records cuts of topic {declaration.topic!r}: stop its sensor, then rebuild again"
        )
    _restore_erasures(declaration.topic, ledger, loads)
    known = ledger.receipts(declaration.raw_table)
    empty = [w for w in ledger.windows(declaration.topic) if not w.ranges.size and w.key not in known]
    ledger.record_receipts([empty_receipt(declaration.raw_table, w, "") for w in empty])
    lacking = [load for load in loads if load.metadata.window.key not in known]
    restored, unread = 0, list[FilesLostError]()
    for found in _receipts(declaration, ledger.lake, lacking, engine, progress):
        receipts = [outcome for outcome in found if isinstance(outcome, Receipt)]
        unread += [outcome for outcome in found if isinstance(outcome, FilesLostError)]
        ledger.record_receipts(receipts)
        restored += len(receipts)
    return Rebuilt(declaration.topic, len(cuts), restored, merged, tuple(unread))


def _restore_erasures(topic: str, ledger: Ledger, loads: Sequence[LoadCommit]) -> None:
    """Record which offsets were erased, so that no load brings those records back: the newest load of each window names them."""
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


def newest_loads(table: Folder) -> list[LoadCommit]:
    """The newest load of each window that the table's log still has, in order of the windows."""
    if not load_log.exists(table):
        return []
    newest = load_log.newest_loads(table)
    return [newest[key] for key in sorted(newest)]


def with_expired(table: Folder, declaration: TopicDeclaration, loads: Sequence[LoadCommit]) -> list[LoadCommit]:
    """`loads`, and in their order one for each window whose rows are in the table and whose commit has left the log.

    The ranges of such a window reach from the end of its neighbour before it, or from its first row where it has none,
    to its last row, or to the start of the window right after it where that one's commit is known.
    """
    if not load_log.exists(table):
        return list(loads)
    actions = load_log.file_actions(table)
    known = {load.metadata.window.key: load for load in loads}
    expired = sorted(set(load_log.window_files(actions)) - set(known))
    if not expired:
        return list(loads)
    version = load_log.version(table)
    opened = rows.Opened(table, load_log.window_files(actions))
    adds = load_log.data_files(actions)
    bounds, lost = _bounds_of(opened, actions, expired)
    logs = _logs_of(opened, loads, [key for key in expired if key not in lost])
    known_logs = [load.metadata for load in loads]
    if not logs and not known_logs:
        raise lost[expired[0]]
    keys = sorted({*known, *expired})
    whole: list[LoadCommit] = []
    reached = Cut({})
    for key, following in itertools.zip_longest(keys, keys[1:]):
        if key in known:
            whole.append(known[key])
            reached = Cut({p: r.end for p, r in known[key].metadata.ranges.items()})
            continue
        firsts = {p: b.first_offset for p, b in bounds[key].items()}
        # Behind a break in time lie windows that may never have been loaded: their offsets stay theirs.
        neighbours = whole and whole[-1].metadata.window.end == edge_of(key)
        near = [logs[key]] if key in logs else [(w.metadata.generation, w.metadata.topic_id) for w in whole[-1:]]
        generation, topic_id = (near or [*logs.values(), *((m.generation, m.topic_id) for m in known_logs)])[0]
        if whole and whole[-1].metadata.generation < generation:
            start = Cut(firsts)
        else:
            start = reached if neighbours else reached.grow(firsts, firsts)
        ends = {p: b.last_offset + 1 for p, b in bounds[key].items()}
        window = _window_of(declaration, key, following)
        # Before a break in time as well: windows that wait keep their offsets.
        is_next = following is not None and window.end == edge_of(following)
        if is_next and following in known and known[following].metadata.generation == generation:
            ends = {p: r.start for p, r in known[following].metadata.ranges.items() if r.start or p in start.offsets}
        end = start.grow(ends, ends)
        ranges = TopicRanges.between(start, end)
        metadata = LoadMetadata(declaration.topic, topic_id, generation, window, ranges, str(uuid.uuid4()), "")
        whole.append(LoadCommit(version, metadata, adds[key]))
        reached = end
    return whole


def _bounds_of(
    opened: rows.Opened, actions: pa.Table, windows: Sequence[str]
) -> tuple[dict[str, dict[int, rows.PartitionRows]], dict[str, FilesLostError]]:
    """Counts and bounds of `windows` by their rows; where files are lost, by what the log says of them, and the error.

    Raises FilesLostError where the log does not say either which offsets a window has.
    """
    found, lost = dict[str, dict[int, rows.PartitionRows]](), dict[str, FilesLostError]()
    for key in windows:
        try:
            found[key] = opened.partition_rows(key)
        except FilesLostError as e:
            files = actions.filter(pc.equal(actions["partition.window"], key)).to_pylist()
            stated = rows.from_statistics(files)
            if stated is None:
                raise
            found[key], lost[key] = stated, e
    return found, lost


def _logs_of(opened: rows.Opened, loads: Sequence[LoadCommit], expired: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Generation and topic id of each of the windows `expired` (ascending), as their rows have it.

    Without any known load the first one is of generation 1. An id that no load names is of a generation before theirs.
    """
    if not expired:
        return {}
    ids: dict[str, str] = {}
    known = {load.metadata.topic_id: load.metadata.generation for load in reversed(loads)}
    one = opened.topic_id_of(expired[0])
    if {*known, opened.topic_id_of(expired[-1])} == {one}:
        ids = dict.fromkeys(expired, one)
    else:
        ids = {key: opened.topic_id_of(key) for key in expired}
    in_order = list(dict.fromkeys(ids.values()))
    unknown = [topic_id for topic_id in in_order if topic_id not in known]
    first = max(min(known.values()) - len(unknown), 1) if known else 1
    known |= {topic_id: first + number for number, topic_id in enumerate(unknown)}
    return {key: (known[topic_id], topic_id) for key, topic_id in ids.items()}


def _window_of(declaration: TopicDeclaration, key: str, following: str | None) -> Window:
    start = edge_of(key)
    end = next(edges_from(declaration.schedule, start + timedelta(microseconds=1)))
    return Window(start, min(end, edge_of(following)) if following else end)


def cuts_of(
    declaration: TopicDeclaration, loads: Sequence[LoadCommit], newest: RecordedCut | None
) -> tuple[list[RecordedCut], tuple[str, ...]]:
    """The cuts that `loads` (ascending) imply after `newest`, and the windows that merge several. Pure.

    Raises LedgerCorruptError where two loads overlap.
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
            # Where the first cut is not known, all that lies before the first load may have been sealed and not loaded.
            edge, first = m.first_cut or (declaration.first_edge, Cut(dict.fromkeys(start.offsets, 0)))
            at = _cut(m, *((edge, first) if edge < m.window.start else (m.window.start, start)))
            cuts.append(at)
        if m.generation > at.generation:
            # Windows of the log before that nobody loaded have no offsets that could still be known.
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
                f"window {m.window} of topic {topic!r}: the ledger has {windows[m.window.key].triples()}, the table's "
                f"commit {load.version} has {m.ranges.triples()}. Move _ledger away and rebuild from the tables alone."
            )


def _receipts(
    declaration: TopicDeclaration,
    lake: Lake,
    loads: Sequence[LoadCommit],
    engine: LoadEngine,
    progress: Callable[[str], None],
) -> Iterator[list[Receipt | FilesLostError]]:
    """The receipt of each load, as many together as were read in one query.

    Rows that OPTIMIZE has put into other files are read there, and those that were changed since at the version of their load.
    """
    if not loads:
        return
    table = lake.table(declaration.raw_table)
    newest = load_log.version(table)
    opened = rows.Opened.at(table, newest)
    table_id = load_log.table_id(table)
    loads = [replace(load, table_id=table_id) for load in loads]
    stand = standing(table, loads, newest)
    # What is as its load left it can be read at the newest version, and with others.
    unchanged, changed = list[LoadCommit](), list[LoadCommit]()
    for load in stand.values():
        (unchanged if is_unchanged(load, newest, opened.files) else changed).append(load)
    batches = [(batch, newest) for batch in read_together(unchanged, lambda load: load.metadata.ranges.size)]
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
            # The files of OPTIMIZE may be damaged, and those of the load be there still.
            if isinstance(outcome, FilesLostError) and loaded[key] is not by_key[key]:
                by_key[key], at = loaded[key], None
                outcome = dict(measured_at(engine, lake, declaration.raw_table, [key], loaded[key].version))[key]
            found.append(_receipt(declaration, lake, by_key[key], outcome, seconds, at))
        yield found


def measured_at(
    reader: TableReader, lake: Lake, table: TableRef, keys: Sequence[str], version: int
) -> Iterator[tuple[str, Measured | PlatformError]]:
    """What `reader` measures; FilesLostError for each window of a version that the log no longer reaches back to."""
    folder = lake.table(table)
    if version < load_log.version(folder) and load_log.files_if_kept(folder, keys[0], version) is None:
        for key in keys:
            yield key, FilesLostError(table.name, key, f"the table's log no longer reaches back to version {version}")
        return
    yield from reader.measure(table, keys, version)


def is_unchanged(load: LoadCommit, newest: int, files: Mapping[str, WindowFiles]) -> bool:
    """Whether the version `newest` of the table, which has `files`, has the window as this load left it."""
    added = load_log.added_files(load)
    now = files.get(load.metadata.window.key, load_log.NO_FILES)
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
