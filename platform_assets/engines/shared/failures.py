"""Translation of Spark's errors to the platform's errors.

Over Spark Connect, a server-side exception arrives as text. The exception is recognized by the class names and error
conditions that Spark, Delta and the Kafka client put into that text.
"""

from __future__ import annotations

import re

from platform_assets.engines.shared.session import without_token
from platform_assets.errors import (
    BrokerUnreachableError,
    CommitOutcomeUnknownError,
    ConcurrentLoadError,
    DamagedBatchError,
    FilesLostError,
    LakeNotWritableError,
    LoadError,
    OffsetsVanishedError,
    PlatformError,
    TimestampOverflowError,
    TopicMissingError,
)
from platform_assets.model.tables import TableRef

_CONFLICT = ("ConcurrentAppendException", "ConcurrentDeleteReadException", "ConcurrentDeleteDeleteException",
             "ConcurrentWriteException", "ConcurrentTransactionException", "DELTA_CONCURRENT_")  # fmt: skip
_VANISHED = ("OffsetOutOfRangeException", "failOnDataLoss", "Some data may have been lost", "KAFKA_DATA_LOSS")
_BROKER = ("org.apache.kafka.common.errors.TimeoutException", "DisconnectException",
           "java.util.concurrent.TimeoutException", "BrokerNotAvailableException",
           "No resolvable bootstrap urls", "FETCH_OFFSETS")  # fmt: skip
_LOST = ("UNAVAILABLE", "INVALID_HANDLE", "SESSION_CHANGED", "SESSION_CLOSED", "NO_ACTIVE_SESSION", "OPERATION_ABANDONED",
         "RETRIES_EXCEEDED", "OPERATION_NOT_FOUND", "RESPONSE_ALREADY_RECEIVED", "Socket closed", "Connection reset",
         "failed to connect", "DEADLINE_EXCEEDED", "CANCELLED")  # fmt: skip
_FILES = ("FileNotFoundException", "FAILED_READ_FILE", "DELTA_FILE_NOT_FOUND", "is not a Parquet file")
_UNWRITABLE = ("Permission denied", "Read-only file system", "Mkdirs failed", "No space left on device",
               "AccessDeniedException")  # fmt: skip
_DAMAGED = re.compile(r"Record(?: batch)? for partition \S+-(\d+) at offset (\d+) is invalid, cause: ([^\n]+)")
"""Pattern of the Kafka client's message for a damaged batch."""
_WORKER_ENDED = ("Python worker exited unexpectedly", "Python worker process terminated", "ExecutorLostFailure")


def worker_ended(text: str) -> str | None:
    """Return the part of Spark's message that shows that a job ended because the processes of a task died on every
    attempt. Return None for other errors."""
    return next((sign for sign in _WORKER_ENDED if sign in text), None)


def to_platform_error(error: Exception, table: TableRef, window: str, root: str) -> PlatformError:
    """Return the platform's error for a Spark error that occurred while `window` of `table` was being loaded. `root` is
    the lake's location."""
    topic = table.topic
    text = without_token(str(error))
    first_line = next((line for line in text.splitlines() if line.strip()), type(error).__name__)[:500]
    if damaged := _DAMAGED.search(text):
        return DamagedBatchError(topic, int(damaged[1]), int(damaged[2]), damaged[3].strip().rstrip("."), window)
    if any(sign in text for sign in _CONFLICT):
        return ConcurrentLoadError(table.name, window)
    if "long overflow" in text or "ARITHMETIC_OVERFLOW" in text:
        return TimestampOverflowError(topic, window)
    if any(sign in text for sign in _VANISHED):
        return OffsetsVanishedError(topic, window, first_line)
    if "UnknownTopicOrPartitionException" in text:
        return TopicMissingError(topic)
    if any(sign in text for sign in _FILES):
        return FilesLostError(table.name, window, first_line)
    if any(sign in text for sign in _UNWRITABLE):
        return LakeNotWritableError(root, first_line)
    if any(sign in text for sign in _BROKER):
        return BrokerUnreachableError(f"Spark was reading window {window} of topic {topic!r}", 60, first_line)
    if any(sign in text for sign in _LOST):
        return CommitOutcomeUnknownError(table.name, window, first_line)
    return LoadError(
        f"Spark could not load window {window} of topic {topic!r}: {first_line.rstrip('.')}. The table was not changed."
    )
