"""Adding entries to a table of the ledger, once: also where an object store has lost the answer to the commit.

A client that got no answer sends its request again, and is refused, since the first one was taken. Delta-rs takes that for
another writer's commit and would put the same entries into the next version too. So each commit carries an application
transaction of those it is about: with it, a commit of the same ones that came first is a conflict, which is looked up in the log.
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
"""Of the application transactions; a table's or topic's name follows, so that there are no more of them than of those."""
_ATTEMPTS: Final = 50
"""Commits about the same ones that may come first, one after the other."""
NUMBERS: Final = 1 << 62

_log = logger(__name__)


def append(folder: Folder, handle: DeltaTable, entries: pa.Table, about: Collection[str]) -> DeltaTable:
    """Commit `entries` to the table in `folder` through `handle`; gives the handle that has them.

    `about` are the names of the tables or topics that they are of. Inside of `Folder.writing`: raises what delta-rs raises.
    """
    # Not a count: of two writers, each has to know its own.
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
                _log.info("the entries of %s are in the log of %s, although that ended with: %s", about, folder, e)
                return now
            if not isinstance(e, CommitFailedError) or now.version() == before or attempt == _ATTEMPTS - 1:
                raise
            handle = now
        else:
            break
    return handle


def newest(folder: Folder, error: Exception) -> DeltaTable:
    """The table as it is after `error`. Raises `error` where that cannot be read either: nobody knows what was written."""
    try:
        return folder.delta()
    except PlatformError as unread:
        raise error from unread


def is_made(folder: Folder, marks: dict[str, int], before: int, newest: int) -> bool:
    """Whether a commit after `before`, up to `newest`, carries these transactions."""
    found = (delta_log.commit(folder, number) for number in range(before + 1, newest + 1))
    return any(commit is not None and marks.items() <= commit.transactions.items() for commit in found)
