"""Two loaders as they are commonly written, used only in tests and documents. One loads at most once, and the other
loads at least once. Each keeps a position: everything before this offset counts as loaded. Each reads from the position
up to the cut of the requested window, and appends. Both read, write and crash in the same way as the platform's loader,
through the same Spark, Delta and Kafka. The two differ only in the order of two writes: the first loader writes the
position before the data, and the second writes the data before the position.

A position is kept as a receipt in the ledger, so that checks can compare the table with it. The receipt states what the
sink assumes: the range up to the position is loaded, with the rows counted when the batch was planned, in the files
that the sink wrote. A sink that stores its position first has no files at that time, so checks read each of its windows
again. The receipt of the other sink lists the files of its last append, so checks also read a window that was appended
twice.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.engines.connector import raw
from platform_assets.lake import holdings, raw_table
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Folder
from platform_assets.ledger.entries import PartitionReceipt, Receipt, SealedWindow
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.faults import Faults
from testbed.loads import TopicLake

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Order = Literal["position first", "data first"]


@dataclass(frozen=True, slots=True)
class ControlLoader:
    """A loader that loads at most once ("position first") or at least once ("data first")."""

    order: Order
    lake: TopicLake
    faults: Faults

    def load(self, key: str) -> str:
        """Load from the position to the end of window `key`, and return the outcome."""
        self.faults.reach("before the plan")
        lake = self.lake
        lake.ledger.create()
        sealed = lake.ledger.window(lake.topic, key)
        assert sealed is not None
        ranges = self._from_position(sealed)
        if not ranges.size:
            self.faults.reach("after all")
            return "nothing to do"
        raw_table.create(Folder.at(lake.table), lake.topic)
        frame = raw.kafka_frame(
            lake.spark(), lake.settings.java(), lake.topic, sealed.topic_id, key, [ranges.non_empty()]
        )
        planned = _planned(frame, sealed, ranges)
        self.faults.reach_plan(lake, key)
        if self.order == "position first":
            lake.ledger.record_receipts([planned])
            self.faults.reach("between the writes")
            self._append(frame)
        else:
            before = holdings.actions(Folder.at(lake.table))["path"]
            self._append(frame)
            self.faults.reach("between the writes")
            lake.ledger.record_receipts([_with_files(planned, self._files_since(key, before))])
        self.faults.reach("after all")
        return "loaded"

    def _from_position(self, sealed: SealedWindow) -> TopicRanges:
        """Return the ranges from the position to the window's cut. If there is no position, the ranges begin at the
        window's start."""
        position: dict[int, int] = {}
        for receipt in self.lake.ledger.receipts(self.lake.declaration.raw_table).values():
            for partition, r in receipt.ranges.items():
                position[partition] = max(r.end, position.get(partition, 0))
        return TopicRanges(
            {p: OffsetRange(min(position.get(p, r.start), r.end), r.end) for p, r in sealed.ranges.items()}
        )

    def _append(self, frame: DataFrame) -> None:
        frame.write.format("delta").mode("append").save(str(self.lake.table))

    def _files_since(self, key: str, before: pa.ChunkedArray) -> WindowFiles:
        actions = holdings.actions(Folder.at(self.lake.table))
        own = actions.filter(pc.invert(pc.is_in(actions["path"], before)))
        return holdings.window_files(own).get(key, holdings.NO_FILES)


def _planned(frame: DataFrame, sealed: SealedWindow, ranges: TopicRanges) -> Receipt:
    """Return the receipt that stands for a position at the end of `ranges`. The receipt claims that the table contains
    exactly the rows of `frame`."""
    from pyspark.sql import functions as F

    measured = raw.measure(frame)
    bounds = F.count(F.lit(1)), F.min("kafka_offset"), F.max("kafka_offset")
    found = {p: rest for p, *rest in frame.groupBy("kafka_partition").agg(*bounds).collect()}
    return Receipt(
        table=TableRef.raw(sealed.topic),
        topic=sealed.topic,
        topic_id=sealed.topic_id,
        generation=sealed.generation,
        window=sealed.window,
        kind="load",
        partitions={p: PartitionReceipt(r, *found.get(p, (0, None, None))) for p, r in ranges.items()},
        offsets_digest=measured.offsets.total,
        content_digest=measured.content.total,
        duplicates=0,
        bytes=0,
        table_version=None,
        files_digest="not known",
        load_id=str(uuid.uuid4()),
        run_id="",
        seconds=0.0,
    )


def _with_files(receipt: Receipt, files: WindowFiles) -> Receipt:
    return replace(receipt, bytes=files.bytes, files_digest=files.digest)
