"""Upkeep of a flat table: small files of old windows are merged, if their rows are those of the windows' receipts.

Nothing else is merged: a difference is damage, and is reported. The merged files are proved before the commit, and
their contents are recorded, so that checks do not have to read them to find that their windows have the rows of
their receipts. Each group of files is a separate commit: a run that dies leaves finished groups, and the next run plans
the others again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.merging.engine import MergeEngine
from platform_assets.engines.merging.work import Digests, Report, Share, Work
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.errors import FilesLostError, LoadError, PlatformError, UnknownOutcome
from platform_assets.lake import contents, data_files, holdings, load_log, merging
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.field_ids import FieldIds, ids_of
from platform_assets.lake.leftovers import delete_overtaken
from platform_assets.lake.location import OWN_FOLDERS, Folder, shared_folder
from platform_assets.lake.measuring import measured
from platform_assets.lake.merging import Group
from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import DEFAULT_FILE_SIZE
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import KEY_FORMAT
from platform_assets.windows.load.receipts import proved_again
from platform_assets.windows.proved_files import EXPECTED_COLUMNS, Expected, expected_in

_log = logger(__name__)
BUDGET_BYTES: Final = 32 << 30
"""Bytes of files of a table that a run merges by default: some minutes of work for two cores."""
_STATISTICS: Final = ("kafka_partition", "kafka_offset", "kafka_timestamp", holdings.WINDOW)
_ORDER: Final = (holdings.WINDOW, "kafka_partition", "kafka_offset")
_LARGEST: Final = 2
"""Factor of the target size that a new file may reach before another one is begun."""


@dataclass(frozen=True, slots=True)
class MergedFiles:
    """The outcome for a group of files: either merged in `version` into `files` with `bytes`, or not merged.

    `damaged` are windows whose rows are not those of their receipts. If there are none and no version, another
    commit came first.
    """

    group: Group
    version: int | None
    bytes: int = 0
    damaged: tuple[str, ...] = ()
    files: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The groups of files that a run merges, at `version` of the table, and the rows of their windows' receipts.

    `left` are groups for later runs, beyond the budget. `files` and `bytes` are those of the whole table.
    """

    version: int
    groups: tuple[Group, ...] = ()
    left: tuple[Group, ...] = ()
    files: int = 0
    bytes: int = 0
    expected: Mapping[str, Expected] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Upkeep:
    """Merges files of `table` to about `target` bytes each, sorted by the columns `cluster_by`, with `engine`."""

    table: TableRef
    ledger: Ledger
    engine: MergeEngine = field(default_factory=MergeEngine)
    target: int = DEFAULT_FILE_SIZE
    cluster_by: tuple[str, ...] = ()

    @property
    def folder(self) -> Folder:
        """The folder of the table."""
        return self.ledger.lake.table(self.table)

    def plan(self, before: str, budget: int = BUDGET_BYTES) -> Plan | None:
        """Return what a run merges: files of windows that have receipts and end before the key `before`, up to `budget`
        bytes but at least one group.

        None for a table that does not exist or is partitioned.
        """
        if not load_log.exists(self.folder):
            return None
        handle = self.folder.delta()
        if not holdings.is_flat(handle):
            return None
        expected = self._expected(before)
        with self.folder.reading():
            files = pa.table(handle.get_add_actions(flatten=True))
            columns = pa.schema(handle.schema().to_arrow())
        found = holdings.by_window(self.folder, files, flat=True)
        groups = merging.plan(found, expected, self.target, self._lacking(files, ids_of(columns)))
        number, size = 0, 0
        while number < len(groups) and (number == 0 or size + groups[number].bytes <= budget):
            size += groups[number].bytes
            number += 1
        sizes = files["size_bytes"].to_pylist()
        own = {key: expected[key] for group in groups[:number] for key in group.windows}
        return Plan(handle.version(), tuple(groups[:number]), tuple(groups[number:]), len(sizes), sum(sizes), own)

    def _expected(self, before: str) -> dict[str, Expected]:
        """Return the rows of each window's receipt, for windows that end before the key `before`.

        Only a few columns of the receipts are read, because a table may have very many windows.
        """
        entries = self.ledger.commit_rows(self.table, columns=[*EXPECTED_COLUMNS, "kind", "window_end"])
        # Without a time zone, because pyarrow would need the system's database of time zones.
        ends = pc.strftime(entries["window_end"].cast(pa.timestamp("us")), format=KEY_FORMAT)
        due = pc.and_(pc.less_equal(ends, before), pc.not_equal(entries["kind"], "empty"))
        return {each.key: each for each in expected_in(entries.filter(due))}

    def run(self, before: str, budget: int = BUDGET_BYTES) -> Iterator[MergedFiles]:
        """Plan and merge; yield the outcome of each group, nothing for a partitioned table."""
        plan = self.plan(before, budget)
        if plan is not None:
            yield from self.merge(plan)

    def merge(self, plan: Plan) -> Iterator[MergedFiles]:
        """Delete files of runs that were killed, and do what `plan` says; yield what became of each group.

        Raises what committing raises, and MergingLostError; running it again continues.
        """
        delete_overtaken(self.folder)
        if not plan.groups:
            return
        handle = self.folder.delta()
        columns = pa.schema(handle.schema().to_arrow())
        layout = pa.schema([f.remove_metadata() for f in columns])
        cluster_by = tuple(name for name in self.cluster_by if name in layout.names)
        shares = tuple(self._share(group, cluster_by, plan.version) for group in plan.groups)
        work = Work(
            str(self.folder),
            self.table.name,
            self.table.kind,
            layout,
            shares,
            (*_STATISTICS, *cluster_by),
            ids_of(columns),
        )
        left, known = dict(enumerate(shares)), merging.Loads()
        try:
            with closing(self.engine.merge(work)) as reports:
                for report in reports:
                    del left[report.share]
                    yield self._merged(plan, plan.groups[report.share], report, cluster_by, known)
        finally:
            # Their tasks may have written files, which no commit names.
            for share in left.values():
                (self.folder / share.below).delete()

    def _lacking(self, files: pa.Table, ids: FieldIds) -> set[str]:
        """Return the paths of large files in which another writer has omitted field ids. Reads the footer of each
        once."""
        sizes = zip(files["path"].to_pylist(), files["size_bytes"].to_pylist(), strict=True)
        others = [path for path, size in sizes if 2 * size >= self.target and not unquote(path).startswith(OWN_FOLDERS)]
        return {path for path in others if data_files.lacks_field_ids(self.folder, path, ids)}

    def _share(self, group: Group, cluster_by: Sequence[str], since: int) -> Share:
        sort_by = tuple(dict.fromkeys((*cluster_by, *_ORDER))) if cluster_by or not group.is_in_order else ()
        below = shared_folder(group.windows[0], group.windows[-1], since, str(uuid.uuid4()))
        names = tuple(unquote(file.path) for file in group.files)
        return Share(names, below, _LARGEST * self.target, sort_by)

    def _merged(
        self, plan: Plan, group: Group, report: Report, cluster_by: Sequence[str], known: merging.Loads
    ) -> MergedFiles:
        expected = {key: plan.expected[key] for key in group.windows}
        if report.error is not None:
            if not isinstance(report.error, FilesLostError):
                raise report.error
            damaged = self._damaged(group, expected)
            if damaged:
                _log.warning("%d files of %s are not merged: %s", len(group.files), self.table, report.error)
            return MergedFiles(group, None, damaged=damaged)
        try:
            differing = _differing(report.digests, expected)
            if report.odd or differing:
                damaged = self._damaged(group, expected)
                pending = self._pending(_load_ids(differing, expected))
                if not damaged and self._names(group) and not pending:
                    raise LoadError(
                        f"{len(group.files)} files of {self.table} were not merged: the rows in the new file differ from the rows in "
                        "the old files. Nothing was committed. Run it again; if this persists, check the disk."
                    )
                self._discard(report)
                return MergedFiles(group, None, damaged=damaged)
            if any(self.folder.size(name) is None for name in report.files):
                # Deleted as overtaken.
                self._discard(report)
                return MergedFiles(group, None)
            new = [data_files.described(self.folder, name, cluster_by) for name in report.files]
            handle = self.folder.delta()
            for file in new:
                # Before the commit, so that every reader of the file finds its recorded contents.
                name, rows = holdings.in_log(file.path), dict(report.files[file.path])
                contents.record(self.folder, str(handle.metadata().id), name, file.bytes, rows)
            version = merging.commit(self.folder, handle, group, new, plan.version, known)
        except PlatformError as e:
            if not isinstance(e, UnknownOutcome):
                self._discard(report)
            raise
        if version is None:
            self._discard(report)
            return MergedFiles(group, None)
        self._remember(new, report)
        if len(expected) == 1:
            (only,) = expected.values()
            self._record(only, version)
        return MergedFiles(group, version, sum(file.bytes for file in new), files=len(new))

    def _discard(self, report: Report) -> None:
        """Delete new files that no commit names, as far as possible."""
        for name in report.files:
            (self.folder / name.rpartition("/")[0]).delete()

    def _damaged(self, group: Group, expected: Mapping[str, Expected]) -> tuple[str, ...]:
        """Return the windows whose rows in the files of a group are not those of their receipts; none if another commit
        moved them, or if their load has committed and its receipt follows.

        The result of the read is current only if the newest version still names the files: the writer that removed
        one may have deleted it.
        """
        found: contents.Digests = {}
        unread, columns = set[str](), data_files.columns_of(self.folder)
        for file in group.files:
            try:
                for place, rows in measured(self.folder, file, columns, measure_of(self.table.kind)).items():
                    found[place] = found.get(place, NO_ROWS) + rows
            except FilesLostError:
                unread |= {key for key in group.windows if holdings.may_hold(file, key)}
        damaged = unread | _differing(found, expected)
        pending = self._pending(_load_ids(damaged, expected))
        return tuple(sorted(damaged - pending)) if self._names(group) else ()

    def with_more_rows(self) -> dict[str, str]:
        """Return the windows that have more rows than their receipts, each with the id of its load, as far as the log's
        statistics show. Windows whose receipt has no rows are left out: checks find their rows.

        Of rows, only the window keys of shared files are read, and only if they are not known yet.

        delta-rs commits a compaction that it planned before upkeep or another compaction has replaced the same files, so
        their rows are there twice.
        """
        entries = self.ledger.commit_rows(self.table, columns=["rows", "kind", "load_id"])
        entries = entries.filter(pc.invert(pc.is_in(entries["kind"], pa.array(["empty", EXPIRED]))))
        # Opened after the receipts were read: of a load that commits in between, the log has another id.
        held = holdings.actions(self.folder).group_by(holdings.WINDOW).aggregate([("num_records", "sum")])
        expected = entries.group_by(["window", "load_id"]).aggregate([("rows", "sum")])
        both = expected.join(held, "window", holdings.WINDOW, join_type="inner")
        more = both.filter(pc.greater(both["num_records_sum"], both["rows_sum"]))
        found = dict(zip(more["window"].to_pylist(), more["load_id"].to_pylist(), strict=True))
        pending = self._pending(found)
        return {key: load_id for key, load_id in sorted(found.items()) if key not in pending}

    def _pending(self, recorded: Mapping[str, str]) -> set[str]:
        """Return the windows whose newest load in the log is not the `recorded` one: it has not recorded its receipt
        yet."""
        loads = load_log.newest_loads(self.folder) if recorded else {}
        return {key for key, load_id in recorded.items() if key in loads and loads[key].metadata.load_id != load_id}

    def _names(self, group: Group) -> bool:
        """Return True if the newest version still has all files of a group."""
        with self.folder.reading():
            named = set(pa.table(self.folder.delta().get_add_actions())["path"].to_pylist())
        return named.issuperset(file.path for file in group.files)

    def _remember(self, new: Sequence[NewFile], report: Report) -> None:
        for file in new:
            held: dict[str, int] = {}
            for (key, _), rows in report.files[file.path].items():
                held[key] = held.get(key, 0) + rows.rows
            holdings.remember(self.folder, holdings.in_log(file.path), file.bytes, held)

    def _record(self, expected: Expected, version: int) -> None:
        """Record a receipt that names the files of a window that has separate files. For shared files, the contents are
        recorded."""
        key = expected.key
        found = holdings.actions_if_kept(self.folder, version, among=(key,))
        receipt = self.ledger.receipts(self.table, [key]).get(key)
        if found is None or receipt is None or receipt.load_id != expected.load_id:
            return
        files = holdings.window_files(found)
        if key in files:
            table_id = load_log.table_id(self.folder)
            self.ledger.record_receipts([proved_again(receipt, files[key], version, table_id)])


def _load_ids(keys: Collection[str], expected: Mapping[str, Expected]) -> dict[str, str]:
    return {key: expected[key].load_id for key in keys if key in expected}


def _differing(digests: Digests, expected: Mapping[str, Expected]) -> set[str]:
    """Return the windows whose rows differ from those of their receipts, or that have rows of another log."""
    by_window: dict[str, dict[str, Measured]] = {}
    for (key, topic_id), rows in digests.items():
        by_window.setdefault(key, {})[topic_id] = rows
    differing = set(by_window) - set(expected)
    for key, each in expected.items():
        found = by_window.get(key, {})
        if not (set(found) <= {each.topic_id} and found.get(each.topic_id, NO_ROWS) == each.measured):
            differing.add(key)
    return differing
