"""Folding pending changes into a topic's state: one commit to the table of deleted keys, one to the history if there is
one, then one to the live keys.

A process may end anywhere. Until the first commit, nothing has changed; after it, the table of deleted keys is ahead of
the live keys, and the next fold applies to all tables what the oldest one lacks. Two folds at once do no harm: a commit is
refused if its table has changed since it was opened.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from math import ceil
from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import (
    ChangesOutdatedError,
    FilesLostError,
    FoldOutcomeUnknownError,
    PlatformError,
    StateOutdatedError,
)
from platform_assets.lake import delta_log, field_ids, state_table
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.state_table import FoldMetadata, Opened
from platform_assets.ledger.erasure_rules import erased_of, has_erasures
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Digest
from platform_assets.model.logs import logger
from platform_assets.model.state import StateDeclaration
from platform_assets.windows.state.changes_source import (
    ChangesSource,
    UnknownChangeError,
    awaited,
    of_other_declaration,
)
from platform_assets.windows.state.collecting import collectable, has_deletes_up_to
from platform_assets.windows.state.pending import FoldPlan, plan

if TYPE_CHECKING:
    # Imported in the functions that need it: it loads compiled code, which a tick and a code location do not need.
    from platform_assets.engines.folding.files import FileSide
    from platform_assets.engines.folding.fold import FoldOrder

_log = logger(__name__)

SHARE: Final = 0.1
"""Pending rows, as a share of the rows of the state, from which on a fold is due."""
SMALL_ROWS: Final = 1_000_000
SMALL_BYTES: Final = 128 << 20
"""A state with fewer rows, in files of fewer bytes, is folded after each window."""

Progress = Callable[[int, int], None]
"""Called with the number of finished buckets, and the number of all buckets."""


@dataclass(frozen=True, slots=True)
class Pending:
    """Changes that a state lacks. `rows` is their number, `windows` their windows in ascending order.

    `through` is the newest window in the state, or an empty text. `state_rows` and `state_bytes` are the size of the
    state. If `rebuild` is not empty, it is the reason why the next fold has to make the state from all changes.
    `replaces` is true if a window that was folded has other changes now, and `erases` if records were erased from it.
    `is_interrupted` is true if a fold ended before it deleted files that may have erased records. If `waits` is not
    empty, it is the reason why nothing can be folded yet: changes have to be made again first. `deleted_keys` is the
    number of deleted keys that are kept: those that were deleted after the window `collected`, if that is not empty.
    """

    windows: tuple[str, ...]
    rows: int
    through: str
    state_rows: int
    state_bytes: int
    rebuild: str = ""
    replaces: bool = False
    erases: bool = False
    is_interrupted: bool = False
    waits: str = ""
    history_rows: int = 0
    history_bytes: int = 0
    deleted_keys: int = 0
    collected: str = ""

    @property
    def due_from(self) -> int:
        """The number of pending changes from which on a fold is due, if the state is not small. A fold also rewrites the
        history."""
        return ceil(SHARE * (self.state_rows + self.history_rows))

    @property
    def is_urgent(self) -> bool:
        """True if the state has wrong or erased rows, or does not exist: more changes to come are no reason to wait."""
        return bool(self.rebuild) or self.replaces or self.erases or self.is_interrupted

    def awaits_more(self, coming: int) -> bool:
        """Return True if a fold that is due should wait, because the changes of more windows than are pending, `coming`, are
        being made. So the state is rewritten as often as a backlog can be halved, and not once for each of its windows."""
        return not self.is_urgent and len(self.windows) < coming

    @property
    def is_due(self) -> bool:
        """True if the next fold should not wait for more changes."""
        if self.waits:
            return False
        if self.is_urgent:
            return True
        is_small = (
            self.state_rows + self.history_rows < SMALL_ROWS and self.state_bytes + self.history_bytes < SMALL_BYTES
        )
        return bool(self.windows) and (is_small or self.rows >= self.due_from)


@dataclass(frozen=True, slots=True)
class FoldOutcome:
    """The result of a fold: how the state was made, the windows that were applied, and the rows of all tables now.
    `history` is None without a history. Keys that were deleted up to the window `collected` are no longer kept; the text is
    empty if all are."""

    made: Literal["fold", "rebuild", "unchanged"]
    windows: tuple[str, ...]
    changes: int
    rows: int
    deleted: int
    through: str
    seconds: float
    reason: str = ""
    history: int | None = None
    collected: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A state, with its pending changes applied, next to a state that was made from all changes."""

    live: tuple[Digest, Digest]
    dead: tuple[Digest, Digest]
    history: tuple[Digest, Digest] | None = None

    @property
    def tables(self) -> tuple[tuple[Digest, Digest], ...]:
        """The present and the other digest of each table."""
        return (self.live, self.dead) if self.history is None else (self.live, self.dead, self.history)

    @property
    def is_equal(self) -> bool:
        """True if both have the same rows."""
        return all(now == remade for now, remade in self.tables)


