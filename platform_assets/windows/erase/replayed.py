"""Erasure in replays. The tables of a replay are in a separate lake inside the live lake.

A replay reads Kafka again, so it may have records that the live table does not have yet, and each of its loads could
bring back erased records. So the replay's ledger gets the erasures of the live ledger before the replay loads anything,
and whenever records are erased. The loads of the replay then leave out these records, like the loads of the live table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger


def take_over(live: Ledger, replayed: Ledger, topic: str) -> None:
    """Record in a replay's ledger those erasures of a topic that the ledger lacks, and record which logs continue
    earlier logs.

    Raises whatever writing to the ledger raises; the next call then continues.
    """
    known = {_identity(d) for d in decisions.decisions(replayed.lake, topic, ("erase", "cluster"))}
    for decision in decisions.decisions(live.lake, topic, ("erase", "cluster")):
        if _identity(decision) not in known:
            decisions.record(replayed.lake, replace(decision, details=_of_tables(decision)))
    erasure_rules.apply(replayed, replayed.windows(topic))


def _identity(decision: Decision) -> tuple[object, ...]:
    return (
        decision.kind,
        decision.decided_at,
        decision.windows,
        decision.reason,
        str(sorted(_of_tables(decision).items())),
    )


def _of_tables(decision: Decision) -> dict[str, Any]:
    """Return the details without the names of replays, because a replay has no replays."""
    return {name: value for name, value in decision.details.items() if name != decisions.REPLAYS}
