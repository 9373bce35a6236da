"""Which windows go into which run: pure grouping, and the key by which Dagster knows a request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import groupby

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.windows import Window, window_starting_at
from platform_assets.orchestration.retries import Tries


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
    by_trouble = sorted(requests, key=lambda r: (r[1].attempt > 1, r[1].most > 0, -r[1].most))
    for _, alike in groupby(by_trouble, lambda r: (r[1].attempt > 1, r[1].most > 0)):
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
    def most_after_trouble(self) -> int:
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
    return replace(request, listed=tuple(w.key for w in run.windows), most=run.most_after_trouble)
