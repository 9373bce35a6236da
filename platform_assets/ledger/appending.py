"""Adding entries to a table of the ledger exactly once, even if an object store's answer to the commit was lost.

A client that gets no answer sends its request again, and is refused if the first request succeeded. delta-rs treats
this refusal as a commit by another writer, and would add the same entries to the next version too. So each commit
carries an application transaction for its tables or topics. An earlier commit for the same tables or topics is then a
conflict, which is looked up in the log.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from platform_assets.errors import PlatformError
from platform_assets.lake import delta_log, failures
from platform_assets.lake.location import Folder
from platform_assets.ledger import version
from platform_assets.model.logs import logger

_PREFIX: Final = "entries/"
"""Prefix of the application transactions. The name of a table or topic follows, which bounds the number of
transactions."""
_ATTEMPTS: Final = 50
"""Maximum number of attempts if commits for the same tables or topics come first."""
NUMBERS: Final = 1 << 62

_log = logger(__name__)


def append(folder: Folder, handle: DeltaTable, entries: pa.Table, about: Collection[str]) -> DeltaTable:
    """Commit `entries` to the table in `folder` through `handle`; return the handle that has these entries.

    `about` lists the tables or topics of the entries. Call this inside `Folder.writing`, because it raises whatever
    delta-rs raises.
    """
    # Random, not a count: two writers must not have the same mark.
    number = secrets.randbelow(NUMBERS)
    marks = {f"{_PREFIX}{name}": number for name in sorted(about)}
    properties = CommitProperties(
        app_transactions=[Transaction(app, number) for app in marks], max_commit_retries=_ATTEMPTS
    )
    for attempt in range(_ATTEMPTS):
        before = handle.version()
        try:
            write_deltalake(handle, version.fitted(handle, entries), mode="append", commit_properties=properties)
        except failures.RAISED as e:
            now = newest(folder, e)
            if is_made(folder, marks, before, now.version()):
                _log.info(
                    "the entries of %s are in the log of %s, although the commit ended with the error: %s",
                    about,
                    folder,
                    e,
                )
                return now
            if not isinstance(e, CommitFailedError) or now.version() == before or attempt == _ATTEMPTS - 1:
                raise
            handle = now
        else:
            break
    return handle


def newest(folder: Folder, error: Exception) -> DeltaTable:
    """Return the table after `error`. Raises `error` if the table cannot be read, because then it is unknown what was
    written."""
    try:
        return folder.delta()
    except PlatformError as unread:
        raise error from unread


def is_made(folder: Folder, marks: dict[str, int], before: int, newest: int) -> bool:
    """Return True if a commit after `before`, up to `newest`, carries these transactions."""
    found = (delta_log.commit(folder, number) for number in range(before + 1, newest + 1))
    return any(commit is not None and marks.items() <= commit.transactions.items() for commit in found)
