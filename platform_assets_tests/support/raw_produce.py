"""Production of given bytes as batches, because other Kafka clients might send any bytes."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient
from kafka.protocol.producer import ProduceRequest

from platform_assets.kafka.batches.wire import Address, Connection, Security
from testbed.clients import client_settings, librdkafka

_VERSION = 9


def produce_batch(bootstrap: str, topic: str, batch: bytes, partition: int = 0) -> int:
    """Append one batch (magic 2) unchanged. Return the offset of the batch's first record."""
    batch = bytes(8) + batch[8:]  # producers number records from 0 on
    of_topic = ProduceRequest.TopicProduceData
    data = of_topic(name=topic, partition_data=[of_topic.PartitionProduceData(index=partition, records=batch)])
    request = ProduceRequest(
        version=_VERSION, transactional_id=None, acks=-1, timeout_ms=10_000, topic_data=[data]
    )  # fmt: skip
    connection = Connection(
        leader_of(bootstrap, topic, partition),
        Security(client_settings(bootstrap)),
        {ProduceRequest: _VERSION},
        timeout=10,
        stopped=lambda: False,
    )
    try:
        (answer,) = connection.request(request, lambda found: found.responses[0].partition_responses)
    finally:
        connection.close()
    assert answer.error_code == 0, answer
    return int(answer.base_offset)


def leader_of(bootstrap: str, topic: str, partition: int) -> Address:
    """Return the address of a partition's leader."""
    known = AdminClient({**librdkafka(bootstrap), "log_level": 2}).list_topics(topic, timeout=30)
    leader = known.brokers[known.topics[topic].partitions[partition].leader]
    return leader.host, leader.port
