"""Offsets of erased records, by window, from the ledger of loads. Their keys are not stored."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow.compute as pc

from platform_assets.ledger import known_files
from platform_assets.ledger.entries import ERASED
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, merge_named
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of


def erased_of(
    ledger: Ledger, topic: str, keys: Sequence[str] | None = None
) -> dict[str, dict[int, tuple[OffsetRange, ...]]]:
    """Return the offsets of erased records, by window and partition, ascending; of all windows, or of those in `keys`.

    They count as soon as they are recorded, even if the rows still exist. Windows without any are left out.
    """
    among = None if keys is None else [edge_of(key) for key in keys]
    columns = ["window", "kind", "partition", "start", "end", "holes"]
    found = known_files.of_commits(ledger.lake).rows(TableRef.raw(topic).ledger_name, columns, among=among)
    named: dict[str, list[tuple[int, int, int]]] = {}
    for row in found.filter(pc.equal(found["kind"], "acceptance")).to_pylist():
        if ERASED in json.loads(row["holes"]):
            named.setdefault(row["window"], []).append((row["partition"], row["start"], row["end"]))
    return {window: merge_named(parts) for window, parts in named.items()}
