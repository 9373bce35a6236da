"""Which windows go into which run: pure grouping, and the tags by which Dagster knows a run's windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from platform_assets.ledger_entries import SealedWindow


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One run to ask for: the windows from `first` to `last`, both inclusive, `offsets` in all."""

    first: str
    last: str
    windows: int
    offsets: int

    def run_key(self, table: str, generation: int) -> str:
        """The same windows give the same key, so a tick that is tried again asks for no second run."""
        return f"{table}/{generation}/{self.first}..{self.last}"


def grouped(
    windows: Sequence[SealedWindow], loaded: Iterable[str], *, max_offsets: int, max_windows: int
) -> Iterator[LoadRequest]:
    """Runs for `windows` (ascending) less those in `loaded`.

    A run takes neighbours only, since Dagster names a run's windows by first and last. A window that has more than
    `max_offsets` by itself gets a run of its own.
    """
    done = set(loaded)
    run: list[SealedWindow] = []
    for window in windows:
        if window.key in done:
            if run:
                yield _request(run)
                run = []
            continue
        offsets = sum(w.ranges.size for w in run) + window.ranges.size
        if run and (offsets > max_offsets or len(run) == max_windows):
            yield _request(run)
            run = []
        run.append(window)
    if run:
        yield _request(run)


def _request(run: Sequence[SealedWindow]) -> LoadRequest:
    return LoadRequest(run[0].key, run[-1].key, len(run), sum(w.ranges.size for w in run))
