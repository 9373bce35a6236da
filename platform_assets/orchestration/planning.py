"""Decide which windows a tick requests, when failed windows are requested again, and how windows are grouped into runs.

Everything here is pure. Nothing is remembered between ticks: a tag of a failed run says why each window failed, and the
failed runs of a window show how often and how recently it failed.
"""

from __future__ import annotations

import bisect
import itertools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import groupby
from typing import Any, Final, Literal

from platform_assets.errors import (
    ClusterChangedError,
    ExpiredForGoodError,
    LedgerCorruptError,
    LostForGoodError,
    OffsetsExpiredError,
    PlatformError,
    ReloadDiffersError,
    RepairOffsetError,
    ReplacedRowsError,
    SchemaChangeError,
    TopicRecreatedError,
    TruncationError,
    UnknownOutcome,
    UnprovedRowsError,
    UnreadableTimestampError,
    WindowExpiredError,
)
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import Window, count_edges, window_starting_at

Cause = Literal["passing", "abrupt", "log", "decision", "declaration"]
"""Reason why a window failed. passing: the cause may disappear without the platform noticing, so the window is
requested again at growing intervals; abrupt: the window is also requested again, but the window itself may have ended
the run; log: the topic's log is not the one in the ledger, and the window is requested again once later windows can be
sealed; decision: the window waits until the loss of its offsets is accepted; declaration: the window waits until the
declaration of its table is changed."""

LONGEST_WAIT: Final = timedelta(minutes=10)
"""Maximum wait before a window is requested again."""
_LONGEST_TEXT: Final = 1_500
"""Maximum number of characters of an error in a tag. Errors of the platform are shorter unless they have long lists,
and the remedy comes last."""
_MOST_TEXTS: Final = 20

_DECISION = (
    OffsetsExpiredError,
    UnreadableTimestampError,
    ReloadDiffersError,
    LostForGoodError,
    UnprovedRowsError,
    LedgerCorruptError,
    ExpiredForGoodError,
)
_DECLARATION = (SchemaChangeError, ReplacedRowsError, RepairOffsetError, WindowExpiredError)
_LOG = (TruncationError, TopicRecreatedError, ClusterChangedError)


def cause_of(error: PlatformError) -> Cause:
    """Return the cause of failure for a load that raised `error`."""
    if isinstance(error, _DECISION):
        return "decision"
    if isinstance(error, _LOG):
        return "log"
    if isinstance(error, _DECLARATION):
        return "declaration"
    return "abrupt" if isinstance(error, UnknownOutcome) else "passing"


