"""After a restore: erasures that were decided since the backup hold for what was put back, and for what is loaded from now on."""

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
    """What was erased again of one topic: rows by table. `unfinished` says which windows could not be done, and what to do."""

    topic: str
    rows: Mapping[str, int]
    unfinished: str = ""


def decided(lake: Lake) -> list[Decision]:
    """The erasures of all topics, to be read before anything is put back."""
    return decisions.decisions(lake, None, ("erase",))


def reapply(
    lake: Lake, before: Sequence[Decision], author: Author, declaration_of: Callable[[str], TopicDeclaration]
) -> list[Reapplied]:
    """Record those decisions of `before` that the restored ledger lacks, and erase again what the tables have of all of them.

    Gives the topics of which there was something to do.
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
