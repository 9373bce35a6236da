"""Format `patterns`: log lines that match named regular expressions. The rules are in docs/log-patterns.md.

The expressions have RE2's syntax. RE2 matches any line in linear time. Options: `patterns`, `timestamps`, `max_bytes`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.decoding.conversion import Conversion, conversion
from platform_assets.decoding.decoder import DeadLetter, Decoded, DecodeFault, dead_letters, text_of
from platform_assets.decoding.fallback import with_fallback
from platform_assets.decoding.options import Options
from platform_assets.decoding.pieces import Ints, Marks, Pieces, pieces_of
from platform_assets.decoding.schema import schema_of_ddl
from platform_assets.decoding.times import TIMESTAMPS, TimeFormat, time_format
from platform_assets.errors import ConfigurationError
from platform_assets.model.decoding import FormatSpec

# The nearest pattern for a line that matches no pattern has the most fitting parts, counted from both ends.
#
# An expression is cut into parts where possible: a literal, a class or a group, each with its repetition; an
# expression that is an alternative as a whole is one part. A line fits the first k parts if the expression of these
# parts matches at the start of the line, and the last k parts if their expression matches at the end. Parts that fit an
# empty line, such as `.*`, do not count. The nearest pattern has the largest share of fitting parts. If several
# patterns have the same share, it is the pattern that was declared first.

_MOST_PARTS: Final = 40
"""Maximum number of parts of an expression. If there are more parts, adjacent parts are merged."""
_MOST_CHARACTERS: Final = 1000
"""Maximum number of characters that are compared at the start of a line, and at the end of the line."""
_ONE_TEXT: Final = pa.array([""])
"""A column with one line. It is needed because Arrow compiles an expression only if there is something to match."""
_PART: Final = re.compile(
    r"""(?: \\Q.*?(?:\\E|$) | \\[pP]\{\^?\w+\} | \\[pP]. | \\x\{[0-9A-Fa-f]+\} | \\x[0-9A-Fa-f]{2} | \\.
          | \[\^?\]?(?:\[:\^?\w+:\]|\\.|[^\]\\])*\] | (?P<group>\() | . )""",
    re.VERBOSE | re.DOTALL,
)
_REPETITION: Final = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??")


@dataclass(frozen=True, slots=True)
class Nearness:
    """The search for the pattern that is nearest to a line. `patterns` contains the name and the parts of each pattern."""

    patterns: tuple[tuple[str, tuple[str, ...]], ...]

    @classmethod
    def of(cls, patterns: Sequence[tuple[str, str]]) -> Nearness:
        """Create the search from pairs of a name and a valid RE2 expression."""
        return cls(tuple((name, parts_of(regex)) for name, regex in patterns))

    def details(self, lines: pa.StringArray) -> list[str]:
        """Return the detail for each line. No line may be null or match a pattern."""
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
            return (
                f"no pattern matches the line, not even its start; the first pattern, {name!r}, begins with {parts[0]}"
            )
        if first == len(parts):
            return f"the nearest pattern is {name!r}: it matches the start of the line, but more text follows"  # plain: allow
        behind = f", and its last {last}" if last else ""
        matches = f"the line matches the first {first} of its {len(parts)} parts{behind}"
        return f"the nearest pattern is {name!r}: {matches}; the next part, which does not match, is {parts[first]}"


@lru_cache(maxsize=256)
def parts_of(regex: str) -> tuple[str, ...]:
    """Split a valid RE2 expression into parts. The concatenation of the parts is `regex`."""
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
    """Return, for each line, the fraction of the parts that the line fits. `first` is the number of leading parts that
    the line fits, and `last` the number of trailing parts. Parts that match an empty string do not count."""
    solid = np.array(_solid(tuple(parts)))
    total = solid[-1]
    found = solid[first] + total - solid[len(parts) - last]
    share: np.ndarray[Any, Any] = np.minimum(found, total) / max(total, 1)
    return share


@lru_cache(maxsize=256)
def _solid(parts: tuple[str, ...]) -> tuple[int, ...]:
    """For each n, starting with 0, return how many of the first n parts count."""
    empty = pa.array([""])
    counts = [0]
    for part in parts:
        fits_empty = pc.match_substring_regex(empty, rf"\A(?:{part})\z")[0].as_py()
        counts.append(counts[-1] + (not fits_empty))
    return tuple(counts)


def _fitting(lines: pa.StringArray, parts: Sequence[str], *, from_end: bool = False) -> np.ndarray[Any, Any]:
    """Return the number of parts that each line fits, counted forwards from the first part, or backwards from the last
    part."""
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


COLUMN: Final = "pattern"
"""The column with the name of the pattern that a line matches."""
_MOST_PATTERNS: Final = 100


def decoder(spec: FormatSpec) -> PatternsDecoder:
    """Return the decoder. Raises ConfigurationError."""
    options = Options(spec, ("patterns", "timestamps", "max_bytes"))
    timestamps = TIMESTAMPS[options.one_of("timestamps", TIMESTAMPS, "iso8601")]
    declared = options.items("patterns")
    if len(declared) > _MOST_PATTERNS:
        raise options.wrong("patterns", f"a list of at most {_MOST_PATTERNS}")
    patterns = tuple(_pattern(item, place, timestamps) for place, item in enumerate(declared))
    names = [each.name for each in patterns]
    columns: dict[str, tuple[str, str]] = {}
    for pattern in patterns:
        if names.count(pattern.name) > 1:
            raise ConfigurationError(f"patterns: {pattern.name!r} occurs twice; each pattern needs its own name")
        for group, convert in zip(pattern.groups, pattern.conversions, strict=True):
            first, kind = columns.setdefault(group, (pattern.name, convert.name))
            if kind != convert.name:
                raise ConfigurationError(
                    f"patterns: group {group!r} is {kind} in {first!r} but {convert.name} in {pattern.name!r}; both become "
                    "one column, so declare the same type for both, or use two names"
                )
    if COLUMN in columns:
        raise ConfigurationError(
            f"patterns: {COLUMN!r} is reserved for the column that contains the name of the pattern; give the group another name"
        )
    schema = schema_of_ddl(
        ", ".join([f"{COLUMN} STRING NOT NULL", *(f"`{name}` {kind}" for name, (_, kind) in columns.items())])
    )
    return PatternsDecoder(schema, patterns, options.max_bytes())


def _pattern(item: Any, place: int, timestamps: TimeFormat) -> Pattern:
    where = f"patterns[{place}]"
    if not isinstance(item, Mapping) or not {"name", "regex"} <= item.keys() <= {"name", "regex", "types"}:
        raise ConfigurationError(f"{where} must be a mapping with name, regex and optionally types; got {item!r}")
    name, regex, types = item["name"], item["regex"], item.get("types", {})
    if not isinstance(name, str) or not name or not isinstance(regex, str) or not isinstance(types, Mapping):
        raise ConfigurationError(
            f"{where}: name and regex must be strings, and types must be a mapping of groups to column types"
        )
    try:
        # Compiled separately first, because an invalid expression can become valid inside another expression.
        groups = tuple(field.name for field in pc.extract_regex(pa.array([], pa.string()), regex).type)
    except pa.ArrowInvalid as error:
        raise ConfigurationError(
            f"{where} ({name}): {error}. Use an RE2 regular expression (without look-around or backreferences), with "
            "groups as (?P<name>…), or as (?:…) for no column"
        ) from error
    for group in types:
        if group not in groups:
            raise ConfigurationError(
                f"{where} ({name}): `types` lists {group!r}, but the groups are: {', '.join(groups)}"
            )
    conversions = tuple(
        _conversion(group, types.get(group, "STRING"), f"{where} ({name})", timestamps) for group in groups
    )
    return Pattern(name, regex, groups, conversions)


def _conversion(group: str, declared: Any, where: str, timestamps: TimeFormat) -> Conversion:
    kind, times = declared, None
    if isinstance(declared, Mapping) and declared.keys() == {"type", "format"} and isinstance(declared["format"], str):
        kind, times = declared["type"], time_format(declared["format"])
    if not isinstance(kind, str):
        raise ConfigurationError(
            f"{where}: {group!r} must be declared as a type, or as a mapping with type and format; got {declared!r}"
        )
    try:
        schema = schema_of_ddl(f"`{group}` {kind}")
    except ConfigurationError as error:
        raise ConfigurationError(f"{where}: group {group!r}: {error}") from error
    if len(schema) != 1 or not schema.field(0).nullable:
        raise ConfigurationError(f"{where}: the type of {group!r} is {kind!r}; it must be one type, without NOT NULL")
    if times is None and pa.types.is_timestamp(schema.field(0).type):
        times = timestamps
    return conversion(schema.field(0), times)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line. The groups of `regex` become columns; `conversions` has one conversion for each group."""

    name: str
    regex: str
    groups: tuple[str, ...]
    conversions: tuple[Conversion, ...]

    @property
    def whole(self) -> str:
        """Expression that matches a whole line."""
        return rf"\A(?:{self.regex})\z"


