"""What goes wrong with a lake, in the platform's own errors: the one place that knows what delta-rs, pyarrow and the file
system raise.

Every function of `lake` and of the ledger that reads or writes does so inside of `reading` or `writing`. What they raise is
kept apart by the system's error number where there is one, also inside of a text, and else by what delta-rs says.
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
    MEND_LEDGER,
    LakeNotWritableError,
    LakeUnavailableError,
    PlatformError,
    Terminal,
    UnknownOutcome,
    access_to,
)
from platform_assets.lake.files import answer_of, has_no_bucket, is_denied, is_in_store

RAISED: Final = (DeltaError, OSError, pa.ArrowInvalid)
"""What delta-rs, pyarrow and the file system raise; `files` has what an object store says as the file system's."""

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
    """A file or folder of the lake refuses to be read."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"the lake cannot be read at {place}: {reason}. Correct LAKE_ROOT or {access_to(place)}; nothing was changed."
        )


class BucketMissingError(Terminal):
    """The bucket that the lake is to be in does not exist."""

    def __init__(self, place: str) -> None:
        self.place = place
        bucket = place.partition("://")[2].partition("/")[0]
        super().__init__(
            f"the object store has no bucket {bucket!r}, in which the lake at {place} is to be. Nothing was changed. Create the "
            "bucket, or correct LAKE_ROOT or AWS_ENDPOINT_URL, which may name another store."
        )


class TableGoneError(Terminal):
    """There is no table, or no longer, where one is needed."""

    def __init__(self, place: str) -> None:
        self.place = place
        super().__init__(f"there is no Delta table at {place}: it was deleted or moved away. {_way_back(place)}")


class VersionGoneError(Terminal):
    """A past version of a table that its log no longer reaches back to."""

    def __init__(self, place: str, version: int) -> None:
        self.place, self.version = place, version
        super().__init__(
            f"version {version} of the table at {place} cannot be read any more: its log does not reach back to it, since log files "
            "that are older than 30 days are deleted, or as long as its property delta.logRetentionDuration says. Newer versions "
            "are whole; nothing was changed."
        )


class TableDamagedError(Terminal):
    """What the log of a table has cannot be read, or a file that it names is gone or no Parquet."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(f"the table at {place} is damaged: {reason}. Nothing was changed. {_way_back(place)}")


class TableUnsupportedError(Terminal):
    """A table asks for features of Delta that the platform does not support."""

    def __init__(self, place: str, reason: str, remedy: str | None = None) -> None:
        self.place, self.reason = place, reason
        drop = "Drop it in Spark with `ALTER TABLE … DROP FEATURE … TRUNCATE HISTORY`, twice as Spark says"
        super().__init__(
            f"the table at {place} cannot be read: {reason}. Nothing was changed. Somebody has switched on a feature of Delta that "
            f"the platform does not support. {remedy or drop}; or restore the table from a backup."
        )


READER_FEATURES: Final = frozenset({"timestampNtz", "deletionVectors"})
"""Of Delta's reader features those that change nothing in how files are read; deletion vectors as long as no file has one."""


def check_supported(table: DeltaTable, place: str) -> None:
    """Raise TableUnsupportedError for a table whose files do not say which rows it has, or what its columns are called.

    delta-rs opens tables with deletion vectors, and names their files as if all rows in them were there.
    """
    features = set(table.protocol().reader_features or ())
    if unknown := sorted(features - READER_FEATURES):
        raise TableUnsupportedError(place, f"it has the reader features {', '.join(unknown)}")
    if "deletionVectors" in features and (hidden := table.deletion_vectors().read_all().num_rows):
        remedy = (
            f"In Spark, run `ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = false)` and `REORG TABLE "
            f"delta.`{place}` APPLY (PURGE)`; then load the windows again whose rows were deleted"
        )
        raise TableUnsupportedError(place, f"deletion vectors hide rows of {hidden:,} of its files", remedy)
    mapping = table.metadata().configuration.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        raise TableUnsupportedError(place, f"its property delta.columnMapping.mode is {mapping}: feature columnMapping")


class WriteOutcomeUnknownError(UnknownOutcome):
    """It cannot be said whether something was written."""

    def __init__(self, place: str, reason: str) -> None:
        self.place, self.reason = place, reason
        super().__init__(
            f"writing to {place} ended in an error ({reason}), and it may have been written or not. Run it again: what is "
            "there already is not written twice."
        )


def _way_back(place: str) -> str:
    if "_ledger" in place.split("/"):
        return MEND_LEDGER
    return (
        "Restore its folder from a backup; without one, move the folder away and load its windows again (`platform-assets "
        "load`): those that Kafka still has are made as they were."
    )


@contextmanager
def reading(place: object) -> Iterator[None]:
    """Raise the platform's errors for what goes wrong in the block, which reads what is at `place` and writes nothing."""
    try:
        yield
    except RAISED as e:
        raise to_platform_error(e, str(place)) from e


@contextmanager
def writing(place: object) -> Iterator[None]:
    """The same for a block that writes to `place`. Where it cannot be said whether it did, WriteOutcomeUnknownError."""
    try:
        yield
    except RAISED as e:
        named = to_platform_error(e, str(place), writes=True)
        if isinstance(named, LakeUnavailableError | TableDamagedError) and not isinstance(e, CommitFailedError):
            named = WriteOutcomeUnknownError(named.place, named.reason)
        raise named from e


def to_platform_error(error: Exception, place: str, *, writes: bool = False) -> PlatformError:
    """The platform's error for one of `RAISED`, met at `place`. `writes`: while writing there."""
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
    """What `error` says, in one line: without the colours, arrows and stacks that delta-rs puts in its texts."""
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
    """The system's number of the error, which those of Rust have in their texts alone."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    text = str(error)
    if _UNANSWERED.search(text) or is_denied(text):
        # Of an object store: the number of a connection's error may be in the text as well.
        return errno.EACCES if is_denied(text) else errno.ENOENT if _MISSING.search(text) else errno.EIO
    found = _NUMBER.search(text)
    return None if found is None else int(found[1] or found[2])
