"""The record of a topic's newest removal of expired windows, for `status`: a file per topic, which may be deleted at any time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final

from platform_assets.ledger.store import Ledger
from platform_assets.model import names
from platform_assets.model.tables import TableRef
from platform_assets.windows.maintain.expiring import Expired, ExpiryPlan
from platform_assets.windows.maintain.expiry_reasons import RETURNED
from platform_assets.windows.maintain.last_upkeep import recalled

_VERSION: Final = 1
MOST_NAMED: Final = 3
"""Maximum number of windows that are named for each reason."""


@dataclass(frozen=True, slots=True)
class LastExpiry:
    """The state of a topic's `keep` after the newest upkeep, at `at`; field names are those of the JSON and must not change.

    It applies from `since`; windows aged up to `aged`, which is at most the topic's newest boundary. That run removed
    `windows` from `first` to `last`, with `rows` raw rows; a later one removes `waiting` more, with `waiting_rows`. If the run
    removed none, `first` and `last` are those of the windows that a later run will remove. `held` are the first windows of
    each reason that are past `keep` and stay, `more` is the number of others by reason, and `windows_held` is the number
    of all.
    """

    at: str
    keep: str
    since: str
    is_due: bool
    windows: int = 0
    rows: int = 0
    first: str | None = None
    last: str | None = None
    waiting: int = 0
    waiting_rows: int = 0
    windows_held: int = 0
    held: Mapping[str, str] = field(default_factory=dict)
    aged: str | None = None
    more: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {**asdict(self), "held": dict(self.held), "more": dict(self.more)}


def of_plan(plan: ExpiryPlan, now: datetime) -> LastExpiry:
    """Return what a run would do, as if it had removed nothing yet."""
    return of_run(Expired(plan, plan.policy.is_due(now), held=plan.held), now)


def of_run(done: Expired, now: datetime) -> LastExpiry:
    """Return the record of a run."""
    plan = done.plan
    left = [key for key in plan.windows if key not in done.done and key not in done.held]
    named = done.done or [*left, *([] if plan.last is None else [plan.last])]
    by_reason: dict[str, list[str]] = {}
    for key, reason in sorted(done.held.items()):
        by_reason.setdefault(reason, []).append(key)
    return LastExpiry(
        at=now.isoformat(timespec="seconds"),
        keep=str(plan.policy.keep),
        since=plan.policy.since.isoformat(timespec="seconds"),
        is_due=done.is_due,
        windows=len(done.done),
        rows=done.rows,
        first=min(named, default=None),
        last=max(named, default=None),
        waiting=len(left) + plan.later,
        waiting_rows=sum(plan.windows[key].rows for key in left),
        windows_held=len(done.held),
        held={key: reason for reason, keys in sorted(by_reason.items()) for key in keys[:MOST_NAMED]},
        aged=plan.policy.aged.isoformat(timespec="seconds"),
        more={r: len(keys) - MOST_NAMED for r, keys in sorted(by_reason.items()) if len(keys) > MOST_NAMED},
    )


def remember(ledger: Ledger, topic: str, done: LastExpiry) -> None:
    """Store the record. Raises LakeNotWritableError."""
    document = {"version": _VERSION, **done.to_json()}
    ledger.lake.upkeep.write(_name(topic), json.dumps(document, separators=(",", ":")).encode())


def recall(ledger: Ledger, topic: str) -> LastExpiry | None:
    """Return the stored record; None if there is none, or another release wrote it."""
    return recalled(
        ledger.lake, _name(topic), _VERSION, lambda fields: LastExpiry(**{**fields, "held": dict(fields["held"])})
    )


def standing(ledger: Ledger, topic: str, done: LastExpiry) -> dict[str, str]:
    """Return the windows that were left and have not been removed since, with the reasons."""
    if not done.held:
        return {}
    receipts = ledger.receipts(TableRef.raw(topic), list(done.held))
    return {
        key: why
        for key, why in done.held.items()
        if key in receipts and (why == RETURNED or not receipts[key].is_expired)
    }


def _name(topic: str) -> str:
    return names.file_name("raw", topic, ".keep.json")
