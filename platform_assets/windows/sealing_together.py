"""Sealing windows of many topics: their cuts are taken topic by topic, and recorded in one commit."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger.recording import Proposed
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows import clocks, sealing
from platform_assets.windows.sealing import Plan, Sealing

_AT_ONCE: Final = 250
"""Topics per commit: their cuts are lost if the process ends before it."""


def seal_together(
    declarations: Sequence[TopicDeclaration],
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    *,
    taking_until: float,
    deadline: float,
    clock: clocks.Ask | None = None,
) -> Mapping[str, Sealing | PlatformError]:
    """Return what `sealing.seal` returns or raises for each topic reached before `taking_until`, by topic, in order.

    Both times come from `time.monotonic`; the first topic is always reached. A topic that fails does not block the others.
    """
    found: dict[str, Sealing | PlatformError] = {}
    for at in range(0, len(declarations), _AT_ONCE):
        if at and time.monotonic() >= taking_until:
            break
        found |= _sealed(declarations[at : at + _AT_ONCE], cluster, ledger, now, taking_until, deadline, clock)
    return found


def _sealed(
    declarations: Sequence[TopicDeclaration],
    cluster: Cluster,
    ledger: Ledger,
    now: datetime,
    taking_until: float,
    deadline: float,
    clock: clocks.Ask | None,
) -> dict[str, Sealing | PlatformError]:
    bounded = cluster.with_deadline(deadline)
    found: dict[str, Sealing | PlatformError] = {}
    plans: dict[str, Plan] = {}
    for d in declarations:
        if (found or plans) and time.monotonic() >= taking_until:
            break
        try:
            plan = sealing.propose(d, bounded, ledger, now, deadline=deadline, clock=clock)
        except PlatformError as e:
            found[d.topic] = e
            continue
        if plan is None:
            found[d.topic] = Sealing((), more=False)
        else:
            plans[d.topic] = plan
    try:
        proposed = [Proposed(p.cuts, p.before.edge if p.before else None) for p in plans.values()]
        recorded = ledger.record_cuts_of_many(proposed) if proposed else frozenset()
    except PlatformError:
        # An error of one unknown topic: record each topic by itself.
        recorded = frozenset()
    for d in declarations:
        taken = plans.get(d.topic)
        if taken is None:
            continue
        if d.topic in recorded:
            found[d.topic] = Sealing(taken.cuts, taken.more, taken.before)
            continue
        try:
            # Another process was faster: the remaining cuts come after its edges.
            found[d.topic] = sealing.seal(d, cluster, ledger, now, deadline=deadline, clock=clock)
        except PlatformError as e:
            found[d.topic] = e
    return {d.topic: found[d.topic] for d in declarations if d.topic in found}
