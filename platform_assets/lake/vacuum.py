"""VACUUM: deleting files that the newest version of a table does not name, once they are old enough.

Loads that died leave files that no version refers to, and replaced windows leave files of past versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Folder
from platform_assets.model.tables import TableRef


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files of `table` that were deleted, or would be: paths relative to its folder, and total size in bytes."""

    table: TableRef
    files: tuple[str, ...]
    bytes: int


def vacuum(table: TableRef, folder: Folder, *, retain_hours: int | None = None, dry_run: bool = False) -> Vacuumed:
    """Delete files that the newest version does not name and that are older than `retain_hours`, by default the table's
    retention.

    The table's retention is its property `delta.deletedFileRetentionDuration`, or a week without it. Older versions
    can then no longer be read, and cannot be used to restore a window. Lists the whole folder, since no log contains
    files that no version ever referred to. Raises ConfigurationError for less than the table's retention, because loads
    and readers may need that long.
    """
    with folder.writing():
        delta = folder.delta()
        try:
            found = delta.vacuum(retain_hours, dry_run=True, full=True)
        except (DeltaError, ValueError) as e:
            if retain_hours is None or (isinstance(e, DeltaError) and "retention" not in str(e)):
                raise
            raise ConfigurationError(
                f"files of {table} cannot be deleted after {retain_hours} hours: {e}. Keep them for longer, or first shorten the "
                "table's retention, which is its property delta.deletedFileRetentionDuration."
            ) from e
        # On an object store, delta-rs treats directory markers as files, and deletes none of them.
        sizes = {path: size for path in found if (size := folder.size(path)) is not None}
        if sizes and not dry_run:
            deleted = set(delta.vacuum(retain_hours, dry_run=False, full=True))
            sizes = {path: size for path, size in sizes.items() if path in deleted}
    return Vacuumed(table, tuple(sorted(sizes)), sum(sizes.values()))