@dataclass(frozen=True, slots=True)
class Match:
    """Lines that one pattern matched: the rows of the lines in the block, and the groups of each line as a struct of
    strings."""

    pattern: Pattern
    rows: np.ndarray[Any, Any]
    groups: pa.StructArray

    def cells(self, place: int) -> Pieces:
        """Return the strings of one group. A string is null if it is empty or if the group did not take part in the
        match."""
        pieces = pieces_of(self.groups.field(place))
        return pieces.without(pieces.sizes == 0)


@dataclass(frozen=True, slots=True)
class PatternsDecoder:
    """Decoder of log lines: the first pattern that matches the whole line determines the columns of the line."""

    fields: pa.Schema
    patterns: tuple[Pattern, ...]
    max_bytes: int

    def decode(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode`."""
        pieces = pieces_of(values)
        undecided = pieces.invalid_utf8() | (pieces.sizes > np.int32(self.max_bytes))
        lines = _without_line_ends(pieces.without(undecided))
        matches, left = self._matches(lines.strings(), np.flatnonzero(~lines.nulls))
        undecided[left] = True
        parts: dict[str, list[tuple[Ints, pa.Array]]] = {field.name: [] for field in self.fields}
        for match in matches:
            names = pa.repeat(pa.scalar(match.pattern.name), match.rows.size)
            parts[COLUMN].append((match.rows, names))
            for place, (group, convert) in enumerate(zip(match.pattern.groups, match.pattern.conversions, strict=True)):
                column, unsure = convert.column(match.cells(place))
                undecided[match.rows[unsure]] = True
                parts[group].append((match.rows, column))
        columns = [_assembled(parts[field.name], field.type, len(values)) for field in self.fields]
        return with_fallback(self, values, columns, undecided)

    def decode_exactly(self, values: pa.BinaryArray) -> Decoded:
        """See `Decoder.decode_exactly`. RE2 matches lines here too, because only RE2 defines the meaning of the
        expressions."""
        dead: dict[int, DeadLetter] = {}
        texts: list[str | None] = []
        for row, value in enumerate(values.to_pylist()):
            text = None
            if value is not None:
                try:
                    text = _line(text_of(value, self.max_bytes))
                except DecodeFault as fault:
                    dead[row] = DeadLetter(row, fault.reason, fault.place, fault.detail)
            texts.append(text)
        lines = pa.array(texts, pa.string())
        matches, left = self._matches(lines, np.flatnonzero(lines.is_valid().to_numpy(zero_copy_only=False)))
        rows: list[dict[str, Any]] = [{} for _ in texts]
        for match in matches:
            for row, groups in zip(match.rows.tolist(), match.groups.to_pylist(), strict=True):
                try:
                    rows[row] = _row(match.pattern, groups)
                except DecodeFault as fault:
                    dead[row] = DeadLetter(row, fault.reason, fault.place, fault.detail)
        details = self._nearness().details(lines.take(pa.array(left)))
        dead.update(
            (row, DeadLetter(row, "unmatched", None, detail))
            for row, detail in zip(left.tolist(), details, strict=True)
        )
        columns = [pa.array([row.get(field.name) for row in rows], field.type) for field in self.fields]
        batch = pa.RecordBatch.from_arrays(columns, schema=self.fields)
        return Decoded(batch, pa.nulls(len(values), pa.string()), dead_letters([dead[row] for row in sorted(dead)]))

    def _matches(self, lines: pa.StringArray, rows: np.ndarray[Any, Any]) -> tuple[list[Match], np.ndarray[Any, Any]]:
        """Assign each row in `rows` to the first pattern that matches its line. Return the matches of each pattern, and
        the rows that no pattern matches."""
        matches = []
        for pattern in self.patterns:
            if not rows.size:
                break
            found = pc.extract_regex(lines.take(pa.array(rows)), pattern.whole)
            fits = found.is_valid()
            marks: Marks = fits.to_numpy(zero_copy_only=False)
            matches.append(Match(pattern, rows[marks], found.filter(fits)))
            rows = rows[~marks]
        return matches, rows

    def _nearness(self) -> Nearness:
        return Nearness.of([(pattern.name, pattern.regex) for pattern in self.patterns])


def _row(pattern: Pattern, groups: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = {COLUMN: pattern.name}
    for group, convert in zip(pattern.groups, pattern.conversions, strict=True):
        try:
            row[group] = convert.value(groups[group]) if groups[group] else None
        except DecodeFault as fault:
            raise DecodeFault(fault.reason, f"pattern {pattern.name!r}: {fault.detail}", group) from None
    return row


def _line(text: str) -> str:
    """Remove a line ending in the same way as `_without_line_ends`."""
    return text[: -2 if text.endswith("\r\n") else -1] if text.endswith("\n") else text


def _without_line_ends(pieces: Pieces) -> Pieces:
    if not pieces.data.size:
        return pieces
    sizes = pieces.sizes.copy()
    for byte in b"\n\r":
        last = pieces.data[np.maximum(pieces.starts + sizes - 1, 0)]
        # A lone carriage return does not end a line.
        ended = (sizes > 0) & (last == byte) & ((sizes < pieces.sizes) if byte == 13 else True)
        sizes -= ended.astype(np.int32)
    return Pieces(pieces.data, pieces.starts, sizes)


def _assembled(parts: Sequence[tuple[Ints, pa.Array]], kind: pa.DataType, number: int) -> pa.Array:
    """Assemble a column with `number` rows from parts that come with their row numbers. All other rows are null."""
    places = np.full(number, -1, np.int64)
    at = 0
    for rows, _ in parts:
        places[rows] = at + np.arange(rows.size)
        at += rows.size
    together = pa.concat_arrays([values for _, values in parts]) if parts else pa.nulls(0, kind)
    return together.take(pa.array(places, mask=places < 0))