@dataclass(frozen=True, slots=True)
class Failures:
    """Reasons why the windows of a failed run failed, by window key, and the first errors.

    `errors` has the first errors of single windows, because each error may have a different remedy. `declaration` is
    the fingerprint of the decoding, empty for loads into a raw table. `decided` has the decisions about the windows
    that were made before the run read anything, by window key, as `decided_at` returns them. It is None for runs of
    earlier releases.
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
        """Build the failures from the errors by window. Of `decided`, keep the entries for these windows."""
        first = _shortened(str(next(iter(errors.values()), "")))
        texts = {key: _shortened(str(e)) for key, e in itertools.islice(errors.items(), _MOST_TEXTS)}
        others = {key: text for key, text in texts.items() if text != first}
        known = None if decided is None else {key: at for key, at in decided.items() if key in errors}
        return cls({key: cause_of(e) for key, e in errors.items()}, first, declaration, others, known)

    def to_tag(self) -> str:
        """Return JSON for the tag of the run."""
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
        """Parse the result of `to_tag`."""
        fields = json.loads(text)
        decided = fields.get("decided")
        known = None if decided is None else {key: datetime.fromisoformat(at) for key, at in decided.items()}
        return cls(fields["causes"], fields["error"], fields.get("declaration", ""), fields.get("errors", {}), known)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 1] + "…"


@dataclass(frozen=True, slots=True)
class RunWindows:
    """The windows of a run: `first` to `last`, both inclusive, or only those that are `listed`."""

    first: str
    last: str
    listed: frozenset[str] | None = None

    @classmethod
    def list_of(cls, keys: Collection[str]) -> RunWindows:
        """Return an object for exactly these windows."""
        return cls(min(keys, default=""), max(keys, default=""), frozenset(keys))

    def among(self, keys: Sequence[str]) -> Sequence[str]:
        """Return those of `keys`, which must be in ascending order, that are windows of the run."""
        between = keys[bisect.bisect_left(keys, self.first) : bisect.bisect_right(keys, self.last)]
        return between if self.listed is None else [key for key in between if key in self.listed]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed or was canceled at `ended`, and the windows that it should have loaded.

    `failures` is None if the run ended without a report, for example because its process was killed.
    """

    run_id: str
    ended: datetime
    windows: RunWindows
    failures: Failures | None

    def cause(self, key: str) -> Cause:
        """Return the cause of the failure of the window `key`; `passing` if the run did not reach this window."""
        return "abrupt" if self.failures is None else self.failures.causes.get(key, "passing")

    @property
    def declaration(self) -> str:
        """Return the fingerprint of the declaration with which the run was to decode its windows."""
        return self.failures.declaration if self.failures else ""

    def had_read(self, key: str, decided: datetime) -> bool:
        """Return True if the run knew the decision about the window `key` that was made at `decided`. For a run of an
        earlier release, `decided` is compared with the run's end time."""
        if self.failures is None or self.failures.decided is None:
            return decided <= self.ended
        return self.failures.decided.get(key) == decided

    def error_of(self, key: str) -> str:
        """Return the run's error for the window `key`, or else its first error."""
        if self.failures is None:
            return f"run {self.run_id} ended without an error message"
        return self.failures.errors.get(key, self.failures.error)


@dataclass(frozen=True, slots=True)
class Tries:
    """The failed runs of one window that is not loaded: their `number`, the `last` of them, the number of them that
    ended `abrupt`ly, and the time `since` when the first of them ended."""

    number: int
    abrupt: int
    last: FailedRun
    cause: Cause
    since: datetime

    @property
    def waits_for_somebody(self) -> bool:
        """True if the window is requested again only after a decision or a changed declaration."""
        return self.cause in ("decision", "log", "declaration")

    def again_at(self, interval: timedelta) -> datetime:
        """Return the time when a window that needs no decision is requested again; `interval` is the sensor's interval."""
        return self.last.ended + wait_before_retry(self.number, interval)

    def most_windows(self, allowed: int) -> int:
        """Return the maximum number of windows in the window's next run. Each abrupt end halves this number, so that a
        window that crashes its runs does not block the others."""
        return max(allowed >> self.abrupt, 1)


def wait_before_retry(tries: int, interval: timedelta) -> timedelta:
    """Return the delay between the last of `tries` failed runs and the next request. The delay doubles with each failed
    run."""
    return max(min(interval * (1 << min(tries - 1, 16)), LONGEST_WAIT), interval)


def tries_of(keys: Sequence[str], failed: Iterable[FailedRun]) -> dict[str, Tries]:
    """Return the tries of those windows among `keys`, in ascending order, that a failed run should have loaded."""
    found: dict[str, Tries] = {}
    for run in failed:
        for key in run.windows.among(keys):
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
    """Return, by window key, the time of the later decision: when the window's loss was accepted, or when the window
    was unparked."""
    return {key: max(m[key] for m in (accepted, unparked) if key in m) for key in {*accepted, *unparked}}