@dataclass(frozen=True, slots=True)
class StateTables:
    """The tables of a state and its table of changes as they were when they were opened, and what a fold has to do."""

    live: Opened
    dead: Opened
    source: ChangesSource
    plan: FoldPlan
    history: Opened | None = None

    @property
    def all(self) -> tuple[Opened, ...]:
        """The tables that exist."""
        return (self.live, self.dead) if self.history is None else (self.live, self.dead, self.history)


@dataclass(frozen=True)
class TopicState:
    """The state of a topic: `declared` says what a key is, and which record counts."""

    topic: str
    declared: StateDeclaration
    lake: Lake
    run_id: str = ""
    before_step: Callable[[str], None] = lambda step: None
    """Called with the name of each irreversible step, before that step. Tests use it to end a process there."""

    @property
    def live_folder(self) -> Folder:
        """The folder of the table of live keys."""
        return self.lake.root / "state" / self.topic

    @property
    def dead_folder(self) -> Folder:
        """The folder of the table of deleted keys."""
        return self.lake.root / "state_deleted" / self.topic

    @property
    def history_folder(self) -> Folder:
        """The folder of the history, which exists if one was declared."""
        return self.lake.root / "history" / self.topic

    @property
    def _names(self) -> frozenset[str]:
        """The names by which errors refer to the tables of the state."""
        return frozenset(map(state_table.name_of, (self.live_folder, self.dead_folder, self.history_folder)))

    @property
    def changes_folder(self) -> Folder:
        """The folder of the table of changes."""
        return self.lake.root / "changes" / self.topic

    @property
    def exists(self) -> bool:
        """True if the tables of live and deleted keys exist."""
        return delta_log.exists(self.live_folder) and delta_log.exists(self.dead_folder)

    def pending(self) -> Pending:
        """Return the changes that the state lacks. Raises NoChangesError if there is no table of changes."""
        if not self.exists:
            source, waits = self._awaited(from_all=True)
            by_window = source.rows_by_window()
            windows, rows = tuple(sorted(by_window)), sum(by_window.values())
            # The tables that are left may have erased records.
            is_left = any(map(delta_log.exists, (self.live_folder, self.dead_folder, self.history_folder)))
            erases = is_left and has_erasures(Ledger(self.lake), self.topic)
            return Pending(windows, rows, "", 0, 0, "the state does not exist yet", erases=erases, waits=waits)
        return self._pending(self.opened())

    def _pending(self, tables: StateTables) -> Pending:
        planned = tables.plan
        by_window = tables.source.rows_by_window(None if planned.rebuild else planned.windows)
        files = tables.live.files()
        return Pending(
            windows=tuple(sorted(by_window if planned.rebuild else planned.windows)),
            rows=sum(by_window.values()),
            through=_through(tables.live, tables.dead),
            state_rows=_total(files, "num_records"),
            state_bytes=_total(files, "size_bytes"),
            rebuild=planned.rebuild,
            replaces=planned.replaces,
            erases=planned.erases or (planned.rebuild != "" and self._lacks_erasure(tables)),
            is_interrupted=self._has_past_files(tables),
            waits=planned.waits,
            history_rows=0 if tables.history is None else _total(tables.history.files(), "num_records"),
            history_bytes=0 if tables.history is None else _total(tables.history.files(), "size_bytes"),
            deleted_keys=_total(tables.dead.files(), "num_records"),
            collected=planned.collected,
        )

    def fold(
        self, *, rebuild: bool = False, erases: bool = False, progress: Progress = lambda done, all: None
    ) -> FoldOutcome:
        """Apply all pending changes or, with `rebuild`, make the state from all changes. With `erases`, delete past files
        after that, as after each fold that removes erased records. If files of the state are lost, the state is made
        from all changes.

        Raises ChangesOutdatedError if changes have yet to be made again; ConcurrentFoldError if another commit changed one
        of the tables in the meantime; FoldOutcomeUnknownError; NoChangesError if there is no table of changes; and
        FilesLostError if files of the changes are lost.
        """
        try:
            return self._fold("requested" if rebuild else "", progress, erases=erases)
        except FilesLostError as e:
            if e.table not in self._names:
                raise
            _log.warning("state/%s is made from all changes, because files of it are lost: %s", self.topic, e.detail)
            return self._fold(f"data files of {e.table} are missing or damaged", progress, erases=erases)

    def _fold(self, requested: str, progress: Progress, *, erases: bool) -> FoldOutcome:
        from platform_assets.engines.folding.fold import SweptBackError, fold

        began = time.monotonic()
        self._create()
        # Asked for first: the table of changes, opened after it, then has each of these windows.
        collectable_to = self._collectable()
        tables = self.opened()
        self._finish_erasures(tables)
        if tables.plan.waits:
            raise ChangesOutdatedError(self.topic, tables.plan.waits)
        reason = tables.plan.rebuild or requested
        pending = self._pending(tables)
        collected = "" if reason else tables.plan.collected
        collects = max(collected, collectable_to)
        if not reason and not tables.plan.windows and not has_deletes_up_to(tables.dead, self.declared.key, collects):
            seconds = time.monotonic() - began
            history_rows = None if tables.history is None else pending.history_rows
            return FoldOutcome(
                "unchanged", (), 0, pending.state_rows, pending.deleted_keys, pending.through, seconds,
                history=history_rows, collected=collected,
            )  # fmt: skip
        windows = sorted(tables.source.rows_by_window()) if reason else sorted(tables.plan.windows)
        sides = self._sides(tables, from_all=bool(reason))
        metadata = FoldMetadata(
            fold_id=uuid.uuid4().hex,
            run_id=self.run_id,
            made="rebuild" if reason else "fold",
            declaration=self.declared.digest,
            changes_id=tables.source.table_id,
            changes=tables.source.anchor,
            through=max([*windows, "" if reason else pending.through], default=""),
            windows=len(windows),
            # A state that is made from all changes may lose erased records of which no load tells.
            erases=erases
            or tables.plan.erases
            or (reason != "" and (bool(erased_of(Ledger(self.lake), self.topic)) or self._lacks_erasure(tables))),
            collected=collects,
        )
        try:
            made = fold(self._order(tables, sides, windows, from_all=bool(reason), collects=collects), progress)
        except SweptBackError as e:
            return self._fold(str(e), progress, erases=erases)
        except BaseException:
            _discard(*sides)
            raise
        # An interrupt, or an unknown error, does not tell whether the log names the files by now. They then stay until
        # `delete_old_files`.
        live, dead, *history = zip(tables.all, sides, made.all, strict=True)
        in_order, versions = (dead, *history, live), list[int]()
        for at, (opened, side, measured) in enumerate(in_order):
            try:
                self.before_step(state_table.name_of(opened.folder).partition("/")[0])
                committed = metadata.of(measured.content, made.truncated, made.snapshots)
                versions.append(state_table.commit(opened, side.table_columns, side.written, committed))
            except FoldOutcomeUnknownError:
                raise
            except PlatformError:
                _discard(*(each[1] for each in in_order[at:]))
                raise
        self.before_step("past files")
        for (opened, _, _), version in zip(in_order, versions, strict=True):
            if metadata.erases:
                state_table.delete_past_files(opened.folder, version)
            else:
                state_table.delete_old_files(opened.folder, version)
        rows = pending.rows if not reason else sum(tables.source.rows_by_window().values())
        return FoldOutcome(
            metadata.made,
            tuple(windows),
            rows,
            made.live.rows,
            made.dead.rows,
            metadata.through,
            time.monotonic() - began,
            reason,
            None if made.history is None else made.history.rows,
            collects,
        )

    def compare(self, progress: Progress = lambda done, all: None) -> Comparison:
        """Make the state from all changes without writing it, and compare it with the present state, to which the
        pending changes are applied, also without writing. Raises TableGoneError if there is no state, StateOutdatedError if
        the next fold makes it from all changes, and the errors of `fold`."""
        from platform_assets.engines.folding.files import Unwritten
        from platform_assets.engines.folding.fold import SweptBackError, fold

        tables = self.opened()
        if tables.plan.waits:
            raise ChangesOutdatedError(self.topic, tables.plan.waits)
        if tables.plan.rebuild:
            raise StateOutdatedError(self.topic, tables.plan.rebuild)
        found = []
        for from_all in (False, True):
            sides = [Unwritten.of(side) for side in self._sides(tables, from_all=from_all)]
            windows = tables.source.rows_by_window() if from_all else tables.plan.windows
            try:
                order = self._order(tables, sides, windows, from_all=from_all, collects=tables.plan.collected)
                found.append(fold(order, progress))
            except SweptBackError as e:
                raise StateOutdatedError(self.topic, str(e)) from e
            except FilesLostError as e:
                if e.table not in self._names:
                    raise
                cause = f"data files of {e.table} are missing or damaged: {e.detail}"
                raise StateOutdatedError(self.topic, cause, is_damaged=True) from e
        return Comparison(
            *((now.content, remade.content) for now, remade in zip(found[0].all, found[1].all, strict=True))
        )

    def _create(self) -> None:
        source = ChangesSource.newest(self.changes_folder)
        wanted = [
            (self.dead_folder, state_table.dead_columns(source.columns, self.declared.key), "Deleted keys"),
            (self.live_folder, state_table.live_columns(source.columns), "The current row of each key"),
        ]
        if self.declared.history:
            columns = state_table.history_columns(source.columns)
            wanted.append((self.history_folder, columns, "All rows of each key, and when each counted,"))
        for folder, columns, what in wanted:
            if not delta_log.exists(folder):
                kind = folder.uri.rsplit("/", 2)[1]
                state_table.create(
                    folder, columns, name=f"{kind}_{self.topic}", description=f"{what} of Kafka topic {self.topic}"
                )

    def opened(self) -> StateTables:
        """Open the tables. Raises TableGoneError if there is no state, and NoChangesError."""
        # The changes come last: their version is then never older than that of the state.
        dead, live, history = state_table.opened(self.dead_folder), state_table.opened(self.live_folder), None
        if self.declared.history and delta_log.exists(self.history_folder):
            history = state_table.opened(self.history_folder)
        source = ChangesSource.newest(self.changes_folder)
        planned = self._plan(live, dead, history, source)
        if planned.rebuild or planned.replaces or planned.is_late:
            source, waits = self._awaited(from_all=bool(planned.rebuild), through=_through(live, dead))
            planned = replace(self._plan(live, dead, history, source), waits=waits)
        if planned.newest and not planned.rebuild and not planned.waits:
            # A run of another version of the code may have made these changes.
            found = of_other_declaration(Ledger(self.lake), self.topic, self.declared.digest, planned.newest)
            planned = replace(planned, waits=found.reason)
        return StateTables(live, dead, source, planned, history)

    def _lacks_erasure(self, tables: StateTables) -> bool:
        """Return True if records were erased from the changes since the oldest fold. If that is not known, return True if the
        topic ever had an erasure."""
        folds = [table.fold.changes for table in tables.all if table.fold is not None]
        if len(folds) == len(tables.all):
            with suppress(UnknownChangeError):
                return any(load.erases for load in tables.source.loads_since(min(folds, key=lambda at: at.version)))
        return has_erasures(Ledger(self.lake), self.topic)

    def _collectable(self) -> str:
        """Return the newest window up to which deleted keys need not be kept any longer; an empty text if there is none."""
        kept = self.declared.deletes_kept
        if kept is None:
            return ""
        until = kept.until(self.lake.root.time())
        return collectable(Ledger(self.lake), self.topic, self.declared.digest, self.changes_folder, until)

    def _awaited(self, *, from_all: bool, through: str = "") -> tuple[ChangesSource, str]:
        """Return the newest changes, and the reason why they cannot be folded yet; an empty text if they can."""
        source, found = awaited(
            Ledger(self.lake), self.topic, self.declared.digest, self.changes_folder, from_all=from_all, through=through
        )
        return source, found.reason

    def _plan(self, live: Opened, dead: Opened, history: Opened | None, source: ChangesSource) -> FoldPlan:
        tables = (live, dead) if history is None else (live, dead, history)
        folds = [each.fold for each in tables if each.fold is not None]
        if live.fold is None or dead.fold is None or len(folds) < len(tables):
            is_new = live.version == 0 and dead.version <= 1
            why = "the state is new" if is_new else "another program has changed the state, or its log was shortened"
            if live.fold is not None and dead.fold is not None and history is not None and history.version == 0:
                why = "the history is new"
            return FoldPlan(frozenset(), why)
        if self.declared.history and history is None:
            return FoldPlan(frozenset(), "the history does not exist yet")
        # Deleted keys are committed first, so the live keys still have the rows that the rebuild was to replace.
        if live.fold.fold_id != dead.fold.fold_id and dead.fold.made == "rebuild":
            return FoldPlan(
                frozenset(), "the state was being made from all changes, but that fold ended between its two commits"
            )
        if any(each.declaration != self.declared.digest for each in folds):
            return FoldPlan(frozenset(), "the declaration of the state has changed")
        if any(each.changes_id != source.table_id for each in folds):
            return FoldPlan(frozenset(), "the table of changes has been created again")
        anchors = sorted((each.changes for each in folds), key=lambda anchor: anchor.version)
        try:
            source.loads_since(anchors[-1])
            loads = source.loads_since(anchors[0])
        except UnknownChangeError as e:
            return FoldPlan(frozenset(), str(e))
        truncated = {each.truncated for each in folds if each.truncated}
        collected = max(each.collected for each in folds)
        snapshots = [each.snapshots for each in folds]
        planned = plan(loads, [anchor.version for anchor in anchors], truncated, collected, snapshots)
        # After an erasure, changes may be made again by a load that does not name the erased records itself.
        again = sorted({load.window for load in loads if load.replaces})
        erased = any(erased_of(Ledger(self.lake), self.topic, again).values()) if again else False
        return replace(planned, erases=planned.erases or erased)

    def _sides(self, tables: StateTables, *, from_all: bool) -> list[FileSide]:
        from platform_assets.engines.folding.files import FileSide

        changes = tables.source.columns
        wanted = [state_table.live_columns(changes), state_table.dead_columns(changes, self.declared.key)]
        if tables.history is not None:
            wanted.append(state_table.history_columns(changes))
        return [
            FileSide(
                opened.folder,
                field_ids.assigned(columns, opened.columns),
                () if from_all else tuple(opened.files()["path"].to_pylist()),
                state_table.folder_of(opened.version, uuid.uuid4().hex),
                self.declared.key,
            )
            for opened, columns in zip(tables.all, wanted, strict=True)
        ]

    def _order(
        self, tables: StateTables, sides: Sequence[FileSide], windows: Collection[str], *, from_all: bool, collects: str
    ) -> FoldOrder:
        from platform_assets.engines.folding.buckets import count_for
        from platform_assets.engines.folding.fold import FoldOrder

        source = tables.source
        columns = pa.schema([f.remove_metadata() for f in source.columns if f.name != "topic_id"])
        rows = sum(source.rows_by_window(None if from_all else windows).values())
        if not from_all:
            rows += sum(_total(each.files(), "num_records") for each in tables.all)

        def changes() -> Iterator[pa.RecordBatch]:
            return source.blocks(columns, windows)

        def others() -> Iterator[pa.RecordBatch]:
            return source.blocks(columns, windows, others=True)

        # A sample of the rows tells their size in memory, which the files do not: they are compressed.
        live, dead, *history = sides
        sample = next(chain(live.blocks(), changes()), None)
        width = 0 if sample is None else sample.nbytes / sample.num_rows
        count = count_for(round(rows * width), 1 if from_all else live.buckets)
        # Without present rows, nothing is missing from them.
        known = FoldPlan(frozenset()) if from_all else tables.plan
        return FoldOrder(
            self.declared, live, dead, frozenset(windows), changes, others, count, history[0] if history else None,
            collected=known.collected, collects=collects, snapshots=known.snapshots, swept=known.swept,
        )  # fmt: skip

    def finish_erasures(self) -> None:
        """Delete the past files that a fold with erased records has left, because it ended before that. Raises what `pending`
        raises."""
        self._finish_erasures(self.opened())

    def _has_past_files(self, tables: StateTables) -> bool:
        """Return True if the newest fold erased records, and past files are left, because it ended before it deleted them."""
        return any(
            table.fold is not None
            and table.fold.erases
            and bool(state_table.past_files(table.folder, table.version, table.handle))
            for table in tables.all
        )

    def _finish_erasures(self, tables: StateTables) -> None:
        """Delete the past files that a fold with erased records has left, because it ended before that."""
        for table in tables.all:
            if table.fold is not None and table.fold.erases:
                state_table.delete_past_files(table.folder, table.version)


def _through(live: Opened, dead: Opened) -> str:
    return min((each.fold.through for each in (live, dead) if each.fold is not None), default="")


def _total(files: pa.Table, name: str) -> int:
    return pc.sum(files[name]).as_py() or 0


def _discard(*sides: FileSide) -> None:
    """Delete new files, which no commit refers to."""
    for side in sides:
        side.folder.erase([file.path for file in side.written])
