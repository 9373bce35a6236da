"""The nearest pattern for a line that matches none: the one with the most fitting parts, counted from both ends.

An expression is cut into parts where possible: a literal, a class or a group, each with its repetition; an expression that
is an alternative as a whole is one part. A line fits the first k parts if the expression of these parts matches at its
start, and the last k if theirs matches at its end. Parts that fit an empty line, such as `.*`, do not count. The nearest
pattern has the largest share of fitting parts; of equal ones, the one declared first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MOST_PARTS: Final = 40
"""Maximum parts of an expression; those of a longer one are merged."""
_MOST_CHARACTERS: Final = 1000
"""Characters of a line that count."""
_ONE_TEXT: Final = pa.array([""])
"""One line to match, because an expression is compiled only if there is one."""
_PART: Final = re.compile(
    r"""(?: \\Q.*?(?:\\E|$) | \\[pP]\{\^?\w+\} | \\[pP]. | \\x\{[0-9A-Fa-f]+\} | \\x[0-9A-Fa-f]{2} | \\.
          | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\] | (?P<group>\() | . )""",
    re.VERBOSE | re.DOTALL,
)
_REPETITION: Final = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??")


@dataclass(frozen=True, slots=True)
class Nearness:
    """Patterns by name, each with its parts."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, patterns: Sequence[tuple[str, str]]) -> Nearness:
        """Make it from names and valid RE2 expressions."""
        return cls(tuple((name, parts_of(regex)) for name, regex in patterns))

    def details(self, lines: pa.StringArray) -> list[str]:
        """Return the detail for each line, none of which is null or matches a pattern."""
        starts = pc.utf8_slice_codeunits(lines, 0, _MOST_CHARACTERS)
        ends = pc.utf8_slice_codeunits(lines, -_MOST_CHARACTERS)
        first = [_fitting(starts, parts) for _, parts in self.patterns]
        last = [_fitting(ends, parts, from_end=True) for _, parts in self.patterns]
        shares = [_share(parts, *each) for (_, parts), *each in zip(self.patterns, first, last, strict=True)]
        best = np.where(np.max(shares, axis=0) > 0, np.argmax(shares, axis=0), -1)
        return [
            self._detail(int(pattern), int(first[pattern][row]), int(last[pattern][row]))
            for row, pattern in enumerate(best)
        ]

    def _detail(self, pattern: int, first: int, last: int) -> str:
        name, parts = self.patterns[pattern]
        if pattern < 0:
            name, parts = self.patterns[0]
            return f"nothing of any pattern fits the line; the first one, {name!r}, begins with {parts[0]}"
        if first == len(parts):
            return f"nearest is {name!r}: the line fits it, and goes on behind it"
        behind = f", and its last {last}" if last else ""
        return f"nearest is {name!r}: the line fits its first {first} of {len(parts)} parts{behind}; expected was {parts[first]}"


@lru_cache(maxsize=256)
def parts_of(regex: str) -> tuple[str, ...]:
    """Split a valid RE2 expression into parts, whose concatenation is `regex`."""
    cuts = [0]
    at = 0
    while at < len(regex):
        if regex[at] == "|":
            return (regex,)
        at = _behind_repetition(regex, _behind_atom(regex, at))
        cuts.append(at)
    while len(cuts) - 1 > _MOST_PARTS:
        cuts = [*cuts[:-1:2], cuts[-1]]
    # RE2 decides where an expression may be cut.
    cuts = [cut for cut in cuts[:-1] if cut == 0 or (_is_valid(regex[:cut]) and _is_valid(regex[cut:]))] + [len(regex)]
    return tuple(regex[start:end] for start, end in pairwise(cuts)) or (regex,)


def _behind_atom(regex: str, at: int) -> int:
    """Return the position after the literal, class or group that begins at `at`."""
    depth = 0
    while at < len(regex):
        found = _PART.match(regex, at)
        assert found is not None  # its last alternative matches any character
        at = found.end()
        depth += 1 if found["group"] else -1 if found.group() == ")" else 0
        if depth <= 0:
            break
    return at


def _behind_repetition(regex: str, at: int) -> int:
    found = _REPETITION.match(regex, at)
    return found.end() if found else at


def _is_valid(regex: str) -> bool:
    try:
        pc.match_substring_regex(_ONE_TEXT, regex)
    except pa.ArrowInvalid:
        return False
    return True


def _share(parts: Sequence[str], first: np.ndarray[Any, Any], last: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return, for each line, the share of counted parts among its `first` and `last` fitting ones; 0 if none counts."""
    solid = np.array(_solid(tuple(parts)))
    total = solid[-1]
    found = solid[first] + total - solid[len(parts) - last]
    share: np.ndarray[Any, Any] = np.minimum(found, total) / max(total, 1)
    return share


@lru_cache(maxsize=256)
def _solid(parts: tuple[str, ...]) -> tuple[int, ...]:
    """Return, for each number of parts from 0 on, how many of the first ones count."""
    empty = pa.array([""])
    counts = [0]
    for part in parts:
        fits_empty = pc.match_substring_regex(empty, rf"\A(?:{part})\z")[0].as_py()
        counts.append(counts[-1] + (not fits_empty))
    return tuple(counts)


def _fitting(lines: pa.StringArray, parts: Sequence[str], *, from_end: bool = False) -> np.ndarray[Any, Any]:
    """Return the number of parts that each line fits, from the first one on, or from the last one back."""
    numbers = np.zeros(len(lines), np.int64)
    rows = np.arange(len(lines))
    for number in range(1, len(parts) + 1):
        regex = rf"(?:{''.join(parts[-number:])})\z" if from_end else rf"\A(?:{''.join(parts[:number])})"
        fits = pc.match_substring_regex(lines.take(pa.array(rows)), regex)
        rows = rows[fits.to_numpy(zero_copy_only=False)]  # a line that fits more parts fits fewer too
        if not rows.size:
            break
        numbers[rows] = number
    return numbers
