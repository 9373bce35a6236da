"""A strip as an SVG image of one or two kilobytes, which Markdown takes as a data URI.

It has no background and brings its own mid-tones, so that it can be read on a light and on a dark page: an image
cannot learn the page's theme. No state is shown by colour alone: each has a letter or a shape of its own.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Final

from platform_assets.checks.report.strip import Row, State, Strip
from platform_assets.model.untrusted import html

_WIDTH: Final = 680
_GUTTER: Final = 48
_TOP: Final = 9
_LINE: Final = 16
TEXT: Final = "#727983"
"""As far from white as from black: 4.4 to 1 or more against either page."""
COLOURS: Final[Mapping[State, str]] = {
    State.EMPTY: "#2da44e",
    State.COMPLETE: "#2da44e",
    State.MARKERS: "#16998f",
    State.ABORTED: "#3b82f6",
    State.COMPACTED: "#8b5cf6",
    State.ERASED: "#5f6b7a",
    State.ACCEPTED: "#b0568c",
    State.OPEN: "#7f8b3a",
    State.WAITING: "#8b929c",
    State.UNASKED: "#bd7700",
    State.UNRECORDED: "#a65f2b",
    State.UNDECIDED: "#bd7700",
    State.FAILING: "#e5342f",
}
_HEIGHTS: Final[Mapping[State, float]] = {State.EMPTY: 0.15, State.WAITING: 0.35, State.UNASKED: 0.35}
"""Share of a row's height that a cell fills; all of it for the others."""
_LETTERED: Final = frozenset(State) - {State.EMPTY, State.COMPLETE, State.WAITING, State.UNASKED}
_LETTER_WIDTH: Final = 5.8


def data_uri(strip: Strip) -> str:
    """The picture, to be put where an image's address goes."""
    return "data:image/svg+xml;base64," + b64encode(picture(strip).encode()).decode()


def picture(strip: Strip) -> str:
    """The picture of `strip`: rows, a red mark above every column that fails, the ends of the axis, and a legend."""
    columns = max((len(row.cells) for row in strip.rows), default=0)
    pitch = max(7, min(28, (_WIDTH - _GUTTER) // max(columns, 1)))
    height = 18 if len(strip.rows) <= 4 else 12
    bottom = _TOP + height * len(strip.rows)
    legend = list(_legend(strip, bottom + 31))
    total = bottom + 22 + _LINE * len({y for y, _ in legend})
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{total}' viewBox='0 0 {_WIDTH} {total}'>"
        f"<g font-family='sans-serif' font-size='11' fill='{TEXT}'>",
        *_cells(strip.rows, pitch, height),
        *_marks(strip.rows, pitch),
        *_axis(strip, columns * pitch, bottom + 13),
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
    # The gravest last, and with nothing between its rows.
    for state, path in sorted(lines.items()):
        thick = height if state is State.FAILING else (height - 2) * _HEIGHTS.get(state, 1)
        yield f"<path stroke='{COLOURS[state]}' stroke-width='{thick:g}' stroke-dasharray='{pitch - 1} 1' d='{path}'/>"
    if written:
        yield "<g fill='#fff' font-size='10' font-weight='700' text-anchor='middle'>" + "".join(written) + "</g>"


def _marks(rows: tuple[Row, ...], pitch: int) -> Iterator[str]:
    """A triangle above each run of columns in which something fails: a cell may be small, and is not to be missed."""
    failing = [any(cell is State.FAILING for cell in column) for column in zip(*(r.cells for r in rows), strict=True)]
    path, at = "", 0
    for fails, members in groupby(failing):
        length = len(list(members))
        if fails:
            path += f"M{_GUTTER + at * pitch + (length * pitch - 1) / 2 - 5:g} 0h10l-5 7z"
        at += length
    if path:
        yield f"<path fill='{COLOURS[State.FAILING]}' d='{path}'/>"


def _axis(strip: Strip, width: int, y: int) -> Iterator[str]:
    if not strip.windows:
        yield f"<text x='0' y='{y}'>{html(strip.sentence)}</text>"
        return
    each = f", {strip.windows_per_column:,} windows a column" if strip.windows_per_column > 1 else ""
    first, last = html(strip.first), html(strip.last)
    if strip.windows == 1:
        yield f"<text x='{_GUTTER}' y='{y}'>window {first}</text>"
        return
    shown = f"newest {strip.windows:,} of {strip.windows + strip.older:,}" if strip.older else f"{strip.windows:,}"
    begin, end = f"{shown} windows{each}, from {first}", f"to {last}"
    if width < _LETTER_WIDTH * (len(begin) + len(end) + 4):
        yield f"<text x='{_GUTTER}' y='{y}'>{begin} {end}</text>"
    else:
        yield f"<text x='{_GUTTER}' y='{y}'>{begin}</text>"
        yield f"<text x='{_GUTTER + width}' y='{y}' text-anchor='end'>{end}</text>"


def _legend(strip: Strip, y: int) -> Iterator[tuple[int, str]]:
    """Each state that occurs, the gravest first, with the number of its windows; gives the line and the drawing."""
    x = _GUTTER
    for state, count in strip.counts.items():
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
    """`(state, first column, number of columns)` of each stretch of equal cells."""
    at = 0
    for state, members in groupby(row.cells):
        length = len(list(members))
        if state is not None:
            yield state, at, length
        at += length
