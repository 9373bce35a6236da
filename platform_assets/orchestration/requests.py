"""Which windows go into which run: pure grouping, and the tags by which Dagster knows a run's windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.windows import Window, window_starting_at


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One run to ask for: the windows from `first` to `last`, both inclusive, `offsets` in all."""

    first: str
    last: str
    generation: int
    windows: int
    offsets: int

    def run_key(self, table: str) -> str:
        """The same windows give the same key, so a tick that is tried again asks for no second run."""
        return f"{table}/{self.generation}/{self.first}..{self.last}"


def grouped(
    windows: Sequence[SealedWindow], loaded: Iterable[str], *, schedule: str, max_offsets: int, max_windows: int
) -> Iterator[LoadRequest]:
    """Runs for `windows` (ascending) less those in `loaded`.

    A run takes neighbours only, since Dagster names a run's windows by first and last: what lies between is decided by
    the partitions that `schedule` has today. Windows that start at none of its edges, because they are of an earlier
    schedule, are no partitions any more and cannot be asked for. A window that has more than `max_offsets` by itself
    gets a run of its own.
    """
    done = set(loaded)
    run: list[SealedWindow] = []
    for window in windows:
        if window.key in done or window_starting_at(schedule, window.window.start) is None:
            if run:
                yield _request(run)
                run = []
            continue
        offsets = sum(w.ranges.size for w in run) + window.ranges.size
        full = offsets > max_offsets or len(run) == max_windows
        if run and (full or not _neighbours(run[-1], window, schedule)):
            yield _request(run)
            run = []
        run.append(window)
    if run:
        yield _request(run)


def _neighbours(left: SealedWindow, right: SealedWindow, schedule: str) -> bool:
    """Whether the partition that Dagster has next to `left` is `right`."""
    following = window_starting_at(schedule, left.window.start)
    return left.generation == right.generation and following == Window(left.window.start, right.window.start)


def _request(run: Sequence[SealedWindow]) -> LoadRequest:
    return LoadRequest(run[0].key, run[-1].key, run[0].generation, len(run), sum(w.ranges.size for w in run))
