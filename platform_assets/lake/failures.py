"""Translation of lake failures into the platform's errors. Only this module knows the errors of delta-rs, pyarrow and
the file system.

Every function in `lake` and in the ledger that reads or writes does so inside `reading` or `writing`. Errors are
distinguished by the system's error number, which may be part of the error's text, or otherwise by delta-rs's text.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

from platform_assets.errors import (
    REPAIR_LEDGER,
    FilesLostError,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    Terminal,
    UnknownOutcome,
    access_to,
)
from platform_assets.lake.files import is_in_store
from platform_assets.lake.store_answers import answer_of, has_no_bucket, is_denied

RAISED: Final = (DeltaError, OSError, pa.ArrowInvalid)
"""Errors of delta-rs, pyarrow and the file system. `files` raises the errors of an object store as errors of the file
system."""

_NO_ACCESS: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EEXIST}
)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NUMBER: Final = re.compile(r"\(os error (\d+)\)|\bOs \{ code: (\d+)")
_UNSUPPORTED: Final = re.compile(r"unsupported|not (yet )?supported", re.IGNORECASE)
_MISSING: Final = re.compile(r"Object at location .* not found|\b404 Not Found")
_UNANSWERED: Final = re.compile(r"Generic S3 error|error sending request|after \d+ retries|Error performing \w+ http")
_COLOURS: Final = re.compile(r"\x1b\[\d*m")
_STACK: Final = re.compile(r"^\s+\d+: ")
_LONGEST: Final = 400


class LakeNotReadableError(Terminal):
    """A file or folder of the lake cannot be read."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the lake cannot be read at {place}: {reason}. Nothing was changed. Correct LAKE_ROOT or {access_to(place)}."
        )


class BucketMissingError(Terminal):
    """The bucket of the lake does not exist."""

    def __init__(self, place: str) -> None:
        self.place = place
        bucket = place.partition("://")[2].partition("/")[0]
        super().__init__(
            f"the object store does not have the bucket {bucket!r} of the lake at {place}. Nothing was changed. Create the "
            "bucket, or correct LAKE_ROOT or AWS_ENDPOINT_URL, which may point to another store."
        )


class TableGoneError(Terminal):
    """A required table does not exist, or no longer exists."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"there is no Delta table at {place}: it was deleted or moved away. {_way_back(place)}")


class VersionGoneError(Terminal):
    """A table's log no longer has a past version."""

    def __init__(self, place: str, version: int) -> None:
        self.place, self.version = place, version
        super().__init__(
            f"version {version} of the table at {place} can no longer be read, because its log does not reach back that far: "
            "log files are deleted after 30 days, or after the time in the table's property delta.logRetentionDuration. Nothing "
            "was changed. Newer versions are complete."
        )


class TableDamagedError(Terminal):
    """A table's log cannot be read, or a file that the log lists is missing or is not Parquet."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"the table at {place} is damaged: {reason}. Nothing was changed. {_way_back(place)}")


class TableUnsupportedError(Terminal):
    """A table uses Delta features that the platform does not support."""

    def __init__(self, place: str, reason: str, remedy: str | None = None) -> None:
        self.place, self.reason = place, reason
        drop = (
            "Drop the feature in Spark with `ALTER TABLE … DROP FEATURE … TRUNCATE HISTORY`, twice, as Spark instructs"
        )
        super().__init__(
            f"the table at {place} cannot be read: {reason}. Nothing was changed. Somebody has enabled a Delta feature that "
            f"the platform does not support. {remedy or drop}; or restore the table from a backup."
        )


READER_FEATURES: Final = frozenset({"timestampNtz", "deletionVectors"})
"""Delta reader features that do not change how files are read. For deletion vectors, this is only true while no file
has one."""


def check_supported(table: DeltaTable, place: str) -> None:
    """Raise TableUnsupportedError for a table whose rows or column names cannot be determined from its files alone.

    delta-rs opens tables with deletion vectors, and lists their files as if these still had all rows.
    """
    features = set(table.protocol().reader_features or ())
    if unknown := sorted(features - READER_FEATURES):
        raise TableUnsupportedError(place, f"it has the reader features {', '.join(unknown)}")
    if "deletionVectors" in features and (hidden := table.deletion_vectors().read_all().num_rows):
        remedy = (
            f"In Spark, run `ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = false)` and "
            f"`REORG TABLE delta.`{place}` APPLY (PURGE)`; then load again the windows whose rows were deleted"
        )
        raise TableUnsupportedError(place, f"deletion vectors hide rows in {hidden:,} of its files", remedy)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise TableUnsupportedError(
            place, f"its property delta.columnMapping.mode is {mapping} (feature columnMapping)"
        )


class WriteOutcomeUnknownError(UnknownOutcome):
    """The outcome of a write is unknown."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"writing to {place} ended with an error ({reason}) and may or may not have taken effect. Run it again: nothing is "
            "written twice."
        )


