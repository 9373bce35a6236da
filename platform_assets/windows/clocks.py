"""The second clock: what closes an edge is that its time has passed here and somewhere else.

A machine whose clock runs ahead would cut edges that have not come yet, a thousand at a time, and its topics would then be
silent until they have. So where an edge is about to be cut, a clock of another machine is asked: Kafka's controllers', or
the lake's where those do not tell it. Where all of them are this machine, there is no second one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from platform_assets.errors import Retryable
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake.location import Lake

TOLERANCE: Final = timedelta(seconds=30)
"""How far two clocks may lie apart: a cut that comes so early is a valid one, its window ends a little sooner."""
_KEPT_SECONDS: Final = 60.0


class ClockAheadError(Retryable):
    """An edge has passed by this machine's clock, and by another one it has not."""

    def __init__(self, topic: str, clock: str, seconds: int, edge: str) -> None:
        self.topic, self.clock, self.seconds, self.edge = topic, clock, seconds, edge
        super().__init__(
            f"the clock of this machine is {seconds:,} s ahead of that of {clock}, by which edge {edge} of topic {topic!r} has "
            "not come yet: nothing is cut there. Set the clock of this machine right, or the other one; cutting then goes on by "
            "itself."
        )


@dataclass(frozen=True, slots=True)
class OtherClock:
    """What another clock showed, and whose it is."""

    name: str
    now: datetime

    def ahead(self, now: datetime) -> timedelta | None:
        """How far `now` lies ahead of it; None within the tolerance."""
        ahead = now - self.now
        return ahead if ahead > TOLERANCE else None

    def error(self, topic: str, now: datetime, edge: datetime) -> ClockAheadError:
        """What is wrong where `edge`, which has passed at `now`, has not by this clock."""
        seconds = round((now - self.now).total_seconds())
        return ClockAheadError(topic, self.name, seconds, edge.astimezone(UTC).isoformat(timespec="minutes"))


Ask = Callable[[Cluster, Lake, datetime], OtherClock]
"""What `other_clock` is: tests and benchmarks live at times of their own."""

_seen: dict[tuple[str, Lake], tuple[float, OtherClock]] = {}
_lock = threading.Lock()


def other_clock(cluster: Cluster, lake: Lake, now: datetime) -> OtherClock:
    """Ask Kafka's controllers, or write a file to the lake and see when that was.

    Where that was done less than a minute ago, its answer is reckoned on: topics whose windows close at one time are cut by one
    answer. Not where `now` lies ahead of that. Raises BrokerRefusedError and LakeNotWritableError.
    """
    key = (cluster.settings.bootstrap_servers, lake)
    with _lock:
        asked_at, seen = _seen.get(key, (0.0, None))
    since = time.monotonic() - asked_at
    if seen is not None and since < _KEPT_SECONDS:
        reckoned = OtherClock(seen.name, seen.now + timedelta(seconds=since))
        if reckoned.ahead(now) is None:
            return reckoned
    found = _asked(cluster, lake)
    with _lock:
        _seen[key] = time.monotonic(), found
    return found


def _asked(cluster: Cluster, lake: Lake) -> OtherClock:
    from platform_assets.kafka.quorum import controller_time  # loads a second Kafka client, needed only here

    answer = controller_time(cluster.settings, min(cluster.timeout, 2.0))
    if answer is not None:
        return OtherClock("Kafka's controller", answer)
    return OtherClock("the lake's file system", lake.root.time())
