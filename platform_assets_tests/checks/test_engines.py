"""The engines that load, which are listed once."""

from __future__ import annotations

from typing import get_args

from platform_assets.checks.confirming import other_engine
from platform_assets.model.declaration import ENGINES, EngineName


def test_the_loads_of_each_engine_are_confirmed_by_another_one() -> None:
    assert {*ENGINES, "auto"} == set(get_args(EngineName))
    assert {other_engine(name) for name in ENGINES} <= set(ENGINES)
    assert all(other_engine(name) != name for name in (*ENGINES, "a third"))
