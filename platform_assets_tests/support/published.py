"""Judges of published topics: a plain read_committed consumer, and what its records say about a table's rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from platform_assets.kafka.cluster import Cluster
from platform_assets.model.publishing import HEADER
from platform_assets.windows.publish.json_texts import JsonTexts
from testbed.clients import client_settings, librdkafka
from testbed.loads import wait_until


@dataclass(frozen=True, slots=True)
class Message:
    """A record as the consumer returned it, and the parts of its identity. Without a header, they are empty or -1."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    window: str
    load_id: str
    ordinal: int
    kind: str
    position: tuple[int, int]
    headers: tuple[tuple[str, Any], ...]
    identity: tuple[str, bytes]


def consumed(bootstrap: str, topic: str) -> list[Message]:
    """Return all committed records of a topic, in order of partition and offset, once no transaction is open."""
    cluster = Cluster.connect(client_settings(bootstrap))
    state = cluster.topic(topic)

    def is_decided() -> bool:
        ends, stable = cluster.high_watermarks(state), cluster.last_stable_offsets(state)
        return {p: f.offset for p, f in ends.items()} == {p: f.offset for p, f in stable.items()}

    wait_until("no transaction is open", is_decided)
    options = {**librdkafka(bootstrap), "group.id": "judge", "enable.partition.eof": True}
    consumer = Consumer({**options, "isolation.level": "read_committed", "fetch.wait.max.ms": 20})
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in state.partitions])
    waiting, found = set(state.partitions), list[Message]()
    while waiting:
        message = consumer.poll(1)
        if message is None:
            continue
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            waiting.discard(message.partition())
            continue
        headers = tuple(message.headers() or ())
        identity = dict(headers).get(HEADER, b"  -1 row -1 -1 ")
        _, window, ordinal, kind, partition, offset, load_id = identity.decode().split(" ", 6)
        found.append(
            Message(
                message.partition(), message.offset(), message.key(), message.value(), window, load_id, int(ordinal),
                kind, (int(partition), int(offset)), tuple(h for h in headers if h[0] != HEADER), (HEADER, identity),
            )
        )  # fmt: skip
    consumer.close()
    return sorted(found, key=lambda m: (m.partition, m.offset))


def replayed(messages: list[Message]) -> dict[tuple[str, tuple[int, int]], tuple[bytes | None, bytes | None]]:
    """Return the key and value of each row that a reader of the topic has in the end, by window and position."""
    rows: dict[tuple[str, tuple[int, int]], tuple[bytes | None, bytes | None]] = {}
    for message in messages:
        place = (message.window, message.position)
        if message.kind == "removed":
            rows.pop(place, None)
        else:
            rows[place] = (message.key, message.value)
    return rows


def identities(messages: list[Message]) -> list[tuple[str, str, int, str]]:
    """Return the identity of each message."""
    return [(m.window, m.load_id, m.ordinal, m.kind) for m in messages]


def with_columns(monkeypatch: pytest.MonkeyPatch, name: str, changed: Callable[[Any], Any]) -> None:
    """Break the encoder of JSON: it writes other values of one column."""
    objects = JsonTexts.objects

    def wrong(self: JsonTexts, rows: pa.Table, names: Sequence[str]) -> pa.LargeBinaryArray:
        return objects(self, rows.set_column(rows.column_names.index(name), name, changed(rows[name])), names)

    monkeypatch.setattr(JsonTexts, "objects", wrong)
