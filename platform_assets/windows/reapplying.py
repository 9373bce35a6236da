"""Repeating erasures after a restore: those decided since the backup apply to the restored rows and to later loads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from platform_assets.errors import ErasureUnfinishedError
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions, erasure_rules
from platform_assets.ledger.decisions import Author, Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.windows.erasure import Erasure


@dataclass(frozen=True, slots=True)
class Reapplied:
    """Rows of one topic that were erased again, by table. `unfinished` names the windows that failed, and what to do."""

    topic: str
    rows: Mapping[str, int]
    unfinished: str = ""


def decided(lake: Lake) -> list[Decision]:
    """Return the erasures of all topics. Call this before anything is restored."""
    return decisions.decisions(lake, None, ("erase",))


def reapply(
    lake: Lake, before: Sequence[Decision], author: Author, declaration_of: Callable[[str], TopicDeclaration]
) -> list[Reapplied]:
    """Record the decisions of `before` that the restored ledger lacks, and erase the rows of all of them again.

    Returns the topics that had something to erase.
    """
    erasure_rules.forget()
    known = {_identity(d) for d in decided(lake)}
    for decision in before:
        if _identity(decision) not in known:
            decisions.record(lake, decision)
    ledger, done = Ledger(lake), list[Reapplied]()
    for topic in sorted({d.topic for d in decided(lake)}):
        erasure_rules.apply(ledger, ledger.windows(topic))
        erasure = Erasure(declaration_of(topic), ledger)
        if not erasure.unfinished():
            continue
        try:
            done.append(Reapplied(topic, erasure.run(author).rows))
        except ErasureUnfinishedError as e:
            done.append(Reapplied(topic, {}, str(e)))
    return done


def _identity(decision: Decision) -> tuple[object, ...]:
    return decision.topic, decision.decided_at, decision.windows, decision.reason, str(sorted(decision.details.items()))
