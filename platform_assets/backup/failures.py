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
            f"no backup was made: {reason} ({place}). Earlier backups are whole. Run it again: what was copied for them is "
            "not copied again."
        )


class BackupNotWritableError(Terminal):
    """The folder of the backups refuses writes."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"no backup was made, since {place} cannot be written: {reason}. Make room there or correct its permissions, and "
            "run it again; earlier backups are whole."
        )


class BackupDamagedError(Terminal):
    """A backup lacks a file, or has another one than was backed up."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the backup is damaged at {place}: {reason}. Nothing was restored, and what is there was not changed. Restore "
            "from another backup; or, with `--only`, the parts of this one that are whole."
        )


class RestoreInterruptedError(Terminal):
    """A restore failed; the data that it replaces may be next to its place."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"restoring failed at {place}: {reason}. Correct that, and run the same restore again with `--force`: it begins "
            "from the start, and ends whole."
        )


class RestoreHalfDoneError(Terminal):
    """A backup was whole when it was compared, and was not when it was read to be restored."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the backup was damaged at {place} while it was restored: {reason}. What is there is neither what it was nor what the "
            "backup has: restore another backup, with `--force`."
        )


@contextmanager
def writing_backup(place: Path) -> Iterator[None]:
    """For a block that writes to the folder of the backups. Raises BackupNotWritableError."""
    try:
        yield
    except OSError as e:
        raise BackupNotWritableError(str(e.filename or place), reason_of(e)) from e


@contextmanager
def reading_backup(place: Path) -> Iterator[None]:
    """For a block that reads a file of a backup. Raises BackupDamagedError."""
    try:
        yield
    except OSError as e:
        raise BackupDamagedError(str(place), reason_of(e)) from e


@contextmanager
def restoring_to(place: object) -> Iterator[None]:
    """For a block that writes to the lake or to Dagster's home. Raises RestoreInterruptedError."""
    try:
        yield
    except OSError as e:
        raise RestoreInterruptedError(str(e.filename or place), reason_of(e)) from e
