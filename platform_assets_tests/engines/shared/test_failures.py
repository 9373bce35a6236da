"""Failures of Spark jobs are converted to the platform's errors, which name partitions and offsets."""

from __future__ import annotations

from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.protocol import Records
from platform_assets.engines.shared.failures import to_platform_error, worker_ended
from platform_assets.errors import DamagedBatchError, LoadError, WorkerLostError
from platform_assets.lake.location import Lake
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

TABLE = TableRef.raw("orders")
EXECUTOR = (
    "Job aborted due to stage failure: Task 1 in stage 4.0 failed 4 times, most recent failure: Lost task 1.3 in stage 4.0 (TID 15) "
    "(127.0.0.3 executor 5): ExecutorLostFailure (executor 5 exited caused by one of the running tasks) Reason: Command exited with "
    "code 137"
)
"""An error in the form in which a standalone cluster reports it."""
DAMAGED = (
    "Job aborted due to stage failure: Task 1 in stage 2.0 failed 4 times, most recent failure: Lost task 1.3 in stage 2.0: "
    "org.apache.kafka.common.KafkaException: Received exception when fetching the next record from orders-v2-1. If needed, please "
    "seek past the record to continue consumption.\n\tat org.apache.kafka.clients.consumer.internals.CompletedFetch.fetchRecords\n"
    "Caused by: org.apache.kafka.common.KafkaException: Record batch for partition orders-v2-1 at offset 4096 is invalid, cause: "
    "Record is corrupt (stored crc = 1, computed crc = 2)\n"
)
"""An error in the form in which Kafka's own client reports it."""


def test_a_load_whose_executors_died_may_be_tried_again_and_names_what_was_read() -> None:
    ranges = TopicRanges({0: OffsetRange(3, 7), 1: OffsetRange(5, 5), 2: OffsetRange(0, 9)})
    records = Records("orders", "AAAAAAAAAAAAAAAAAAAAAA", "2026-03-01-00:00", ranges)
    named = SparkEngine(Lake.at("/lake"), None, None)._named(Exception(EXECUTOR), records, TABLE)  # type: ignore[arg-type]
    assert isinstance(named, WorkerLostError)
    assert named.reading == ((0, 3, 7), (2, 0, 9))
    assert "partition 0 offsets [3, 7), partition 2 offsets [0, 9) of window 2026-03-01-00:00" in str(named)


def test_a_damaged_batch_is_named_by_partition_and_offset() -> None:
    named = to_platform_error(Exception(DAMAGED), TABLE, "w", "/lake")
    assert isinstance(named, DamagedBatchError)
    assert (named.topic, named.partition, named.offset) == ("orders", 1, 4096)
    assert named.reason == "Record is corrupt (stored crc = 1, computed crc = 2)"


def test_what_is_neither_is_neither() -> None:
    assert worker_ended("Task 1 in stage 4.0 failed 4 times: java.lang.IllegalStateException") is None
    named = to_platform_error(Exception("java.lang.IllegalStateException: invalid"), TABLE, "w", "/lake")
    assert type(named) is LoadError