def _way_back(place: str) -> str:
    if "_ledger" in place.split("/"):
        return REPAIR_LEDGER
    return (
        "Restore its folder from a backup. Without one, move the folder away and load its windows again (`platform-assets "
        "load`): those that Kafka still has are restored exactly."
    )


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Raise the platform's errors for failures in the block, which reads from `place` and does not write."""
    try:
        yield
    except RAISED as e:
        raise to_platform_error(e, str(place)) from e


@contextmanager
def reading_files(table: object, key: str) -> Iterator[None]:
    """Wrap a block that reads a window's data files. Raises FilesLostError if a file that the log lists is missing or
    is not Parquet."""
    try:
        with reading(table):
            yield
    except TableDamagedError as e:
        raise FilesLostError("/".join(str(table).rsplit("/", 2)[-2:]), key, e.reason) from e


@contextmanager
def writing(place: object) -> Iterator[None]:
    """Raise the platform's errors for failures in the block, which writes to `place`. Raises WriteOutcomeUnknownError
    if it is unclear whether the write succeeded."""
    try:
        yield
    except RAISED as e:
        named = to_platform_error(e, str(place), writes=True)
        if isinstance(named, LakeUnavailableError | TableDamagedError) and not isinstance(e, CommitFailedError):
            named = WriteOutcomeUnknownError(named.place, named.reason)
        raise named from e


def to_platform_error(error: Exception, place: str, *, writes: bool = False) -> PlatformError:
    """Return the platform's error for an error of the types in `RAISED`, raised at `place`. `writes` is true if it was
    raised during a write to `place`."""
    number, reason = _number_of(error), reason_of(error)
    if isinstance(error, OSError) and isinstance(error.filename, str):
        place = error.filename
    if is_in_store(place) and has_no_bucket(str(error)):
        return BucketMissingError(place)
    if number in _FULL or number == errno.EROFS or (writes and number in _NO_ACCESS):
        return LakeNotWritableError(place, reason)
    if number in _NO_ACCESS:
        return LakeNotReadableError(place, reason)
    if number == errno.ENOENT or isinstance(error, FileNotFoundError | TableNotFoundError):
        if writes:
            return LakeNotWritableError(place, reason)
        return TableGoneError(place) if isinstance(error, TableNotFoundError) else TableDamagedError(place, reason)
    if number is not None or isinstance(error, ConnectionError | TimeoutError):
        return LakeUnavailableError(place, reason)
    if isinstance(error, DeltaProtocolError) or _UNSUPPORTED.search(reason):
        return TableUnsupportedError(place, reason)
    if isinstance(error, CommitFailedError):
        return LakeUnavailableError(place, f"other commits came first ({reason})")
    return TableDamagedError(place, reason)


def reason_of(error: Exception) -> str:
    """Return the text of `error` on one line, without the colors, arrows and stack traces in delta-rs's texts."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if (answer := answer_of(str(error))) is not None:
        return answer
    lines = []
    for line in _COLOURS.sub("", str(error)).replace("↳", " ").splitlines():
        if _STACK.match(line):
            break
        if line.strip():
            lines.append(line.strip())
    text = ": ".join(lines) or type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def _number_of(error: Exception) -> int | None:
    """Return the system's error number. In errors from Rust, it is only in the text."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if _UNANSWERED.search(text) or is_denied(text):
        # An object store's error: its text may also have the number of a connection error.
        return errno.EACCES if is_denied(text) else errno.ENOENT if _MISSING.search(text) else errno.EIO
    found = _NUMBER.search(text)
    return None if found is None else int(found[1] or found[2])
