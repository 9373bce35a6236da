"""Late flights by the planes' manufacturers, back to Kafka: the register of planes is the reference table."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from examples import flights
from examples.runner import SPEED, Comparison, Example, Record, compare, rows_compared
from platform_assets.demo.dataset import data_folder
from platform_assets.lake.location import Lake

DAYS: Final = 7
FIRST: Final = datetime(2013, 1, 1, 6, tzinfo=UTC)
RESULT: Final = "late_flights"
_FLIGHTS: Final = f"""
    SELECT tailnum, dep_delay, time_hour::TIMESTAMPTZ + to_minutes(minute + coalesce(dep_delay, 0)) AS left_at
    FROM flights WHERE month = 1 AND day <= {DAYS} AND tailnum IS NOT NULL"""


def records() -> Sequence[Record]:
    """Return the register of planes, and then a record per flight in the order of departures."""
    found = []
    for plane, manufacturer, seats in flights.query(f"SELECT tailnum, manufacturer, seats FROM ({_register()})"):
        value = {"plane": plane, "manufacturer": manufacturer, "seats": seats}
        found.append(Record("plane_register", FIRST, json.dumps(value).encode(), plane.encode()))
    for plane, late, at in sorted(flights.query(_FLIGHTS), key=lambda row: (row[2], row[0])):
        value = {"plane": plane, "minutes_late": late}
        found.append(Record("flights_left", at, json.dumps(value).encode(), plane.encode()))
    return found


def compared(lake: Lake) -> list[Comparison]:
    """Compare the table, and the records on the topic, with DuckDB's join of both files."""
    rows: list[tuple[Any, ...]] = flights.query(
        f"""SELECT date_diff('second', TIMESTAMPTZ '{FIRST.isoformat()}', left_at) // {60 * SPEED} AS number,
            manufacturer, count(*), sum(seats)::BIGINT, sum(dep_delay)::BIGINT
            FROM ({_FLIGHTS}) JOIN ({_register()}) USING (tailnum) WHERE dep_delay > 15 GROUP BY ALL"""
    )
    sent = list(_sent())
    windows = sorted({value["window"] for _, value in sent})
    names = ("manufacturer", "flights", "seats", "minutes_late")
    late = f"{sum(row[2] for row in rows):,} late flights"
    return [
        compare(lake, "derived/late_flights", names, [row[1:] for row in rows], late),
        rows_compared(
            f"topic {RESULT}",
            ((windows.index(value["window"]), *(value[name] for name in names)) for _, value in sent),
            rows,
            f"{late}; {len(sent):,} records, and {len({key for key, _ in sent}):,} keys",
        ),
    ]


def _register() -> str:
    return f"SELECT * FROM read_csv('{Path(data_folder()) / 'planes.csv'}', nullstr = 'NA')"


def _sent() -> Iterator[tuple[bytes | None, dict[str, Any]]]:
    """Yield key and value of each committed record on the topic, as a consumer of others would read it."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": os.environ["KAFKA_BOOTSTRAP_SERVERS"],
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    try:
        waiting = set(consumer.list_topics(RESULT, 30).topics[RESULT].partitions)
        consumer.assign([TopicPartition(RESULT, partition, OFFSET_BEGINNING) for partition in waiting])
        while waiting:
            message = consumer.poll(1)
            if message is None:
                continue
            error = message.error()
            if error is None:
                yield message.key(), json.loads(message.value() or b"{}")
            elif error.code() == KafkaError._PARTITION_EOF:
                waiting.discard(message.partition())
            else:
                raise KafkaException(error)
    finally:
        consumer.close()


EXAMPLE: Final = Example(
    "stream", FIRST, {"flights_left": 2, "plane_register": 1}, records, compared, results={RESULT: 2}
)
