"""Choice of the variants of a test that `make test` runs. The other variants are `long`, so `make test-all` runs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

import pytest
from _pytest.mark.structures import ParameterSet

LAYOUTS: Final = ("flat", "partitioned")
both_layouts: Final = pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
"""For tests of what depends on the table's layout. `make test` runs other tests with flat tables only."""


def long_after(count: int, values: Iterable[Any]) -> list[ParameterSet]:
    """Return `values` as parameters of a test, of which all after the first `count` are `long`.

    A value is one argument, a tuple with several arguments, or a parameter with marks and an id.
    """
    return [_long(value) if number >= count else _parameter(value) for number, value in enumerate(values)]


def _parameter(value: Any) -> ParameterSet:
    if isinstance(value, ParameterSet):
        return value
    return pytest.param(*value) if isinstance(value, tuple) else pytest.param(value)


def _long(value: Any) -> ParameterSet:
    given = _parameter(value)
    marks = (*cast(Iterable[Any], given.marks), pytest.mark.long)
    return pytest.param(*given.values, marks=marks, id=given.id)
