"""YAML of topics with any value in any field: `check` finds no mistake, or finds one and names its file."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import yaml
from click.testing import CliRunner

from platform_assets.cli.main import main
from platform_assets_tests.fuzzing.target import LONGEST_MESSAGE, Case, Target, Wrong, damaged

_TABLE: Final = "platform_assets.components.TopicTable"
_TABLES: Final = "platform_assets.components.TopicTables"
_ATTRIBUTES: Final[dict[str, Any]] = {
    "topic": "orders", "window": "0 * * * *", "start": "2026-01-01T00:00Z", "sensor_interval_seconds": 30, "sensor_running": True,
    "paused": False, "tick_budget_seconds": 20, "max_records_per_run": 5, "max_windows_per_run": 5, "max_edges_per_tick": 5,
    "records_per_file": 5, "engine": "auto", "publish_position": False, "deep_audit": "0 3 * * *", "deep_audit_running": False,
    "deep_audit_budget_seconds": 60, "description": "text", "group": "g", "owners": ["team:x"],
}  # fmt: skip
_SCHEMAS: Final = (
    "id BIGINT NOT NULL, name STRING",
    "a STRUCT<b: ARRAY<INT>>",
    "a MAP<STRING, DECIMAL(38,18)>",
    "",
    "a",
    "a INT, a INT",
    "a NOTHING",
    "STRUCT<" * 300 + ">" * 300,
    "ARRAY<" * 5_000,
    "a " + "ARRAY<" * 100 + "INT" + ">" * 100,
    "`a.b` STRING, a STRUCT<b: BIGINT>",
    "a DECIMAL(99999999999,1)",
    "a INT COMMENT 'x'",
    "key STRING",
    ", ".join(f"c{n} INT" for n in range(3_000)),
    "a INT NOT",
    "a\0 INT",
    "a VARCHAR(10)",
    "a TIMESTAMP_NTZ",
)
_SIDES: Final[tuple[dict[str, Any], ...]] = (
    {"format": "json", "schema": _SCHEMAS[0]},
    {
        "format": "json",
        "schema": _SCHEMAS[0],
        "timestamps": "seconds",
        "max_depth": 5,
        "max_bytes": 100,
        "columns": {"b": "id"},
    },
    {"format": "json", "json_schema": {"type": "object", "properties": {"id": {"type": "integer"}}}},
    {"format": "csv", "schema": _SCHEMAS[0], "delimiter": ";", "quote": "'", "trim": True},
    {"format": "avro", "schema": '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'},
    {
        "format": "avro",
        "schema": {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]},
        "registry": True,
        "id": "header",
    },
    {"format": "protobuf", "descriptor_set": "Cgh0LnByb3Rv", "message": "t.R"},
    {"format": "protobuf", "schema": "id BIGINT", "message": "shop.R", "registry": True},
    {
        "format": "patterns",
        "patterns": [{"name": "p", "regex": "(?P<a>x+)", "types": {"a": {"type": "TIMESTAMP", "format": "%Y"}}}],
    },
    {
        "format": "debezium",
        "schema": _SCHEMAS[0],
        "connector": {"decimal.handling.mode": "string"},
        "milliseconds": ["t"],
    },
    {"format": "debezium", "schema": _SCHEMAS[0], "envelope": {"operation": "op", "lsn": "id"}},
    {"format": "debezium", "schema": _SCHEMAS[0], "registry": True, "connector": {"binary.handling.mode": "hex"}},
    {"format": "string"},
)
_EXPECT: Final[tuple[dict[str, Any], ...]] = (
    {"column": "id", "range": {"min": 1, "max": 12}, "severity": "error"},
    {"column": "name", "in": ["a"]},
    {"column": "name", "pattern": "[A-Z]{2}"},
    {"unique": ["id"]},
    {"unique": "id"},
    {"column": "id", "null": False},
)
_STATES: Final[tuple[dict[str, Any], ...]] = (
    {"key": ["id"], "deletes": "none"},
    {"key": ["id"]},
    {"key": ["key"], "deletes": "tombstone"},
    {"key": ["id", "name"], "order": "position", "deletes": "debezium", "keep": "last"},
    {"key": ["name"], "order": "id", "deletes": "none", "keep": "first"},
    {"key": ["a"]},
)
_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1,
    1.5,
    1e308,
    float("inf"),
    float("nan"),
    10**30,
    10**4_000,
    "",
    "x",
    "x" * 5_000,
    "\0",
    "\ud7ff",
    "ü",
    "..",
    "../../x",
    "a/b",
    "=1",
    "{{ x }}",
    "{{ env('HOME') }}",
    "{{ unfinished",
    "{% raw %}",
    "{{ 1 / 0 }}",
    "{{ {}.x.y }}",
    "{{ ''.__class__ }}",
    "{# x",
    "* * * * *",
    "*/0 * * * *",
    "0 0 31 2 *",
    "@hourly",
    "0-99999999 * * * *",
    "1,2,3 * * * *",
    "H * * * *",
    "* * * * * *",
    "0 0 L * *",
    "0 0 * * 5#3",
    "2026-01-01",
    "0001-01-01T00:00+14:00",
    "9999-12-31T23:59Z",
    "1969-12-31",
    "2026-13-01",
    "1e5",
    "2026-W01-1",
    "[" * 300,
    "(a+)+$",
    "(?P<x>",
    "(?P<a>.)(?P<a>.)",
    "\\",
    "[a-",
    "x{1000}{1000}",
    "<img src=x>",
    "\x1b[2J",
    b"bytes",
    [],
    {},
    [[]],
    [None],
    {"a": None},
    {None: 1},
    {1: 2},
    [{}] * 50,
    {"min": "a"},
    {"min": 2, "max": 1},
    {"min": {}},
    ["a", "a"],
    "platform_assets.cli.main",
    "os.system",
    ".x",
    "a.b.c",
    "team:x",
    "x@y.z",
)
_DEEP: Final = (20, 60, 90, 400, 3_000, 50_000)


def _decode(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {"value": deepcopy(rng.choice(_SIDES))}
    if rng.random() < 0.3:
        found["key"] = deepcopy(rng.choice(_SIDES))
    if rng.random() < 0.3:
        found["dead_letters"] = {"warn": 0.02, "fail": 0.05}
    if rng.random() < 0.5:
        found["expect"] = [deepcopy(rng.choice(_EXPECT)) for _ in range(rng.randint(1, 3))]
    side = found["value"]
    if "schema" in side and isinstance(side["schema"], str) and rng.random() < 0.3:
        side["schema"] = rng.choice(_SCHEMAS)
    return found


def _attributes(rng: random.Random) -> dict[str, Any]:
    required = ("topic", "window", "start")
    found = {name: deepcopy(value) for name, value in _ATTRIBUTES.items() if name in required or rng.random() < 0.2}
    found["topic"] = f"orders{rng.choice(('', '', 'x', '.x', '_x'))}"
    if rng.random() < 0.6:
        found["decode"] = _decode(rng)
    if rng.random() < 0.4:
        found["state"] = deepcopy(rng.choice(_STATES))
    return found


def _document(rng: random.Random) -> dict[str, Any]:
    if rng.random() < 0.3:
        attributes: dict[str, Any] = {
            "topics": ["a", "b"],
            "each": {k: v for k, v in _attributes(rng).items() if k != "topic"},
        }
        if rng.random() < 0.3:
            attributes["pattern"] = "x.*"
        if rng.random() < 0.3:
            attributes["together"] = "all"
        return {"type": _TABLES, "attributes": attributes}
    return {"type": _TABLE, "attributes": _attributes(rng)}


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _places(each, (*place, name))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from _places(each, (*place, number))


def _with_odd(rng: random.Random, document: Any) -> Any:
    """Return the document with one value or name replaced or removed."""
    place = rng.choice([*_places(document)])
    if not place:
        return deepcopy(rng.choice(_ODD)) if rng.random() < 0.1 else document
    at = document
    for part in place[:-1]:
        at = at[part]
    kind = rng.random()
    if kind < 0.75 or isinstance(at, list):
        at[place[-1]] = deepcopy(rng.choice(_ODD))
    elif kind < 0.9:
        at[rng.choice([each for each in _ODD if each is None or isinstance(each, str | int | float)])] = at.pop(
            place[-1]
        )
    else:
        del at[place[-1]]
    return document


def _text(rng: random.Random) -> bytes:
    """Return random content for a YAML file."""
    kind = rng.random()
    if kind < 0.06:
        depth = rng.choice(_DEEP)
        opening, closing = rng.choice(
            (("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("!x ", ""), ("&a [", "]"), ("a:\n ", ""))
        )
        return f"type: {_TABLE}\nattributes: {opening * depth}1{closing * depth}\n".encode()
    if kind < 0.12:
        levels = rng.choice((5, 12, 40))
        lines = [
            "a0: &a0 [x, x]",
            *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * rng.choice((2, 9)))}]" for n in range(1, levels)),
        ]
        where = rng.choice(("owners", "decode", "state", "topic", "description"))
        head = f"type: {_TABLE}\nattributes:\n  topic: orders\n  window: '0 * * * *'\n  start: '2026-01-01'\n"
        head += f"  {where}: *a{levels - 1}\n"
        return (rng.choice(("", "x-y:\n")) + "\n".join(lines) + "\n" + head).encode()
    if kind < 0.15:
        return rng.choice(
            (
                b"&a [*a]",
                b"a: &a {b: *a}",
                b"<<: *x",
                b"!!python/object:os.system x",
                b"!!python/name:os.system",
                b"!!binary xx",
                b"!!float x",
                b"!!timestamp 2026-99-99",
                b"\t",
                b"%YAML 9.9\n---\nx",
                b"--- |\n" + b"x" * 1_000_000,
                b"\xff\xfe",
                b"\xef\xbb\xbftype: x",
                b"a: b: c",
                b"'",
                b'"\\x"',
                b"? [a]\n: b",
                b"{[a]: b}",
                b"0x" + b"f" * 10_000,
                b"1:" * 3_000 + b"1",
                b"!!set {a, b}",
                b"!!omap [a: 1]",
                b"---\n" * 3_000,
                b"a: 1\n" * 5_000,
                b"type: &t platform_assets.components.TopicTable\nattributes: &t {<<: {topic: x}}\n",
                b"!!int 0o9",
                b"2026-01-01T00:00:00.0000000000000",
                b"9999-99-99",
            )
        )
    documents = [_document(rng) for _ in range(rng.choice((1, 1, 1, 2)))]
    for at in range(len(documents)):
        for _ in range(rng.choice((0, 1, 1, 2, 4))):
            documents[at] = _with_odd(rng, documents[at])
            if not isinstance(documents[at], dict):
                break
    text = "---\n".join(yaml.dump(each, allow_unicode=True, sort_keys=False) for each in documents).encode(
        errors="surrogatepass"
    )
    return damaged(rng, text, (), 3) if rng.random() < 0.15 else text


class _Project:
    """A project with one or more files that `check` reads."""

    def __init__(self, folder: Path) -> None:
        self._defs, self._variables = folder / "defs", {
            "PLATFORM_DEFS": str(folder / "defs"), "PLATFORM_HOME": str(folder / "home"), "LAKE_ROOT": str(folder / "lake"),
            "DAGSTER_DISABLE_TELEMETRY": "yes",
        }  # fmt: skip

    def case(self, rng: random.Random) -> None:
        """Write a case to the project and check the outcome."""
        shutil.rmtree(self._defs, ignore_errors=True)
        names = rng.choice(
            (
                ("shop/defs.yaml",),
                ("shop/defs.yaml",),
                ("shop/defs.yaml", "other/defs.yml"),
                ("defs.yaml", "shop/component.yaml"),
            )
        )
        for name in names:
            file = self._defs / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(_text(rng))
        if rng.random() < 0.1:
            (self._defs / "found_topics.yaml").write_bytes(_text(rng))
        # Some components of Dagster itself.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = CliRunner().invoke(main, ["check"], env=self._variables)
        said = found.stdout + found.stderr
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        if "Traceback" in said:
            raise Wrong(f"traceback: {said[:2_000]}")
        if len(said) > 100 * LONGEST_MESSAGE:
            raise Wrong(f"length: {len(said):,} characters are printed: {said[:300]!r}")
        if found.exit_code not in (0, 1):
            raise Wrong(f"exit: code {found.exit_code}: {said[:2_000]}")
        if found.exit_code == 1 and str(self._defs) not in said:
            raise Wrong(f"place: {said[:2_000]}")


@contextmanager
def _opened(folder: Path) -> Iterator[Case]:
    folder.mkdir(parents=True, exist_ok=True)
    kept = dict(os.environ)
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE", "DAGSTER_HOME"):
        os.environ.pop(name, None)
    try:
        yield _Project(folder.absolute()).case
    finally:
        os.environ.clear()
        os.environ.update(kept)


TARGET: Final = Target(_opened, cpu_seconds=8, wall_seconds=150, megabytes=1_500)