@dataclass(frozen=True, slots=True)
class Waiting:
    """Facts that decide which windows are due at `now`: the sensor's `interval`; the newest edge with a cut; by window
    key, when the window's loss was last accepted or the window was last unparked; and the fingerprint of the current
    decoding."""

    now: datetime
    interval: timedelta
    newest_edge: datetime
    accepted: Mapping[str, datetime] = field(default_factory=dict)
    declaration: str = ""

    def is_due(self, key: str, tries: Tries | None) -> bool:
        """Return True if the window `key` should be requested now. A window that has never failed is always due."""
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


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One run to request: the windows from `first` to `last`, both inclusive, or only those in `listed`; `offsets` is
    their total number of offsets.

    `attempt` is 1 plus the largest number of failed runs of any of the windows; `after` is the newest of these runs. If
    runs of some windows ended abruptly, `most` is the maximum number of windows in the run; otherwise it is 0.
    """

    first: str
    last: str
    generation: int
    windows: int
    offsets: int
    attempt: int = 1
    after: str = ""
    listed: tuple[str, ...] = ()
    most: int = 0

    def run_key(self, table: str) -> str:
        """Return a key that is equal for equal windows, so a repeated tick does not request a second run.

        Dagster never starts a second run for a key, whatever the result of the first run. So the key contains the
        attempt and the preceding run. The attempt alone is not enough, because only the newest failed runs are counted.
        """
        key = f"{table}/{self.generation}/{self.first}..{self.last}"
        if self.listed:
            key += f"/earlier/{sha256(' '.join(self.listed).encode()).hexdigest()[:16]}"
        return f"{key}/{self.attempt}/{self.after}" if self.after else key


def grouped(
    windows: Sequence[SealedWindow],
    loaded: Iterable[str],
    *,
    schedule: str,
    max_offsets: int,
    max_windows: int,
    tries: Mapping[str, Tries] | None = None,
    asked_before: Mapping[str, str] | None = None,
) -> Iterator[LoadRequest]:
    """Yield runs for `windows` (ascending) except those in `loaded`.

    `tries` has the failed runs by window key. `asked_before` has the windows that an earlier tick requested and that
    have no known failed run, each with the run that preceded the request.

    A run contains only adjacent windows, because Dagster identifies a run's windows by the first and the last one; the
    current `schedule` determines the windows in between. Windows of an earlier schedule that do not start at edges of
    the current schedule are no longer partitions: use `listed` for those. A window with more than `max_offsets` gets a
    separate run.
    """
    done, failed, before = set(loaded), tries or {}, asked_before or {}
    run = _Run(max_offsets, max_windows, failed)
    for window in windows:
        if window.key in done or window_starting_at(schedule, window.window.start) is None:
            if run.windows:
                yield _request(run.windows, failed, before)
                run = run.following()
            continue
        if run.windows and (run.is_full_for(window) or not _neighbours(run.windows[-1], window, schedule)):
            yield _request(run.windows, failed, before)
            run = run.following()
        run.add(window)
    if run.windows:
        yield _request(run.windows, failed, before)


def listed(
    windows: Sequence[SealedWindow],
    *,
    max_offsets: int,
    max_windows: int,
    tries: Mapping[str, Tries] | None = None,
    asked_before: Mapping[str, str] | None = None,
) -> Iterator[LoadRequest]:
    """Yield runs for `windows` (ascending) that are not partitions. Each run lists its windows by key; in all other
    respects, this is like `grouped`."""
    failed, before = tries or {}, asked_before or {}
    run = _Run(max_offsets, max_windows, failed)
    for window in windows:
        if run.windows and (run.is_full_for(window) or run.windows[-1].generation != window.generation):
            yield _listing(_request(run.windows, failed, before), run)
            run = run.following()
        run.add(window)
    if run.windows:
        yield _listing(_request(run.windows, failed, before), run)


def packed(
    requests: Iterable[tuple[str, LoadRequest]], *, max_offsets: int, max_windows: int
) -> Iterator[list[tuple[str, LoadRequest]]]:
    """Yield runs for the requests of many topics, each request with its topic. Requests that never failed come first.
    Pure.

    Requests that failed get separate runs, and so do requests that ended runs abruptly, so that a topic that cannot be
    loaded does not affect the others. A request above a limit gets a separate run.
    """
    by_failures = sorted(requests, key=lambda r: (r[1].attempt > 1, r[1].most > 0, -r[1].most))
    for _, alike in groupby(by_failures, lambda r: (r[1].attempt > 1, r[1].most > 0)):
        run: list[tuple[str, LoadRequest]] = []
        for topic, request in alike:
            most = min((r.most for _, r in [*run, (topic, request)] if r.most), default=max_windows)
            windows = request.windows + sum(r.windows for _, r in run)
            if run and (windows > most or request.offsets + sum(r.offsets for _, r in run) > max_offsets):
                yield run
                run = []
            run.append((topic, request))
        yield run


class _Run:
    """A run to which windows are added until it is full."""

    def __init__(self, max_offsets: int, max_windows: int, failed: Mapping[str, Tries]) -> None:
        self.windows: list[SealedWindow] = []
        self._max_offsets, self._max_windows, self._failed = max_offsets, max_windows, failed
        self._most = max_windows
        self._offsets = 0

    def following(self) -> _Run:
        """Return an empty run with the same limits."""
        return _Run(self._max_offsets, self._max_windows, self._failed)

    def is_full_for(self, window: SealedWindow) -> bool:
        """Return True if `window` must go into another run."""
        most = min(self._most, self._allowed(window))
        return self._offsets + window.ranges.size > self._max_offsets or len(self.windows) >= most

    def add(self, window: SealedWindow) -> None:
        self.windows.append(window)
        self._offsets += window.ranges.size
        self._most = min(self._most, self._allowed(window))

    @property
    def most_after_failure(self) -> int:
        """Return the maximum number of windows if runs of some of these windows ended abruptly; 0 if none did."""
        return self._most if self._most < self._max_windows else 0

    def _allowed(self, window: SealedWindow) -> int:
        tried = self._failed.get(window.key)
        return self._max_windows if tried is None else tried.most_windows(self._max_windows)


def _neighbours(left: SealedWindow, right: SealedWindow, schedule: str) -> bool:
    """Return True if `right` is the partition that follows `left` in Dagster."""
    following = window_starting_at(schedule, left.window.start)
    return left.generation == right.generation and following == Window(left.window.start, right.window.start)


def _request(run: Sequence[SealedWindow], failed: Mapping[str, Tries], before: Mapping[str, str]) -> LoadRequest:
    tries = [failed[w.key] for w in run if w.key in failed]
    attempt = 1 + max((t.number for t in tries), default=0)
    after = max((before[w.key] for w in run if w.key in before), default="")
    if tries:
        after = max(tries, key=lambda t: t.last.ended).last.run_id
    offsets = sum(w.ranges.size for w in run)
    return LoadRequest(run[0].key, run[-1].key, run[0].generation, len(run), offsets, attempt, after)


def _listing(request: LoadRequest, run: _Run) -> LoadRequest:
    return replace(request, listed=tuple(w.key for w in run.windows), most=run.most_after_failure)


WINDOW_LIMIT: Final = 100_000
"""Maximum number of partitions per asset that Dagster recommends."""

NEAR_LIMIT: Final = 0.9


def windows_until(declaration: TopicDeclaration, now: datetime) -> int:
    """Return the number of windows of the topic's schedule that have begun between its first edge and `now`."""
    return count_edges(declaration.schedule, declaration.first_edge, now)


def limit_refusal(declaration: TopicDeclaration, now: datetime) -> str | None:
    """Return the reason why a topic without cuts must not start, and what to do; None if the number of its windows is
    within the limit."""
    number = windows_until(declaration, now)
    if number <= WINDOW_LIMIT:
        return None
    # Half of the limit, so that as many windows can be added in the future.
    span = (now - declaration.first_edge) * (WINDOW_LIMIT / 2 / number)
    later = (now - span).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (
        f"start: there are {number:,} windows from this time to today, but Dagster's UI supports up to {WINDOW_LIMIT:,}. Choose a "
        f"later start, such as {later:%Y-%m-%dT%H:%MZ} (older records are in the first window), or a longer `window`"
    )


def limit_warning(declaration: TopicDeclaration, now: datetime) -> str | None:
    """Return a warning for a table whose number of windows is near or over the limit; otherwise None."""
    number = windows_until(declaration, now)
    if number < NEAR_LIMIT * WINDOW_LIMIT:
        return None
    return (
        f"it has had {number:,} windows since its start, but Dagster's pages get slow beyond {WINDOW_LIMIT:,}. Loading continues; "
        "with a longer `window`, the number grows more slowly"
    )
