"""Errors of backups, each with its remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platform_assets.errors import Retryable, Terminal
from platform_assets.lake.failures import reason_of


class BackupInterruptedError(Retryable):
    """The source changed in a way that a copy cannot follow; no backup was made."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"no backup was made: {reason} ({place}). Earlier backups are complete. Run it again: files that an earlier backup "
            f"contains are not copied again."
        )


class BackupNotWritableError(Terminal):
    """The backup folder is not writable."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"no backup was made, because {place} cannot be written: {reason}. Free disk space there or correct "
            f"its permissions, then run it again. Earlier backups are complete."
        )


class BackupDamagedError(Terminal):
    """A backup lacks a file, or a file differs from the one that was backed up."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the backup is damaged at {place}: {reason}. Nothing was restored or changed. Restore from another "
            f"backup, or restore the undamaged parts of this one with `--only`."
        )


class RestoreInterruptedError(Terminal):
    """A restore failed. A folder next to the restored data may still contain the data that the restore was replacing."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"restoring failed at {place}: {reason}. Fix the cause, then run the same restore again with "
            f"`--force`: it starts from the beginning."
        )


class RestoreHalfDoneError(Terminal):
    """A backup was complete when its files were compared with the manifest, but damaged when they were read for the
    restore."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the backup turned out to be damaged at {place} during the restore: {reason}. The destination now has a mix of "
            f"old and restored data. Restore another backup with `--force`."
        )


@contextmanager
def writing_backup(place: Path) -> Iterator[None]:
    """Run a block that writes to the backup folder; raise BackupNotWritableError if the block fails."""
    try:
        yield
    except OSError as e:
        raise BackupNotWritableError(str(e.filename or place), reason_of(e)) from e


@contextmanager
def reading_backup(place: Path) -> Iterator[None]:
    """Run a block that reads a file of a backup; raise BackupDamagedError if the block fails."""
    try:
        yield
    except OSError as e:
        raise BackupDamagedError(str(place), reason_of(e)) from e


@contextmanager
def restoring_to(place: object) -> Iterator[None]:
    """Run a block that writes to the lake or to Dagster's home; raise RestoreInterruptedError if the block fails."""
    try:
        yield
    except OSError as e:
        raise RestoreInterruptedError(str(e.filename or place), reason_of(e)) from e
