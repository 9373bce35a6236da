"""A table's Delta log, read without Spark: commits of loads, data files and their statistics."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from platform_assets.errors import FilesLostError, LedgerCorruptError
from platform_assets.lake import delta_log, holdings
from platform_assets.lake.delta_log import Anchor, DataFile
from platform_assets.lake.location import Folder, load_folder, window_folder
from platform_assets.model import expectations
from platform_assets.model.expectations import FiguresByDigest
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.model.tables import TableLoad
from platform_assets.model.windows import Window, edge_of, key_of

METADATA_KEY = "platform_assets"
METADATA_VERSION = 1
FENCE_KEY = "platform_assets_fence"
EXPIRY_KEY = "platform_assets_expired"


@dataclass(frozen=True, slots=True)
class LoadMetadata:
    """The `userMetadata` that a load writes into its Delta commit: a JSON object with a version number.

    `first_cut` is the topic's first edge, with the offsets there. From it, a rebuilt ledger can restore windows before
    the first load that were sealed but never loaded. `made_from` is None if the rows were read from Kafka; in that
    case, `engine` read them from `ranges` of `topic_id`. `figures` has the results of the declared expectations, if
    any. `erased` has, by partition, the offsets in `ranges` whose records were erased; a rebuilt ledger also restores
    these. In a table of changes, it tells folds that past files of the state may have these records. `found` is true for
    rows that a rebuilt ledger found, so nothing proves that they are all the rows that were loaded.

    `kept` has the paths, not percent-encoded, of data files that the commit adds with rows of other windows, because
    these windows shared files with this window before. `lost` has the paths, in the form that the log uses, of shared
    files with rows of other windows that could not be read and kept.
    `expired` is the topic's `keep` if the window has no rows because the window is past it.
    """

    topic: str
    topic_id: str
    generation: int
    window: Window
    ranges: TopicRanges
    load_id: str
    run_id: str
    first_cut: tuple[datetime, Cut] | None = None
    made_from: TableLoad | None = None
    engine: str | None = None
    figures: FiguresByDigest | None = None
    erased: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    found: bool = False
    kept: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    expired: str = ""

    def to_json(self) -> str:
        """The commit's `userMetadata`."""
        return json.dumps(
            {
                METADATA_KEY: METADATA_VERSION,
                "topic": self.topic,
                "generation": self.generation,
                "window": self.window.key,
                "window_end": key_of(self.window.end),
                "ranges": [
                    {"topic_id": self.topic_id, "partition": p, "start": start, "end": end}
                    for p, start, end in self.ranges.triples()
                ],
                "first_cut": None
                if self.first_cut is None
                else {"edge": key_of(self.first_cut[0]), "offsets": dict(self.first_cut[1].offsets)},
                "load_id": self.load_id,
                "run_id": self.run_id,
                **({} if self.made_from is None else {"made_from": self.made_from.to_fields()}),
                **({} if self.engine is None else {"engine": self.engine}),
                **({} if self.figures is None else {"expectations": expectations.to_fields(self.figures)}),
                **(
                    {"erased": [[p, r.start, r.end] for p, parts in sorted(self.erased.items()) for r in parts]}
                    if self.erased
                    else {}
                ),
                **({"found": True} if self.found else {}),
                **({"kept": list(self.kept)} if self.kept else {}),
                **({"lost": list(self.lost)} if self.lost else {}),
                **({"expired": self.expired} if self.expired else {}),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str | None) -> LoadMetadata | None:
        """Parse a commit's `userMetadata`; return None if the commit is not the platform's.

        Raises LedgerCorruptError for a version that this release does not know.
        """
        try:
            fields: Any = json.loads(text or "null")
        except json.JSONDecodeError:
            return None
        if not isinstance(fields, dict) or METADATA_KEY not in fields:
            return None
        if fields[METADATA_KEY] != METADATA_VERSION:
            raise LedgerCorruptError(
                f"a commit has metadata version {fields[METADATA_KEY]}, but this release supports only {METADATA_VERSION}: "
                "upgrade before you continue"
            )
        ranges = {r["partition"]: OffsetRange(r["start"], r["end"]) for r in fields["ranges"]}
        first = fields.get("first_cut")
        return cls(
            topic=fields["topic"],
            topic_id=fields["ranges"][0]["topic_id"],
            generation=fields["generation"],
            window=Window(edge_of(fields["window"]), edge_of(fields["window_end"])),
            ranges=TopicRanges(ranges),
            load_id=fields["load_id"],
            run_id=fields["run_id"],
            first_cut=None
            if first is None
            else (edge_of(first["edge"]), Cut({int(p): o for p, o in first["offsets"].items()})),
            made_from=TableLoad.from_fields(fields["made_from"]) if "made_from" in fields else None,
            engine=fields.get("engine"),
            figures=expectations.from_fields(fields["expectations"]) if "expectations" in fields else None,
            erased=_by_partition(fields.get("erased", ())),
            found=fields.get("found") is True,
            kept=tuple(fields.get("kept", ())),
            lost=tuple(fields.get("lost", ())),
            expired=fields.get("expired", ""),
        )


@dataclass(frozen=True, slots=True)
class Fence:
    """The `userMetadata` of a commit that changes no rows of a window, but makes loads that began before the commit
    fail.

    Such a commit is not a load. For everything except the conflict rule of commits, it counts as a commit of another
    writer.
    """

    window: Window
    load_id: str

    def to_json(self) -> str:
        """The commit's `userMetadata`."""
        fields = {FENCE_KEY: METADATA_VERSION, "window": self.window.key, "window_end": key_of(self.window.end)}
        return json.dumps({**fields, "load_id": self.load_id}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | None) -> Fence | None:
        """Parse a commit's `userMetadata`; return None for other commits."""
        if text is None or FENCE_KEY not in text:
            return None
        try:
            fields: Any = json.loads(text)
        except json.JSONDecodeError:
            return None
        if not isinstance(fields, dict) or FENCE_KEY not in fields:
            return None
        return cls(Window(edge_of(fields["window"]), edge_of(fields["window_end"])), fields["load_id"])


@dataclass(frozen=True, slots=True)
class Expiry:
    """The `userMetadata` of a commit that removes all rows of windows that are past the topic's `keep`.

    `windows` are the loads that would describe them if each were replaced by nothing; all have the id `load_id`, so that a rebuilt
    ledger knows their offsets, and which records in them were erased. In the log, only the first window of a generation has its
    `first_cut`.
    """

    load_id: str
    windows: tuple[LoadMetadata, ...]

    def to_json(self) -> str:
        """The commit's `userMetadata`."""
        windows = [json.loads(each.to_json()) for each in self.in_log()]
        return json.dumps(
            {EXPIRY_KEY: METADATA_VERSION, "load_id": self.load_id, "windows": windows}, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str | None) -> Expiry | None:
        """Parse a commit's `userMetadata`; return None for other commits. Raises LedgerCorruptError as `LoadMetadata` does."""
        if text is None or not text.startswith(f'{{"{EXPIRY_KEY}":'):
            return None
        try:
            fields: Any = json.loads(text)
        except json.JSONDecodeError:
            return None
        if fields.get(EXPIRY_KEY) != METADATA_VERSION:
            raise LedgerCorruptError(
                f"a commit of expired windows has metadata version {fields.get(EXPIRY_KEY)}, but this release supports only "
                f"{METADATA_VERSION}: upgrade before you continue"
            )
        parsed = (LoadMetadata.from_json(json.dumps(each)) for each in fields["windows"])
        found = [each for each in parsed if each is not None]
        first = {each.generation: each.first_cut for each in found if each.first_cut is not None}
        return cls(fields["load_id"], tuple(replace(each, first_cut=first.get(each.generation)) for each in found))

    def in_log(self) -> Iterator[LoadMetadata]:
        """Yield the windows as they are written to the log."""
        seen = set[int]()
        for each in self.windows:
            yield replace(each, first_cut=None) if each.generation in seen else each
            seen.add(each.generation)


def identity_in(commit: delta_log.Commit) -> tuple[str, str] | None:
    """Return the window and the id of the load or the fence that made a commit; None for commits of other writers."""
    found = LoadMetadata.from_json(commit.user_metadata) or Fence.from_json(commit.user_metadata)
    return None if found is None else (found.window.key, found.load_id)


def _by_partition(triples: Iterable[tuple[int, int, int]]) -> dict[int, tuple[OffsetRange, ...]]:
    found: dict[int, tuple[OffsetRange, ...]] = {}
    for partition, start, end in triples:
        found[partition] = (*found.get(partition, ()), OffsetRange(start, end))
    return found


@dataclass(frozen=True, slots=True)
class LoadCommit:
    """A commit of the platform in a table's log.

    `adds` are the data files that the commit added for its window, which are all files of the window; None if the file
    of the commit no longer exists. `table_id` is Delta's id of the table, if it was looked up.
    """

    version: int
    metadata: LoadMetadata
    adds: tuple[DataFile, ...] | None = None
    table_id: str | None = None


def exists(path: Folder) -> bool:
    """Return True if there is a Delta table at `path`."""
    return delta_log.exists(path)


def version(path: Folder) -> int:
    """Return the table's newest version. Raises TableGoneError if there is no table."""
    return delta_log.version(path)


def table_id(path: Folder) -> str:
    """Return Delta's id of the table, which changes when the table is moved away and created again."""
    table = path.delta()
    with path.reading():
        return str(table.metadata().id)


def load_commits(path: Folder, limit: int | None = None) -> Iterator[LoadCommit]:
    """Yield the platform's commits among the newest `limit` commits to the table, newest first. Each commit is read
    only when it is needed."""
    newest = version(path)
    for number in range(newest, -1 if limit is None else max(newest - limit, -1), -1):
        commit = delta_log.commit(path, number)
        if commit is None:
            return
        yield from loads_in(commit)


def newest_loads(path: Folder, limit: int | None = None) -> dict[str, LoadCommit]:
    """Return the newest load of each window, by window key, among the newest `limit` commits to the table, newest
    first."""
    found: dict[str, LoadCommit] = {}
    for load in load_commits(path, limit):
        found.setdefault(load.metadata.window.key, load)
    return found


def expiries_since(path: Folder, since: Mapping[str, int]) -> dict[str, LoadCommit]:
    """Return the newest load of each window, by window key, after the version that `since` has for it, if that load removed
    the rows of the window as expired."""
    left, found = dict(since), dict[str, LoadCommit]()
    for number in range(version(path) if left else 0, min(left.values(), default=0), -1):
        commit = delta_log.commit(path, number) if left else None
        if commit is None:
            break
        for load in loads_in(commit):
            before = left.pop(load.metadata.window.key, number)
            if before < number and load.metadata.expired:
                found[load.metadata.window.key] = load
    return found


def load_in(commit: delta_log.Commit) -> LoadCommit | None:
    """Return the load that made a commit; None for commits of other writers. Raises LedgerCorruptError in the same case
    as `from_json`."""
    metadata = LoadMetadata.from_json(commit.user_metadata)
    if metadata is None:
        return None
    adds = tuple(add for add in commit.adds if unquote(add.path) not in metadata.kept) if metadata.kept else commit.adds
    return LoadCommit(commit.version, metadata, adds)


def loads_in(commit: delta_log.Commit) -> tuple[LoadCommit, ...]:
    """Return the load of a commit, or one without files for each window that it removed as expired."""
    load = load_in(commit)
    if load is not None:
        return (load,)
    expiry = Expiry.from_json(commit.user_metadata)
    return () if expiry is None else tuple(LoadCommit(commit.version, each, ()) for each in expiry.windows)


def expires(commit: delta_log.Commit, window: str) -> bool:
    """Return True if a commit removed the rows of a window as expired."""
    expiry = Expiry.from_json(commit.user_metadata)
    return expiry is not None and any(each.window.key == window for each in expiry.windows)


def moves_only(commit: delta_log.Commit, window: str) -> bool:
    """Return True if a commit leaves the rows of a window unchanged, although it may have moved them to other files.

    This is true of commits that only rearrange, such as those of OPTIMIZE, and of loads of other windows, which keep
    the rows in shared files.
    """
    if commit.rearranges:
        return True
    metadata = LoadMetadata.from_json(commit.user_metadata)
    return metadata is not None and metadata.window.key != window and not metadata.lost


def of_other_loads(files: pa.Table, loads: Mapping[str, str]) -> frozenset[str]:
    """Return the windows in `files`, the result of `holdings.actions`, that have rows of another load than the one with the id
    in `loads`, or that are not in `loads`. A run that was killed between a commit and its receipt leaves such rows.

    The files' names tell, so no log is read. The names of files that upkeep or another program has merged do not tell:
    their rows count as those of the load in `loads`.
    """
    held = zip(files["path"].to_pylist(), files[holdings.WINDOW].to_pylist(), strict=True)
    return frozenset(
        window for path, window in held if window not in loads or is_of_other_load(path, window, loads[window])
    )


def is_of_other_load(path: str, window: str, load_id: str) -> bool:
    """Return True if a file, with its path in the form that the log uses, was written by another load of the window than
    the one with this id. False if its name does not tell."""
    folder = unquote(path).rpartition("/")[0]
    return folder.startswith(f"{window_folder(window)}/") and folder != load_folder(window, load_id)


def newest_load(path: Folder) -> LoadCommit | None:
    """Return the platform's newest commit; None if the table has none."""
    if not exists(path):
        return None
    return next(load_commits(path, limit=10), None) or next(load_commits(path), None)


def load_beyond(path: Folder, edge: datetime | None) -> LoadCommit | None:
    """Return a load of a window that ends after `edge`, or a load of any window if `edge` is None; None if there is no
    such load.

    The newest commit may be a re-load of an old window, so the table's files are also considered. Rows of a later
    window that no load wrote are ignored: they come from another writer, which a check reports.
    """
    newest = newest_load(path)
    if newest is None or edge is None or newest.metadata.window.end > edge:
        return newest
    if _horizon(path).newest_window() < key_of(edge):
        return None
    return next((c for c in load_commits(path) if c.metadata.window.end > edge), None)


def expired_beyond(path: Folder, edge: datetime | None) -> str | None:
    """Return the newest window in the table whose load is no longer in the table's log. With `edge`, consider only
    windows from `edge` on.

    Call this only for a table whose log no longer has any load; for other tables, use `load_beyond`. Rows that commits
    of other writers in the log have added are ignored.
    """
    if not exists(path) or (edge is not None and _horizon(path).newest_window() < key_of(edge)):
        return None
    others, at = set[str](), version(path)
    while (commit := delta_log.commit(path, at)) is not None:
        if load_in(commit) is not None or at == 0:
            return None
        if not commit.rearranges:
            others |= {key for add in commit.adds for key in _held_if_there(path, add)}
        at -= 1
    held = set(holdings.actions(path)[holdings.WINDOW].to_pylist()) - others
    return max((key for key in held if edge is None or key >= key_of(edge)), default=None)


def _newest_held(path: Folder, file: DataFile) -> tuple[str, ...]:
    newest = holdings.newest_in(file)
    return tuple(_held_if_there(path, file)) if newest is None else (newest,)


def _held_if_there(path: Folder, file: DataFile) -> Collection[str]:
    """Return the windows in a file of a past commit; none if only the file itself could show them and the file was
    deleted."""
    try:
        return holdings.held_by(path, file)
    except FilesLostError:
        return ()


class Horizon:
    """The newest window for which a table has ever had a file, followed from commit to commit.

    Only the first call, and the first call after the table was replaced by another one, reads the whole log.
    """

    def __init__(self, path: Folder) -> None:
        self._path = path
        self._seen: tuple[Anchor, str] | None = None

    def newest_window(self) -> str:
        """The key of the window; empty if the table has no files."""
        commits = delta_log.commits_after(self._path, self._seen[0]) if self._seen is not None else None
        if self._seen is None or commits is None:
            at = delta_log.newest_anchor(self._path)
            newest = max(holdings.actions(self._path)[holdings.WINDOW].to_pylist(), default="")
        else:
            at, newest = self._seen
            for commit in commits:
                at = commit.anchor
                newest = max([newest, *(key for add in commit.adds for key in _newest_held(self._path, add))])
        self._seen = None if at is None else (at, newest)
        return newest


@lru_cache(maxsize=1024)
def _horizon(path: Folder) -> Horizon:
    """Return the one object for this table in this process. There is only one, because a sensor calls this at each
    tick."""
    return Horizon(path)


def file_actions(path: Folder, version: int | None = None) -> pa.Table:
    """Return one flat row for each data file of the table, with the file's size, number of records and column
    statistics.

    For the files of each window, see `holdings.actions`.
    """
    with path.reading():
        return pa.table(path.delta(version).get_add_actions(flatten=True))


def added_files(commit: LoadCommit) -> tuple[holdings.WindowFiles, list[dict[str, Any]]] | None:
    """Return the data files that a load added, with statistics under the names that `file_actions` uses, from the
    commit alone."""
    if commit.adds is None:
        return None
    return holdings.files_of_adds(commit.adds), holdings.statistics_of_adds(commit.adds)
