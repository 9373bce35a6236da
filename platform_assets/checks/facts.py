"""Facts that the checks of one raw table examine: cuts, receipts and data files, for each window and partition.

All facts come from the ledger and the table's log. Data are read only for windows whose files are not those in their
receipts.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.baseline import older, snapshot
from platform_assets.checks.baseline.older import Counting, Older
from platform_assets.checks.baseline.snapshot import Baseline
from platform_assets.errors import FilesLostError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger import decisions
from platform_assets.ledger.entries import UTC_MICROS, recorded_cuts, windows_between
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Digest, digest_of
from platform_assets.model.offsets import HeldOffsets, OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span, key_of
from platform_assets.windows.proved_files import expected_in, recognised_as

T = TypeVar("T")
NEWEST_COMMITS: Final = 200
"""Number of newest commits in the table's log that are compared one by one with the ledger and the orchestrator."""
_MOST_RANGES: Final = 500_000
"""Maximum total number of offset ranges that are kept for the changed windows; this many ranges take about 60 MB."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The newest receipt of one window, reduced to what checks need. The offsets in `ranges` are half-open.

    `holes` counts offsets without a row, by kind; it is None until these offsets have been accounted for. `engine` is
    None if no engine read Kafka for the window, or if the engine was not recorded.
    """

    key: str
    ranges: TopicRanges
    rows: Mapping[int, int]
    bounds: Mapping[int, OffsetRange]
    offsets_digest: int
    files_digest: str
    table_version: int | None
    run_id: str
    duplicates: int
    holes: Mapping[str, int] | None
    proved_by: str | None
    engine: str | None = None
    confirmed_by: str | None = None

    @property
    def offsets(self) -> Digest:
        """Digest of the offsets that the load committed."""
        return Digest(self.total_rows, self.offsets_digest)

    @property
    def total_rows(self) -> int:
        """Number of rows in all partitions."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class Facts:
    """One table at one moment. `windows` maps the key of each sealed window to its ranges, in the order of time.
    `generations` has the generation of each window that is not in the first generation. Offsets of two generations are
    unrelated.

    `waiting` are sealed windows that are not loaded and need not be loaded yet: a run for them is queued or under way,
    the sensor will request them again after a failed run, or nothing newer has been loaded. `unasked` are sealed
    windows whose load was never requested: a manual load of a later window sealed them along the way. `parked` are
    windows that an operator has set aside.

    Windows whose files are not those in their receipts were read. `rewritten` windows contain exactly the offsets that
    were loaded, as after OPTIMIZE. `changed` has the offsets in the remaining windows that were read, and in windows
    that the ledger does not list. `unreadable` has the reasons why windows could not be read. `not_held` are changed
    windows whose offsets were not kept, because the offsets would need too much memory. `unread` are windows that were
    not read because the caller set `reads` to false.

    `older` are windows that are only counted and that no other field contains, and `baseline` is the stored snapshot of
    them. `entries` are the ledger rows from which `recorded` was built.
    """

    table: TableRef
    windows: Mapping[str, TopicRanges]
    recorded: Mapping[str, Recorded]
    files: Mapping[str, WindowFiles]
    waiting: frozenset[str]
    unasked: frozenset[str]
    changed: Mapping[str, Mapping[int, HeldOffsets]]
    rewritten: frozenset[str] = frozenset()
    not_held: frozenset[str] = frozenset()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    in_flight: frozenset[str] = frozenset()
    older: Older = older.NONE
    baseline: Baseline | None = None
    entries: pa.Table | None = None
    generations: Mapping[str, int] = field(default_factory=dict)
    parked: frozenset[str] = frozenset()

    @property
    def topic(self) -> str:
        """The Kafka topic of the table."""
        return self.table.topic

    @property
    def unknown(self) -> tuple[str, ...]:
        """Windows that have rows in the table, but neither a cut nor a receipt in the ledger."""
        return tuple(sorted(set(self.files) - set(self.windows) - set(self.recorded)))

    def generation(self, key: str) -> int:
        """Return the generation of a window."""
        return self.generations.get(key, 1)

    def within(self, span: Span) -> Facts:
        """Return the facts limited to the windows in `span`."""
        return replace(
            self,
            windows=_within(self.windows, span),
            recorded=_within(self.recorded, span),
            files=_within(self.files, span),
            waiting=frozenset(k for k in self.waiting if k in span),
            unasked=frozenset(k for k in self.unasked if k in span),
            parked=frozenset(k for k in self.parked if k in span),
            changed=_within(self.changed, span),
            rewritten=frozenset(k for k in self.rewritten if k in span),
            not_held=frozenset(k for k in self.not_held if k in span),
            unreadable=_within(self.unreadable, span),
            unread=frozenset(k for k in self.unread if k in span),
            in_flight=frozenset(k for k in self.in_flight if k in span),
        )


class Orchestration:
    """The orchestrator's knowledge about windows, by key. An instance of this class itself means that there is no
    orchestrator."""

    def in_flight(self, keys: Collection[str]) -> Collection[str]:
        """Return those of `keys` that queued or running runs will load."""
        return ()

    def requested(self, keys: Collection[str]) -> Collection[str]:
        """Return those of `keys` whose load was ever requested. Without an orchestrator, all count as requested."""
        return keys

    def will_be_requested_again(self, keys: Collection[str]) -> Collection[str]:
        """Return those of `keys` that will be requested again although no newer run is under way. None of them needs a
        decision."""
        return ()

    def reported(self, keys: Sequence[str] | None) -> Mapping[str, str | None] | None:
        """Map each reported window of `keys`, or of all windows, to the id of the reported load, or to None if the id
        is unknown. Without an orchestrator, the result is None."""
        return None


def collect(
    table: TableRef,
    ledger: Ledger,
    orchestration: Orchestration | None = None,
    *,
    counting: Collection[Counting] = (),
    reads: bool = True,
) -> Facts:
    """Gather the facts of `table`. Older windows are only counted if each check in `counting` allows it.

    The selection of older windows is stored next to the ledger, so that the next evaluation reads only new entries. If
    `counting` is empty, every window is in the facts. If `reads` is false, windows whose files would have to be read
    are only listed.
    """
    known = orchestration or Orchestration()
    if not counting or not load_log.exists(ledger.lake.table(table)):
        return _collected(table, ledger, known, None, (), reads=reads)
    base = snapshot.load(ledger.lake, table, counting) or snapshot.capture(ledger.lake, table, NEWEST_COMMITS)
    return _collected(table, ledger, known, base, counting, reads=reads)


def _collected(
    table: TableRef,
    ledger: Ledger,
    known: Orchestration,
    base: Baseline | None,
    counting: Collection[Counting],
    *,
    reads: bool,
) -> Facts:
    topic, path = table.topic, ledger.lake.table(table)
    since = base.older.until if base is not None else None
    cuts = ledger.cut_rows(topic, since)
    # Asked before the receipts are read, so that a load which ends in between is not taken for missing.
    in_flight = set(known.in_flight([key_of(edge) for edge in pc.unique(cuts["edge"]).sort().to_pylist()[:-1]]))
    entries = ledger.commit_rows(table, start=since)
    if base is not None:
        current = snapshot.advance(base, path)
        if current is None:
            again = snapshot.capture(ledger.lake, table, NEWEST_COMMITS)
            return _collected(table, ledger, known, again, counting, reads=reads)
        files = _recognised(ledger.lake, table, current.actions, entries, reads=reads)
        proved = {key for key, of_window in files.items() if of_window.proved_as is not None}
        found = older.find(cuts, entries, current.actions, proved, current.table.version, counting)
        base = current.later_than(current.older + found)
        cuts, entries = _from(base.older.until, cuts, "edge"), _from(base.older.until, entries, "window_start")
        if base.older.until is not None:
            snapshot.save(ledger.lake, table, base, counting)
            files = {key: of_window for key, of_window in files.items() if key >= key_of(base.older.until)}
    else:
        actions = holdings.actions(path) if load_log.exists(path) else None
        files = {} if actions is None else _recognised(ledger.lake, table, actions, entries, reads=reads)
    past = older.NONE if base is None else base.older
    sealed = windows_between(recorded_cuts(cuts))
    recorded = _recorded(entries)
    if (set(recorded) | set(files)) - {w.key for w in sealed}:
        # Sealed and loaded since the cuts were read. Cuts come first, so what is missing now has none.
        sealed = ledger.windows(topic, start=past.until)
    windows = {w.key: w.ranges for w in sealed}
    generations = {w.key: w.generation for w in sealed if w.generation > 1}
    newest = max(recorded, default="")
    missing = [k for k in windows if k not in recorded]
    # Rows without a receipt are no window that waits: the ledger is behind.
    waiting = frozenset(k for k in missing if k in in_flight or (k > newest and k not in files))
    parked = (
        frozenset(missing).intersection(decisions.parking(ledger.lake, TableRef.raw(topic)).parked)
        if missing
        else frozenset()
    )
    waiting -= parked
    unasked = frozenset(missing) - waiting - parked
    retried = frozenset(known.will_be_requested_again(sorted(unasked - set(files)))) if unasked else frozenset()
    waiting, unasked = waiting | retried, unasked - retried
    if unasked:
        unasked -= set(known.requested(sorted(unasked)))
    others = [
        k
        for k in sorted(set(files) | set(recorded))
        if k not in recorded
        or not files.get(k, holdings.NO_FILES).match(recorded[k].files_digest, recorded[k].total_rows)
    ]
    # Rows of a window that is being loaded just now are not yet the ledger's.
    others = [k for k in others if k not in in_flight and k not in waiting]
    read = _read(path, others if reads else (), recorded, files)
    # Older windows belong to the generation of the first of these, or to earlier ones.
    oldest = {k: w for k, w in windows.items() if generations.get(k, 1) == generations.get(next(iter(windows)), 1)}
    near = {k: held for k, held in read.changed.items() if k in oldest or k not in windows}
    if past.windows and (read.not_held or _reach_before(near, oldest)):
        # An older window may hold these offsets too, and only its own facts say which.
        return _collected(table, ledger, known, None, (), reads=reads)
    return Facts(
        table=table,
        windows=windows,
        recorded=recorded,
        files=files,
        waiting=waiting,
        unasked=unasked,
        changed=read.changed,
        rewritten=frozenset(read.rewritten),
        not_held=frozenset(read.not_held),
        unreadable=read.unreadable,
        unread=frozenset(() if reads else others),
        in_flight=frozenset(in_flight),
        older=past,
        baseline=base,
        entries=entries,
        generations=generations,
        parked=parked,
    )


def _recognised(
    lake: Lake, table: TableRef, actions: pa.Table, entries: pa.Table, *, reads: bool
) -> dict[str, WindowFiles]:
    """Return the files of each window. If other writers wrote files, the windows in these files are compared with their
    receipts, once per file."""
    files = holdings.window_files(actions)
    others = [
        key
        for key, digest in zip(entries["window"].to_pylist(), entries["files_digest"].to_pylist(), strict=True)
        if (of_window := files.get(key)) is not None and not of_window.are(digest)
    ]
    return recognised_as(lake, table, files, expected_in(entries, others), reads=reads) if others else files


@dataclass(frozen=True, slots=True)
class _Read:
    """Results of reading the windows whose files are not those in their receipts. Each window is in one of the four
    fields."""

    changed: dict[str, Mapping[int, HeldOffsets]] = field(default_factory=dict)
    rewritten: set[str] = field(default_factory=set)
    not_held: set[str] = field(default_factory=set)
    unreadable: dict[str, str] = field(default_factory=dict)


def _read(
    path: Folder, keys: Iterable[str], recorded: Mapping[str, Recorded], files: Mapping[str, WindowFiles]
) -> _Read:
    """Read one window after another. This takes 8 bytes of memory per offset of the largest window, plus memory for
    `_MOST_RANGES` ranges."""
    read, opened = _Read(), _Newest(path, rows.Opened(path, files))
    left = _MOST_RANGES
    for key in keys:
        try:
            offsets = opened.offsets_of(key)
        except FilesLostError as e:
            read.unreadable[key] = e.detail
            continue
        if key in recorded and digest_of(offsets) == recorded[key].offsets:
            read.rewritten.add(key)
            continue
        held = {partition: HeldOffsets.of(found) for partition, found in offsets.items()}
        size = sum(len(h.ranges) + len(h.repeated) for h in held.values())
        if size > left:
            read.not_held.add(key)
            continue
        left -= size
        read.changed[key] = held
    return read


@dataclass
class _Newest:
    """A table whose files are listed again only if a listed file no longer exists and there is a newer commit."""

    path: Folder
    opened: rows.Opened
    version: int | None = None

    def offsets_of(self, key: str) -> Mapping[int, npt.NDArray[np.int64]]:
        """Return every offset of a window. Raises FilesLostError."""
        try:
            return self.opened.offsets_of(key)
        except FilesLostError:
            newest = load_log.version(self.path)
            if newest == self.version:
                raise
            self.version, self.opened = newest, rows.Opened.at(self.path)
        return self.opened.offsets_of(key)


def _reach_before(changed: Mapping[str, Mapping[int, HeldOffsets]], windows: Mapping[str, TopicRanges]) -> bool:
    """Return True if one of the `changed` windows has offsets before the start of the first window in `windows`, which
    are in order."""
    first = next(iter(windows.values()), TopicRanges()).by_partition
    return any(
        bool(held.ranges) and (partition not in first or held.ranges[0].start < first[partition].start)
        for by_partition in changed.values()
        for partition, held in by_partition.items()
    )


def _from(until: datetime | None, entries: pa.Table, column: str) -> pa.Table:
    return entries if until is None else entries.filter(pc.greater_equal(entries[column], pa.scalar(until, UTC_MICROS)))


def _within(by_window: Mapping[str, T], span: Span) -> dict[str, T]:
    return {key: value for key, value in by_window.items() if key in span}


def _recorded(entries: pa.Table) -> dict[str, Recorded]:
    grouped: dict[str, list[dict[str, Any]]] = {}
    columns = ["window", "partition", "start", "end", "rows", "first_offset", "last_offset", "offsets_digest",
               "files_digest", "table_version", "run_id", "duplicates", "holes", "proved_by", "engine", "confirmed_by"]  # fmt: skip
    for row in entries.select(columns).to_pylist():
        grouped.setdefault(row["window"], []).append(row)
    return {
        key: Recorded(
            key,
            TopicRanges({m["partition"]: OffsetRange(m["start"], m["end"]) for m in members}),
            {m["partition"]: m["rows"] for m in members},
            {
                m["partition"]: OffsetRange.closed(m["first_offset"], m["last_offset"])
                for m in members
                if m["first_offset"] is not None
            },
            int(members[0]["offsets_digest"]),
            members[0]["files_digest"],
            members[0]["table_version"],
            members[0]["run_id"],
            members[0]["duplicates"],
            None if members[0]["holes"] is None else json.loads(members[0]["holes"]),
            members[0]["proved_by"],
            members[0]["engine"],
            members[0]["confirmed_by"],
        )
        for key, members in grouped.items()
    }
