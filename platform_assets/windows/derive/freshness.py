"""How far a derived table is behind its inputs, from the tables' logs alone."""

from __future__ import annotations

from typing import Final

from platform_assets.lake import delta_log, derived_table, new_tables
from platform_assets.lake.changed_windows import commit_digest
from platform_assets.lake.derived_table import InputVersion, Made
from platform_assets.lake.location import Folder, Lake
from platform_assets.model.derived import DerivedDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.windows.derive import erased, query
from platform_assets.windows.derive.query import Input, Query


def input_versions(lake: Lake, parsed: Query) -> dict[str, int | None]:
    """Return the newest version of each input by name; None for one that was not made yet."""
    return {ref.name: input_version(lake.table(ref), ref) for ref in parsed.inputs}


def input_version(folder: Folder, ref: Input) -> int | None:
    """Return the newest version of an input; None if it was not made yet. A state or derived table that is being made for
    the first time is empty, which is not its content."""
    version = delta_log.newest_version(folder)
    if version is None or isinstance(ref, TableRef):
        return version
    return version if new_tables.is_made(folder, version) else None


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


def _is_at(known: InputVersion | None, folder: Folder, version: int) -> bool:
    if known is None or known.version != version:
        return False
    return not known.digest or commit_digest(folder, version) in ("", known.digest)
