"""When a window that failed to load is asked for again: pure, from what Dagster has on record of its runs.

Nothing here is remembered between ticks. A failed run says on itself, in a tag, why each window failed; how often and how
lately a window failed are the number and the end of the failed runs that name it.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from platform_assets.errors import (
    ClusterChangedError,
    LedgerCorruptError,
    LostForGoodError,
    OffsetsExpiredError,
    PlatformError,
    ReloadDiffersError,
    RepairUnfitError,
    ReplacedRowsError,
    SchemaChangeError,
    TopicRecreatedError,
    TruncationError,
    UnknownOutcome,
    UnprovedRowsError,
    UnreadableTimestampError,
)

Cause = Literal["passing", "abrupt", "log", "decision", "declaration"]
"""Why a window failed. passing: what is wrong may be mended where the platform cannot see it, so the window is asked for
again, ever more rarely; abrupt: the same, and the run ended in a way that the window itself may have brought about; log: the
topic's log is not the one that the ledger knows, and once it is again, a later window can be sealed; decision: it waits
until the loss of its offsets is accepted; declaration: it waits until its table is declared otherwise."""

LONGEST: Final = timedelta(minutes=10)
"""The longest wait before a window is asked for again."""
_LONGEST_TEXT: Final = 1_500
"""Characters: no error of the platform's own is longer unless it lists much, and its end is what to do."""
_MOST_TEXTS: Final = 20

_DECISION = (
    OffsetsExpiredError,
    UnreadableTimestampError,
    ReloadDiffersError,
    LostForGoodError,
    UnprovedRowsError,
    LedgerCorruptError,
)
_DECLARATION = (SchemaChangeError, ReplacedRowsError, RepairUnfitError)
_LOG = (TruncationError, TopicRecreatedError, ClusterChangedError)


def cause_of(error: PlatformError) -> Cause:
    """Why a load that raised `error` failed."""
    if isinstance(error, _DECISION):
        return "decision"
    if isinstance(error, _LOG):
        return "log"
    if isinstance(error, _DECLARATION):
        return "declaration"
    return "abrupt" if isinstance(error, UnknownOutcome) else "passing"


@dataclass(frozen=True, slots=True)
class Failures:
    """What a failed run says of its windows: why each failed that it tried to load, by key, and the first error.

    `errors` are those of single windows, the first ones: each may name a remedy of its own.
    `declaration` is the fingerprint of how they were to be decoded, empty for loads into a raw table. `decided` is what had been
    decided on the windows before the run read anything, by key, as `decided_at` has it; None for runs of earlier releases.
    """

    causes: Mapping[str, Cause]
    error: str
    declaration: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)
    decided: Mapping[str, datetime] | None = None

    @classmethod
    def of(
        cls,
        errors: Mapping[str, PlatformError],
        declaration: str = "",
        decided: Mapping[str, datetime] | None = None,
    ) -> Failures:
        """From the errors by window; of `decided`, what is on these windows."""
        first = _shortened(str(next(iter(errors.values()), "")))
        texts = {key: _shortened(str(e)) for key, e in itertools.islice(errors.items(), _MOST_TEXTS)}
        others = {key: text for key, text in texts.items() if text != first}
        known = None if decided is None else {key: at for key, at in decided.items() if key in errors}
        return cls({key: cause_of(e) for key, e in errors.items()}, first, declaration, others, known)

    def to_tag(self) -> str:
        """JSON, for a tag of the run."""
        fields: dict[str, Any] = {"causes": self.causes, "error": self.error}
        if self.declaration:
            fields["declaration"] = self.declaration
        if self.errors:
            fields["errors"] = self.errors
        if self.decided is not None:
            fields["decided"] = {key: at.isoformat() for key, at in self.decided.items()}
        return json.dumps(fields, ensure_ascii=False)

    @classmethod
    def from_tag(cls, text: str) -> Failures:
        """From `to_tag`."""
        fields = json.loads(text)
        decided = fields.get("decided")
        known = None if decided is None else {key: datetime.fromisoformat(at) for key, at in decided.items()}
        return cls(fields["causes"], fields["error"], fields.get("declaration", ""), fields.get("errors", {}), known)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


