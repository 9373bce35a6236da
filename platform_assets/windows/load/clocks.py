"""The second clock: an edge is closed only when its time has passed on this machine and on another machine.

A machine whose clock is ahead would cut future edges, a thousand at a time, and its topics would then load nothing
until those times. So before an edge is cut, another machine's clock is read: that of Kafka's controllers or, if they do
not report the time, that of the lake's storage. If all of these run on this machine, there is no second clock.
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
"""Largest accepted difference between two clocks. A cut taken this early is valid; its window ends a little sooner."""
_KEPT_SECONDS: Final = 60.0


class ClockAheadError(Retryable):
    """An edge has passed by this machine's clock, but not by another clock."""

    def __init__(self, topic: str, clock: str, seconds: int, edge: str) -> None:
        self.topic, self.clock, self.seconds, self.edge = topic, clock, seconds, edge
        super().__init__(
            f"this machine's clock is {seconds:,} s ahead of the clock of {clock}. By the other clock, window boundary "
            f"{edge} of topic {topic!r} has not passed yet, so no cut was taken. Correct the clock that is wrong; cutting then "
            "continues by itself."
        )


@dataclass(frozen=True, slots=True)
class OtherClock:
    """Time shown by another clock, and the name of that clock."""

    name: str
    now: datetime

    def ahead(self, now: datetime) -> timedelta | None:
        """Return how far `now` is ahead of this clock; None if the difference is within the tolerance."""
        ahead = now - self.now
        return ahead if ahead > TOLERANCE else None

    def error(self, topic: str, now: datetime, edge: datetime) -> ClockAheadError:
        """Return the error for an `edge` that has passed at `now`, but not by this clock."""
        seconds = round((now - self.now).total_seconds())
        return ClockAheadError(topic, self.name, seconds, edge.astimezone(UTC).isoformat(timespec="minutes"))


Ask = Callable[[Cluster, Lake, datetime], OtherClock]
"""Type of `other_clock`. Tests and benchmarks, which use simulated times, replace that function."""

_seen: dict[tuple[str, Lake], tuple[float, OtherClock]] = {}
_lock = threading.Lock()


def other_clock(cluster: Cluster, lake: Lake, now: datetime) -> OtherClock:
    """Query the time from Kafka's controllers, or write a file to the lake and read the file's time.

    An answer less than a minute old is extrapolated, so that topics whose windows close at the same time share one
    answer. It is not used if `now` is ahead of the extrapolated time. Raises BrokerRefusedError and
    LakeNotWritableError.
    """
    key = (cluster.settings.bootstrap_servers, lake)
    with _lock:
        asked_at, seen = _seen.get(key, (0.0, None))
    since = time.monotonic() - asked_at
    if seen is not None and since < _KEPT_SECONDS:
        reckoned = OtherClock(seen.name, seen.now + timedelta(seconds=since))
        if reckoned.ahead(now) is None:
            return reckoned
    found = _ask_clock(cluster, lake)
    with _lock:
        _seen[key] = time.monotonic(), found
    return found


def _ask_clock(cluster: Cluster, lake: Lake) -> OtherClock:
    from platform_assets.kafka.quorum import controller_time  # loads a second Kafka client, needed only here

    answer = controller_time(cluster.settings, min(cluster.timeout, 2.0))
    if answer is not None:
        return OtherClock("Kafka's controller", answer)
    return OtherClock("the lake's file system", lake.root.time())
