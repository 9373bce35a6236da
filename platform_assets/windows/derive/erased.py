"""Erasures that derived tables have seen, read from the ledger's decisions and from the logs of derived tables, without Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from platform_assets.lake import delta_log, derived_table
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions
from platform_assets.model.derived import DerivedRef
from platform_assets.model.tables import StateRef, TableRef

Input = TableRef | StateRef | DerivedRef


def seen(lake: Lake, inputs: Iterable[Input]) -> dict[str, int]:
    """Return the number of completed erasures of each topic that the newest versions of all inputs have seen. Topics without an
    erasure are left out."""
    found: dict[str, int] = {}
    for ref in inputs:
        if isinstance(ref, DerivedRef):
            folder = lake.table(ref)
            made = derived_table.newest(folder)[0] if delta_log.exists(folder) else None
            known: Mapping[str, int] = {} if made is None else made.derivation.erased
            parts = {topic: known.get(topic, 0) for topic in topics(lake, ref)}
        else:
            parts = {ref.topic: completed(lake, ref.topic)}
        for topic, number in parts.items():
            found[topic] = min(number, found.get(topic, number))
    return {topic: number for topic, number in found.items() if number}


def completed(lake: Lake, topic: str) -> int:
    """Return the number of completed erasures of a topic, by the ledger."""
    return len(decisions.decisions(lake, topic, ("erased",)))


def left(lake: Lake, topic: str) -> list[DerivedRef]:
    """Return the derived tables whose rows or past files may still hold values of erased records of a topic, each after the derived
    tables that it reads."""
    number = completed(lake, topic)
    if not number:
        return []
    return [ref for ref in _in_order(lake) if _holds(lake, ref, topic, number)]


def _holds(lake: Lake, ref: DerivedRef, topic: str, number: int) -> bool:
    folder = lake.table(ref)
    made = derived_table.newest(folder)[0]
    if made is None:
        # Another writer or another release computed its rows, so its inputs are unknown.
        return bool(derived_table.files_of(folder, folder.delta()))
    if topic not in topics(lake, ref):
        return False
    if made.derivation.erased.get(topic, 0) != number:
        return True
    return bool(derived_table.past_files(folder, made, derived_table.begun(folder), dead=False))


def topics(lake: Lake, ref: DerivedRef) -> set[str]:
    """Return the topics from which the rows of a derived table were computed, also through other derived tables."""
    found, waiting, passed = set[str](), [ref], set[DerivedRef]()
    while waiting:
        each = waiting.pop()
        passed.add(each)
        for source in _inputs(lake, each):
            if not isinstance(source, DerivedRef):
                found.add(source.topic)
            elif source not in passed:
                waiting.append(source)
    return found


def _inputs(lake: Lake, ref: DerivedRef) -> list[Input]:
    folder = lake.table(ref)
    made = derived_table.newest(folder)[0] if delta_log.exists(folder) else None
    names: Collection[str] = () if made is None else made.derivation.inputs
    return [DerivedRef.parse(name) or StateRef.parse(name) or TableRef.parse(name) for name in names]


def _in_order(lake: Lake) -> list[DerivedRef]:
    """Return the lake's derived tables in such an order that each follows those that it reads."""
    found: list[DerivedRef] = []

    def add(ref: DerivedRef, above: frozenset[DerivedRef]) -> None:
        if ref in found or ref in above:
            return
        for source in _inputs(lake, ref):
            if isinstance(source, DerivedRef):
                add(source, above | {ref})
        found.append(ref)

    for ref in lake.derived():
        add(ref, frozenset())
    return found
