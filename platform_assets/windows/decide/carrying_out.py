"""Carrying out operators' decisions about a topic's log: `accept-generation` and `accept-cluster`.

A decision lists all of its effects, and is recorded first. It takes effect at the moment when the cut that starts the
new generation is recorded. The command itself, the next sensor tick or the next load then carries out
the remaining effects.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any, Final

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake
from platform_assets.ledger import cut_ranges, decisions, erasure_rules
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.entries import ACCEPTED_LOSS, ERASED, SealedWindow
from platform_assets.ledger.erasure_rules import erased_of
from platform_assets.ledger.store import Ledger
from platform_assets.model.offsets import OffsetRange, size_of
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.windows.load.receipts import Proof, receipt_of

MOVED: Final = "moved_ranges"
"""Key in the details of a cluster decision. Its value lists, by window and partition, the offsets that will be loaded
with the first window of the new generation."""

_Ranges = dict[int, tuple[OffsetRange, ...]]

_done: dict[tuple[Lake, str], tuple[int | None, int]] = {}
_lock = threading.Lock()


def fields_of(ranges: Mapping[int, tuple[OffsetRange, ...]]) -> dict[str, list[list[int]]]:
    """Offsets by partition, as in the details of a decision."""
    return {str(p): [[r.start, r.end] for r in parts] for p, parts in ranges.items()}


def carry_out(ledger: Ledger, topic: str) -> None:
    """Complete those decisions on the log of `topic` whose cut is recorded. Cheap if nothing was decided since the last
    call.

    A completed decision costs one look-up of the windows that it lists, regardless of the age of the table. Raises
    whatever writing to the ledger and to the raw table raises; the next call then continues.
    """
    newest = ledger.newest_cut(topic)
    if newest is None or newest.generation == 1:
        return
    with _lock:
        known = _done.get((ledger.lake, topic))
    state = (decisions.version(ledger.lake, known[0] if known else None), newest.generation)
    if state == known:
        return
    for decision in decisions.decisions(ledger.lake, topic, ("generation", "cluster")):
        if erasure_rules.is_in_force(decision, ledger):
            _complete(decision, ledger)
    with _lock:
        _done[ledger.lake, topic] = state


def _complete(decision: Decision, ledger: Ledger) -> None:
    named = _named(decision.details)
    if not named:
        return
    table = TableRef.raw(decision.topic)
    accepted = ledger.accepted_losses_of(table, list(named))
    receipts = ledger.receipts(table, list(named))
    left = dict[str, _Ranges]()
    for key, (ranges, was_loaded) in named.items():
        receipt = receipts.get(key)
        if decision.kind == "generation" and not was_loaded and receipt is not None:
            # A load of the previous log was committed before the cut, so it has read the records of that log.
            continue
        lost = erasure_rules.without(ranges, accepted.get(key, {}))
        if lost or (decision.kind == "cluster" and (receipt is None or receipt.rows)):
            left[key] = lost
    if not left:
        return
    windows = [
        w
        for w in ledger.windows(decision.topic, edge_of(min(left)), edge_of(decision.details["edge"]))
        if w.key in left and w.generation < decision.details["to"]["generation"]
    ]
    ledger.record_acceptances([(w, left[w.key]) for w in windows if left[w.key]], _reason(decision))
    if decision.kind == "cluster":
        for window in windows:
            receipt = receipts.get(window.key)
            if receipt is None or receipt.rows:
                _empty(window, ledger)


def _named(details: Mapping[str, Any]) -> dict[str, tuple[_Ranges, bool]]:
    """Return, by window, the offsets in the decision, and True if the window was loaded when the decision was made."""
    if "lost" in details:
        return {lost["window"]: (_ranges(lost["ranges"]), lost["loaded"]) for lost in details["lost"]}
    return {key: (_ranges(ranges), False) for key, ranges in details.get(MOVED, {}).items()}


def _ranges(fields: Mapping[str, list[list[int]]]) -> _Ranges:
    return {int(p): tuple(OffsetRange(start, end) for start, end in parts) for p, parts in fields.items()}


def _reason(decision: Decision) -> str:
    who, to = f"{decision.decided_by}: {decision.reason}", decision.details["to"]
    if decision.kind == "generation":
        return f"the topic was {decision.details['change']}, accepted by {who}"
    return f"moved to the first window of generation {to['generation']}, on another cluster; accepted by {who}"


def _empty(window: SealedWindow, ledger: Ledger) -> None:
    """Load a moved window without rows, even if a load from the previous cluster was committed just before the cut was
    recorded.

    If a load from the previous cluster is still in progress, this commit makes that load fail. Its rows are loaded with
    the new generation, each row once.
    """
    began, table = time.monotonic(), TableRef.raw(window.topic)
    raw_table.create(ledger.lake.table(table), window.topic)
    metadata = LoadMetadata(
        window.topic,
        window.topic_id,
        window.generation,
        window.window,
        window.ranges,
        load_id=str(uuid.uuid4()),
        run_id="",
        first_cut=cut_ranges.first_cut(ledger, window.topic, window.generation, window.window.start),
    )
    made = WindowCommit(ledger.lake, table, measure_of(table.kind)).replace(metadata, ())
    erased = erased_of(ledger, window.topic, [window.key]).get(window.key, {})
    gone = sum(size_of(parts) for parts in erased.values())
    holes = {ACCEPTED_LOSS: window.ranges.size - gone, ERASED: gone}
    proof = Proof({kind: number for kind, number in holes.items() if number}, ACCEPTED_LOSS)
    seconds = time.monotonic() - began
    ledger.record_receipts([receipt_of(ledger.lake, table, made, NO_ROWS, kind="load", seconds=seconds, proof=proof)])
