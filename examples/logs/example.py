"""Logs of a Kafka broker, a Spark server and Dagster's daemon, of a run of this platform's demo."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from examples.runner import Comparison, Example, Record, compare
from platform_assets.lake.location import Lake

if TYPE_CHECKING:
    import polars as pl

FILE: Final = Path(__file__).parent / "logs.zip"
FIRST: Final = datetime(2026, 11, 27, 9, 56, 45, tzinfo=UTC)
SPEED: Final = 0.25
"""The logs cover three minutes, so a window has the lines of 15 seconds."""
_TIME: Final = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:\.\d+)?)(?:Z| \+0000) ")

_Entry = tuple[datetime, str, str, str | None]
"""Time, service, first line, and the further lines."""


def records() -> Sequence[Record]:
    """Return a record per entry, as a log shipper would send it, in the order of time."""
    found = []
    for at, service, line, more in _entries():
        value = {"service": service, "at": f"{at:%Y-%m-%dT%H:%M:%S.%fZ}", "line": line, "more": more}
        found.append(Record("log_lines", at, json.dumps(value).encode(), service.encode()))
    return found


def compared(lake: Lake) -> list[Comparison]:
    """Compare patterns, errors, and what is new, with those that polars finds in the files."""
    import polars as pl

    levels = {"ERROR": "errors", "WARN": "warnings"}
    lines = _lines()
    patterns = lines.group_by("number", "service", "level", "pattern").agg(
        pl.len(), pl.col("more").count().alias("traces"), pl.min("at").alias("first_at")
    )
    services = lines.group_by("number", "service").agg(
        pl.len(), *(pl.col("level").eq(level).sum().alias(name) for level, name in levels.items())
    )
    known = lines.group_by("pattern", "service", "level").agg(pl.min("at").alias("first_at"), pl.len())
    totals = {name: services[name].sum() for name in levels.values()}
    later = known.filter(pl.col("first_at") >= FIRST + timedelta(seconds=60 * SPEED))
    return [
        compare(
            lake, "derived/log_patterns",
            ("service", "level", "pattern", "lines", "with_stack_trace", "first_at"),
            patterns.drop("number").rows(),
            f"{len(lines):,} entries, {lines['more'].count():,} of them with a stack trace or other lines",
        ),
        compare(
            lake, "derived/errors_by_service", ("service", "lines", "errors", "warnings"),
            services.drop("number").rows(), f"{totals['errors']:,} errors and {totals['warnings']:,} warnings",
        ),
        compare(
            lake, "derived/known_patterns", ("pattern", "service", "level", "first_at", "lines"),
            known.rows(), f"{len(later):,} patterns were new after the first window",
        ),
    ]  # fmt: skip


def _lines() -> pl.DataFrame:
    """Return the entries with level and pattern, and the number of the window to which each belongs."""
    import polars as pl

    schema: dict[str, Any] = {
        "at": pl.Datetime("us", "UTC"),
        "service": pl.String,
        "line": pl.String,
        "more": pl.String,
    }
    found = pl.DataFrame(_entries(), schema, orient="row")
    log4j, dagster = r"^\S+Z (\w+) (.*)$", r"^.{25} - \S+ - (\w+) - (.*)$"
    level, message = (
        pl.coalesce(pl.col("line").str.extract(log4j, n), pl.col("line").str.extract(dagster, n)) for n in (1, 2)
    )
    return found.with_columns(
        ((pl.col("at") - FIRST).dt.total_microseconds() // round(60e6 * SPEED)).alias("number"),
        level.replace("WARNING", "WARN").alias("level"),
        message.str.replace_all(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "<id>")
        .str.replace_all(r"[0-9]+", "#")
        .alias("pattern"),
    )


@lru_cache
def _entries() -> list[_Entry]:
    found: list[_Entry] = []
    with zipfile.ZipFile(FILE) as archive:
        for name in archive.namelist():
            with archive.open(name) as lines:
                found += _of_log(name.removesuffix(".log"), io.TextIOWrapper(lines, encoding="utf-8"))
    return sorted(found, key=lambda entry: entry[0])


def _of_log(service: str, lines: Iterator[str]) -> Iterator[_Entry]:
    """Yield the entries of a log. Lines without a time belong to the entry before them."""
    head: tuple[datetime, str] | None = None
    rest: list[str] = []
    for line in (*lines, None):
        begins = None if line is None else _TIME.match(line)
        if line is not None and begins is None:
            rest.append(line)
            continue
        if head is not None:
            more = "".join(rest).strip("\n")
            yield head[0], service, head[1], more or None
        if begins is not None and line is not None:
            at = datetime.fromisoformat(f"{begins[1]}T{begins[2]}+00:00")
            head, rest = (at, line.rstrip("\n")), []


EXAMPLE: Final = Example("logs", FIRST, {"log_lines": 2}, records, compared, speed=SPEED)
