"""VACUUM: deleting the files of a table that its newest version does not name, once they are old enough.

Loads that died leave files which no version names, and replaced windows leave those of past versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from platform_assets.errors import ConfigurationError
from platform_assets.lake.location import Folder
from platform_assets.model.tables import TableRef


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files of `table` that were deleted, or would be: paths relative to its folder, and bytes in all."""

    table: TableRef
    files: tuple[str, ...]
    bytes: int


def vacuum(table: TableRef, folder: Folder, *, retain_hours: int | None = None, dry_run: bool = False) -> Vacuumed:
    """Delete what the newest version does not name and is older than `retain_hours`, by default the table's own retention.

    That is its property `delta.deletedFileRetentionDuration`, and a week where it has none; versions of before then can
    be read no more, and restore no window. Everything in the folder is listed, since files that no version ever named are
    in no log. Raises ConfigurationError for less than the table's own retention: a load may need that long, and so may
    its readers.
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
                "table's retention, its property delta.deletedFileRetentionDuration."
            ) from e
        # On an object store, delta-rs takes directory markers for files, and deletes none of them.
        sizes = {path: size for path in found if (size := folder.size(path)) is not None}
        if sizes and not dry_run:
            deleted = set(delta.vacuum(retain_hours, dry_run=False, full=True))
            sizes = {path: size for path, size in sizes.items() if path in deleted}
    return Vacuumed(table, tuple(sorted(sizes)), sum(sizes.values()))
