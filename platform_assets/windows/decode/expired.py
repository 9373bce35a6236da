"""Windows whose rows upkeep has removed because they are past the topic's `keep`, as far as the decoded tables are concerned."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime

from platform_assets.ledger.entries import EXPIRED
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration


def record_undecoded(ledger: Ledger, declaration: TopicDeclaration, keys: Collection[str]) -> frozenset[str]:
    """Return those of the windows `keys` whose raw rows were removed. Record receipts without rows for decoded tables that
    have none: such windows expired before the topic was decoded, and can no longer be decoded.

    The receipts have no version of a table, so any later decoding of the window counts instead.
    """
    if not keys:
        return frozenset()
    kinds = ledger.commit_rows(declaration.raw_table, sorted(keys), columns=["kind"])
    expired = {
        key for key, kind in zip(*kinds.select(["window", "kind"]).to_pydict().values(), strict=True) if kind == EXPIRED
    }
    if not expired:
        return frozenset()
    raw = ledger.receipts(declaration.raw_table, sorted(expired))
    tables = (declaration.dead_letter_table, declaration.decoded_table)
    known = {table: ledger.receipts(table, sorted(expired)) for table in tables}
    ledger.record_receipts(
        [
            replace(
                r, table=table, table_version=None, table_id=None, load_id=str(uuid.uuid4()), run_id="", engine=None
            )
            for key, r in sorted(raw.items())
            for table in tables
            if r.is_expired and key not in known[table]
        ]
    )
    return frozenset(expired)


def stays(ledger: Ledger, declaration: TopicDeclaration, now: datetime) -> Callable[[datetime], bool]:
    """Return a function that returns True for the end of a window that upkeep leaves alone, because it is not past `keep`.

    If derived rows of such a window were removed before `keep` was lengthened or removed, only decoding brings them back.
    """
    keep, topic = declaration.keep, declaration.topic
    if keep is None:
        return lambda end: True
    aged = min(now, ledger.newest_edges([topic]).get(topic, now))
    return lambda end: not keep.is_past(end, aged)
