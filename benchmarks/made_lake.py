"""Lakes of very many windows, made by script: their ledgers and logs are real, old data files are only named.

Whatever is measured on them reads ledgers and logs. The log of the raw table is as a year of loads leaves it: an old part
in a checkpoint, and a commit of its own for each of the newest windows.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from deltalake import DeltaTable

from platform_assets.lake import raw, tablelog
from platform_assets.lake.tablelog import LoadMetadata
from platform_assets.ledger import Ledger
from platform_assets.ledger_entries import Receipt, SealedWindow
from platform_assets.offsets import TopicRanges
from platform_assets_tests.samples import edge, hourly, receipt

OFFSETS: Final = 10
"""Of each window and partition: one row, and markers."""

_ONE_BY_ONE: Final = 60
_ADDS_A_COMMIT: Final = 5_000


def make(root: Path, topic: str, windows: int, partitions: int) -> Path:
    """Make `raw/<topic>` under the lake root `root`, with `windows` hourly windows of `partitions`; gives `root`.

    Of each window one file is in the table's log, and no such file exists.
    """
    ledger = Ledger(root)
    ledger.create()
    table = root / "raw" / topic
    raw.create_table(table, topic)
    cuts = hourly(topic, [dict.fromkeys(range(partitions), n * OFFSETS) for n in range(windows + 1)])
    old = max(windows - _ONE_BY_ONE, 0)
    if not ledger.record_cuts(cuts[: old + 1], None):
        raise RuntimeError(f"{root} has cuts of topic {topic} already")
    for cut in cuts[old + 1 :]:
        ledger.record_cuts([cut], ledger.newest_edges([topic])[topic])
    sealed = ledger.windows(topic)
    for at in range(0, old, _ADDS_A_COMMIT):
        some = sealed[at : min(at + _ADDS_A_COMMIT, old)]
        _commit(table, [_add(w) for w in some], None)
    if old:
        DeltaTable(table).create_checkpoint()
    for window in sealed[old:]:
        _commit(table, [_add(window)], window)
    files = tablelog.window_files(tablelog.file_actions(table))
    newest = DeltaTable(table).version()
    versions = {w.key: newest - len(sealed) + 1 + n for n, w in enumerate(sealed[old:], old)}
    receipts = [_receipt(w, files[w.key], versions.get(w.key, 1)) for w in sealed]
    ledger.record_receipts(receipts[:old])
    for one in receipts[old:]:
        ledger.record_receipts([one])
    return root


def _receipt(window: SealedWindow, files: tablelog.WindowFiles, version: int) -> Receipt:
    held = {p: [r.start] for p, r in window.ranges.items()}
    return receipt(
        window, held, version=version, load_id=window.key, files_digest=files.digest, bytes=files.bytes,
        holes={"commit markers": (OFFSETS - 1) * len(held)}, proved_by="broker evidence", proved_at=edge(0),
    )  # fmt: skip


def _commit(table: Path, adds: Sequence[dict[str, object]], window: SealedWindow | None) -> None:
    """Write the next commit of the table's log, as a load of `window` does."""
    version = DeltaTable(table).version() + 1
    info = {"timestamp": _now(), "operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
    if window is not None:
        info["userMetadata"] = LoadMetadata(
            window.topic, window.topic_id, window.generation, window.window, window.ranges, load_id=window.key, run_id="run"
        ).to_json()  # fmt: skip
    lines = [json.dumps(entry) for entry in ({"commitInfo": info}, *({"add": add} for add in adds))]
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(lines) + "\n")


def _add(window: SealedWindow) -> dict[str, object]:
    ranges: TopicRanges = window.ranges
    starts = [r.start for r in ranges.by_partition.values()]
    at = window.window.start.strftime("%Y-%m-%dT%H:%M:%S.000Z")
    statistics = {
        "numRecords": len(starts),
        "minValues": {"kafka_partition": 0, "kafka_offset": min(starts), "kafka_timestamp": at},
        "maxValues": {"kafka_partition": len(starts) - 1, "kafka_offset": max(starts), "kafka_timestamp": at},
        "nullCount": {"kafka_partition": 0, "kafka_offset": 0, "kafka_timestamp": 0},
    }
    return {
        "path": f"window={quote(quote(window.key))}/part-{window.key.replace(':', '')}.parquet",
        "partitionValues": {"window": window.key},
        "size": 2_000,
        "modificationTime": _now(),
        "dataChange": True,
        "stats": json.dumps(statistics),
    }


def _now() -> int:
    return round(time.time() * 1000)
