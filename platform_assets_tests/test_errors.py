"""Errors that cross process boundaries unchanged: a caller catches exactly what a worker raised."""

from __future__ import annotations

import copy
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import pytest

import platform_assets
from platform_assets.demo.producing import TransactionAbortedError
from platform_assets.errors import OffsetsExpiredError, PlatformError, UnerasedReplay
from platform_assets.services.errors import ServiceStartError

SAMPLES: Final[dict[str, Any]] = {
    "str": "a 'text' of {any} kind",
    "str | None": "java (pid 4711)",
    "int": 4711,
    "int | None": 4,
    "int | str": 7,
    "float": 1.5,
    "bool": True,
    "Iterable[tuple[int, int, int]]": [(0, 7, 9), (1, 0, 3)],
    "Sequence[tuple[int, int, int]]": ((0, 7, 9),),
    "Sequence[str]": ("defs.yaml:1: a mistake",),
    "Sequence[int]": (2, 3),
    "Collection[str]": ("2026-01-31-14:00",),
    "Mapping[str, Sequence[str]]": {"raw/orders": ("part-0.parquet",)},
    "Mapping[str, tuple[int, int]]": {"2026-01-31-14:00": (2, 3)},
    "Mapping[str, UnerasedReplay]": {"june": UnerasedReplay("/lake/replays/june", "a file is lost", ("w",))},
    "Mapping[str, UnerasedReplay] | None": {"june": UnerasedReplay("/lake/replays/june", "it is damaged")},
    "datetime": datetime(2026, 1, 31, 14, tzinfo=UTC),
    "object": "yesterday",
}
"""A value for each argument type of an error."""

LOADS_THE_PROJECT: Final = "platform_assets.definitions"


def every_error() -> list[type[PlatformError]]:
    """Return the root error and all subclasses in the project's own modules, by name."""
    for module in pkgutil.walk_packages(platform_assets.__path__, "platform_assets."):
        if module.name != LOADS_THE_PROJECT and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    return sorted(_family(PlatformError), key=lambda kind: (kind.__module__, kind.__name__))


def _family(kind: type[PlatformError]) -> Iterator[type[PlatformError]]:
    if kind.__module__.partition(".")[0] == "platform_assets":
        yield kind
    for derived in kind.__subclasses__():
        yield from _family(derived)


def made(kind: type[PlatformError]) -> PlatformError:
    """Return an error of this class, with a sample value for each of its arguments."""
    if "__init__" not in {name for base in kind.__mro__[: kind.__mro__.index(PlatformError)] for name in vars(base)}:
        return kind("a message")
    parameters = list(inspect.signature(kind.__init__).parameters.values())[1:]
    named = {p.name: SAMPLES[str(p.annotation)] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}
    placed = [SAMPLES[str(p.annotation)] for p in parameters if p.name not in named]
    return kind(*placed, **named)


def test_each_error_is_the_same_after_pickling_and_copying() -> None:
    kinds = every_error()
    assert {PlatformError, ServiceStartError, OffsetsExpiredError, TransactionAbortedError} <= set(kinds)
    for error in map(made, kinds):
        error.add_note("while loading")
        for found in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert type(found) is type(error)
            assert str(found) == str(error)
            assert vars(found) == vars(error)
            assert found.__notes__ == ["while loading"]


def test_no_message_holds_a_control_character(monkeypatch: pytest.MonkeyPatch) -> None:
    hostile = "a\x1b]0;title\x07\x9b31m\u202e\r\x00"
    monkeypatch.setitem(SAMPLES, "str", hostile)
    monkeypatch.setitem(SAMPLES, "Sequence[str]", (hostile + "\n2026-01-01 CRITICAL", hostile))
    replay = {hostile: UnerasedReplay(hostile, hostile, (hostile,))}
    monkeypatch.setitem(SAMPLES, "Mapping[str, UnerasedReplay]", replay)
    monkeypatch.setitem(SAMPLES, "Mapping[str, UnerasedReplay] | None", replay)
    for kind in every_error():
        shown = str(made(kind))
        ends = {"\n"} if kind.has_lines else set[str]()
        assert {c for c in shown if not c.isprintable()} <= ends, kind
        assert not any(each.startswith("2026") for each in shown.split("\n")), kind
