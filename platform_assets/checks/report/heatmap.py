"""A heatmap of a topic, as an SVG image of one or two kilobytes that Markdown embeds as a data URI.

An image cannot detect the theme of its page. So the heatmap has no background and uses mid-tones that are readable on
light and dark pages. No state is shown by color alone: each state has its own letter or shape.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby
from typing import Final

from platform_assets.checks.facts import Facts, Recorded
from platform_assets.checks.findings import Finding, FindingKind
from platform_assets.ledger.entries import ACCEPTED_LOSS, ERASED, EXPIRED
from platform_assets.model.untrusted import html

# The heatmap: a topic at a glance, partitions down and windows across, the newest on the right.
#
# Pure. A heatmap is a value; `picture` draws it as SVG for browsers and `Heatmap.lines` writes it in letters for
# terminals.

COLUMNS: Final = 80
"""Maximum number of columns in a heatmap. If there are more windows, several share a column."""
ROWS: Final = 8
"""Maximum number of rows in a heatmap. If there are more partitions, the least interesting partitions share the last
row."""


class State(IntEnum):
    """State of a window in one partition, ordered by severity. A cell that stands for several windows or partitions
    shows the most severe state."""

    EMPTY = 0
    COMPLETE = 1
    MARKERS = 2
    ABORTED = 3
    COMPACTED = 4
    ERASED = 5
    EXPIRED = 6
    ACCEPTED = 7
    OPEN = 8
    WAITING = 9
    UNASKED = 10
    UNRECORDED = 11
    UNDECIDED = 12
    FAILING = 13

    @property
    def label(self) -> str:
        """Description of the state in the legend."""
        return _LABELS[self]

    @property
    def letter(self) -> str:
        """One character that represents the state without color."""
        return _LETTERS[self]


_LABELS: Final[Mapping[State, str]] = {
    State.EMPTY: "no offsets",
    State.COMPLETE: "complete",
    State.MARKERS: "with markers",
    State.ABORTED: "with aborted records",
    State.COMPACTED: "with records compacted away",
    State.ERASED: "with erased records",
    State.EXPIRED: "expired",
    State.ACCEPTED: "with an accepted loss",
    State.OPEN: "with holes not yet explained",
    State.WAITING: "not loaded yet",
    State.UNASKED: "not asked for",
    State.UNRECORDED: "loaded, no receipt",
    State.UNDECIDED: "could not tell",
    State.FAILING: "FAILING",
}
_LETTERS: Final[Mapping[State, str]] = {
    State.EMPTY: "-",
    State.COMPLETE: "█",
    State.MARKERS: "m",
    State.ABORTED: "a",
    State.COMPACTED: "c",
    State.ERASED: "e",
    State.EXPIRED: "k",
    State.ACCEPTED: "l",
    State.OPEN: "o",
    State.WAITING: "·",
    State.UNASKED: "n",
    State.UNRECORDED: "r",
    State.UNDECIDED: "?",
    State.FAILING: "X",
}
_OF_FINDING: Final[Mapping[FindingKind, State]] = {
    "window not asked for": State.UNASKED,
    "window parked": State.UNASKED,
    "could not tell": State.UNDECIDED,
}
"""Maps kinds of findings to states. All other kinds, including kinds added later, count as failing."""
_OF_HOLES: Final[Mapping[str, State]] = {
    "commit markers": State.MARKERS,
    "abort markers": State.MARKERS,
    "aborted records": State.ABORTED,
    "compacted away": State.COMPACTED,
    ERASED: State.ERASED,
    EXPIRED: State.EXPIRED,
    ACCEPTED_LOSS: State.ACCEPTED,
    "below log start": State.UNDECIDED,
}
"""Maps kinds of holes to states. All other kinds count as unexplained."""
_StatesByPlace = Mapping[str, Mapping[int | None, State]]
"""Maps each window, and each partition in it, to a state. The partition None stands for all partitions."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the heatmap, for one partition or several. There is one cell per column; a cell is None if the
    partitions did not exist in that window."""

    label: str
    cells: tuple[State | None, ...]


@dataclass(frozen=True, slots=True)
class Heatmap:
    """The content of a table's heatmap, before it is drawn.

    Each column stands for `windows_per_column` windows, except that the first column stands for the remainder. `first`
    and `last` are window keys, both inclusive. `counts` maps each state to its number of windows; a window counts with
    the most severe state among its partitions. `older` is the number of windows that are not shown and have no
    findings.
    """

    table: str
    rows: tuple[Row, ...]
    partitions: int
    windows: int
    windows_per_column: int
    first: str
    last: str
    counts: Mapping[State, int]
    older: int = 0

    @property
    def sentence(self) -> str:
        """The heatmap described in a sentence."""
        if not self.windows:
            return f"{self.table}: no window has been sealed yet"
        span = self.first if self.windows == 1 else f"{self.first} to {self.last}"
        counts = ", ".join(f"{n:,} {state.label}" for state, n in self.counts.items())
        before = f"; {self.older:,} older windows have no findings" if self.older else ""
        return f"{self.table}, {self.partitions:,} partitions, {self.windows:,} windows, {span}: {counts}{before}"

    def lines(self) -> list[str]:
        """The heatmap drawn with letters, one line per row."""
        width = max((len(row.label) for row in self.rows), default=0)
        return [
            f"{row.label:>{width}} " + "".join(" " if c is None else c.letter for c in row.cells) for row in self.rows
        ]


def heatmap_of(facts: Facts, findings: Iterable[Finding] = (), columns: int = COLUMNS, rows: int = ROWS) -> Heatmap:
    """Return the heatmap of `facts` and `findings`, with at most `columns` columns and `rows` rows."""
    found = _by_place(findings)
    keys = sorted({*facts.windows, *facts.recorded, *facts.unknown, *found} - {""})
    per_column = max(1, -(-len(keys) // columns))
    # The remainder is in the first column, so that the newest column is complete.
    whole = -(-len(keys) // per_column)
    leftover = whole * per_column - len(keys)
    grid: dict[int, list[State | None]] = {}
    counts: dict[State, int] = {}
    for number, key in enumerate(keys):
        column = (number + leftover) // per_column
        states = _states(facts, found, key)
        for partition, state in states.items():
            cells = grid.setdefault(partition, [None] * whole)
            cells[column] = _gravest(cells[column], state)
        worst = max(states.values(), default=State.EMPTY)
        counts[worst] = counts.get(worst, 0) + 1
    return Heatmap(
        facts.table.name,
        _rows(grid, rows),
        len(grid),
        len(keys),
        per_column,
        keys[0] if keys else "",
        keys[-1] if keys else "",
        dict(sorted(counts.items(), reverse=True)),
        facts.older.windows,
    )


def state_of(kind: FindingKind) -> State:
    """Return the state of a window that has a finding of this kind."""
    return _OF_FINDING.get(kind, State.FAILING)


def _by_place(findings: Iterable[Finding]) -> _StatesByPlace:
    found: dict[str, dict[int | None, State]] = {}
    for finding in findings:
        places = found.setdefault(finding.window, {})
        places[finding.partition] = max(places.get(finding.partition, State.EMPTY), state_of(finding.kind))
    return found


def _states(facts: Facts, found: _StatesByPlace, key: str) -> dict[int, State]:
    recorded = facts.recorded.get(key)
    ranges = facts.windows.get(key) or (recorded.ranges if recorded is not None else None)
    states: dict[int, State] = {}
    for partition, r in ranges.items() if ranges is not None else ():
        if not r.size:
            states[partition] = State.EMPTY
        elif recorded is None:
            states[partition] = _not_recorded(facts, key)
        else:
            states[partition] = _held(recorded, partition, r.size)
    everywhere = found.get(key, {}).get(None)
    if everywhere is not None:
        concerned = [p for p, state in states.items() if state is not State.EMPTY] or list(states) or [0]
        states |= dict.fromkeys(concerned, everywhere)
    for place, state in found.get(key, {}).items():
        if place is not None:
            states[place] = max(states.get(place, State.EMPTY), state)
    return states


def _not_recorded(facts: Facts, key: str) -> State:
    if key in facts.files and key not in facts.waiting:
        return State.UNRECORDED
    return State.UNASKED if key in facts.unasked or key in facts.parked else State.WAITING


def _held(recorded: Recorded, partition: int, offsets: int) -> State:
    if recorded.rows.get(partition, 0) == offsets:
        return State.COMPLETE
    if recorded.holes is None:
        return State.OPEN
    # Holes are recorded for the window as a whole, so a partition with holes shows the gravest kind of the window's.
    return max((_OF_HOLES.get(kind, State.FAILING) for kind, n in recorded.holes.items() if n), default=State.FAILING)


def _rows(grid: Mapping[int, Sequence[State | None]], most: int) -> tuple[Row, ...]:
    if len(grid) <= most:
        return tuple(Row(f"p{p}", tuple(grid[p])) for p in sorted(grid))
    by_gravity = sorted(grid, key=lambda p: (-max(c for c in grid[p] if c is not None), p))
    shown, others = sorted(by_gravity[: most - 1]), by_gravity[most - 1 :]
    together = tuple(
        max((c for p in others if (c := grid[p][column]) is not None), default=None)
        for column in range(len(grid[shown[0]]))
    )
    return (*(Row(f"p{p}", tuple(grid[p])) for p in shown), Row(f"{len(others):,} more", together))


def _gravest(one: State | None, other: State) -> State:
    return other if one is None else max(one, other)


_WIDTH: Final = 680
_GUTTER: Final = 48
_TOP: Final = 9
_LINE: Final = 16
TEXT: Final = "#727983"
"""Text color that has a contrast of at least 4.4 to 1 on both white and black pages."""
COLOURS: Final[Mapping[State, str]] = {
    State.EMPTY: "#2da44e",
    State.COMPLETE: "#2da44e",
    State.MARKERS: "#16998f",
    State.ABORTED: "#3b82f6",
    State.COMPACTED: "#8b5cf6",
    State.ERASED: "#5f6b7a",
    State.EXPIRED: "#6b7fa3",
    State.ACCEPTED: "#b0568c",
    State.OPEN: "#7f8b3a",
    State.WAITING: "#8b929c",
    State.UNASKED: "#bd7700",
    State.UNRECORDED: "#a65f2b",
    State.UNDECIDED: "#bd7700",
    State.FAILING: "#e5342f",
}
_HEIGHTS: Final[Mapping[State, float]] = {State.EMPTY: 0.15, State.WAITING: 0.35, State.UNASKED: 0.35}
"""Fraction of a row's height that a cell in this state fills. Other states fill the whole height."""
_LETTERED: Final = frozenset(State) - {State.EMPTY, State.COMPLETE, State.WAITING, State.UNASKED}
_LETTER_WIDTH: Final = 5.8


