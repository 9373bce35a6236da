"""The rows of one piece, from the brokers to Arrow columns, in blocks of bounded size."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from platform_assets.engines.columnar.columns import blocks
from platform_assets.engines.columnar.pieces import Piece
from platform_assets.errors import DamagedBatchError
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionFetching
from platform_assets.kafka.batches.record_batches import Damage
from platform_assets.model.offsets import OffsetRange


class Overtaken(Exception):
    """The log start has overtaken the reading: the broker no longer has `gone`."""

    def __init__(self, partition: int, gone: OffsetRange) -> None:
        self.partition, self.gone = partition, gone
        super().__init__(f"partition {partition} offsets {gone} went away while they were read")


def rows_of(brokers: Brokers, piece: Piece, buffers: Buffers) -> Iterator[pa.RecordBatch]:
    """The committed records of `piece` in order of offset, with the columns of `columns.SCHEMA`; no block is empty.

    Memory: two fetches, and one block. Raises Overtaken; `columns.OldFormat` and `columns.TimestampOutOfRange`;
    DamagedBatchError, UnstableEndError, TruncationError, TopicRecreatedError, TopicMissingError,
    BrokerUnreachableError, BrokerRefusedError.
    """
    fetching = PartitionFetching(brokers, piece.partition, piece.wanted, buffers)
    at, end = piece.wanted.start, piece.wanted.end
    try:
        while at < end:
            fetched = fetching.step()
            if fetched is None:
                continue
            if fetched.start > at:
                raise Overtaken(piece.partition, OffsetRange(at, min(fetched.start, end)))
            left = Piece(piece.partition, OffsetRange(at, end))
            yield from blocks(fetched.batches, fetched.aborted, brokers.topic_id, left)
            at = fetched.end
    except Damage as damage:
        raise DamagedBatchError(brokers.topic, piece.partition, damage.offset, damage.reason) from None
    finally:
        fetching.abandon()
