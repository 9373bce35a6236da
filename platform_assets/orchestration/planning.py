"""Decide which windows a tick requests, when failed ones are requested again, and how they are grouped into runs.

Everything here is pure. Nothing is remembered between ticks: a failed run says in a tag why each window failed; how often and how
lately a window failed follows from the failed runs that name it.
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
)
from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import Window, count_edges, window_starting_at

Cause = Literal["passing", "abrupt", "log", "decision", "declaration"]
"""Why a window failed. passing: what is wrong may be mended where the platform cannot see it, so the window is asked for
again, ever more rarely; abrupt: the same, and the run ended in a way that the window itself may have brought about; log: the
topic's log is not the one that the ledger knows, and once it is again, a later window can be sealed; decision: it waits
until the loss of its offsets is accepted; declaration: it waits until its table is declared otherwise."""

LONGEST_WAIT: Final = timedelta(minutes=10)
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
_DECLARATION = (SchemaChangeError, ReplacedRowsError, RepairOffsetError)
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
class RunWindows:
    """The windows that a run names: from `first` to `last`, both inclusive, or just those that are `listed`."""

    first: str
    last: str
    listed: frozenset[str] | None = None

    @classmethod
    def list_of(cls, keys: Collection[str]) -> RunWindows:
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
    windows: RunWindows
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
        return self.last.ended + wait_before_retry(self.number, interval)

    def most_windows(self, allowed: int) -> int:
        """How many windows may be in the next run with it: after each abrupt end half as many, so that one which brings
        its runs down does not hold up the others."""
        return max(allowed >> self.abrupt, 1)


def wait_before_retry(tries: int, interval: timedelta) -> timedelta:
    """How long after the last of `tries` failed runs a window is asked for again: twice as long each time."""
    return max(min(interval * (1 << min(tries - 1, 16)), LONGEST_WAIT), interval)


def tries_of(keys: Sequence[str], failed: Iterable[FailedRun]) -> dict[str, Tries]:
    """The tries of those windows among `keys`, which ascend, that a failed run names."""
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


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One run to ask for: the windows from `first` to `last`, both inclusive, or just those `listed`; `offsets` in all.

    `attempt` is 1 where none of them is known to have failed, and one more for each run that did; `after` then names the
    newest of these. `most` is how many windows a run with these may have after runs that ended abruptly, 0 without any such.
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
        """The same windows give the same key, so a tick that is tried again asks for no second run.

        Dagster starts no second run for a key, whatever became of the first. So the key has the attempt, and what it
        comes after, since how many runs failed is counted among the newest alone.
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
    """Runs for `windows` (ascending) less those in `loaded`.

    `tries` are those of windows that failed, by key; `asked_before` names what those come after that an earlier tick has
    asked for and that no failed run is known of.

    A run takes neighbours only, since Dagster names a run's windows by first and last: what lies between is decided by
    the partitions that `schedule` has today. Windows that start at none of its edges, because they are of an earlier
    schedule, are no partitions any more: `listed` is for those. A window that has more than `max_offsets` by itself gets a
    run of its own.
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
    """Runs for `windows` (ascending) that are no partitions, each named by its key; otherwise as `grouped`."""
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
    """Runs of requests of many topics, each with its topic: what never failed first. Pure.

    Apart from that is what failed, and apart from both what ended runs abruptly, so that a topic which cannot be loaded leaves
    the runs of the others alone. A request that is over a bound by itself gets a run.
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
    """A run that windows are put into, until it is full."""

    def __init__(self, max_offsets: int, max_windows: int, failed: Mapping[str, Tries]) -> None:
        self.windows: list[SealedWindow] = []
        self._max_offsets, self._max_windows, self._failed = max_offsets, max_windows, failed
        self._most = max_windows
        self._offsets = 0

    def following(self) -> _Run:
        """An empty one with the same bounds."""
        return _Run(self._max_offsets, self._max_windows, self._failed)

    def is_full_for(self, window: SealedWindow) -> bool:
        """Whether `window` has to go into another run."""
        most = min(self._most, self._allowed(window))
        return self._offsets + window.ranges.size > self._max_offsets or len(self.windows) >= most

    def add(self, window: SealedWindow) -> None:
        self.windows.append(window)
        self._offsets += window.ranges.size
        self._most = min(self._most, self._allowed(window))

    @property
    def most_after_failure(self) -> int:
        """How many windows it may have where runs of some of them ended abruptly; 0 where none did."""
        return self._most if self._most < self._max_windows else 0

    def _allowed(self, window: SealedWindow) -> int:
        tried = self._failed.get(window.key)
        return self._max_windows if tried is None else tried.most_windows(self._max_windows)


def _neighbours(left: SealedWindow, right: SealedWindow, schedule: str) -> bool:
    """Whether the partition that Dagster has next to `left` is `right`."""
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
"""What Dagster recommends as the most partitions of an asset."""

NEAR_LIMIT: Final = 0.9


def windows_until(declaration: TopicDeclaration, now: datetime) -> int:
    """How many windows of the topic's schedule have begun between its first edge and `now`."""
    return count_edges(declaration.schedule, declaration.first_edge, now)


def limit_refusal(declaration: TopicDeclaration, now: datetime) -> str | None:
    """Why a topic without cuts must not begin, and what to do; None where its windows are few enough."""
    number = windows_until(declaration, now)
    if number <= WINDOW_LIMIT:
        return None
    # Half of the limit leaves as many windows for the time to come.
    span = (now - declaration.first_edge) * (WINDOW_LIMIT / 2 / number)
    later = (now - span).astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return (
        f"start: {number:,} windows from there to today, and Dagster's UI supports up to {WINDOW_LIMIT:,}. Take a later start, "
        f"such as {later:%Y-%m-%dT%H:%MZ} (older records are in the first window), or a longer `window`"
    )


def limit_warning(declaration: TopicDeclaration, now: datetime) -> str | None:
    """What to say of a running table that nears the limit or is beyond it; None for any other."""
    number = windows_until(declaration, now)
    if number < NEAR_LIMIT * WINDOW_LIMIT:
        return None
    return (
        f"{number:,} windows since its start, and Dagster's pages get slow beyond {WINDOW_LIMIT:,}: loading goes on; "
        "a longer `window` lets them grow more slowly"
    )
