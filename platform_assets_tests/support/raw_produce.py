"""Producing batches byte for byte, as clients that are not ours might."""

from __future__ import annotations

from kafka.protocol.producer import ProduceRequest

from platform_assets.kafka.batches.wire import Connection, Security, addresses
from platform_assets.kafka.settings import ClientSettings

_VERSION = 9


def produce_batch(bootstrap: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Append one batch (magic 2) as it is; the offset that its first record got."""
    batch = bytes(8) + batch[8:]  # producers number records from 0 on
    of_topic = ProduceRequest.TopicProduceData
    data = of_topic(name=topic, partition_data=[of_topic.PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(
        version=_VERSION, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data]
    )  # fmt: skip
    connection = Connection(
        addresses(bootstrap)[0],
        Security(ClientSettings(bootstrap)),
        {ProduceRequest: _VERSION},
        timeout=10,
        stopped=lambda: False,
    )
    try:
        (answer,) = connection.request(request).responses[0].partition_responses
    finally:
        connection.close()
    assert answer.error_code == 0, answer
    return int(answer.base_offset)
