"""Ends of leader epochs in a log, by OffsetForLeaderEpoch: they show that a log was truncated, even if it has grown
back."""

from __future__ import annotations

from typing import Any, Final

from kafka.protocol.consumer.offsets import OffsetForLeaderEpochRequest

from platform_assets.kafka.batches.fetching import Brokers

_VERSION: Final = 4


class EpochBrokers(Brokers):
    """Brokers that are asked for the ends of leader epochs."""

    def epoch_end(self, partition: int, epoch: int) -> int | None:
        """Return the exclusive end of the newest leader epoch up to `epoch`; None if the broker does not know."""
        doing = f"looking up the end of a leader epoch of topic {self.topic!r} partition {partition}"
        return self.persist(doing, lambda: self._epoch_end(partition, epoch))

    def _epoch_end(self, partition: int, epoch: int) -> int | None:
        leader, of_topic = self._leader(partition), OffsetForLeaderEpochRequest.OffsetForLeaderTopic
        connection = self._connection(leader.address)
        if not connection.offers(OffsetForLeaderEpochRequest, _VERSION):
            return None
        wanted = of_topic.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=leader.epoch, leader_epoch=epoch
        )
        request = OffsetForLeaderEpochRequest(
            version=_VERSION, replica_id=-1, topics=[of_topic(topic=self.topic, partitions=[wanted])]
        )
        error, end = connection.request(request, _end)
        if error:
            self._judge(error, f"looking up leader epoch {epoch} of topic {self.topic!r}")
        return None if end < 0 else end


def _end(answer: Any) -> tuple[int, int]:
    """The error code, and the end of the epoch."""
    (partition,) = answer.topics[0].partitions
    return partition.error_code, partition.end_offset
