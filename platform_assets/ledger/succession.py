"""Rules for the successor of a topic's newest cut. Pure."""

from __future__ import annotations

from platform_assets.errors import LedgerCorruptError
from platform_assets.ledger.entries import RecordedCut


def is_behind(cut: RecordedCut, newest: RecordedCut) -> bool:
    """Return true if `newest` starts a generation that was accepted since `cut` was taken, or that another process accepted first."""
    if "accepted" not in newest.taken.values():
        return False
    return cut.generation < newest.generation or (cut.generation, cut.edge) == (newest.generation, newest.edge)


def check_successor(previous: RecordedCut | None, cut: RecordedCut) -> None:
    """Raise LedgerCorruptError if `cut` cannot follow `previous`; any cut may be the first."""
    if previous is None:
        return
    shrunk = previous.cut.offsets.keys() - cut.cut.offsets.keys() or previous.cut.regressions(cut.cut.offsets)
    same_log = cut.generation == previous.generation
    # A generation starts at the end of the one before it, so that every time is in a window of one of the two.
    later = cut.edge > previous.edge or (cut.edge == previous.edge and not same_log)
    ascends = cut.topic == previous.topic and later and cut.generation >= previous.generation
    if not ascends or (same_log and (shrunk or cut.topic_id != previous.topic_id)):
        raise LedgerCorruptError(
            f"topic {cut.topic!r}: the cut at {cut.edge} does not follow that of {previous.topic!r} at "
            f"{previous.edge}: edges and generations ascend, cuts only grow, a generation has one topic id"
        )
