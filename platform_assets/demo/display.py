"""Progress of the demo. On a terminal, it is shown as bars; otherwise, as a plain line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from platform_assets.model.untrusted import line
from platform_assets.terminal import console as terminal

PLAIN_LINE_SECONDS: Final = 5.0
"""Minimum time between two lines of progress if the output is not a terminal."""

PLAIN_WIDTH: Final = 140
"""Width of a table if the output is not a terminal."""


class Counters(Protocol):
    """One count per topic, each with a total to reach. The methods can be called from several threads."""

    def advance(self, topic: str, count: int) -> None:
        """Increase the topic's count by `count`."""

    def note(self, topic: str, text: str) -> None:
        """Set the topic's current note."""


class Display:
    """Shows steps and counts. Paths and addresses are printed in full, and text is never interpreted as markup."""

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or terminal()
        if console is None and not self.console.is_terminal:
            self.console.width = PLAIN_WIDTH
        self._clock = clock

    def show(self, text: str = "") -> None:
        """Show a line from the demo itself."""
        self.console.print(line(text), markup=False, soft_wrap=True)

    def detail(self, text: str) -> None:
        """Show a line from a service or library that the demo uses."""
        self.console.print(line(f"  {text}"), markup=False, soft_wrap=True, style="dim")

    @contextmanager
    def counters(self, totals: Mapping[str, int]) -> Iterator[Counters]:
        """Show a count for each topic until the end of the block."""
        if not self.console.is_terminal:
            lines = _Lines(totals, self.detail, self._clock)
            yield lines
            lines.finish()
            return
        columns = (
            TextColumn("  {task.description:<8}", markup=False),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, TextColumn("{task.fields[note]}", markup=False), console=self.console) as progress:
            yield _Bars(progress, totals)


class _Bars:
    def __init__(self, progress: Progress, totals: Mapping[str, int]) -> None:
        self._progress = progress
        self._tasks = {topic: progress.add_task(topic, total=total, note="") for topic, total in totals.items()}

    def advance(self, topic: str, count: int) -> None:
        self._progress.advance(self._tasks[topic], count)

    def note(self, topic: str, text: str) -> None:
        self._progress.update(self._tasks[topic], note=text)


class _Lines:
    def __init__(self, totals: Mapping[str, int], report: Callable[[str], None], clock: Callable[[], float]) -> None:
        self._totals, self._report, self._clock = dict(totals), report, clock
        self._done = dict.fromkeys(totals, 0)
        self._notes = dict.fromkeys(totals, "")
        self._mutex = threading.Lock()
        self._told_at = clock()
        self._told = ""

    def advance(self, topic: str, count: int) -> None:
        with self._mutex:
            self._done[topic] += count
            self._report_if_due()

    def note(self, topic: str, text: str) -> None:
        with self._mutex:
            self._notes[topic] = text
            self._report_if_due()

    def finish(self) -> None:
        """Show the final counts, unless the last line already showed them."""
        with self._mutex:
            self._report_now()

    def _report_if_due(self) -> None:
        if self._clock() - self._told_at >= PLAIN_LINE_SECONDS:
            self._report_now()

    def _report_now(self) -> None:
        parts = (
            f"{topic} {self._done[topic]:,} of {total:,}{', ' * bool(self._notes[topic])}{self._notes[topic]}"
            for topic, total in self._totals.items()
        )
        text = "; ".join(parts)
        self._told_at = self._clock()
        if text != self._told:
            self._told = text
            self._report(text)
