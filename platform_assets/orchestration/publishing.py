"""Publishes a table's position to a consumer group, for ordinary lag monitors. The platform never reads this position
back.

The position is the exclusive end of the gap-free loaded range, which is what a consumer that has read so far would
commit. A load or a tick does not fail if the position cannot be published.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from platform_assets.errors import PlatformError, Retryable
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger import position
from platform_assets.ledger.entries import RecordedCut
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef

_log = logger(__name__)

_RENEWED_EVERY: Final = 600.0
"""Seconds between renewals. Brokers forget offsets that are not committed again within `offsets.retention.minutes`,
which is seven days by default."""
_BETWEEN_COMMITS: Final = 5.0
"""Minimum number of seconds between two positions that one run publishes. Consumers have the same default."""
_BUDGET_SECONDS: Final = 5.0


def group_of(table: TableRef) -> str:
    """Return the consumer group of a table."""
    return f"platform-assets.{table.name}"


@dataclass
class Publisher:
    """Publisher of the position of one topic's raw table. Problems are passed to `warn`; nothing is raised."""

    declaration: TopicDeclaration
    ledger: Ledger
    cluster: Cluster
    warn: Callable[[str], None] = _log.warning
    clock: Callable[[], float] = time.monotonic
    _failed: bool = field(default=False, init=False, repr=False)
    _at: float = field(default=float("-inf"), init=False, repr=False)

    def after_commit(self) -> None:
        """Publish the position, unless this was just done or has already failed. The run publishes the position at its
        end in any case, with `now`, and retries would delay the run."""
        if not self._failed and self.clock() - self._at >= _BETWEEN_COMMITS:
            self.now()

    def now(self) -> None:
        """Publish the table's position."""
        self._at = self.clock()
        if self.declaration.publish_position:
            self._publish(None)

    def renew(self) -> None:
        """Publish the position if it differs from the last position that this process published, or if that was ten
        minutes ago."""
        if not self.declaration.publish_position:
            return
        place = str(self.ledger.lake.table(self.declaration.raw_table))
        with _lock:
            last = _last.get(place)
        found = self._publish(last if last is not None and self.clock() - last.at < _RENEWED_EVERY else None)
        if found is not None:
            with _lock:
                _last[place] = _Last(found, self.clock())

    def _publish(self, last: _Last | None) -> RecordedCut | None:
        """Publish the position unless it equals `last`. Return the position if an attempt was made."""
        table, bounded = self.declaration.raw_table, self.cluster.with_deadline(time.monotonic() + _BUDGET_SECONDS)
        reached: RecordedCut | None = None
        try:
            reached = position.loaded_to(self.ledger, table)
            if reached is None or (last is not None and last.reached == reached):
                return None
            # Offsets of a log other than the ledger's mean nothing here; cutting and loading report that.
            state = bounded.topic(table.topic)
            if state.topic_id == reached.topic_id and reached.is_of_cluster(state.cluster_id):
                commit(bounded, table, state.topic_id, reached.cut.offsets, _BUDGET_SECONDS)
        except PlatformError as e:
            self._failed = True
            self.warn(
                f"the position of {table} was not published to consumer group {group_of(table)}, so lag "
                "monitors show an older position; "
                f"nothing else is affected: {e}"
            )
            # A refused commit is retried with the next position or in ten minutes; a missed one at the next tick.
            return None if isinstance(e, Retryable) else reached
        return reached


def commit(cluster: Cluster, table: TableRef, topic_id: str, offsets: Mapping[int, int], patience: float) -> None:
    """Commit `offsets`, by partition, to the consumer group of `table` within `patience` seconds. Raises whatever
    `PositionBrokers.commit` raises."""
    from platform_assets.kafka.batches.positions import PositionBrokers  # A second Kafka client, needed only here.

    brokers = PositionBrokers(cluster.settings, table.topic, topic_id, patience=patience, stopped=lambda: False)
    try:
        brokers.commit(group_of(table), offsets)
    finally:
        brokers.close()


@dataclass(frozen=True, slots=True)
class _Last:
    """The position that this process published last, and when."""

    reached: RecordedCut
    at: float


_last: dict[str, _Last] = {}
_lock = threading.Lock()
