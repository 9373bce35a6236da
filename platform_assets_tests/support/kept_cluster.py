"""A cluster without brokers. It has one topic, and the test specifies the topic's log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from platform_assets.errors import TopicMissingError
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.windows.load.loading import Loader
from platform_assets_tests.support.erasures import MadeTopic
from testbed import samples

EPOCH = 7
"""Leader epoch in hand-made cuts."""


@dataclass
class KeptCluster:
    """A `Cluster` with one topic. `starts` and `ends` are the bounds of the topic's log, by partition."""

    topic_name: str
    ends: dict[int, int]
    starts: dict[int, int] = field(default_factory=dict)
    topic_id: str = samples.TOPIC_ID
    cluster_id: str | None = None
    timeout: float = 1.0
    deadline: float | None = None

    def with_deadline(self, deadline: float) -> KeptCluster:
        return self

    def topic(self, name: str) -> TopicState:
        if name != self.topic_name:
            raise TopicMissingError(name)
        return TopicState(name, self.topic_id, tuple(self.ends), self.cluster_id)

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        return {p: FoundOffset(self.starts.get(p, 0), None, -1) for p in self.ends}

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        return {p: FoundOffset(end, EPOCH if p == 0 else None, -1) for p, end in self.ends.items()}

    def is_compacted(self, name: str) -> bool:
        return False


def ends_of(topic: MadeTopic) -> Mapping[int, int]:
    """Return the log ends of a topic whose log contains exactly the sealed records."""
    ends: dict[int, int] = {}
    for record in topic.records:
        ends[record.partition] = max(record.offset + 1, ends.get(record.partition, 0))
    return ends


def loader_of(topic: MadeTopic, cluster: KeptCluster | None = None) -> Loader:
    """Return the loader of a hand-made topic. The loader performs all steps that query brokers."""
    found = cluster or KeptCluster(topic.topic, dict(ends_of(topic)))
    return Loader(topic.declaration, cast(Cluster, found), topic.ledger, topic.engine, run_id="run")
