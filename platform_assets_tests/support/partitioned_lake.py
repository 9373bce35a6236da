"""A lake with tables partitioned by window, as written by releases before flat tables: `data/partitioned_lake.tar.gz`.

This module wrote the lake on 2026-11-26, and the lake is never written again. Topic `people` has two partitions and
hourly windows. Windows 0 to 5 are loaded and decoded; some of their records are dead letters. One record of window 1
was erased, the loss of two records of window 2 was accepted, window 3 has no offsets, and another writer compacted
window 4. Window 6 is sealed but not loaded.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from deltalake import DeltaTable

from platform_assets.ledger.entries import ACCEPTED_LOSS
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic
from platform_assets_tests.support.local_engine import Kept
from testbed import samples

KEPT = Path(__file__).parents[1] / "data" / "partitioned_lake.tar.gz"
ERASED = b"forget-me"
EACH = 12

Pairs = Mapping[int, list[tuple[bytes | None, bytes | None]]]


def values() -> list[Pairs]:
    """Keys and values by window and partition. A value that is not UTF-8 becomes a dead letter."""
    windows: list[Pairs] = []
    for w in range(7):
        each = 0 if w == 3 else EACH
        windows.append({p: [(b"k%d" % (n % 5), _value(w, p, n)) for n in range(each)] for p in (0, 1)})
    return windows


def _value(window: int, partition: int, n: int) -> bytes | None:
    if n == 5:
        return None
    if n == 7 and window in (0, 4):
        return b"\xff\xfe"
    return ERASED if (window, partition, n) == (1, 0, 3) else b"v-%d-%d-%d" % (window, partition, n)


def topic_in(root: Path) -> MadeTopic:
    """Return the topic with its records, for a lake that already exists below `root`."""
    topic = MadeTopic(root)
    at = {0: 0, 1: 0}
    for number, window in enumerate(values()):
        for partition, pairs in window.items():
            for key, value in pairs:
                topic.records.append(Kept(partition, at[partition], key, value, samples.edge(number)))
                at[partition] += 1
    topic.records.sort(key=lambda r: (r.partition, r.offset))
    return topic


def unpacked(folder: Path) -> MadeTopic:
    """Unpack the lake into a folder. Return the lake's topic."""
    with tarfile.open(KEPT) as kept:
        # An argument of `extractall` only from Python 3.11.4 on; before that, this attribute has no effect.
        kept.extraction_filter = getattr(tarfile, "data_filter", None)
        kept.extractall(folder)
    return topic_in(folder / "lake")


def made(root: Path) -> MadeTopic:
    """Write such a lake."""
    topic = MadeTopic(root)
    windows = topic.seal(values())
    loss = windows[2]
    first = loss.ranges.by_partition[1].start
    topic.ledger.record_acceptance(loss, {1: [OffsetRange(first, first + 2)]}, "retention")
    topic.fill(windows[:6])
    lossy = topic.receipts()[loss.key]
    # What the broker's batch headers would prove of the window.
    topic.ledger.record_receipts(
        [replace(lossy, holes={ACCEPTED_LOSS: 2}, duplicates=0, proved_by="batch headers", proved_at=samples.edge(9))]
    )
    at = windows[1].ranges.by_partition[0].start + 3
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(at, at + 1),)}), AUTHOR)
    erasure.run(AUTHOR)
    raw = DeltaTable(topic.root / "raw" / topic.topic)
    raw.optimize.compact(partition_filters=[("window", "=", windows[4].key)])
    return topic


if __name__ == "__main__":
    target = Path(sys.argv[1])
    made(target / "lake")
    with tarfile.open(target / "partitioned_lake.tar.gz", "w:gz", compresslevel=9) as archive:
        archive.add(target / "lake", "lake")
