"""The columnar engine compared with Structured Streaming on common kinds of topics: compressed, transactional, with
JSON values, or with one partition."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pyarrow as pa

from benchmarks.bulk import Bulk, as_shipped
from benchmarks.file_formats import kinds
from benchmarks.producing import Sent, create, produce, produce_in_transactions
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Measured, at_least
from platform_assets.engines.shared.session import connect

IN_A_TRANSACTION: Final = 1_000
ABORTED_EVERY: Final = 10
KAFKA_DELTA_INGEST_MB: Final = 11.0
"""MB per second that kafka-delta-ingest loaded from a topic of JSON flights into a decoded table, on one core of a
machine like this one."""
_READ_COMMITTED: Final = {"kafka.isolation.level": "read_committed"}
"""Option that makes Spark's source skip aborted records. Without it, the source also reads aborted records, so it would
do different work."""


def run(bench: Bench) -> Measured:
    """Measure the seconds that one load of all records takes, by kind of topic and by loader."""
    records, rounds = bench.pick(2_000_000, 200_000), bench.pick(5, 3)
    spark, shipped = connect(bench.remote), as_shipped(bench.remote)
    seconds: dict[str, tuple[float, ...]] = {}
    goals = []
    bytes_a_record = {}
    for name, values, partitions, compression, in_transactions in _topics(records):
        bench.report(f"producing {records:,} records: {name}")
        topic = f"kinds-{uuid.uuid4().hex[:8]}"
        create(bench.bootstrap, [topic], partitions)
        sent = _records(topic, values, partitions)
        committed = records
        if in_transactions:
            committed = produce_in_transactions(bench.bootstrap, sent, IN_A_TRANSACTION, ABORTED_EVERY)
        else:
            produce(bench.bootstrap, sent, compression)
        bulk = Bulk.of(bench.bootstrap, spark, bench.root / "kinds", committed, topic)
        streaming = partial(replace(bulk, spark=shipped).stream, options=_READ_COMMITTED)
        columnar, other = f"{name}: columnar engine", f"{name}: Structured Streaming availableNow, read_committed"
        loads: dict[str, Callable[[], object]] = {columnar: partial(bulk.load, "columnar"), other: streaming}
        seconds |= alternate(loads, rounds, bench.report, bulk.clear)
        goals.append(
            at_least(f"{name}, speed relative to Structured Streaming", 4.0, ratio(seconds[other], seconds[columnar]))
        )
        bytes_a_record[name] = round(values.nbytes / len(values))
    one, two = (seconds[f"random bytes, {n}: columnar engine"] for n in ("one partition", "two partitions"))
    goals.append(at_least("one partition on two cores, speed relative to two partitions", 0.85, ratio(two, one)))
    cores = os.cpu_count() or 1
    flights = "flights as JSON, not compressed"
    rate = [records * bytes_a_record[flights] / 1e6 / cores / s for s in seconds[f"{flights}: columnar engine"]]
    over = [r / KAFKA_DELTA_INGEST_MB for r in rate]
    goals.append(at_least("flights as JSON, MB/s per core, relative to kafka-delta-ingest's 11 MB/s", 10, middle(over)))
    return Measured(
        "topic-kinds",
        seconds,
        goals,
        setting={"records": records, "cores": cores},
        more={"bytes a record": bytes_a_record},
    )


def _topics(records: int) -> Iterator[tuple[str, pa.Array, int, str, bool]]:
    """Yield, for each topic, its name, its values, its number of partitions, its compression, and True if it has
    transactions."""
    values = kinds(records)
    flights, logs, noise = (values[kind] for kind in ("flights as JSON", "log lines", "random bytes"))
    yield "random bytes, two partitions", noise, 2, "none", False
    yield "random bytes, one partition", noise, 1, "none", False
    yield f"random bytes, a transaction in {ABORTED_EVERY} aborted", noise, 2, "none", True
    yield "flights as JSON, not compressed", flights, 2, "none", False
    yield "flights as JSON, zstd", flights, 2, "zstd", False
    yield "log lines, lz4", logs, 2, "lz4", False


def _records(topic: str, values: Any, partitions: int) -> Iterator[Sent]:
    for number, value in enumerate(values):
        yield Sent(topic, number % partitions, value.as_py(), number.to_bytes(8, "big"))
