"""Terminal output of `platform-assets audit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from platform_assets.checks.audit import NOT_RECORDED, Audit, AuditOutcome, CheckOutcome
from platform_assets.checks.report.heatmap import Heatmap, Row, State
from platform_assets.model.untrusted import line
from platform_assets.terminal import console as console_of

_WORST: Final = 20
_PLAIN_LINE_SECONDS: Final = 5.0
_OUTCOMES: Final[Mapping[AuditOutcome, tuple[str, str, str]]] = {
    "proved": ("PROVED", "✓", "bold green"),
    "anomalies": ("ANOMALIES FOUND", "✕", "bold red"),
    "undecided": ("COULD NOT TELL", "?", "bold yellow"),
}
STYLES: Final[Mapping[State, str]] = {
    State.EMPTY: "green",
    State.COMPLETE: "green",
    State.MARKERS: "black on cyan",
    State.ABORTED: "white on blue",
    State.COMPACTED: "white on magenta",
    State.ERASED: "black on white",
    State.EXPIRED: "dim",
    State.ACCEPTED: "bold magenta",
    State.OPEN: "black on white",
    State.WAITING: "dim",
    State.UNASKED: "bold yellow",
    State.UNRECORDED: "black on yellow",
    State.UNDECIDED: "black on yellow",
    State.FAILING: "bold white on red",
}


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """Print the outcome, the heatmap, one line per check, the worst windows, and what to do."""
    console = console or console_of()
    outcome, _, style = _OUTCOMES[audit.outcome]
    console.print(Text.assemble((f"{audit.table}: ", "bold"), (outcome, style)), soft_wrap=True)
    if audit.heatmap is not None:
        for text in _heatmap(audit.heatmap, audit):
            console.print(text, soft_wrap=True)
    for check in audit.checks:
        console.print(_line(check), soft_wrap=True)
    if audit.worst:
        console.print(_table(audit))
    for reason in audit.reasons:
        console.print(Text(line(f"Could not tell: {reason}"), "yellow"), soft_wrap=True)
    for remedy in audit.remedies:
        console.print(Text.assemble(("What to do: ", "bold"), line(remedy)), soft_wrap=True)


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Provide a function that shows progress: on a terminal as one changing line, otherwise as a new line every few
    seconds."""
    if console.is_terminal:
        with console.status("checking") as status:
            yield lambda text: status.update(Text(line(text)))
        return
    told_at = time.monotonic()

    def on_progress(text: str) -> None:
        nonlocal told_at
        if time.monotonic() - told_at >= _PLAIN_LINE_SECONDS:
            told_at = time.monotonic()
            console.print(Text(line(text)), soft_wrap=True)

    yield on_progress


def _heatmap(heatmap: Heatmap, audit: Audit) -> Iterator[Text]:
    width = max((len(row.label) for row in heatmap.rows), default=0)
    for row in heatmap.rows:
        yield Text.assemble((f"{row.label:>{width}} ", "dim"), *_cells(row))
    if heatmap.windows:
        each = f", {heatmap.windows_per_column:,} per column" if heatmap.windows_per_column > 1 else ""
        span = heatmap.first if heatmap.windows == 1 else f"{heatmap.first} to {heatmap.last}"
        yield Text(f"{'':{width}} {heatmap.windows:,} windows{each}: {span}{_loaded_by(audit)}", "dim")
    legend = Text(" " * (width + 1))
    for state, count in heatmap.counts.items():
        legend.append(f"{state.letter}", STYLES[state]).append(f" {count:,} {state.label}   ")
    yield legend


def _loaded_by(audit: Audit) -> str:
    if not audit.engines.keys() - {NOT_RECORDED}:
        return ""
    counts = (f"{n:,} {'' if engine == NOT_RECORDED else 'by '}{engine}" for engine, n in audit.engines.items())
    confirmed = ", ".join(f"{n:,} by {engine}" for engine, n in audit.confirmed_by.items())
    return f"; loaded: {', '.join(counts)}" + (f"; confirmed: {confirmed}" if confirmed else "")


def _cells(row: Row) -> Iterator[tuple[str, str]]:
    for cell in row.cells:
        yield (" ", "") if cell is None else (cell.letter, STYLES[cell])


def _line(check: CheckOutcome) -> Text:
    _, mark, style = _OUTCOMES[check.outcome]
    return Text.assemble((f"{mark} ", style), (line(check.check), "bold"), line(f": {check.headline}"))


def _table(audit: Audit) -> Table:
    worst = audit.worst
    left = len(worst) - _WORST
    table = Table(caption=f"and {left:,} more windows" if left > 0 else None, caption_justify="left")
    table.add_column("window", no_wrap=True)
    table.add_column("found")
    table.add_column("where")
    table.add_column("offsets", justify="right")
    for window in worst[:_WORST]:
        table.add_row(*(Text(line(t)) for t in (window.window, window.found, window.where)), f"{window.offsets:,}")
    return table
