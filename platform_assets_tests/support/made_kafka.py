"""A simulated cluster for a topic that a test has built, and a loader that uses this cluster. The test determines the
answers of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.kafka.settings import ClientSettings
from platform_assets.windows.decide.deciding import Deciding
from platform_assets.windows.load.loading import Loader
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic
from testbed import samples


@dataclass
class MadeCluster(Cluster):
    """A cluster that contains the records of `made`. `starts` are the current log starts, by partition."""

    made: MadeTopic
    starts: dict[int, int] = field(default_factory=dict)

    @property
    def timeout(self) -> float:
        """See `Cluster`."""
        return 1.0

    @property
    def deadline(self) -> float | None:
        """See `Cluster`."""
        return None

    def with_deadline(self, deadline: float) -> Cluster:
        """See `Cluster`."""
        return self

    def topic(self, name: str) -> TopicState:
        """See `Cluster`."""
        return TopicState(name, samples.TOPIC_ID, tuple(sorted(self._ends)))

    def log_starts(self, topic: TopicState) -> dict[int, FoundOffset]:
        """See `Cluster`."""
        return {p: FoundOffset(self.starts.get(p, 0), None, -1) for p in topic.partitions}

    def last_stable_offsets(self, topic: TopicState) -> dict[int, FoundOffset]:
        """See `Cluster`."""
        return {p: FoundOffset(end, None, -1) for p, end in self._ends.items()}

    @property
    def _ends(self) -> dict[int, int]:
        newest = self.made.ledger.newest_cut(self.made.topic)
        return {} if newest is None else dict(newest.cut.offsets)

    def expire(self, partition: int, before: int) -> None:
        """Imitate retention: offsets below `before` no longer exist, and readers do not find them."""
        self.starts[partition] = before
        self.forget(partition, range(before))

    def forget(self, partition: int, offsets: range) -> None:
        """Imitate compaction: remove the records at these offsets."""
        self.made.records[:] = [r for r in self.made.records if r.partition != partition or r.offset not in offsets]


def loader_of(made: MadeTopic, cluster: MadeCluster) -> Loader:
    """Return a loader whose clock shows the newest edge in the ledger."""
    newest = made.ledger.newest_cut(made.topic)
    at = samples.START if newest is None else newest.edge
    return Loader(made.declaration, cluster, made.ledger, made.engine, run_id="run", now=lambda: at)


def deciding_of(made: MadeTopic, cluster: MadeCluster, said: list[str]) -> Deciding:
    """Return a `Deciding` for the topic. It answers each question with yes, and appends its reports to `said`."""
    return Deciding(
        made.declaration,
        made.ledger,
        lambda: cluster,
        lambda: ClientSettings("no broker is asked"),
        lambda: made.engine,
        AUTHOR,
        said.append,
        lambda question: None,
    )
