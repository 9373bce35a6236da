"""One run of a derived table: find the groups that changed, compute them from pinned inputs, and replace them in one commit."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from deltalake import DeltaTable, Schema

from platform_assets.engines.deriving import AllRowsNeededError, DerivingEngine, PinnedInput
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
from platform_assets.lake.vacuum import old_files, vacuum
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.windows.derive import erased, joins, query, touched
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


class Updater:
    """Runs of one derived table."""

    def __init__(self, lake: Lake, declaration: DerivedDeclaration, spark: Callable[[], SparkSession]) -> None:
        """Parse the query. Raises QueryError."""
        self._lake, self._declared = lake, declaration
        self.query: Query = query.parsed(declaration)
        self._engine = DerivingEngine(spark, declaration.table.name, declaration.by)
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
        self._engine.prepare(self._records(pinned))
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
        self._engine.prepare(self._records(pinned))
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
        """Return the newest version of each input. Raises InputMissingError."""
        found = {}
        for ref in self.query.inputs:
            folder = self._lake.table(ref)
            if not delta_log.exists(folder):
                raise InputMissingError(self._declared.table.name, ref.name)
            found[ref] = PinnedInput(ref.name, folder, delta_log.version(folder))
        return found

    def _records(self, pinned: Mapping[Input, PinnedInput]) -> int:
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
        """Return what `use` returns for the query's rows; with `groups`, only for the rows of these groups."""
        frames = [self._input(pinned[ref], groups if ref == self.query.driving else None) for ref in self.query.inputs]

        def text(views: Any) -> str:
            return self.query.with_views(dict(zip(self.query.inputs, views, strict=True)))

        with self._engine.failures(self._names), self._engine.result(text, frames) as frame:
            return use(frame)

    def _input(self, table: PinnedInput, groups: pa.Table | None) -> DataFrame:
        """Return the rows of an input; with `groups`, only the driving table's rows of these groups."""
        wanted = () if groups is None else touched.wanted(self._declared.by, groups)
        frame = self._engine.read(table, wanted) if self._is_plain else self._engine.read_all(table)
        return frame if groups is None else self._engine.among(frame, groups)

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
                    self._engine.prepare(self._records(pinned) if rows is None else rows)
                    found.append(touched.by_windows(self._engine, changes, driving, is_by_window=is_by_window))
            elif changes_rows(driving.folder, then.version, driving.version, digest=then.digest):
                if not _continues(driving, then):
                    return Plan(f"{driving.name} was replaced by another copy")
                found.append(touched.by_own_rows(self._engine, self.query, old, driving))
            if joined:
                self._engine.prepare(self._records(pinned))
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
            schema = self._engine.nullable(frame)
            self._engine.write(frame, self._folder, below)
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
        new = derived_table.written_files(self._folder, below, list(self._declared.by))
        if sum(file.rows for file in new) != written.rows:
            raise DerivedRowsLostError(self._declared.table.name, f"{written.rows:,} rows were computed")
        if same:
            _log.info("all rows of %s were computed again, with the same digest", self._declared.table)
        return self._commit(handle, derivation, new, (), schema)

    def _some(
        self, handle: DeltaTable, last: Derivation, pinned: Mapping[Input, PinnedInput], plan: Plan, unique: str
    ) -> Made:
        if plan.groups is None or not plan.groups.num_rows:
            derivation = self._derivation(unique, pinned, plan, "nothing", RowsDigest(), RowsDigest(), last.whole)
            return self._commit(handle, derivation, (), (), None)
        groups, engine, by = plan.groups, self._engine, list(self._declared.by)
        files = derived_table.files_of(self._folder, handle)
        table = PinnedInput(self._declared.table.name, self._folder, handle.version())
        counts = {path: rows for path, (_, rows) in files.items() if rows is not None}
        if len(counts) != len(files) or sum(counts.values()) != last.whole.rows:
            raise AllRowsNeededError("the numbers of rows in the table's log are missing or wrong")
        below = f"{derived_table.FOLDER}/{unique}"
        driving, wanted = pinned[self.query.driving], touched.wanted(self._declared.by, groups)
        engine.prepare(engine.records(driving, wanted) or self._records(pinned))
        with engine.failures(self._names):
            own = touched.wanted_columns(groups)
            frame = engine.read(table, own)
            holding, replaced, is_complete = engine.holding(table, own, groups, self._lacking(pinned, plan))
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
                engine.write(engine.kept(frame, groups, list(holding.values())), self._folder, f"{below}-kept")
        self.rows(pinned, groups, lambda found: engine.write(engine.nullable_like(found, schema), self._folder, below))
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
        whole = last.whole - replaced + written
        derivation = self._derivation(unique, pinned, plan, "groups", replaced, written, whole)
        return self._commit(handle, derivation, [*new, *kept], removed, None)

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
    found = {}
    for ref, at in pinned.items():
        table = at.folder.delta(at.version)
        with at.folder.reading():
            found[ref.name] = InputVersion(at.version, str(table.metadata().id), commit_digest(at.folder, at.version))
    return found


def input_versions(lake: Lake, parsed: Query) -> dict[str, int | None]:
    """Return the newest version of each input by name; None for one that does not exist yet."""
    return {ref.name: delta_log.newest_version(lake.table(ref)) for ref in parsed.inputs}


def up_to_date(lake: Lake, declaration: DerivedDeclaration) -> tuple[Made | None, tuple[str, ...]]:
    """Return the newest derivation of a table, and the inputs that have a newer version, without Spark.

    An input that does not exist yet is not listed. If the inputs have seen an erasure that the table has not, all are listed. Raises
    QueryError.
    """
    folder = lake.table(declaration.table)
    made = derived_table.newest(folder)[0] if delta_log.exists(folder) else None
    before = {} if made is None or made.derivation.declaration != declaration.digest else made.derivation.inputs
    parsed = query.parsed(declaration)
    now = input_versions(lake, parsed)
    seen = {} if made is None else made.derivation.erased
    inputs = {ref.name: lake.table(ref) for ref in parsed.inputs}
    newer = (n for n, v in now.items() if v is not None and not _is_at(before.get(n), inputs[n], v))
    return made, tuple(newer) or (tuple(now) if erased.seen(lake, parsed.inputs) != seen else ())


PAST_FILES: Final = (
    "past files may still hold erased values: a run is deleting them now, or ended before it had deleted them"
)


def has_past_files(lake: Lake, made: Made) -> bool:
    """Return True if past files may still hold erased values, because the run that made `made` ended before it deleted them. The next
    run deletes them. This lists all files of the table, so do not ask again once the result is False: it stays so for `made`."""
    folder = lake.table(made.derivation.table)
    return bool(made.derivation.erased) and bool(
        derived_table.past_files(folder, made, derived_table.begun(folder), dead=False)
    )


def _continues(at: PinnedInput, then: InputVersion) -> bool:
    """Return True if the log of an input still has the commit of the version `then`, so one copy has both versions."""
    return at.version >= then.version and then.digest != "" and commit_digest(at.folder, then.version) == then.digest


def _is_at(known: InputVersion | None, folder: Folder, version: int) -> bool:
    if known is None or known.version != version:
        return False
    return not known.digest or commit_digest(folder, version) in ("", known.digest)


def _unique(run_id: str) -> str:
    return f"{run_id[:8]}-{uuid.uuid4().hex[:12]}"