@dataclass(frozen=True, slots=True)
class Named:
    """The windows that a run names: from `first` to `last`, both inclusive, or just those that are `listed`."""

    first: str
    last: str
    listed: frozenset[str] | None = None

    @classmethod
    def list_of(cls, keys: Collection[str]) -> Named:
        """Just these."""
        return cls(min(keys, default=""), max(keys, default=""), frozenset(keys))

    def among(self, keys: Sequence[str]) -> Sequence[str]:
        """Those of `keys`, which ascend, that the run names."""
        between = keys[bisect.bisect_left(keys, self.first) : bisect.bisect_right(keys, self.last)]
        return between if self.listed is None else [key for key in between if key in self.listed]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed or was cancelled at `ended`, and the windows that it was to load.

    `failures` is None where it ended without a word, as a process that was killed.
    """

    run_id: str
    ended: datetime
    named: Named
    failures: Failures | None

    def cause(self, key: str) -> Cause:
        """Why the window `key` failed; passing for one that the run did not come to."""
        return "abrupt" if self.failures is None else self.failures.causes.get(key, "passing")

    @property
    def declaration(self) -> str:
        """The fingerprint of how its windows were to be decoded."""
        return self.failures.declaration if self.failures else ""

    def had_read(self, key: str, decided: datetime) -> bool:
        """Whether the run knew of what was `decided` on the window `key`. Earlier releases tell by their end alone."""
        if self.failures is None or self.failures.decided is None:
            return decided <= self.ended
        return self.failures.decided.get(key) == decided

    def error_of(self, key: str) -> str:
        """What the run said of the window `key`, or of the first that failed."""
        if self.failures is None:
            return f"run {self.run_id} ended without saying why"
        return self.failures.errors.get(key, self.failures.error)


@dataclass(frozen=True, slots=True)
class Tries:
    """The failed runs of one window that is not loaded: `last` of `number`, `abrupt` of which ended so; the first at `since`."""

    number: int
    abrupt: int
    last: FailedRun
    cause: Cause
    since: datetime

    @property
    def waits_for_somebody(self) -> bool:
        """Whether it is asked for again only once something has been decided or has changed."""
        return self.cause in ("decision", "log", "declaration")

    def again_at(self, interval: timedelta) -> datetime:
        """When a window that waits for nobody is asked for again; `interval` is that of the sensor."""
        return self.last.ended + wait(self.number, interval)

    def most_windows(self, allowed: int) -> int:
        """How many windows may be in the next run with it: after each abrupt end half as many, so that one which brings
        its runs down does not hold up the others."""
        return max(allowed >> self.abrupt, 1)


def wait(tries: int, interval: timedelta) -> timedelta:
    """How long after the last of `tries` failed runs a window is asked for again: twice as long each time."""
    return max(min(interval * (1 << min(tries - 1, 16)), LONGEST), interval)


def tries_of(keys: Sequence[str], failed: Iterable[FailedRun]) -> dict[str, Tries]:
    """The tries of those windows among `keys`, which ascend, that a failed run names."""
    found: dict[str, Tries] = {}
    for run in failed:
        for key in run.named.among(keys):
            known, cause = found.get(key), run.cause(key)
            newest = known is None or run.ended >= known.last.ended
            found[key] = Tries(
                1 + (known.number if known else 0),
                (cause == "abrupt") + (known.abrupt if known else 0),
                run if newest or known is None else known.last,
                cause if newest or known is None else known.cause,
                run.ended if known is None else min(run.ended, known.since),
            )
    return found


def decided_at(accepted: Mapping[str, datetime], unparked: Mapping[str, datetime]) -> dict[str, datetime]:
    """When a window's loss was accepted or it was unparked, whichever came last, by key."""
    return {key: max(m[key] for m in (accepted, unparked) if key in m) for key in {*accepted, *unparked}}


@dataclass(frozen=True, slots=True)
class Waiting:
    """What decides whether windows are due at `now`: the sensor's `interval`, the newest edge that has a cut, when the loss of
    offsets of a window was last accepted or it was unparked, by key, and the fingerprint of how windows are decoded now."""

    now: datetime
    interval: timedelta
    newest_edge: datetime
    accepted: Mapping[str, datetime] = field(default_factory=dict)
    declaration: str = ""

    def is_due(self, key: str, tries: Tries | None) -> bool:
        """Whether the window `key` is to be asked for now. One that has never failed is."""
        if tries is None:
            return True
        at = self.accepted.get(key)
        decided = at is not None and not tries.last.had_read(key, at)
        if tries.cause == "decision":
            return decided
        if tries.cause == "declaration":
            return decided or tries.last.declaration != self.declaration
        if tries.cause == "log":
            return decided or self.newest_edge > tries.last.ended
        return tries.again_at(self.interval) <= self.now
