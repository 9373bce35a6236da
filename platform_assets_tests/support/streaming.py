"""Small streams for the tests, and the program that a test kills: `python streaming.py BOOTSTRAP ROWS SECONDS HELD`.

After the program has reported HELD, it stops sending flights, so that some flights are left even if the program is
killed late.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from platform_assets.demo.dataset import SOURCES, Dataset, TopicName, load
from platform_assets.demo.producing import OnSent, open_streams
from platform_assets.demo.topic_log import TopicLog, scan, whole_log
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings

START = datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)


def small(rows: int) -> list[Dataset]:
    """Return the first `rows` rows of each topic's data."""
    return [
        Dataset(d.topic, d.values.slice(0, rows), None if d.keys is None else d.keys.slice(0, rows))
        for d in map(load, SOURCES)
    ]


def stream(
    client: ClientSettings,
    datasets: Sequence[Dataset],
    *,
    seconds: float = 0.0,
    stop: threading.Event | None = None,
    on_sent: OnSent = lambda topic, rows: None,
) -> dict[TopicName, int]:
    """Send all missing rows. Return the number of rows sent to each topic."""
    with open_streams(client, START, stop=stop or threading.Event(), on_sent=on_sent, datasets=datasets) as streams:
        streams.send_backlog()
        streams.send_live(seconds)
        return streams.missing


def committed(client: ClientSettings, topic: TopicName) -> TopicLog:
    """Return the records that a read_committed consumer gets."""
    return scan(client, topic, whole_log(Cluster.connect(client), topic))


def produced(client: ClientSettings, topic: TopicName) -> TopicLog:
    """Return all records in the log, including aborted records."""
    return scan(client, topic, whole_log(Cluster.connect(client), topic), committed=False)


def holds_each_row_once(log: TopicLog, rows: int) -> bool:
    """Return True if the records are the rows `[0, rows)`, each of them once."""
    return sorted(log.rows.tolist()) == list(np.arange(rows))


if __name__ == "__main__":
    flights = 0

    def tell(topic: TopicName, rows: int) -> None:
        global flights
        # In one write, because the streams' threads report at the same time.
        os.write(1, f"{topic} {rows}\n".encode())
        flights += rows if topic == "flights" else 0
        if topic == "flights" and flights >= int(sys.argv[4]):
            threading.Event().wait()

    stream(ClientSettings(sys.argv[1]), small(int(sys.argv[2])), seconds=float(sys.argv[3]), on_sent=tell)
