"""Values of erased records in logs and the ledger: bounds of columns, and samples of rows that failed an expectation.

Only data files contain records. But if another writer recorded bounds, a log has the smallest and the greatest value of
a column. A commit of decoded rows and its receipt have up to three failing values of each expectation.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from platform_assets.errors import LedgerConflictError
from platform_assets.lake import delta_log, holdings, load_log
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.redaction import redact, replaced_files, without_columns
from platform_assets.ledger import known_files
from platform_assets.ledger.folding import FOLDED
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

_PLACES: Final = frozenset({"kafka_partition", "kafka_offset", "kafka_timestamp", holdings.WINDOW})
"""Columns whose bounds show the position of records, not their content."""
_ATTEMPTS: Final = 20

Ranges = Mapping[int, tuple[OffsetRange, ...]]


def clean(ledger: Ledger, tables: Sequence[TableRef], windows: Mapping[str, Ranges]) -> None:
    """Remove the values of records at these offsets, by window, from the logs of `tables` and from the ledger of loads.

    Raises LakeNotWritableError, and LedgerConflictError if other processes kept writing to the ledger. Running it again
    continues.
    """
    keys = sorted(windows)
    for table in tables:
        folder = ledger.lake.table(table)
        if load_log.exists(folder):
            redact(
                folder,
                lambda partition, known: _bounds(keys, partition, known),
                lambda text: _metadata(windows, text),
            )
        if table.kind == "decoded" and delta_log.exists(ledger.lake.commits):
            _clean_receipts(ledger, table, windows)


def _bounds(windows: Sequence[str], partition: Mapping[str, str | None], known: dict[str, Any]) -> dict[str, Any]:
    file = DataFile("", partition, 0, known)
    if not holdings.may_hold_some(file, windows):
        return known
    return without_columns(known, lambda column: column not in _PLACES)


def _metadata(windows: Mapping[str, Ranges], text: str) -> str:
    """Return a commit's metadata without samples of erased rows."""
    fields = _parsed(text)
    if not isinstance(fields, dict) or fields.get("window") not in windows or "expectations" not in fields:
        return text
    left = _without_samples(fields["expectations"], windows[fields["window"]])
    return (
        text if left == fields["expectations"] else json.dumps({**fields, "expectations": left}, separators=(",", ":"))
    )


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None  # another writer's commit, whose metadata need not be JSON


def _without_samples(figures: Mapping[str, Any], erased: Ranges) -> dict[str, Any]:
    return {
        digest: {
            name: [s for s in value if not _is_erased(s, erased)] if name == "samples" else value
            for name, value in of.items()
        }
        for digest, of in figures.items()
    }


def _is_erased(sample: Mapping[str, Any], erased: Ranges) -> bool:
    return any(sample["offset"] in r for r in erased.get(sample["partition"], ()))


def _clean_receipts(ledger: Ledger, table: TableRef, windows: Mapping[str, Ranges]) -> None:
    """Remove figures with samples of erased rows from receipts that no longer count, and from the files that contained
    these receipts."""
    folder = ledger.lake.commits
    for _ in range(_ATTEMPTS):
        found = known_files.of_commits(ledger.lake).rows(table.ledger_name, ["window", "load_id", "expectations"])
        loads = sorted({row["load_id"] for row in found.to_pylist() if _has_samples(row, windows)})
        if not loads:
            break
        try:
            with folder.writing():
                folder.delta().update(
                    updates={"expectations": "NULL"},
                    predicate=f'"table" = \'{table.ledger_name}\' AND "load_id" IN ({", ".join(map(_quoted, loads))})',
                    writer_properties=FOLDED,
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        except CommitFailedError:
            continue  # another process committed first
        break
    else:
        raise LedgerConflictError(
            f"other processes kept writing to {folder.name}. Run the erasure again to continue it"
        )
    # Otherwise, files that were folded or updated stay on disk. Readers of the ledger follow its log at each call.
    folder.erase(replaced_files(folder, lambda partition: partition.get("table") == table.ledger_name))
    redact(folder, lambda partition, known: _of_ledger(table, partition, known))


def _of_ledger(table: TableRef, partition: Mapping[str, str | None], known: dict[str, Any]) -> dict[str, Any]:
    return (
        without_columns(known, lambda column: column == "expectations")
        if partition.get("table") == table.ledger_name
        else known
    )


def _has_samples(row: Mapping[str, Any], windows: Mapping[str, Ranges]) -> bool:
    if row["expectations"] is None or row["window"] not in windows:
        return False
    figures = json.loads(row["expectations"])
    return bool(_without_samples(figures, windows[row["window"]]) != figures)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
