"""Which windows go into which run: pure grouping, and the tags by which Dagster knows a run's windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.windows import Window, window_starting_at
from platform_assets.orchestration.retries import Tries


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One run to ask for: the windows from `first` to `last`, both inclusive, `offsets` in all.

    `attempt` is 1 where none of them is known to have failed, and one more for each run that did; `after` then names the
    newest of these.
    """

    first: str
    last: str
    generation: int
    windows: int
    offsets: int
    attempt: int = 1
    after: str = ""

    def run_key(self, table: str) -> str:
        """The same windows give the same key, so a tick that is tried again asks for no second run.

        Dagster starts no second run for a key, whatever became of the first. So the key has the attempt, and what it
        comes after, since how many runs failed is counted among the newest alone.
        """
        key = f"{table}/{self.generation}/{self.first}..{self.last}"
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
    schedule, are no partitions any more and cannot be asked for. A window that has more than `max_offsets` by itself
    gets a run of its own.
    """
    done, failed, before = set(loaded), tries or {}, asked_before or {}
    run: list[SealedWindow] = []
    most = max_windows
    for window in windows:
        if window.key in done or window_starting_at(schedule, window.window.start) is None:
            if run:
                yield _request(run, failed, before)
                run = []
            continue
        tried = failed.get(window.key)
        allowed = max_windows if tried is None else tried.most_windows(max_windows)
        offsets = sum(w.ranges.size for w in run) + window.ranges.size
        full = offsets > max_offsets or len(run) >= min(most, allowed)
        if run and (full or not _neighbours(run[-1], window, schedule)):
            yield _request(run, failed, before)
            run = []
        most = min(most, allowed) if run else allowed
        run.append(window)
    if run:
        yield _request(run, failed, before)


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
