"""One run of a derived table: find the groups that changed, compute them from pinned inputs, and replace them in one commit."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from platform_assets.engines.deriving import AllRowsNeededError, DerivingEngine, PinnedInput
from platform_assets.engines.totals import TotalsQueries
from platform_assets.errors import (
    ConcurrentDerivationError,
    DerivedQueryError,
    DerivedRowsLostError,
    InputMissingError,
    TableRefusedError,
)
from platform_assets.lake import delta_log, derived_table
from platform_assets.lake.changed_windows import ChangedWindows, changed_windows, changes_rows, commit_digest
from platform_assets.lake.derived_table import MOST_LISTED, Derivation, InputVersion, Made, RowsDigest
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.pinned_files import Wanted
from platform_assets.lake.vacuum import old_files, vacuum
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.windows.derive import erased, joins, query, totals, touched
from platform_assets.windows.derive.freshness import input_version
from platform_assets.windows.derive.query import Input, Query

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame
    from pyspark.sql.connect.session import SparkSession

_log = logger(__name__)

_SMALL_BYTES: Final = 8 << 20
_MOST_SMALL: Final = 64
"""If a table has more small files than this, a run that replaces groups also merges the small files."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The rows that a run computes: all if `because` is not empty, or those of `groups`. With neither, the rows are up to date.

    `changes` has the changed windows of the driving table, if they are known.
    """

    because: str = ""
    groups: pa.Table | None = None
    changes: ChangedWindows | None = None


@dataclass(frozen=True, slots=True)
class Derived:
    """Result of a run: the table's newest derivation, and False in `is_new` if nothing had to be committed.

    `groups` has the groups that this run replaced; None if it computed all rows.
    """

    made: Made
    is_new: bool
    warnings: tuple[str, ...] = ()
    groups: pa.Table | None = None


@dataclass(frozen=True, slots=True)
class _Change:
    """Rows of a table that a run replaces: those with the values `groups` in the columns of `engine`, which are in files that may
    have the values `wanted`. `placed` has these rows with the addresses of their files. `use` gives the new rows to a function. Unless
    `lacking` is None, it must have no rows. `differences` has the differences of totals."""

    engine: DerivingEngine
    groups: pa.Table
    wanted: Sequence[Wanted]
    placed: DataFrame | None
    lacking: DataFrame | None
    use: Callable[[Callable[[DataFrame], Any]], Any]
    differences: pa.Table | None = None


class Updater:
    """Runs of one derived table."""

    def __init__(self, lake: Lake, declaration: DerivedDeclaration, spark: Callable[[], SparkSession]) -> None:
        """Parse the query. Raises QueryError."""
        self._lake, self._declared = lake, declaration
        self.query: Query = query.parsed(declaration)
        self._spark, self._engine = spark, DerivingEngine(spark, declaration.table.name, declaration.by)
        self._totals = None if declaration.totals is None else TotalsQueries(declaration.totals, declaration.by)
        self._folder = lake.table(declaration.table)
        self._names = [each.name for each in self.query.inputs]
        self._erased: dict[str, int] = {}
        self._is_committing = False

    def run(self, run_id: str, *, whole: bool = False, because: str = "all rows were requested") -> Derived:
        """Bring the table up to date with the newest versions of its inputs. With `whole`, compute all rows, for the reason `because`.

        Raises InputMissingError, DerivedQueryError, ConfigurationError, and the errors of `derived_table.commit`.
        """
        # Listed first: a run that has begun one of these folders is refused once this run has committed.
        begun = derived_table.begun(self._folder)
        # Opened before anything on which the commit depends is read.
        handle = self._folder.delta() if delta_log.exists(self._folder) else None
        # Counted before the inputs are pinned, so the pinned versions have seen all of these erasures.
        self._erased = erased.seen(self._lake, self.query.inputs)
        pinned = self.pinned()
        last, foreign = (None, False) if handle is None else derived_table.newest(self._folder, handle.version())
        self._engine.prepare(self.records(pinned))
        plan = Plan(because) if whole else self._plan(last, foreign, pinned)
        if (
            not plan.because
            and plan.groups is None
            and last is not None
            and _versions(pinned) == last.derivation.inputs
            and self._erased == last.derivation.erased
        ):
            self._delete_past(last, begun, dead=False)
            return Derived(last, False, self.query.warnings)
        if not plan.because:
            if handle is None or last is None:
                raise AssertionError("unreachable: all rows are computed in that case")
            try:
                unique = _unique(run_id)
                with self._discarding(unique, handle):
                    made = self._some(handle, last.derivation, pinned, plan, unique)
                self._delete_past(made, begun, dead=True)
                return Derived(made, True, self.query.warnings, plan.groups)
            except AllRowsNeededError as e:
                plan = Plan(str(e), changes=plan.changes)
        unique = _unique(run_id)
        self._engine.prepare(self.records(pinned))
        with self._discarding(unique, handle):
            made = self._whole(handle, last, pinned, plan, unique)
        self._delete_past(made, begun, dead=True)
        return Derived(made, True, self.query.warnings)

    def _delete_past(self, made: Made, begun: Collection[str], *, dead: bool) -> None:
        """Delete past files with erased values, and past files that are older than the table's retention. With `dead`, delete also the
        folders in `begun` that no commit names. Raises LakeNotWritableError."""
        self._folder.erase(derived_table.past_files(self._folder, made, begun, dead=dead))
        if dead:
            vacuum(self._declared.table, self._folder, old=old_files(self._folder))

    @contextmanager
    def _discarding(self, unique: str, handle: DeltaTable | None) -> Iterator[None]:
        """Delete the files of a run that fails inside the block, unless its commit may have been made. The first commit
        after the version of `handle` may delete files of other runs, which cannot commit any more. Raises
        ConcurrentDerivationError for the errors to which this leads."""
        self._is_committing = False
        try:
            yield
        except BaseException as e:
            if not self._is_committing or isinstance(e, ConcurrentDerivationError | TableRefusedError):
                for name in (unique, f"{unique}-kept"):
                    (self._folder / f"{derived_table.FOLDER}/{name}").delete()
            opened = None if handle is None else handle.version()
            if isinstance(e, DerivedQueryError | DerivedRowsLostError) and (
                delta_log.newest_version(self._folder) != opened
            ):
                raise ConcurrentDerivationError(self._declared.table.name) from e
            raise

    def _commit(
        self,
        handle: DeltaTable,
        derivation: Derivation,
        new: Sequence[derived_table.DerivedFile],
        removed: Collection[str],
        schema: Schema | None,
    ) -> Made:
        self._is_committing = True
        derivation = replace(derivation, erased=self._erased)
        return derived_table.commit(self._folder, handle, derivation, new, removed, schema)

    def pinned(self) -> dict[Input, PinnedInput]:
        """Return the newest version of each input. Raises InputMissingError, also while a state or derived table is made for the
        first time."""
        found = {}
        for ref in self.query.inputs:
            folder = self._lake.table(ref)
            version = input_version(folder, ref)
            if version is None:
                raise InputMissingError(self._declared.table.name, ref.name)
            found[ref] = PinnedInput(ref.name, folder, version, _identity(folder, version))
        return found

    def records(self, pinned: Mapping[Input, PinnedInput]) -> int:
        """Return the number of rows of the driving table, from its log."""
        driving = pinned[self.query.driving]
        return sum(
            rows or 0
            for _, rows in derived_table.files_of(driving.folder, driving.folder.delta(driving.version)).values()
        )

    def pinned_at(self, derivation: Derivation) -> dict[Input, PinnedInput]:
        """Return the versions of the inputs from which a derivation was computed."""
        return {
            ref: PinnedInput(ref.name, self._lake.table(ref), derivation.inputs[ref.name].version)
            for ref in self.query.inputs
        }

    def rows(
        self, pinned: Mapping[Input, PinnedInput], groups: pa.Table | None, use: Callable[[DataFrame], Any]
    ) -> Any:
        """Return what `use` returns for the rows that the table should have; with `groups`, only for the query's rows of these
        groups."""
        driving = self._input(pinned[self.query.driving], groups)
        with self._engine.failures(self._names), self._result(pinned, driving) as frame:
            return use(frame if self._totals is None or groups is not None else self._totals.of(frame))

    def engine_of(self, table: DataFrame) -> DerivingEngine:
        """Return the engine for the table's own rows, with these columns, which are replaced together if they are equal in `by` or,
        in a table with totals, in its keys."""
        if self._totals is None:
            return self._engine
        keys = {name: query.quoted(name) for name in self._totals.keys(table)}
        return DerivingEngine(self._spark, self._declared.table.name, keys)

    @contextmanager
    def _result(self, pinned: Mapping[Input, PinnedInput], driving: DataFrame) -> Iterator[DataFrame]:
        """Give the query's rows for these rows of the driving table, and all rows of the other inputs."""
        others = (ref for ref in self.query.inputs if ref != self.query.driving)
        frames = {self.query.driving: driving, **{ref: self._input(pinned[ref], None) for ref in others}}

        def text(views: Any) -> str:
            return self.query.with_views(dict(zip(frames, views, strict=True)))

        with self._engine.result(text, list(frames.values())) as frame:
            yield frame

    def _input(self, table: PinnedInput, groups: pa.Table | None) -> DataFrame:
        """Return the rows of an input; with `groups`, only the driving table's rows of these groups."""
        wanted = () if groups is None else touched.wanted(self._declared.by, groups)
        frame = self._engine.read(table, wanted) if self._is_plain else self._engine.read_all(table)
        return frame if groups is None else self._engine.among(frame, groups)

    def _is_read(self, column: str) -> bool:
        """Return True if the query may read a column of the driving table."""
        return self.query.reads_all or joins.is_named(column, self.query.text, *self._declared.by.values())

    @property
    def _is_plain(self) -> bool:
        """False if the query reads the names of files in `_metadata`, which have to be those that Delta's own reader gives."""
        return not joins.is_named("_metadata", self.query.text, *self._declared.by.values())

    # --- planning

    def _plan(self, last: Made | None, foreign: bool, pinned: Mapping[Input, PinnedInput]) -> Plan:
        if last is None:
            return Plan(
                "the table is new" if not foreign else "the table's log no longer shows how its rows were computed"
            )
        before, joined = last.derivation, list[Input]()
        if foreign:
            return Plan("another writer changed the table")
        if before.declaration != self._declared.digest:
            return Plan("`sql` or `by` changed")
        now = _versions(pinned)
        for ref, at in pinned.items():
            then = before.inputs.get(ref.name)
            if then is None or then.table_id != now[ref.name].table_id:
                return Plan(f"{ref.name} was created again")
            if ref != self.query.driving and changes_rows(at.folder, then.version, at.version, digest=then.digest):
                if ref not in self.query.keyed or not _continues(at, then):
                    return Plan(f"{ref.name}, which is joined, changed")
                joined.append(ref)
        return self._groups(before.inputs, pinned, joined)

    def _groups(
        self, before: Mapping[str, InputVersion], pinned: Mapping[Input, PinnedInput], joined: Sequence[Input]
    ) -> Plan:
        """Return the plan for the groups that changes of the driving table, and of the state tables `joined`, touch."""
        driving, then = pinned[self.query.driving], before[self.query.driving.name]
        old = PinnedInput(driving.name, driving.folder, then.version)
        changes, found = None, list[pa.Table]()
        try:
            if isinstance(self.query.driving, TableRef):
                changes = changed_windows(driving.folder, then.version, driving.version, digest=then.digest)
                if changes.unknown is not None:
                    return Plan(f"of {driving.name}, {changes.unknown}", changes=changes)
                if changes:
                    is_by_window = self._declared.is_by_window
                    rows = touched.records(self._engine, driving, changes.keys)
                    self._engine.prepare(self.records(pinned) if rows is None else rows)
                    found.append(touched.by_windows(self._engine, changes, driving, is_by_window=is_by_window))
            elif changes_rows(driving.folder, then.version, driving.version, digest=then.digest):
                if not _continues(driving, then):
                    return Plan(f"{driving.name} was replaced by another copy")
                found.append(touched.by_own_rows(self._engine, self.query, old, driving))
            if joined:
                self._engine.prepare(self.records(pinned))
            for ref in joined:
                new, pairs = pinned[ref], self.query.keyed[ref]
                was = PinnedInput(new.name, new.folder, before[ref.name].version)
                found.append(touched.by_joined_rows(self._engine, self.query, pairs, driving, was, new))
            return Plan(groups=touched.together(found), changes=changes)
        except AllRowsNeededError as e:
            return Plan(str(e), changes=changes)

    # --- computing and committing

    def _whole(
        self, handle: DeltaTable | None, last: Made | None, pinned: Mapping[Input, PinnedInput], plan: Plan, unique: str
    ) -> Made:
        below = f"{derived_table.FOLDER}/{unique}"

        def write(frame: DataFrame) -> Any:
            engine = self.engine_of(frame)
            schema = engine.nullable(frame)
            engine.write(frame, self._folder, below, moves=self._totals is None)
            return schema

        self._folder.make()
        spark_schema = self.rows(pinned, None, write)
        schema = Schema.from_json(spark_schema.json())
        with self._engine.failures(self._names):
            written = self._engine.digest(self._engine.staged(self._folder, below, spark_schema))
        if handle is None:
            derived_table.create(self._folder, self._declared.table, schema)
            handle = self._folder.delta()
            if handle.version() != 0:
                handle = self._folder.delta(0)
        before = RowsDigest() if last is None else last.derivation.whole
        same = last is not None and last.derivation.declaration == self._declared.digest and before == written
        derivation = self._derivation(unique, pinned, plan, "whole", before, written, written)
        new = derived_table.written_files(self._folder, below, self._bounded)
        if sum(file.rows for file in new) != written.rows:
            raise DerivedRowsLostError(self._declared.table.name, f"{written.rows:,} rows were computed")
        if same:
            _log.info("all rows of %s were computed again, with the same digest", self._declared.table)
        return self._commit(handle, derivation, new, (), schema)

    def _some(
        self, handle: DeltaTable, last: Derivation, pinned: Mapping[Input, PinnedInput], plan: Plan, unique: str
    ) -> Made:
        with ExitStack() as stack:
            return self._replace(handle, last, pinned, plan, unique, stack)

    def _replace(
        self,
        handle: DeltaTable,
        last: Derivation,
        pinned: Mapping[Input, PinnedInput],
        plan: Plan,
        unique: str,
        stack: ExitStack,
    ) -> Made:
        table, change = PinnedInput(self._declared.table.name, self._folder, handle.version()), None
        if plan.groups is not None and plan.groups.num_rows:
            change = self._change(table, last, pinned, plan, stack)
        if change is None:
            derivation = self._derivation(unique, pinned, plan, "nothing", RowsDigest(), RowsDigest(), last.whole)
            return self._commit(handle, derivation, (), (), None)
        groups, engine, by = change.groups, change.engine, self._bounded
        files = derived_table.files_of(self._folder, handle)
        counts = {path: rows for path, (_, rows) in files.items() if rows is not None}
        if len(counts) != len(files) or sum(counts.values()) != last.whole.rows:
            raise AllRowsNeededError("the numbers of rows in the table's log are missing or wrong")
        below = f"{derived_table.FOLDER}/{unique}"
        with engine.failures(self._names):
            frame = engine.read(table, change.wanted)
            holding, replaced, is_complete = engine.holding(table, change.placed, change.lacking)
            if not is_complete:
                raise AllRowsNeededError("rows of changed windows are in none of the groups that were found")
            small = [path for path, (size, _) in files.items() if size < _SMALL_BYTES]
            if len(small) > _MOST_SMALL:
                frame = engine.read(table)
                holding = engine.addresses(frame, self._folder, [*holding, *small])
            removed = set(holding)
            kept_rows = sum(counts[path] for path in removed) - replaced.rows
            schema = frame.schema
            if kept_rows:
                stay = engine.kept(frame, groups, list(holding.values()))
                engine.write(stay, self._folder, f"{below}-kept", moves=self._totals is None)
        change.use(lambda found: engine.write(engine.nullable_like(found, schema), self._folder, below))
        with engine.failures(self._names):
            staged = engine.staged(self._folder, below, schema)
            written, has_strays = engine.digest_and_strays(staged, groups)
        if has_strays:
            raise AllRowsNeededError("the query gave rows of other groups than those that changed")
        new = derived_table.written_files(self._folder, below, by)
        kept = derived_table.written_files(self._folder, f"{below}-kept", by) if kept_rows else []
        if sum(f.rows for f in kept) != kept_rows or sum(f.rows for f in new) != written.rows:
            found = sum(f.rows for f in kept)
            raise DerivedRowsLostError(self._declared.table.name, f"{found:,} of {kept_rows:,} rows that stay")
        if self._declared.totals is not None and change.differences is not None:
            added = [f.path for f in (*new, *kept)]
            if not totals.is_balanced(self._folder, self._declared.totals, removed, added, change.differences):
                raise AllRowsNeededError("the totals before and after do not differ by what the changed groups added")
        whole = last.whole - replaced + written
        derivation = self._derivation(unique, pinned, plan, "groups", replaced, written, whole)
        # Before the commit, so that a server that fails here does not fail a run whose commit was made.
        stack.close()
        return self._commit(handle, derivation, [*new, *kept], removed, None)

    @property
    def _bounded(self) -> list[str]:
        """The columns whose bounds are in the table's log."""
        return list(self._declared.by) if self._totals is None else []

    def _change(
        self,
        table: PinnedInput,
        last: Derivation,
        pinned: Mapping[Input, PinnedInput],
        plan: Plan,
        stack: ExitStack,
    ) -> _Change | None:
        """Return the rows of the table that a run replaces, which can be used until `stack` is closed; None if totals stay as they
        are. Raises AllRowsNeededError."""
        groups, driving, engine = plan.groups, pinned[self.query.driving], self._engine
        if groups is None:
            raise AssertionError("unreachable: a change has groups")
        wanted = touched.wanted(self._declared.by, groups)
        engine.prepare(engine.records(driving, wanted) or self.records(pinned))
        with engine.failures(self._names):
            lacking = self._lacking(pinned, plan)
            if self._totals is None:
                own = touched.wanted_columns(groups)
                placed = engine.placed(table, own, groups)
                return _Change(engine, groups, own, placed, lacking, partial(self.rows, pinned, groups))
        queries, differences = self._totals, self._differences(last, pinned, groups, wanted, lacking)
        if not differences.num_rows:
            return None
        with engine.failures(self._names):
            held = engine.read(table)
            own_engine, keys = self.engine_of(held), differences.select(queries.keys(held))
            own_engine.prepare(self.records({self.query.driving: table}))
            found = own_engine.placed(table, (), keys)
            placed = None if found is None else stack.enter_context(engine.cached(found))
            rows = held.limit(0) if placed is None else engine.without_places(placed)
            now = queries.changed(rows, engine.local(differences))

        def use(write: Callable[[DataFrame], Any]) -> Any:
            with engine.failures(self._names):
                return write(now)

        return _Change(own_engine, keys, (), placed, None, use, differences)

    def _differences(
        self,
        last: Derivation,
        pinned: Mapping[Input, PinnedInput],
        groups: pa.Table,
        wanted: Sequence[Wanted],
        lacking: DataFrame | None,
    ) -> pa.Table:
        """Return what the rows of changed groups add to the totals now, less what they added in the last derivation. Raises
        AllRowsNeededError."""
        if self._totals is None:
            raise AssertionError("unreachable: only tables with totals have differences")
        before, driving, engine = self.pinned_at(last), self.query.driving, self._engine
        try:
            with engine.failures(self._names):
                if lacking is not None and lacking.limit(1).count():
                    raise AllRowsNeededError("rows of changed windows are in none of the groups that were found")
                with ExitStack() as stack:
                    if self._is_plain:
                        rows = stack.enter_context(
                            engine.read_changed(before[driving], pinned[driving], wanted, groups, self._is_read)
                        )
                    else:
                        rows = self._input(before[driving], groups), self._input(pinned[driving], groups)
                    then = stack.enter_context(self._result(before, rows[0]))
                    now = stack.enter_context(self._result(pinned, rows[1]))
                    return self._totals.differences(then, now)
        except DerivedQueryError as e:
            # All rows are computed from the new versions only.
            _log.warning("rows of changed groups of %s cannot be computed: %s", self._declared.table, e)
            raise AllRowsNeededError("what changed groups added to the totals can no longer be computed") from e

    def _lacking(self, pinned: Mapping[Input, PinnedInput], plan: Plan) -> DataFrame | None:
        """Return the rows of changed windows that the filter by groups, by which rows of the driving table are read, misses."""
        if plan.groups is None or plan.changes is None:
            return None
        changed = touched.of_windows(self._engine, pinned[self.query.driving], plan.changes.keys)
        return self._engine.among(changed, plan.groups, other=True)

    def _derivation(
        self,
        unique: str,
        pinned: Mapping[Input, PinnedInput],
        plan: Plan,
        extent: derived_table.Extent,
        replaced: RowsDigest,
        written: RowsDigest,
        whole: RowsDigest,
    ) -> Derivation:
        rows = [] if plan.groups is None else plan.groups.to_pylist()
        groups = [[None if value is None else str(value) for value in row.values()] for row in rows]
        loads = {} if plan.changes is None or plan.changes.unknown else dict(sorted(plan.changes.loads.items()))
        return Derivation(
            table=self._declared.table,
            run_id=unique,
            declaration=self._declared.digest,
            inputs=_versions(pinned),
            extent=extent,
            because=plan.because,
            groups=counted(sorted(groups, key=json.dumps)),
            loads=listed([list(pair) for pair in loads.items()]),
            replaced=replaced,
            written=written,
            whole=whole,
        )


