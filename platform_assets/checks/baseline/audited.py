"""Findings of a table's newest deep audits. They are stored so that a report can decide, without reading data files,
whether the findings still hold.

Damage stays until the window's files change. A finding therefore holds until the table's log no longer lists the files
that the audit read. The findings are in one JSON file per table next to the ledger. This file proves nothing: the
proofs are receipts in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, Final

from platform_assets.checks.findings import Finding
from platform_assets.lake.holdings import NO_FILES
from platform_assets.lake.location import Lake
from platform_assets.model import names
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

_log = logger(__name__)
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A finding of an audit that ended at `at`, and the digest of the window's files that this audit read."""

    finding: Finding
    files_digest: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Audited:
    """The newest audit, which read `windows` windows with `rows` rows in total, and the findings of all audits that
    still stand.

    An earlier finding about a window is kept until an audit reads the window again. An audit that could not read the
    window does not revoke the finding.
    """

    at: datetime
    windows: int
    rows: int
    found: tuple[AuditFinding, ...] = ()

    def followed_by(self, audit: Audited, read: Collection[str]) -> Audited:
        """Return `audit`, plus the earlier findings about windows that are not in `read`."""
        kept = [f for f in self.found if f.finding.window not in read]
        known = {f.finding.window for f in kept}
        added = [f for f in audit.found if f.finding.alarming or f.finding.window not in known]
        return Audited(audit.at, audit.windows, audit.rows, (*added, *kept))


def audited(
    findings: Sequence[Finding], files: Mapping[str, str], *, windows: int, rows: int, at: datetime | None = None
) -> Audited:
    """Return an audit that ended at `at`; now by default. `files` maps each window that has files to the digest of
    these files."""
    ended = at or datetime.now(UTC)
    return Audited(
        ended, windows, rows, tuple(AuditFinding(f, files.get(f.window, NO_FILES.digest), ended) for f in findings)
    )


def remember(lake: Lake, table: TableRef, audit: Audited, read: Collection[str]) -> None:
    """Store `audit`. `read` contains the windows that the audit read. Raises LakeNotWritableError."""
    before = recall(lake, table)
    whole = audit if before is None else before.followed_by(audit, read)
    document = {
        "version": _VERSION,
        "at": whole.at.isoformat(),
        "windows": whole.windows,
        "rows": whole.rows,
        "found": [
            {
                **asdict(f.finding),
                "ranges": [[r.start, r.end] for r in f.finding.ranges],
                "files_digest": f.files_digest,
                "at": f.at.isoformat(),
            }
            for f in whole.found
        ],
    }
    lake.audits.write(_name(table), json.dumps(document, separators=(",", ":")).encode())


def recall(lake: Lake, table: TableRef) -> Audited | None:
    """Return the stored audit; None if there is no stored audit, or if another release wrote it."""
    content = lake.audits.read(_name(table))
    if content is None:
        return None
    try:
        document: Any = json.loads(content)
    except json.JSONDecodeError as e:
        _log.warning(
            "%s/%s cannot be read (%s); the next deep audit will replace this file", lake.audits, _name(table), e
        )
        return None
    if document["version"] != _VERSION:
        return None
    return Audited(
        datetime.fromisoformat(document["at"]),
        document["windows"],
        document["rows"],
        tuple(map(_found, document["found"])),
    )


def _found(entry: dict[str, Any]) -> AuditFinding:
    at, files_digest = entry.pop("at"), entry.pop("files_digest")
    ranges = tuple(OffsetRange(start, end) for start, end in entry.pop("ranges"))
    return AuditFinding(Finding(**entry, ranges=ranges), files_digest, datetime.fromisoformat(at))


def _name(table: TableRef) -> str:
    return names.file_name(table.kind, table.topic, ".json")
