"""VACUUM: deleting files to which the newest version of a table does not refer, once they are old enough.

Loads that died leave files to which no version refers, and replaced windows leave files of past versions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from platform_assets.errors import ConfigurationError
from platform_assets.lake import expiring
from platform_assets.lake.location import Folder
from platform_assets.model.derived import DerivedRef
from platform_assets.model.tables import TableRef

_PORTION: Final = 1_000
"""Files that are deleted at most before the table is looked at again."""


@dataclass(frozen=True, slots=True)
class Vacuumed:
    """Files of `table` that were deleted or, in a dry run, would be deleted: paths relative to the table's folder, and
    total size in bytes."""

    table: TableRef | DerivedRef
    files: tuple[str, ...]
    bytes: int


def vacuum(
    table: TableRef | DerivedRef,
    folder: Folder,
    *,
    retain_hours: int | None = None,
    dry_run: bool = False,
    below: Callable[[], Collection[str]] | None = None,
    keep: Callable[[], Collection[str]] | None = None,
    old: Collection[str] | None = None,
) -> Vacuumed:
    """Delete files to which the newest version does not refer and that are older than `retain_hours`, by default the
    table's retention.

    The table's retention is its property `delta.deletedFileRetentionDuration`, or a week if the property is not set.
    Older versions can then no longer be read, and cannot be used to restore a window. This lists the whole folder,
    because no log contains files to which no version has ever referred. With `below`, only files in the folders of
    the table that it returns are deleted. Files whose paths `keep` returns are not deleted: published topics still need
    them. With `old`, which `old_files` has returned, the folder is not listed again. Raises ConfigurationError if
    `retain_hours` is less than the table's retention, because loads and readers may need files for that long.
    """
    with folder.writing():
        delta = folder.delta()
        try:
            found = delta.vacuum(retain_hours, dry_run=True, full=True) if old is None else old
        except (DeltaError, ValueError) as e:
            if retain_hours is None or (isinstance(e, DeltaError) and "retention" not in str(e)):
                raise
            raise ConfigurationError(
                f"files of {table} cannot be deleted after {retain_hours} hours: {e}. Give a longer time, or first shorten the "
                "table's retention (its property delta.deletedFileRetentionDuration)."
            ) from e
        # On an object store, delta-rs treats directory markers as files, and deletes none of them.
        if old is not None or below is not None or (keep is not None and keep()):
            sizes = _deleted(folder, found, below, keep, dry_run=dry_run)
            return Vacuumed(table, tuple(sorted(sizes)), sum(sizes.values()))
        sizes = _sizes(folder, found)
        if sizes and not dry_run:
            deleted = set(delta.vacuum(retain_hours, dry_run=False, full=True))
            sizes = {path: size for path, size in sizes.items() if path in deleted}
    return Vacuumed(table, tuple(sorted(sizes)), sum(sizes.values()))


def old_files(folder: Folder) -> list[str]:
    """Return the files of a table's folder that `vacuum` would delete. This lists the whole folder."""
    with folder.reading():
        return folder.delta().vacuum(None, dry_run=True, full=True)


def _deleted(
    folder: Folder,
    found: Collection[str],
    below: Callable[[], Collection[str]] | None,
    keep: Callable[[], Collection[str]] | None,
    *,
    dry_run: bool,
) -> dict[str, int]:
    """Delete those of the files `found` that are in the folders `below`, if given, and not in `keep`; return the sizes of
    the deleted files.

    A restore may have named some of them again since they were listed, so each portion is deleted right after a look at
    these folders and at the files of the newest version.
    """
    wanted, kept, done = None if below is None else set(below()), set(keep() if keep else ()), dict[str, int]()
    meant = [
        path for path in found if (wanted is None or _top(path) in wanted) and kept.isdisjoint((path, unquote(path)))
    ]
    for start in range(0, len(meant), _PORTION):
        sizes = _sizes(folder, meant[start : start + _PORTION])
        if sizes and not dry_run:
            left = None if below is None else set(below())
            kept = set(keep() if keep else ())
            named = expiring.named(folder)
            sizes = {
                path: size
                for path, size in sizes.items()
                if (left is None or _top(path) in left) and path not in named and kept.isdisjoint((path, unquote(path)))
            }
            folder.erase(sizes)
        done |= sizes
    return done


def _top(path: str) -> str:
    return path.partition("/")[0]


def _sizes(folder: Folder, paths: Collection[str]) -> dict[str, int]:
    return {path: size for path in paths if (size := folder.size(path)) is not None}
