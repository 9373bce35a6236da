"""The progress bars of `load`, on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from platform_assets.model.untrusted import line
from platform_assets.terminal import console as console_of
from platform_assets.terminal import echo

if TYPE_CHECKING:
    from rich.console import Console

_DOING: Final = {"raw": "loading", "decoded": "decoding", "changes": "changes"}


class Show(Protocol):
    """Prints one line, on stderr if `err`."""

    def __call__(self, text: str, *, err: bool = False) -> None:
        """Print `text`."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Display of a load's progress: `advance` moves the bar for one kind of table (raw, decoded or changes) forward by one
    window, and `show` prints a line next to the bars."""

    advance: Callable[[str], None] = lambda kind: None
    show: Show = echo


@contextmanager
def bars(kinds: Sequence[str], windows: int, *, as_json: bool, console: Console | None = None) -> Iterator[Shown]:
    """Show a bar for each kind of table until the block ends.

    No bar is shown for a single window, or without a terminal. Then a line for each window, or the JSON, shows what was
    done.
    """
    shown_on = console or console_of(stderr=as_json or not sys.stdout.isatty())
    if windows < 2 or not shown_on.is_terminal:
        yield Shown()
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    columns = (
        TextColumn("{task.description:<8}", markup=False),
        BarColumn(24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=shown_on, transient=True, redirect_stdout=False, redirect_stderr=False) as progress:
        tasks = {kind: progress.add_task(_DOING[kind], total=windows) for kind in kinds}

        def advance(kind: str) -> None:
            progress.advance(tasks[kind])

        def show(text: str, *, err: bool = False) -> None:
            if (sys.stderr if err else sys.stdout).isatty():
                # The bars' console moves them out of the way.
                shown_on.print(Text(line(text)), soft_wrap=True)
            else:
                echo(text, err=err)

        yield Shown(advance, show)
