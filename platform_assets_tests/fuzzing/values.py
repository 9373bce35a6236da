"""Values of records, intact and damaged, compared with readers that share no code with the decoders.

The two paths of a decoder must agree on each value. A decoded value must equal the other reader's value, and a value
that the other reader accepts must not be reported as malformed.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from platform_assets.checks.other_readers import difference
from platform_assets.decoding.decoder import Decoded
from platform_assets.decoding.formats import decoder_of
from platform_assets.model.decoding import FormatSpec
from platform_assets_tests.fuzzing import avro_values, protobuf_values
from platform_assets_tests.fuzzing.target import Case, Target, Wrong, damaged
from platform_assets_tests.support import near_powers
from platform_assets_tests.support.decoding import decoded
from platform_assets_tests.support.other_readers import JUDGES

_SCALARS: Final = (
    "STRING", "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(38,0)", "DECIMAL(9,2)", "DECIMAL(38,38)",
    "DATE", "TIMESTAMP", "BINARY",
)  # fmt: skip
_TEXTS: Final = (
    "", "a", "ü€😀", '"', "\\", "\n", "\0", "null", "true", "NaN", "Infinity", "2024-02-29", "2024-02-30", "2026-01-01T00:00:00Z",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.9999999-14:00", "1", "-0", "1e5", "0x1", "x" * 300, "\u2028", "YQ==", "YQ", "=",
)  # fmt: skip
_INNER: Final = ("a", "b", "ü", "d")
_NAMES: Final = ("a", "b", "ü", "a b", "A", "c" * 40, "x.y", "1", '"')


def judged_numbers(rng: random.Random) -> None:
    """Test one of the formats for numbers and times."""
    JUDGES[rng.choice(sorted(JUDGES))](rng)


# --- JSON ------------------------------------------------------------------------------------------------------


def _ddl(rng: random.Random, level: int = 0) -> str:
    kind = rng.random()
    if level < 3 and kind < 0.12:
        fields = ", ".join(f"`{name}`: {_ddl(rng, level + 1)}" for name in rng.sample(_INNER, rng.randint(1, 3)))
        return f"STRUCT<{fields}>"
    if level < 3 and kind < 0.22:
        return f"ARRAY<{_ddl(rng, level + 1)}>"
    if level < 3 and kind < 0.3:
        return f"MAP<STRING, {_ddl(rng, level + 1)}>"
    return rng.choice(_SCALARS)


def _columns(rng: random.Random) -> dict[str, str]:
    names = [name for name in _NAMES if name not in ("A", '"', "a b")]
    return {name: _ddl(rng) + rng.choice(("", "", " NOT NULL")) for name in rng.sample(names, rng.randint(1, 5))}


def _schema(columns: Mapping[str, str]) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def _number(rng: random.Random) -> str:
    return rng.choice(list(near_powers.texts(rng, rng.choice(near_powers.wholes(rng, 5)))))


def _json_of(rng: random.Random, kind: str) -> str:
    """Return the JSON text of a value of the given type, or sometimes of another type."""
    kind = kind.removesuffix(" NOT NULL")
    if rng.random() < 0.12:
        return rng.choice(
            (
                "null",
                "[]",
                "{}",
                "true",
                '""',
                "0",
                "-0.0",
                "[[[]]]",
                '{"a":{"a":[null]}}',
                json.dumps("x" * 200),
                "1e400",
            )
        )
    if kind.startswith("STRUCT<"):
        inner = re.findall(r"`([^`]*)`: ([A-Z]+(?:\(\d+,\d+\))?)", kind)
        parts = [f"{json.dumps(name)}:{_json_of(rng, of)}" for name, of in inner if rng.random() < 0.9]
        return "{" + ",".join(parts) + "}"
    if kind.startswith("ARRAY<"):
        return "[" + ",".join(_json_of(rng, kind[6:-1]) for _ in range(rng.choice((0, 1, 3)))) + "]"
    if kind.startswith("MAP<"):
        parts = [
            f"{json.dumps(rng.choice(_NAMES) + str(n))}:{_json_of(rng, kind[12:-1])}"
            for n in range(rng.choice((0, 1, 3)))
        ]
        return "{" + ",".join(parts) + "}"
    if kind in ("STRING", "DATE", "TIMESTAMP", "BINARY"):
        return json.dumps(rng.choice(_TEXTS), ensure_ascii=rng.random() < 0.5)
    if kind == "BOOLEAN":
        return rng.choice(("true", "false"))
    return _number(rng) if rng.random() < 0.6 else str(rng.randint(-100, 100))


def _document(rng: random.Random, columns: Mapping[str, str]) -> bytes:
    parts = [
        f"{json.dumps(name, ensure_ascii=rng.random() < 0.5)}:{_json_of(rng, kind)}"
        for name, kind in columns.items()
        if rng.random() < 0.9
    ]
    parts += [f"{json.dumps('more' + str(n))}:{_json_of(rng, _ddl(rng))}" for n in range(rng.choice((0, 0, 1, 3)))]
    rng.shuffle(parts)
    space = rng.choice(("", "", " ", "\n\t"))
    return f"{space}{{{space}{f'{space},{space}'.join(parts)}{space}}}{space}".encode()


class _Twice(ValueError):
    """An exception for an object that contains a name twice."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice
    return found


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _is_sound(value: bytes) -> bool | None:
    """Return True if Python's reader accepts the object, and None if the JSON dialect leaves the question open."""
    try:
        found = json.loads(
            value.decode(), parse_constant=_refuse, parse_int=str, parse_float=str, object_pairs_hook=_once
        )
    except _Twice:
        return None
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict):
        return False
    return None if b"\\ud" in value.lower() or value.count(b"{") + value.count(b"[") > 90 else True


