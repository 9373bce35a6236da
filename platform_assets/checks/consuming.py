"""A third opinion: compare a sample of the table's rows, one by one, with the records that a plain read_committed
consumer returns.

The loader and the evidence share one reader of fetch responses, and Spark's connector has a different one. The consumer
here is librdkafka's. It shares no code with either reader: it has its own fetching, unpacking and handling of
transactions, and uses no digests. A sample suffices, because a defect in a reader shows in every window that contains
the kind of record that the reader misreads.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.checks.confirming import held_whole
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.findings import Finding
from platform_assets.checks.judging import finding
from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError, PlatformError
from platform_assets.kafka.client_errors import is_out_of_reach
from platform_assets.kafka.plain_consumer import consume, plain_consumer
from platform_assets.kafka.rights import needed
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake import load_log, rows
from platform_assets.ledger.entries import Receipt
from platform_assets.model.offsets import OffsetRange, ranges_of

if TYPE_CHECKING:
    from confluent_kafka import Message

SAMPLE_WINDOWS: Final = 5
SAMPLE_OFFSETS: Final = 100_000
"""Maximum number of windows, and maximum number of offsets, that one audit compares."""
_COLUMNS: Final = ("kafka_offset", "kafka_timestamp", "kafka_timestamp_type", "key", "value", "headers")
_PATIENCE: Final = 30.0
"""Seconds without a message after which the comparison stops waiting for the brokers."""

_Digests = dict[int, tuple[bytes, bytes]]
"""Maps each offset to two digests: one of the record without its headers, and one of the headers. The second digest is
empty if the headers cannot be compared."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The number of compared windows, the number of compared rows, the differences, and the reasons why no more rows
    were compared."""

    windows: int = 0
    rows: int = 0
    findings: tuple[Finding, ...] = ()
    not_read: tuple[str, ...] = ()


NOT_COMPARED: Final = Compared()
"""Result if no row was compared."""


def compare(e: Evaluation, receipts: Sequence[Receipt], rng: random.Random | None = None) -> Compared:
    """Compare a random sample of the rows of `receipts`; `rng` chooses the sample. Windows whose records Kafka no
    longer has completely are left out."""
    if e.engine_by_name is None:
        return NOT_COMPARED
    rng = rng or random.Random()
    windows = number = 0
    findings, not_read = list[Finding](), list[str]()
    try:
        held = held_whole(e, receipts)
        sample = rng.sample(held, min(SAMPLE_WINDOWS, len(held)))
        accepted = e.ledger.accepted_losses_of(e.declaration.raw_table, [r.window.key for r in sample])
        share = SAMPLE_OFFSETS // max(1, sum(len(r.partitions) for r in sample))
        for receipt in sorted(sample, key=lambda r: r.window.start):
            if time.monotonic() > e.deadline:
                break
            e.progress(f"comparing rows of window {receipt.window.key} with the records that a plain consumer returns")
            without = accepted.get(receipt.window.key, {})
            for partition, span in _spans(receipt, share, rng).items():
                left = span.minus(without.get(partition, ()))
                kept, consumed = _of_table(e, receipt, partition, left), _of_kafka(e, partition, left)
                findings += _differences(receipt, partition, kept, consumed)
                number += len(kept)
            windows += 1
    except PlatformError as error:
        not_read.append(str(error))
    return Compared(windows, number, tuple(findings), tuple(not_read))


def _spans(receipt: Receipt, share: int, rng: random.Random) -> dict[int, OffsetRange]:
    """Map each partition to the offsets to compare: the range from the first row to the last, or, if that has more than
    `share` offsets, a random part of it with `share` offsets."""
    found: dict[int, OffsetRange] = {}
    for partition, part in receipt.partitions.items():
        if part.first_offset is None or part.last_offset is None:
            continue
        whole = OffsetRange.closed(part.first_offset, part.last_offset)
        size = min(max(share, 1), whole.size)
        start = whole.start + rng.randint(0, whole.size - size)
        found[partition] = OffsetRange(start, start + size)
    return found


def _of_table(e: Evaluation, receipt: Receipt, partition: int, wanted: Sequence[OffsetRange]) -> _Digests:
    found: _Digests = {}
    if not wanted:
        return found
    at = pc.field("kafka_offset")
    between = (pc.field("kafka_partition") == partition) & (at >= wanted[0].start) & (at < wanted[-1].end)
    version = load_log.version(e.table)
    for block in rows.batches_of(e.table, receipt.window.key, version, _COLUMNS, between):
        moments = block.column("kafka_timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
        for moment, row in zip(moments, block.drop_columns(["kafka_timestamp"]).to_pylist(), strict=True):
            if any(r.start <= row["kafka_offset"] < r.end for r in wanted):
                headers = None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]]
                plain = (moment / 1000, row["kafka_timestamp_type"], row["key"], row["value"])
                found[row["kafka_offset"]] = _digest(plain), _digest(headers)
    return found


def _of_kafka(e: Evaluation, partition: int, wanted: Sequence[OffsetRange]) -> _Digests:
    found: _Digests = {}
    for part in wanted:
        for message in _consumed(e.settings(), e.declaration.topic, partition, part, e.deadline):
            kind, timestamp = message.timestamp()
            # confluent-kafka numbers them 1 and 2, the table, Spark and Kafka's own tools 0 and 1.
            plain = _digest((float(timestamp), kind - 1, message.key(), message.value()))
            found[int(message.offset() or 0)] = plain, _headers(message)
    return found


def _headers(message: Message) -> bytes:
    try:
        return _digest(message.headers())
    except UnicodeDecodeError:
        return b""  # confluent-kafka cannot give names that are not UTF-8


def _digest(value: Any) -> bytes:
    """Return a digest of a plain value, or of a list of plain values. The digest uses `repr`, which distinguishes null
    from empty, and bytes from strings."""
    return blake2b(repr(value).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _differences(receipt: Receipt, partition: int, kept: _Digests, consumed: _Digests) -> Iterator[Finding]:
    both = kept.keys() & consumed.keys()
    without = [o for o in both if b"" not in (kept[o][1], consumed[o][1]) and kept[o][1] != consumed[o][1]]
    for offsets, what in (
        (consumed.keys() - kept.keys(), "returns {:,} records that the table does not have"),
        (kept.keys() - consumed.keys(), "does not return {:,} records that the table has"),
        (
            {o for o in both if kept[o][0] != consumed[o][0]} | set(without),
            "returns {:,} records with different content",
        ),
    ):
        if offsets:
            text = f"a plain read_committed consumer {what.format(len(offsets))}"
            yield finding("engines disagree", receipt, partition, ranges_of(sorted(offsets)), text)


def _consumed(
    settings: ClientSettings, topic: str, partition: int, wanted: OffsetRange, deadline: float
) -> Iterator[Message]:
    """Yield the messages in `wanted` that a separate consumer without a consumer group receives.

    Raises BrokerUnreachableError and BrokerRefusedError.
    """
    from confluent_kafka import KafkaError, KafkaException, TopicPartition

    consumer = plain_consumer(settings)
    doing = f"comparing rows of topic {topic!r} partition {partition} with the records that a plain consumer returns"
    until = time.monotonic() + _PATIENCE
    with closing(consumer):
        try:
            consumer.assign([TopicPartition(topic, partition, wanted.start)])
            while True:
                for message in consume(consumer, 1_000, 1.0):
                    error = message.error()
                    if error is not None and is_out_of_reach(error):
                        continue  # the client connects again by itself
                    until = time.monotonic() + _PATIENCE
                    if error is not None and error.code() == KafkaError._PARTITION_EOF:
                        if (message.offset() or 0) >= wanted.end:
                            return
                        continue  # a new leader may say an earlier end for a moment
                    if error is not None:
                        raise BrokerRefusedError(doing, error.str(), needed(error.code(), topic))
                    if (message.offset() or 0) >= wanted.end:
                        return
                    yield message
                    if message.offset() == wanted.end - 1:
                        return
                if time.monotonic() > min(until, deadline + _PATIENCE):
                    raise BrokerUnreachableError(doing, _PATIENCE, "no message arrived")
        except KafkaException as error:
            if is_out_of_reach(error.args[0]):
                raise BrokerUnreachableError(doing, _PATIENCE, error.args[0].str()) from error
            raise BrokerRefusedError(doing, error.args[0].str()) from error
