"""The list of load engines is defined in only one place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from platform_assets.engines.choice import AutoEngine, choose_engine, other_engine
from platform_assets.lake.location import Lake
from platform_assets.model.declaration import ENGINES, EngineName


def test_the_loads_of_each_engine_are_confirmed_by_another_one() -> None:
    assert {*ENGINES, "auto"} == set(get_args(EngineName))
    assert all(other_engine(name) != name for name in ENGINES)


@pytest.mark.parametrize("name", get_args(EngineName))
def test_each_name_has_an_engine_of_its_own(name: EngineName, tmp_path: Path) -> None:
    def no_session() -> Any:
        raise AssertionError

    engine = choose_engine(Lake.at(tmp_path), no_session, no_session, name)
    assert isinstance(engine, AutoEngine) == (name == "auto")
    assert engine.name == (name if name in ENGINES else "columnar")
