"""Code that runs inside Spark's Python workers: it loads some shares of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from platform_assets.engines.columnar.columns import OldFormat, TimestampOutOfRange, blocks
from platform_assets.engines.columnar.work import Piece, Share, Work
from platform_assets.engines.shared.files import FileSeries, not_written
from platform_assets.engines.shared.reports import Report, UnsupportedError
from platform_assets.errors import (
    BatchTooLargeError,
    BrokerUnreachableError,
    DamagedBatchError,
    LoadError,
    OffsetsVanishedError,
    PlatformError,
    TimestampOverflowError,
    WorkerLostError,
    ranges_text,
)
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers, PartitionReading
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import UnpackBuffer
from platform_assets.lake.files import files_at
from platform_assets.model.offsets import OffsetRange


class Overtaken(Exception):
    """Raised if the log start has moved past the read position. The broker no longer has the offsets `gone`."""

    def __init__(self, partition: int, gone: OffsetRange) -> None:
        self.partition, self.gone = partition, gone
        super().__init__(f"partition {partition} offsets {gone} were deleted while they were being read")


def read_piece(
    brokers: Brokers, piece: Piece, buffers: Buffers, unpack_buffer: UnpackBuffer, add: Callable[[pa.RecordBatch], None]
) -> None:
    """Read the committed records of `piece`, and pass them to `add` in blocks with the columns of `columns.SCHEMA`,
    ordered by offset.

    No block is empty. Memory holds two fetches, one block, and `unpack_buffer`, which is as large as a block. Raises
    Overtaken; `columns.OldFormat` and `columns.TimestampOutOfRange`; DamagedBatchError, BatchTooLargeError,
    EmptyAnswersError, UnstableEndError, TruncationError, TopicRecreatedError, TopicMissingError,
    BrokerUnreachableError, BrokerRefusedError; and the errors that `add` raises.
    """
    rows = _Rows(piece, brokers.topic_id, unpack_buffer, add)
    reading = PartitionReading(brokers, rows, buffers)
    try:
        while rows.position < rows.end:
            reading.step()
    finally:
        reading.abandon()


class _Rows:
    """Receiver of batches that converts them to columns."""

    def __init__(
        self, piece: Piece, topic_id: str, unpack_buffer: UnpackBuffer, add: Callable[[pa.RecordBatch], None]
    ) -> None:
        self.partition, self.position, self.end = piece.partition, piece.wanted.start, piece.wanted.end
        self._topic_id, self._room, self._add, self._log_start = topic_id, unpack_buffer, add, 0

    def observe(self, log_start: int) -> None:
        self._log_start = log_start

    def missing(self, until: int) -> None:
        """Skip the missing offsets up to `until`, which have no record. Raises Overtaken if any of these offsets is
        below the log start, because retention has deleted it in the meantime."""
        until = min(until, self.end)
        if self.position < min(until, self._log_start):
            raise Overtaken(self.partition, OffsetRange(self.position, min(until, self._log_start)))
        self.position = max(self.position, until)

    def take(self, batches: Batches, aborted: Iterable[tuple[int, int]]) -> None:
        left = Piece(self.partition, OffsetRange(self.position, self.end))
        for block in blocks(batches, list(aborted), self._topic_id, left, self._room):
            self._add(block)
        self.position = min(batches.next_offset, self.end)


def reports(work: Work, numbers: Iterable[int]) -> Iterator[Report]:
    """Run the shares with these numbers. Yield a report for each file of a share or, after a failure, one report with
    the share's error. After success, also yield a final report.

    If no broker answers, the brokers are not contacted again for the remaining shares.
    """
    gone: BrokerUnreachableError | None = None
    for number in numbers:
        if gone is not None:
            yield Report(number, error=gone)
            continue
        began = time.perf_counter()
        try:
            files = _written(work, work.shares[number])
        except PlatformError as error:
            gone = error if isinstance(error, BrokerUnreachableError) else None
            yield Report(number, error=error)
            continue
        for file in files.written:
            yield Report(number, file=file)
        yield Report(number, seconds={**files.seconds, "all": time.perf_counter() - began})


def _written(work: Work, share: Share) -> FileSeries:
    """Write the files of a share and close the files. After any failure, delete the files and raise one of the
    platform's errors."""
    series = FileSeries(
        files_at(share.source.table),
        share.folder,
        f"{share.pieces[0].partition:05d}",
        work.rows_apart,
        window=share.window if share.window_column else None,
        field_ids=share.field_ids,
    )
    brokers = Brokers(
        work.settings(os.environ),
        share.source.topic,
        share.source.topic_id,
        patience=work.patience,
        stopped=lambda: False,
    )
    buffers, unpack_buffer = Buffers(work.fetch_bytes), UnpackBuffer()
    piece = share.pieces[0]
    try:
        for piece in share.pieces:
            read_piece(brokers, piece, buffers, unpack_buffer, series.add)
        series.close()
    except BaseException as error:
        series.discard()
        if not isinstance(error, Exception):
            raise
        raise _named(error, share, piece) from error
    finally:
        brokers.close()
    return series


def _named(error: Exception, share: Share, piece: Piece) -> PlatformError:
    """Return the platform's error for a failure while `piece` was being read and written."""
    if isinstance(error, (BatchTooLargeError, DamagedBatchError)):
        return error.of_window(share.window)
    if isinstance(error, PlatformError):
        return error
    if isinstance(error, OldFormat):
        return UnsupportedError(f"in topic {share.source.topic!r} partition {piece.partition}, {error}")
    if isinstance(error, TimestampOutOfRange):
        return TimestampOverflowError(share.source.topic, share.window)
    if isinstance(error, Overtaken):
        return OffsetsVanishedError(share.source.topic, share.window, str(error))
    if isinstance(error, OSError) and error.errno is not None and not isinstance(error, ConnectionError):
        return not_written(error, share.source.table)
    triple = (piece.partition, piece.wanted.start, piece.wanted.end)
    if isinstance(error, MemoryError):
        return WorkerLostError(share.source.topic, share.window, [triple], f"it ran out of memory: {error}")
    read = ranges_text([triple])
    return LoadError(
        f"window {share.window} of topic {share.source.topic!r} could not be loaded: reading {read} raised "
        f"{type(error).__name__}: {error}. The table was not changed."
    )