def listed(values: list[Any]) -> dict[str, Any]:
    """Return values for commit metadata: their number, and the values themselves, or their digest if they are too many."""
    if len(values) <= MOST_LISTED:
        return {"count": len(values), "values": values}
    return counted(values)


def counted(values: list[Any]) -> dict[str, Any]:
    """Return the number of values and a digest of them, for commit metadata."""
    text = json.dumps(values, separators=(",", ":"))
    return {"count": len(values), "digest": hashlib.sha256(text.encode()).hexdigest()[:32]}


def _versions(pinned: Mapping[Input, PinnedInput]) -> dict[str, InputVersion]:
    """Return the identities of inputs as they were when `Updater.pinned` returned them. An input that is created again or restored
    while a run reads it then differs from what the run commits, so the next run computes all rows."""
    return {ref.name: at.identity or _identity(at.folder, at.version) for ref, at in pinned.items()}


def _identity(folder: Folder, version: int) -> InputVersion:
    table = folder.delta(version)
    with folder.reading():
        return InputVersion(version, str(table.metadata().id), commit_digest(folder, version))


def _continues(at: PinnedInput, then: InputVersion) -> bool:
    """Return True if the log of an input still has the commit of the version `then`, so one copy has both versions."""
    return at.version >= then.version and then.digest != "" and commit_digest(at.folder, then.version) == then.digest


def _unique(run_id: str) -> str:
    return f"{run_id[:8]}-{uuid.uuid4().hex[:12]}"
