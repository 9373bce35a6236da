"""The version of a ledger: which releases can read it, and how a ledger from an earlier release is upgraded.

If a release adds a column, no new version is needed: older ledgers get the column with the next entry. Earlier releases
leave the column empty, even in recent entries. Such entries are written by pods with the previous image during an
upgrade, and by all pods after a downgrade. So an entry with an empty column may be newer than an entry with a value. A
new version is needed for a change that an earlier release would misread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from platform_assets.errors import REPAIR_LEDGER, LedgerCorruptError, LedgerNewerError
from platform_assets.lake.location import Lake

VERSION: Final = 1
FILE: Final = "version.json"

_STEPS: Final[Mapping[int, Callable[[Lake], None]]] = {}
"""Steps that upgrade a ledger, each from one version to the next. A step can be run again if it was interrupted, and
two processes can run it at the same time."""


def check(lake: Lake) -> None:
    """Raise LedgerNewerError if a later release has written the ledger."""
    found = _recorded(lake)
    if found is not None and found > VERSION:
        raise LedgerNewerError(str(lake.ledger), found, VERSION)


def bring_up(lake: Lake) -> None:
    """Upgrade the ledger to this release's version. Raises LedgerNewerError, and whatever writing to the lake raises."""
    recorded = _recorded(lake)
    if recorded == VERSION:
        return
    check(lake)
    # Releases before versions existed recorded none; theirs is the first version.
    for version in range((recorded or 1) + 1, VERSION + 1):
        _STEPS[version](lake)
        _record(lake, version)
    if recorded is None:
        _record(lake, VERSION)


def fitted(ledger: DeltaTable, entries: pa.Table) -> pa.Table:
    """Return `entries` in a form that fits a ledger table with additional columns from a later release; those columns
    stay empty."""
    for column in pa.schema(ledger.schema().to_arrow()):
        if column.name not in entries.column_names:
            entries = entries.append_column(column, pa.nulls(entries.num_rows, column.type))
    return entries


def _recorded(lake: Lake) -> int | None:
    content = lake.ledger.read(FILE)
    if content is None:
        return None
    try:
        fields: Any = json.loads(content)
        return int(fields["version"])
    except (ValueError, KeyError, TypeError) as e:
        raise LedgerCorruptError(f"{lake.ledger}/{FILE} does not contain a version ({e}). {REPAIR_LEDGER}") from e


def _record(lake: Lake, version: int) -> None:
    lake.ledger.write(FILE, json.dumps({"version": version}).encode())
