"""Code that runs inside Spark's Python workers: some shares of a job."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator

from platform_assets.engines.columnar.columns import OldFormat, TimestampOutOfRange
from platform_assets.engines.columnar.files import FileSeries
from platform_assets.engines.columnar.pieces import Piece
from platform_assets.engines.columnar.reading import Overtaken, read_piece
from platform_assets.engines.columnar.reports import Report, UnfitError
from platform_assets.engines.columnar.work import Share, Work
from platform_assets.errors import (
    BatchTooLargeError,
    BrokerUnreachableError,
    DamagedBatchError,
    LakeNotWritableError,
    LakeUnavailableError,
    LoadError,
    OffsetsVanishedError,
    PlatformError,
    TimestampOverflowError,
    WorkerLostError,
    ranges_text,
)
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import Buffers
from platform_assets.kafka.batches.unpacking import Room
from platform_assets.lake.files import files_at, is_in_store


def reports(work: Work, numbers: Iterable[int]) -> Iterator[Report]:
    """Do these shares; yield a report per file of a share or its one error, and a final report if all went well.

    If no broker answers, the brokers are not asked again for the remaining shares.
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
    """Write the files of a share and close them. Any failure is raised as an error of the platform, and no file is left."""
    series = FileSeries(files_at(share.source.table), share.folder, f"{share.pieces[0].partition:05d}", work.rows_apart)
    brokers = Brokers(
        work.settings(os.environ),
        share.source.topic,
        share.source.topic_id,
        patience=work.patience,
        stopped=lambda: False,
    )
    buffers, room = Buffers(work.fetch_bytes), Room()
    piece = share.pieces[0]
    try:
        for piece in share.pieces:
            read_piece(brokers, piece, buffers, room, series.add)
        series.close()
    except BaseException as error:
        series.discard()
        if not isinstance(error, Exception):
            raise
        raise _named(error, share, piece) from error
    finally:
        brokers.close()
    return series


def not_written(error: OSError, table: str) -> PlatformError:
    """Return the platform's error for a system error raised while files of the table at `table` were written."""
    reason = error.strerror or str(error)
    if is_in_store(table) and not isinstance(error, PermissionError):
        return LakeUnavailableError(table, reason)
    return LakeNotWritableError(table, reason)


def _named(error: Exception, share: Share, piece: Piece) -> PlatformError:
    """Return the platform's error for a failure while `piece` was read and written."""
    if isinstance(error, (BatchTooLargeError, DamagedBatchError)):
        return error.of_window(share.window)
    if isinstance(error, PlatformError):
        return error
    if isinstance(error, OldFormat):
        return UnfitError(f"in topic {share.source.topic!r} partition {piece.partition}, {error}")
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
