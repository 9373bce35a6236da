"""Scripted ledger entries and raw tables, for tests that need neither a broker nor Spark."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake

from platform_assets.lake import holdings, raw_table
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake
from platform_assets.ledger.entries import PartitionReceipt, Receipt, RecordedCut, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import Cut, OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, edge_of

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"

Offsets = Mapping[int, Iterable[int]]


class Keyed(NamedTuple):
    """The key and the value of a record."""

    key: bytes | None
    value: bytes | None


Values = Mapping[tuple[int, int], bytes | Keyed | None]
"""Values of records, by partition and offset, with their keys if they have any."""


def edge(number: float) -> datetime:
    """Return the edge `number` hours after START."""
    return START + number * HOUR


def cut(
    topic: str, at: datetime, offsets: Mapping[int, int], *, topic_id: str = TOPIC_ID, generation: int = 1
) -> RecordedCut:
    """Return a cut that was found by timestamp, with leader epoch 7 in partition 0 and no epoch in other partitions."""
    return RecordedCut(
        topic,
        topic_id,
        generation,
        at,
        Cut(offsets),
        dict.fromkeys(offsets, "timestamp"),
        {p: 7 if p == 0 else None for p in offsets},
    )


def hourly(topic: str, ends: Sequence[Mapping[int, int]], hours: int = 1) -> list[RecordedCut]:
    """Return cuts every hour, or every so many hours, the first of them at START."""
    return [cut(topic, edge(i * hours), offsets) for i, offsets in enumerate(ends)]


def sealed(topic: str, key: str, hours: float = 1, **ranges: tuple[int, int]) -> SealedWindow:
    """Return a sealed window without recording it: `sealed("t", "2026-01-01-00:00", p0=(0, 5))`."""
    start = edge_of(key)
    by_partition = {int(name[1:]): OffsetRange(*bounds) for name, bounds in ranges.items()}
    window = Window(start, start + hours * HOUR)
    return SealedWindow(topic, TOPIC_ID, 1, window, TopicRanges(by_partition), dict.fromkeys(by_partition, "timestamp"))


def receipt(
    window: SealedWindow, offsets: Offsets | None = None, *, version: int | None = 1, load_id: str = "load", **more: Any
) -> Receipt:
    """Return the receipt of a load that found `offsets` in `window`. The default is all offsets in the window."""
    found = {
        p: np.array(sorted(o), dtype=np.int64) for p, o in (_dense(window) if offsets is None else offsets).items()
    }
    digest = sum((offsets_digest(p, o) for p, o in found.items()), Digest(0, 0))
    values: dict[str, Any] = {
        "table": TableRef.raw(window.topic),
        "topic": window.topic,
        "topic_id": window.topic_id,
        "generation": window.generation,
        "window": window.window,
        "kind": "load",
        "partitions": {p: _part(r, found.get(p)) for p, r in window.ranges.items()},
        "offsets_digest": digest.total,
        "content_digest": digest.total + 1,
        "duplicates": 0,
        "bytes": 1000,
        "table_version": version,
        "files_digest": f"files of {load_id}",
        "load_id": load_id,
        "run_id": "run",
        "seconds": 1.5,
    }
    return Receipt(**{**values, **more})


def _dense(window: SealedWindow) -> dict[int, range]:
    return {p: range(r.start, r.end) for p, r in window.ranges.items() if r.size}


def _part(whole: OffsetRange, found: np.ndarray[Any, np.dtype[np.int64]] | None) -> PartitionReceipt:
    if found is None or not len(found):
        return PartitionReceipt(whole, 0, None, None)
    return PartitionReceipt(whole, len(found), int(found[0]), int(found[-1]))


# --- raw tables -----------------------------------------------------------------------------------------------------


def rows(key: str, offsets: Offsets, topic_id: str = TOPIC_ID, values: Values | None = None) -> pa.Table:
    """Return rows of a raw table, one for each offset. By default, the value of each row is its partition and
    offset."""
    pairs = [(p, o) for p, some in offsets.items() for o in some]
    return pa.table(
        {
            "topic_id": pa.array([topic_id] * len(pairs), pa.string()),
            "kafka_partition": pa.array([p for p, _ in pairs], pa.int32()),
            "kafka_offset": pa.array([o for _, o in pairs], pa.int64()),
            "kafka_timestamp": pa.array([edge_of(key)] * len(pairs), pa.timestamp("us", "UTC")),
            "kafka_timestamp_type": pa.array([0] * len(pairs), pa.int32()),
            "key": pa.array([_sides(values, p, o)[0] for p, o in pairs], pa.binary()),
            "value": pa.array([_sides(values, p, o)[1] for p, o in pairs], pa.binary()),
            "headers": pa.array(
                [None] * len(pairs), pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
            "window": pa.array([key] * len(pairs), pa.string()),
        }
    )


def _sides(values: Values | None, partition: int, offset: int) -> Keyed:
    """Return the key and the value of a record."""
    found = f"{partition}/{offset}".encode() if values is None else values[partition, offset]
    return found if isinstance(found, Keyed) else Keyed(None, found)


def append(lake_root: Path, topic: str, table: pa.Table) -> None:
    """Append rows without a load, as a different writer might do."""
    raw_table.create(Folder.at(lake_root / "raw" / topic), topic)
    write_deltalake(lake_root / "raw" / topic, table, mode="append")


def overwrite(
    lake_root: Path,
    window: SealedWindow,
    offsets: Offsets | None = None,
    load_id: str = "load",
    values: Values | None = None,
) -> None:
    """Commit a load: the rows at `offsets`, by default at all offsets in the window, and metadata as Spark writes
    it."""
    path = lake_root / "raw" / window.topic
    raw_table.create(Folder.at(path), window.topic)
    metadata = LoadMetadata(
        window.topic, window.topic_id, window.generation, window.window, window.ranges, load_id, run_id="run"
    )
    write_deltalake(
        path,
        rows(window.key, _dense(window) if offsets is None else offsets, window.topic_id, values),
        mode="overwrite",
        predicate=f"window = '{window.key}'",
        commit_properties=CommitProperties(custom_metadata={"userMetadata": metadata.to_json()}),
    )


def loaded(
    lake_root: Path,
    window: SealedWindow,
    offsets: Offsets | None = None,
    load_id: str | None = None,
    values: Values | None = None,
    **more: Any,
) -> Receipt:
    """Make a complete load: the commit, and its receipt in the ledger. `more` replaces fields of the receipt."""
    name = load_id or f"load of {window.key}"
    overwrite(lake_root, window, offsets, name, values)
    path = lake_root / "raw" / window.topic
    files = holdings.files_of(Folder.at(path), window.key)
    entry = receipt(
        window,
        offsets,
        version=DeltaTable(path).version(),
        load_id=name,
        bytes=files.bytes,
        files_digest=files.digest,
        **more,
    )
    Ledger(Lake.at(lake_root)).record_receipts([entry])
    return entry


def recorded(
    lake_root: Path | str, topic: str, ends: Sequence[Mapping[int, int]], hours: int = 1
) -> list[SealedWindow]:
    """Record cuts every hour, or every so many hours, at the offsets `ends`. Return the windows between them."""
    ledger = Ledger(Lake.at(lake_root))
    ledger.create()
    assert ledger.record_cuts(hourly(topic, ends, hours), None)
    return ledger.windows(topic)


def log_entries(table: Path) -> list[dict[str, Any]]:
    """Return every action from the JSON files of a Delta log, in order."""
    files = sorted((table / "_delta_log").glob("*.json"))
    return [json.loads(line) for line in itertools.chain.from_iterable(f.read_text().splitlines() for f in files)]