def json_values(rng: random.Random) -> None:
    """Test documents with a random schema."""
    columns = _columns(rng)
    spec = FormatSpec("json", {"schema": _schema(columns)})
    whole = [_document(rng, columns) for _ in range(12)]
    values = [value if rng.random() < 0.4 else damaged(rng, value, whole, 3) for value in whole]
    _judged(spec, values, _is_sound)


def _judged(spec: FormatSpec, values: Sequence[bytes], sound: Callable[[bytes], bool | None]) -> None:
    decoder = decoder_of(spec)
    found = decoded(decoder, values)
    for value, row, letter in _each(found, values):
        is_sound = sound(value)
        if letter is None:
            if is_sound is False:
                raise Wrong(f"decoded: {value!r}, which another reader refuses, by {spec}")
            if (detail := difference(spec, decoder.fields, value, row)) is not None:
                raise Wrong(f"differs: {detail}: {value!r} by {spec}")
        elif is_sound and letter["reason"] in ("malformed", "failed"):
            raise Wrong(f"refused: {value!r} as {letter['reason']}, {letter['detail']}, by {spec}")
        elif letter["reason"] == "failed":
            raise Wrong(f"failed: {value!r}, {letter['detail']}, by {spec}")


def _each(found: Decoded, values: Sequence[bytes]) -> Iterator[tuple[bytes, dict[str, Any], dict[str, Any] | None]]:
    dead = {letter["row"]: letter for letter in found.dead.to_pylist()}
    for number, row in enumerate(found.columns.to_pylist()):
        yield values[number], row, dead.get(number)


# --- CSV -------------------------------------------------------------------------------------------------------

_DIALECTS: Final[tuple[dict[str, Any], ...]] = (
    {}, {"delimiter": "\t", "quote": ""}, {"delimiter": ";", "quote": "'", "escape": "\\"},
    {"quote": "", "escape": "\\", "null": "\\N"}, {"delimiter": "|", "null": "NULL"},
)  # fmt: skip


def csv_values(rng: random.Random) -> None:
    """Test rows with a random schema in a random CSV dialect."""
    options = rng.choice(_DIALECTS)
    kinds = [rng.choice(_SCALARS[:-1]) for _ in range(rng.randint(1, 5))]
    spec = FormatSpec("csv", {"schema": ", ".join(f"c{n} {kind}" for n, kind in enumerate(kinds)), **options})
    quote, escape, delimiter = options.get("quote", '"'), options.get("escape", ""), options.get("delimiter", ",")
    whole = []
    for _ in range(12):
        fields = [_csv_field(rng, kind, quote, escape) for kind in kinds]
        whole.append((delimiter.join(fields) + rng.choice(("", "\n", "\r\n"))).encode())
    values = [value if rng.random() < 0.4 else damaged(rng, value, whole, 3) for value in whole]

    def sound(value: bytes) -> bool | None:
        try:
            rows = list(
                csv.reader([value.decode()], delimiter=delimiter, quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
                           quotechar=quote or None, escapechar=escape or None, strict=True)
            )  # fmt: skip
        except (ValueError, csv.Error):
            return False
        # A line end within a row is ambiguous.
        return (
            None
            if len(rows) != 1 or len(rows[0]) != len(kinds) or b"\n" in value or b"\r" in value or b"\0" in value
            else True
        )

    _judged(spec, values, sound)


