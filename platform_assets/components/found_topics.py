"""The file, next to `defs.yaml`, that lists the topics found on the brokers for a pattern. Definitions depend only on
files, so a code location never queries Kafka when it loads."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.errors import ConfigurationError
from platform_assets.model.names import checked_topic

FILE: Final = "found-topics.txt"
_HEAD: Final = (
    "# Topics found on the brokers that match the patterns in the defs.yaml next to this file. `platform-assets "
    "find-topics` and\n"
    "# the sensor topics_by_pattern add to it. Keep it under version control; a line that you delete is added again.\n"
)


def read(folder: Path) -> tuple[str, ...]:
    """Return, sorted, the names in the file in `folder`; return no names if there is no such file. Raises
    ConfigurationError."""
    file = folder / FILE
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigurationError(
            f"{file} cannot be read ({e}): delete it, and run `platform-assets find-topics`"
        ) from e
    lines = (line.strip() for line in text.splitlines())
    names = {line for line in lines if line and not line.startswith("#")}
    for name in names:
        checked_topic(name)
    return tuple(sorted(names))


def add(folder: Path, names: Iterable[str]) -> None:
    """Add `names` to the file. Raises ConfigurationError."""
    known = {*read(folder), *names}
    file = folder / FILE
    beside = file.with_name(f".{FILE}.{os.getpid()}")
    try:
        beside.write_text(_HEAD + "".join(f"{name}\n" for name in sorted(known)), encoding="utf-8")
        beside.replace(file)
    except OSError as e:
        raise ConfigurationError(
            f"{file} cannot be written ({e.strerror or e}): run `platform-assets find-topics` on a machine where the project is "
            "writable, and deploy the lines that it adds"
        ) from e


def check(expression: str) -> None:
    """Raise ConfigurationError unless the pattern is an RE2 regular expression, which matches in linear time."""
    try:
        pc.match_substring_regex(pa.array([""]), expression)
    except pa.ArrowInvalid as e:
        reason = str(e).removeprefix("Invalid regular expression: ")
        raise ConfigurationError(f"{expression!r} is not an RE2 regular expression: {reason}") from e


def matching(names: Iterable[str], pattern: str, exclude: Sequence[str]) -> tuple[str, ...]:
    """Return, sorted, those of `names` that match `pattern` as a whole and match no expression in `exclude`.

    Names that begin with two underscores belong to Kafka itself and are left out. Raises ConfigurationError for an
    invalid expression.
    """
    left = pa.array(sorted({name for name in names if not name.startswith("__")}), pa.string())
    for number, expression in enumerate((pattern, *exclude)):
        check(expression)
        matches = pc.match_substring_regex(left, f"^(?:{expression})$")
        left = left.filter(pc.invert(matches) if number else matches)
    return tuple(left.to_pylist())
