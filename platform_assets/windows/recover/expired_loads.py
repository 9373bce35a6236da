"""Loads whose commits have left a table's log, restored from the rows when a ledger is rebuilt.

The rows are those of the oldest version that the log still reaches, because later changes were not loads. Any cut
between the last row of a window and the first row of the next window gives the same rows, unless rows between them were
deleted earlier. So a load reconstructed here is marked as `found`.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property

from platform_assets.errors import FilesLostError, LoadError
from platform_assets.lake import holdings, load_log, rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.load_log import LoadCommit, LoadMetadata
from platform_assets.lake.location import Folder
from platform_assets.lake.standing import Stand, follow, oldest_files
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut, TopicRanges
from platform_assets.model.windows import Window, edge_of, edges_from

Bounds = Mapping[int, rows.PartitionRows]
"""Counts and bounds of a window's rows by partition."""


@dataclass(frozen=True, slots=True)
class _SurvivingRows:
    """The rows of a window whose commit has left the log.

    `stand` is the oldest known version of the window. `whole` is true if `bounds` covers all rows; otherwise rows of
    lost files may be missing.
    """

    stand: Stand
    files: WindowFiles
    bounds: Bounds
    whole: bool


def newest_loads(table: Folder) -> list[LoadCommit]:
    """Return those newest loads of windows that the table's log still has, in order of the windows."""
    if not load_log.exists(table):
        return []
    newest = load_log.newest_loads(table)
    return [newest[key] for key in sorted(newest)]


def with_expired(
    table: Folder,
    declaration: TopicDeclaration,
    loads: Sequence[LoadCommit],
    sealed: Mapping[str, SealedWindow] | None = None,
) -> list[LoadCommit]:
    """Return `loads`, with an additional load for each window whose rows are in the table and whose commit has left the
    log, in order.

    The ranges of such a window are those in `sealed`. If the window is not in `sealed`, its ranges start at the end of
    the window before it, or at its first row if there is no window before it. They end at its last row, or at the start
    of the window right after it if that window's commit is known or if files of this window are lost. Raises LoadError
    if neither a row nor a commit shows to which log the rows belong.
    """
    if not load_log.exists(table):
        return list(loads)
    known = {load.metadata.window.key: load for load in loads}
    found = _found(table, set(known))
    if not found:
        return list(loads)
    logs = _logs_of(table, loads, found)
    made = _Making(declaration, known, found, logs, sealed or {})
    return list(made.loads())


def _found(table: Folder, known: set[str]) -> dict[str, _SurvivingRows]:
    """Return windows with rows whose loads are not in `known`, by key, ascending."""
    newest = load_log.version(table)
    version, actions = oldest_files(table, newest)
    now = actions if version == newest else holdings.actions(table, newest)
    begin = {
        key: Stand(version, files)
        for key, files in holdings.data_files(actions).items()
        if key not in known and holdings.is_key(key)
    }
    # Rows that others have added since are in no older version.
    late = {
        key: files
        for key, files in holdings.data_files(now).items()
        if key not in {*known, *begin} and holdings.is_key(key)
    }
    begin |= {key: Stand(newest, files) for key, files in late.items()}
    stood = follow(table, begin, newest)
    today = holdings.window_files(now)
    return {key: _read(table, key, begin[key], stood[key], today.get(key, holdings.NO_FILES)) for key in sorted(begin)}


def _read(table: Folder, key: str, begin: Stand, stood: Stand, today: WindowFiles) -> _SurvivingRows:
    for stand in (stood, begin):
        files = holdings.files_of_adds(stand.files)
        try:
            bounds = rows.Opened(table, {key: files}).partition_rows(key)
        except FilesLostError:
            continue
        return _SurvivingRows(begin, files, bounds, True)
    # Some files are lost: use rows that can be read in any version, and the log's statistics of files with one
    # partition.
    paths = {f.path for stand in (stood, begin) for f in stand.files} | set(today.paths)
    bounds = rows.readable_bounds(table, key, sorted(paths))
    for file in (f for stand in (stood, begin) for f in stand.files):
        stated = rows.from_statistics(holdings.statistics_of_adds([file]))
        for partition, part in (stated or {}).items():
            bounds[partition] = bounds[partition] + part if partition in bounds else part
    return _SurvivingRows(begin, holdings.files_of_adds(begin.files), bounds, False)


def _logs_of(
    table: Folder, loads: Sequence[LoadCommit], found: Mapping[str, _SurvivingRows]
) -> dict[str, tuple[int, str]]:
    """Return the generation and topic id of each window in `found` (ascending), as shown by its rows. Windows without a
    readable row are omitted.

    Without any known load, the first window belongs to generation 1. A topic id that no load has belongs to an earlier
    generation.
    """
    known = {load.metadata.topic_id: load.metadata.generation for load in reversed(loads)}
    whole = [key for key, each in found.items() if each.whole]
    ids: dict[str, str] = {}
    if whole:
        opened = rows.Opened(table, {key: each.files for key, each in found.items()})
        one = opened.topic_id_of(whole[0])
        if {*known, opened.topic_id_of(whole[-1])} == {one}:
            ids = dict.fromkeys(whole, one)
        else:
            ids = {key: opened.topic_id_of(key) for key in whole}
    elif not known:
        readable = ((key, rows.readable_topic_id(table, key, each.files.paths)) for key, each in found.items())
        ids = {key: topic_id for key, topic_id in readable if topic_id is not None}
    if not ids and not known:
        raise LoadError(
            f"the ledger of {'/'.join(table.uri.rsplit('/', 2)[-2:])} cannot be rebuilt: none of the table's data files can be "
            "read, and the table's log no longer lists any load, so nothing shows which offsets the table had. Nothing was "
            "changed. Restore the table from a backup, then run `platform-assets rebuild-ledger`. Without a backup, move "
            "the table's folder away, and the sensor loads what Kafka still has."
        )
    in_order = list(dict.fromkeys(ids.values()))
    unknown = [topic_id for topic_id in in_order if topic_id not in known]
    first = max(min(known.values()) - len(unknown), 1) if known else 1
    known |= {topic_id: first + number for number, topic_id in enumerate(unknown)}
    return {key: (known[topic_id], topic_id) for key, topic_id in ids.items()}


