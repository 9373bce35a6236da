"""The current time by the clock of Kafka's controllers. DescribeQuorum reports, for each voter, when the voter had last
caught up with the quorum's leader, by the leader's clock. The value for the leader itself is the current time.
librdkafka does not support DescribeQuorum."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, Final

from kafka.protocol.admin.cluster import DescribeQuorumRequest

from platform_assets.kafka.batches.wire import Connection, Security, Stopped, addresses, moment
from platform_assets.kafka.settings import ClientSettings

_VERSION: Final = 1
_METADATA_TOPIC: Final = "__cluster_metadata"
_PATIENCE: Final = 2.0


def controller_time(settings: ClientSettings, patience: float = _PATIENCE) -> datetime | None:
    """Return the time by the clock of the controllers' leader. Return None if the brokers have no controller quorum
    (Kafka below 3.3, or with ZooKeeper), if this client is not allowed to describe the cluster, or if no controller
    answers within `patience` seconds. Raises BrokerRefusedError and ConfigurationError."""
    until = time.monotonic() + patience
    security = Security(settings)
    for address in addresses(settings.bootstrap_servers):
        left = until - time.monotonic()
        if left <= 0:
            break
        try:
            connection = Connection(address, security, {}, timeout=left, stopped=lambda: time.monotonic() > until)
        except (OSError, Stopped):
            continue
        try:
            return _asked(connection)
        except (OSError, Stopped):
            continue
        finally:
            connection.close()
    return None


def _asked(connection: Connection) -> datetime | None:
    if not connection.offers(DescribeQuorumRequest, _VERSION):
        return None
    of_topic = DescribeQuorumRequest.TopicData
    wanted = of_topic(topic_name=_METADATA_TOPIC, partitions=[of_topic.PartitionData(partition_index=0)])
    return connection.request(DescribeQuorumRequest(version=_VERSION, topics=[wanted]), _moment)


def _moment(answer: Any) -> datetime | None:
    for topic in answer.topics if not answer.error_code else ():
        for partition in topic.partitions:
            for voter in partition.current_voters:
                if voter.replica_id == partition.leader_id and voter.last_caught_up_timestamp > 0:
                    return moment(voter.last_caught_up_timestamp)
    return None
