"""The metadata of a commit that removes windows past the topic's `keep`."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime

from platform_assets.lake.load_log import Expiry, LoadMetadata
from platform_assets.ledger import cut_ranges
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import Cut
from platform_assets.model.tables import TableRef


def expiry_of(
    ledger: Ledger, declaration: TopicDeclaration, table: TableRef, receipts: Mapping[str, Receipt]
) -> Expiry:
    """Return the metadata of the commit that removes the windows of `receipts` from a table."""
    load_id, first = str(uuid.uuid4()), dict[int, tuple[datetime, Cut]]()
    is_raw = table.kind == "raw"
    erased = erased_of(ledger, declaration.topic, list(receipts)) if is_raw else {}
    found = list[LoadMetadata]()
    for key, r in receipts.items():
        if is_raw and r.generation not in first:
            first[r.generation] = cut_ranges.first_cut(ledger, r.topic, r.generation, r.window.start)
        found.append(
            LoadMetadata(
                r.topic,
                r.topic_id,
                r.generation,
                r.window,
                r.ranges,
                load_id=load_id,
                run_id="",
                first_cut=first[r.generation] if is_raw else None,
                erased=erased.get(key, {}),
                expired=str(declaration.keep),
            )
        )
    return Expiry(load_id, tuple(found))