def _csv_field(rng: random.Random, kind: str, quote: str, escape: str) -> str:
    text = (
        _json_of(rng, kind).strip('"')
        if rng.random() < 0.7
        else rng.choice(("", "1", "x", "\\N", "NULL", quote * 2, " 1 "))
    )
    if quote and rng.random() < 0.4:
        return quote + text.replace(quote, quote * 2) + quote
    return text


# --- log patterns ----------------------------------------------------------------------------------------------

_PIECES: Final = (
    (r"(?P<{}>\d+)", ("0", "7", "42", "99999999999999999999")),
    (r"(?P<{}>[A-Z]+)", ("A", "INFO", "ZZZ")),
    (r"(?P<{}>\S+)", ("x", "10.0.0.1", "é", "[a]")),
    (r"(?P<{}>[^\]]*)", ("", "a b", "2026")),
    (r"(?P<{}>.*)", ("", "rest of it", "a\tb")),
    (r"(?P<{}>a|ab|abc)", ("a", "ab", "abc")),
    (r"(?P<{}>(?:x|y){{2,3}})", ("xy", "xyx", "yy")),
    (r"(?:(?P<{}>\w+)=)?", ("k=", "")),
)


def pattern_lines(rng: random.Random) -> None:
    """Test lines with random regular expressions, compared with Python's `re`."""
    patterns, lines = [], []
    for number in range(rng.randint(1, 3)):
        parts = [rng.choice(_PIECES) for _ in range(rng.randint(1, 4))]
        between = rng.choice((" ", "-", " \\[", ": "))
        regex = between.join(part.format(f"g{number}_{n}") for n, (part, _) in enumerate(parts))
        patterns.append({"name": f"p{number}", "regex": regex})
        for _ in range(4):
            line = between.replace("\\", "").join(rng.choice(examples) for _, examples in parts)
            lines.append((line + rng.choice(("", "", "\n", "\r\n"))).encode())
    values = [line if rng.random() < 0.5 else damaged(rng, line, lines, 2) for line in lines]
    spec = FormatSpec("patterns", {"patterns": patterns})
    found = decoded(decoder_of(spec), values)
    for value, row, letter in _each(found, values):
        expected = _matched(patterns, value)
        if (letter is None) != (expected is not None):
            raise Wrong(f"matched: {value!r}: {letter!r}, and re has {expected!r}, by {patterns}")
        if expected is not None and {name: each for name, each in row.items() if each is not None} != expected:
            raise Wrong(f"groups: {value!r}: {row!r}, and re has {expected!r}, by {patterns}")


def _matched(patterns: Sequence[Mapping[str, str]], value: bytes) -> dict[str, str] | None:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    text = text[: -2 if text.endswith("\r\n") else -1] if text.endswith("\n") else text
    for each in patterns:
        # RE2's character classes are ASCII-only, and its `\s` has no vertical tab.
        found = re.compile(each["regex"].replace("\\S", r"[^\t\n\f\r ]"), re.ASCII).fullmatch(text)
        if found is not None:
            return {"pattern": each["name"], **{name: group for name, group in found.groupdict().items() if group}}
    return None


_KINDS: Final[tuple[Callable[[random.Random], None], ...]] = (
    judged_numbers, json_values, json_values, json_values, csv_values, csv_values, pattern_lines, avro_values.whole, avro_values.whole,
    avro_values.broken, avro_values.broken, protobuf_values.whole, protobuf_values.broken,
)  # fmt: skip


@contextmanager
def _opened(_: Path) -> Iterator[Case]:
    yield lambda rng: rng.choice(_KINDS)(rng)


TARGET: Final = Target(_opened, cpu_seconds=20, megabytes=1_500)