@dataclass(frozen=True)
class _Making:
    """Builder of the loads that have left the log. Windows are given by key."""

    declaration: TopicDeclaration
    known: Mapping[str, LoadCommit]
    found: Mapping[str, _SurvivingRows]
    logs: Mapping[str, tuple[int, str]]
    sealed: Mapping[str, SealedWindow]

    def loads(self) -> Iterator[LoadCommit]:
        """Yield all loads, both those that have left the log and the known ones, in order of the windows."""
        keys = sorted({*self.known, *self.found})
        before: LoadMetadata | None = None
        for at, key in enumerate(keys):
            load = self.known[key] if key in self.known else self._made(keys[at : at + 2], keys[at:], before)
            before = load.metadata
            yield load

    def _made(self, pair: Sequence[str], ahead: Sequence[str], before: LoadMetadata | None) -> LoadCommit:
        key, following = pair[0], pair[1] if len(pair) > 1 else None
        found = self.found[key]
        if key in self.sealed:
            of = self.sealed[key]
            return self._load(found, of.topic_id, of.generation, of.window, of.ranges)
        generation, topic_id = self._log(key, before)
        window = self._window(key, following)
        start = self._start(found, window, generation, before)
        ends = {p: b.last_offset + 1 for p, b in found.bounds.items()}
        is_next = following is not None and self._is_next(key, following, generation)
        if is_next and following is not None and following in self.known:
            known = self.known[following].metadata.ranges
            ends = {p: r.start for p, r in known.items() if r.start or p in start.offsets}
        elif not found.whole:
            # It has to be loaded again anyway, so everything before the next row may belong to it.
            ends |= self._first_ahead(ahead, generation)
        return self._load(found, topic_id, generation, window, TopicRanges.between(start, start.grow(ends, ends)))

    def _start(self, found: _SurvivingRows, window: Window, generation: int, before: LoadMetadata | None) -> Cut:
        firsts = {p: b.first_offset for p, b in found.bounds.items()}
        if before is None or before.generation < generation:
            edge, first = self._first_cuts.get(generation, (None, Cut({})))
            return first if edge == window.start else Cut(firsts)
        reached = Cut({p: r.end for p, r in before.ranges.items()})
        # After a gap in time there may be windows that were never loaded: they keep their offsets.
        return reached if before.window.end == window.start else reached.grow(firsts, firsts)

    @cached_property
    def _first_cuts(self) -> dict[int, tuple[datetime, Cut]]:
        """Return the first cut of each generation, taken from the known loads."""
        of_known = [load.metadata for load in self.known.values()]
        return {m.generation: m.first_cut for m in of_known if m.first_cut is not None}

    def _load(
        self, found: _SurvivingRows, topic_id: str, generation: int, window: Window, ranges: TopicRanges
    ) -> LoadCommit:
        metadata = LoadMetadata(
            self.declaration.topic, topic_id, generation, window, ranges, load_id=str(uuid.uuid4()), run_id="",
            first_cut=self._first_cuts.get(generation), found=True,
        )  # fmt: skip
        return LoadCommit(found.stand.version, metadata, found.stand.files)

    def _log(self, key: str, before: LoadMetadata | None) -> tuple[int, str]:
        if key in self.logs:
            return self.logs[key]
        if before is not None:
            return before.generation, before.topic_id
        others = [(load.metadata.generation, load.metadata.topic_id) for load in self.known.values()]
        return [*self.logs.values(), *others][0]

    def _first_ahead(self, keys: Sequence[str], generation: int) -> dict[int, int]:
        """Return, by partition, the first offset after the window `keys[0]`, taken from the windows right after it."""
        first: dict[int, int] = {}
        for key, following in itertools.pairwise(keys):
            if not self._is_next(key, following, generation):
                break
            if following in self.known:
                return {p: r.start for p, r in self.known[following].metadata.ranges.items() if r.start} | first
            if following in self.sealed:
                return {p: r.start for p, r in self.sealed[following].ranges.items() if r.start} | first
            first = {p: b.first_offset for p, b in self.found[following].bounds.items()} | first
        return first

    def _is_next(self, key: str, following: str, generation: int) -> bool:
        """Return True if there is no window between the two, and both belong to the same log."""
        if self._window(key, following).end != edge_of(following):
            return False
        if following in self.known:
            return self.known[following].metadata.generation == generation
        return following not in self.logs or self.logs[following][0] == generation

    def _window(self, key: str, following: str | None) -> Window:
        if key in self.sealed:
            return self.sealed[key].window
        start = edge_of(key)
        end = next(edges_from(self.declaration.schedule, start + timedelta(microseconds=1)))
        return Window(start, min(end, edge_of(following)) if following else end)
