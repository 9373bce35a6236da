"""Reading one piece from the brokers into Arrow columns, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa

from platform_assets.engines.columnar.columns import blocks
from platform_assets.engines.columnar.pieces import Piece
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionReading
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Room
from platform_assets.model.offsets import OffsetRange


class Overtaken(Exception):
    """The log start has overtaken the read: the broker no longer has `gone`."""

    def __init__(self, partition: int, gone: OffsetRange) -> None:
        self.partition, self.gone = partition, gone
        super().__init__(f"partition {partition} offsets {gone} were deleted while they were being read")


def read_piece(
    brokers: Brokers, piece: Piece, buffers: Buffers, room: Room, add: Callable[[pa.RecordBatch], None]
) -> None:
    """Pass the committed records of `piece` to `add`, in order of offset, with the columns of `columns.SCHEMA`.

    No block is empty. Memory: two fetches, one block, and `room` for unpacking, as large as a block. Raises
    Overtaken; `columns.OldFormat` and `columns.TimestampOutOfRange`; DamagedBatchError, BatchTooLargeError, EmptyAnswersError,
    UnstableEndError, TruncationError, TopicRecreatedError, TopicMissingError, BrokerUnreachableError, BrokerRefusedError; and what
    `add` raises.
    """
    rows = _Rows(piece, brokers.topic_id, room, add)
    reading = PartitionReading(brokers, rows, buffers)
    try:
        while rows.position < rows.end:
            reading.step()
    finally:
        reading.abandon()


class _Rows:
    """A sink of batches that turns them into columns."""

    def __init__(self, piece: Piece, topic_id: str, room: Room, add: Callable[[pa.RecordBatch], None]) -> None:
        self.partition, self.position, self.end = piece.partition, piece.wanted.start, piece.wanted.end
        self._topic_id, self._room, self._add, self._log_start = topic_id, room, add, 0

    def observe(self, log_start: int) -> None:
        self._log_start = log_start

    def missing(self, until: int) -> None:
        """Note missing offsets: below the log start they were deleted meanwhile; elsewhere, there is no record."""
        until = min(until, self.end)
        if self.position < min(until, self._log_start):
            raise Overtaken(self.partition, OffsetRange(self.position, min(until, self._log_start)))
        self.position = max(self.position, until)

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]]) -> None:
        left = Piece(self.partition, OffsetRange(self.position, self.end))
        for block in blocks(batches, list(aborted), self._topic_id, left, self._room):
            self._add(block)
        self.position = min(batches.next_offset, self.end)
