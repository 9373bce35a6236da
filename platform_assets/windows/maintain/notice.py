"""The week of notice of a topic's `keep`, and the times by which it and the age of windows are measured.

A clock that is ahead would make every window old, and one that is behind would let the week of notice pass at once. So
nothing is removed while the clocks of this process and of the lake's store disagree, or while the ledger has a window
boundary later than both: boundaries are cut only once their time has passed on two machines. On a local disk both
clocks are the same one, so the week has passed only once the topic has a boundary at its end or later. Windows age only
up to the topic's newest boundary. So a topic without new boundaries keeps its rows.

The newest notice is the one with the highest number, whatever the clocks said when the notices were recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from platform_assets.errors import Retryable
from platform_assets.ledger import decisions
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.keeping import GRACE, Keep

TOLERANCE: Final = timedelta(hours=1)
"""Largest accepted difference of two clocks: windows expire a day at a time."""
UNSEEN: Final = timedelta(days=14)
"""Time without an upkeep that sees the value, after which it needs new notice, once: then upkeep runs rarely."""
AUTHOR: Final = "upkeep"
BOUNDARY: Final = "the topic's newest window boundary"
_NUMBER: Final = "number"
_AGAIN: Final = "again"
"""Key in the details of a notice: True if an earlier one had the same value."""


class ClocksDisagreeError(Retryable):
    """The age of windows cannot be measured, because two clocks show different times."""

    def __init__(self, topic: str, now: datetime, other: str, then: datetime) -> None:
        self.topic, self.now, self.other, self.then = topic, now, other, then
        relation = "ahead of" if now > then else "behind"
        later = " If all clocks are right by now, a wrong one has cut that boundary: upkeep continues after that time."
        super().__init__(
            f"no window of topic {topic!r} was removed as past keep: the clock of this process shows {_text(now)}, which is "
            f"{relation} {other}, {_text(then)}. Removing rows by a wrong clock could remove all of them. Correct the clock that "
            f"is wrong; the next upkeep then continues.{later if other == BOUNDARY else ''}"
        )


def _text(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class Times:
    """The time on which the clocks agree, and the time up to which windows of a topic age."""

    now: datetime
    aged: datetime


Measure = Callable[[Ledger, str, datetime], Times]
"""Type of `times_of`. Tests, which use simulated times, replace that function."""


def times_of(ledger: Ledger, topic: str, now: datetime) -> Times:
    """Return the times of a topic; `now` is the time of this process. Writes a file to the lake to read its clock.

    Raises ClocksDisagreeError and LakeNotWritableError.
    """
    of_lake = ledger.lake.root.time()
    if abs(now - of_lake) > TOLERANCE:
        raise ClocksDisagreeError(topic, now, "the clock of the lake's store", of_lake)
    return _with_boundary(ledger, topic, now, min(now, of_lake))


def times_of_process(ledger: Ledger, topic: str, now: datetime) -> Times:
    """Return the times of a topic like `times_of`, but write nothing, so the clock of the lake is not read."""
    return _with_boundary(ledger, topic, now, now)


def _with_boundary(ledger: Ledger, topic: str, now: datetime, agreed: datetime) -> Times:
    newest = ledger.newest_edges([topic]).get(topic)
    if newest is not None and newest - now > TOLERANCE:
        raise ClocksDisagreeError(topic, now, BOUNDARY, newest)
    return Times(agreed, agreed if newest is None else min(agreed, newest))


@dataclass(frozen=True, slots=True)
class Policy:
    """The topic's `keep`, the time from which it applies, and the time up to which windows age; `is_new` if no run has
    recorded it yet."""

    keep: Keep
    since: datetime
    is_new: bool
    aged: datetime

    def is_due(self, now: datetime) -> bool:
        """Return True if windows past it may be removed at `now`."""
        return not self.is_new and self.since <= min(now, self.aged)

    def is_past(self, end: datetime) -> bool:
        """Return True if a window that ended at `end` is past it."""
        return self.keep.is_past(end, self.aged)


def policy(ledger: Ledger, topic: str, keep: Keep, times: Times, seen: datetime | None) -> Policy:
    """Return the policy of a topic at these times; `seen` is when a run last saw the value, if that is known."""
    newest, since = _newest(ledger, topic), times.now + GRACE
    noticed = max((each.decided_at for each in newest if each.decided_at is not None), default=None)
    known = {each.details.get("days") for each in newest} == {keep.days}
    # A notice in the future was recorded by a wrong clock.
    if not known or noticed is None or noticed - times.now > TOLERANCE:
        return Policy(keep, since, True, times.aged)
    # Without a record, nothing shows that an upkeep has seen the value since the notice.
    is_again = any(each.details.get(_AGAIN) for each in newest)
    if times.now - max(noticed, seen or noticed) > UNSEEN and not is_again:
        return Policy(keep, since, True, times.aged)
    return Policy(keep, noticed + GRACE, False, times.aged)


def record(ledger: Ledger, topic: str, keep: Keep | None, now: datetime) -> None:
    """Record that a value, or that no value, is declared from `now` on."""
    newest = _newest(ledger, topic)
    number = max(map(_number, newest), default=0) + 1
    details: dict[str, Any] = {_NUMBER: number, "keep": None, "days": None}
    if keep is not None:
        details |= {"keep": str(keep), "days": keep.days}
        is_again = {each.details.get("days") for each in newest} == {keep.days}
        # A notice in the future was recorded by a wrong clock, so it was none.
        if is_again and all(each.decided_at is not None and each.decided_at - now <= TOLERANCE for each in newest):
            details[_AGAIN] = True
    decisions.record(ledger.lake, Decision(topic, "keep", (), AUTHOR, reason(keep), details, now))


def forget(ledger: Ledger, topic: str, now: datetime) -> None:
    """Record that there is no `keep` any more, so that declaring it again takes effect only after a week."""
    newest = _newest(ledger, topic)
    if any(each.details.get("days") is not None for each in newest):
        record(ledger, topic, None, now)


def reason(keep: Keep | None) -> str:
    """Return the reason of a decision."""
    return "no `keep` is declared" if keep is None else f"declared as `keep: {keep}`"


def _newest(ledger: Ledger, topic: str) -> list[Decision]:
    """Return the notices with the highest number: several, if runs at once have recorded them."""
    found = decisions.decisions(ledger.lake, topic, ("keep",))
    highest = max(map(_number, found), default=0)
    return [each for each in found if _number(each) == highest]


def _number(decision: Decision) -> int:
    return int(decision.details.get(_NUMBER, 0))
