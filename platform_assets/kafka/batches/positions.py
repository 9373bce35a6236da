"""Committing offsets for lag monitors, to a consumer group that has no members.

This module uses plain requests, because librdkafka may end the process when it sends an admin request to a group's
coordinator that does not exist yet (https://github.com/confluentinc/librdkafka/issues/5040).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import kafka.errors
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.metadata import FindCoordinatorRequest

from platform_assets.errors import BrokerRefusedError
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.wire import Address
from platform_assets.kafka.rights import needed

_FIND: Final = 3
_COMMIT: Final = 8
_GROUP: Final = 0
"""Key type with which FindCoordinator looks up the coordinator of a consumer group."""
_NO_GENERATION: Final = -1
"""Generation number in a commit to a group that has no members."""


class PositionBrokers(Brokers):
    """A `Brokers` that also commits the positions of consumer groups in one topic."""

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Commit `offsets`, which map each partition to the next offset to read. If the group's coordinator does not
        exist yet, wait for it, as `persist` does. Raises whatever `persist` raises, and BrokerRefusedError."""
        if offsets:
            doing = f"publishing a position in topic {self.topic!r} to consumer group {group!r}"
            self.persist(doing, lambda: self._commit(group, offsets, doing))

    def _commit(self, group: str, offsets: Mapping[int, int], doing: str) -> None:
        self._look_up_leaders()  # raises if the topic was deleted or replaced
        of_topic = OffsetCommitRequest.OffsetCommitRequestTopic
        of_partition = of_topic.OffsetCommitRequestPartition
        wanted = of_topic(
            name=self.topic,
            partitions=[
                of_partition(
                    partition_index=partition, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
                )
                for partition, offset in sorted(offsets.items())
            ],
        )
        errors = self._connection(self._coordinator(group, doing)).request(
            OffsetCommitRequest(
                version=_COMMIT,
                group_id=group,
                generation_id_or_member_epoch=_NO_GENERATION,
                member_id="",
                group_instance_id=None,
                topics=[wanted],
            ),
            lambda answer: [p.error_code for topic in answer.topics for p in topic.partitions],
        )
        for error in filter(None, errors):
            self._judge_group(error, group, doing)

    def _coordinator(self, group: str, doing: str) -> Address:
        error, host, port = self._any_connection().request(
            FindCoordinatorRequest(version=_FIND, key=group, key_type=_GROUP),
            lambda answer: (answer.error_code, answer.host, answer.port),
        )
        if error:
            self._judge_group(error, group, doing)
        return host, port

    def _judge_group(self, code: int, group: str, doing: str) -> None:
        if code == kafka.errors.GroupAuthorizationFailedError.errno:
            raise BrokerRefusedError(doing, kafka.errors.for_code(code).__name__, needed(code, self.topic, group=group))
        self._judge(code, doing)