def data_uri(heatmap: Heatmap) -> str:
    """Return the heatmap's picture as a data URI for an image."""
    return "data:image/svg+xml;base64," + b64encode(picture(heatmap).encode()).decode()


def picture(heatmap: Heatmap) -> str:
    """Return the SVG picture of `heatmap`: its rows, a red mark above every column with a failure, the ends of the
    axis, and a legend."""
    columns = max((len(row.cells) for row in heatmap.rows), default=0)
    pitch = max(7, min(28, (_WIDTH - _GUTTER) // max(columns, 1)))
    height = 18 if len(heatmap.rows) <= 4 else 12
    bottom = _TOP + height * len(heatmap.rows)
    legend = list(_legend(heatmap, bottom + 31))
    total = bottom + 22 + _LINE * len({y for y, _ in legend})
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{total}' viewBox='0 0 {_WIDTH} {total}'>"
        f"<g font-family='sans-serif' font-size='11' fill='{TEXT}'>",
        *_cells(heatmap.rows, pitch, height),
        *_marks(heatmap.rows, pitch),
        *_axis(heatmap, columns * pitch, bottom + 13),
        *(part for _, part in legend),
        "</g></svg>",
    ]
    return "".join(parts)


def _cells(rows: tuple[Row, ...], pitch: int, height: int) -> Iterator[str]:
    lines: dict[State, str] = {}
    written: list[str] = []
    for number, row in enumerate(rows):
        middle = _TOP + height * number + height / 2
        yield f"<text x='{_GUTTER - 6}' y='{middle + 4:g}' text-anchor='end'>{html(row.label)}</text>"
        letters, places = "", []
        for state, start, length in _runs(row):
            x = _GUTTER + start * pitch
            # A dash is a cell, so a run of any length is one stroke.
            lines[state] = lines.get(state, "") + f"M{x} {middle:g}h{length * pitch - 1}"
            if state in _LETTERED:
                letters += _letter(state)
                places.append(f"{x + (length * pitch - 1) / 2:g}")
        if letters:
            written.append(f"<text x='{' '.join(places)}' y='{middle + 3.5:g}'>{letters}</text>")
    # The most severe last, and without gaps between its rows.
    for state, path in sorted(lines.items()):
        thick = height if state is State.FAILING else (height - 2) * _HEIGHTS.get(state, 1)
        yield f"<path stroke='{COLOURS[state]}' stroke-width='{thick:g}' stroke-dasharray='{pitch - 1} 1' d='{path}'/>"
    if written:
        yield "<g fill='#fff' font-size='10' font-weight='700' text-anchor='middle'>" + "".join(written) + "</g>"


def _marks(rows: tuple[Row, ...], pitch: int) -> Iterator[str]:
    """Draw a triangle above each sequence of adjacent columns with a failure, because a small cell is easy to overlook."""
    failing = [any(cell is State.FAILING for cell in column) for column in zip(*(r.cells for r in rows), strict=True)]
    path, at = "", 0
    for fails, members in groupby(failing):
        length = len(list(members))
        if fails:
            path += f"M{_GUTTER + at * pitch + (length * pitch - 1) / 2 - 5:g} 0h10l-5 7z"
        at += length
    if path:
        yield f"<path fill='{COLOURS[State.FAILING]}' d='{path}'/>"


def _axis(heatmap: Heatmap, width: int, y: int) -> Iterator[str]:
    if not heatmap.windows:
        yield f"<text x='0' y='{y}'>{html(heatmap.sentence)}</text>"
        return
    each = f", {heatmap.windows_per_column:,} windows per column" if heatmap.windows_per_column > 1 else ""
    first, last = html(heatmap.first), html(heatmap.last)
    if heatmap.windows == 1:
        yield f"<text x='{_GUTTER}' y='{y}'>window {first}</text>"
        return
    shown = (
        f"newest {heatmap.windows:,} of {heatmap.windows + heatmap.older:,}"
        if heatmap.older
        else f"{heatmap.windows:,}"
    )
    begin, end = f"{shown} windows{each}, from {first}", f"to {last}"
    if width < _LETTER_WIDTH * (len(begin) + len(end) + 4):
        yield f"<text x='{_GUTTER}' y='{y}'>{begin} {end}</text>"
    else:
        yield f"<text x='{_GUTTER}' y='{y}'>{begin}</text>"
        yield f"<text x='{_GUTTER + width}' y='{y}' text-anchor='end'>{end}</text>"


def _legend(heatmap: Heatmap, y: int) -> Iterator[tuple[int, str]]:
    """Yield the y coordinate and the drawing of each entry in the legend. There is one entry for each state that
    occurs, the most severe first, with the number of windows in that state."""
    x = _GUTTER
    for state, count in heatmap.counts.items():
        text = f"{count:,} {state.label}"
        width = round(22 + len(text) * _LETTER_WIDTH)
        if x + width > _WIDTH and x > _GUTTER:
            x, y = _GUTTER, y + _LINE
        thick = 12 * _HEIGHTS.get(state, 1)
        colour = COLOURS[state]
        drawing = f"<path stroke='{colour}' stroke-width='{thick:g}' d='M{x} {y - 4}h12'/>"
        if state in _LETTERED:
            drawing += (
                f"<text x='{x + 6}' y='{y - 0.5:g}' fill='#fff' font-size='10' font-weight='700' text-anchor='middle'>"
                f"{_letter(state)}</text>"
            )
        loud = f" fill='{colour}' font-weight='700'" if state is State.FAILING else ""
        yield y, drawing + f"<text x='{x + 17}' y='{y}'{loud}>{text}</text>"
        x += width + 10


def _letter(state: State) -> str:
    return "✕" if state is State.FAILING else state.letter


def _runs(row: Row) -> Iterator[tuple[State, int, int]]:
    """Yield `(state, first column, number of columns)` for each sequence of equal adjacent cells."""
    at = 0
    for state, members in groupby(row.cells):
        length = len(list(members))
        if state is not None:
            yield state, at, length
        at += length
