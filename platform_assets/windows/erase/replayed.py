"""Erasure in replays, whose tables are in a lake of their own inside the lake.

A replay reads Kafka again, so it may have records that the live table does not have yet, and each of its loads could
bring back erased ones. So its ledger gets the live ledger's erasures before it loads anything and whenever records
are erased; its own loads then leave them out as those of the live table do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger


def take_over(live: Ledger, replayed: Ledger, topic: str) -> None:
    """Record in a replay's ledger the erasures of a topic that it lacks, and which logs continue earlier ones.

    Raises what writing to the ledger raises; the next call continues.
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
    """Return the details without the names of replays: a replay has none."""
    return {name: value for name, value in decision.details.items() if name != decisions.REPLAYS}
