"""Paths follow the environment, and refuse what Java and Kafka could not name."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.home import CHECKOUT, Home
from platform_assets.errors import ConfigurationError


def test_default_home_lies_in_the_checkout() -> None:
    home = Home.from_environment({})
    assert home.root == CHECKOUT / ".platform"
    assert home.lake == str(CHECKOUT / ".platform" / "lake")
    assert home.dagster == CHECKOUT / ".platform" / "dagster"


def test_each_variable_moves_its_own_part(tmp_path: Path) -> None:
    home = Home.from_environment(
        {
            "PLATFORM_HOME": str(tmp_path / "home"),
            "PLATFORM_JARS": str(tmp_path / "jars"),
            "LAKE_ROOT": "s3://bucket/lake",
            "DAGSTER_HOME": str(tmp_path / "dagster"),
        }
    )
    assert (home.root, home.jars) == (tmp_path / "home", tmp_path / "jars")
    assert (home.lake, home.dagster) == ("s3://bucket/lake", tmp_path / "dagster")


def test_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home.from_environment({"PLATFORM_HOME": "here"}).root == tmp_path / "here"


def test_run_folder_is_the_owners_alone_even_if_it_was_open(tmp_path: Path) -> None:
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path)})
    home.run.mkdir(mode=0o755)
    home.prepare()
    assert home.run.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\nb"])
def test_separator_in_the_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot hold"):
        Home.from_environment({"PLATFORM_HOME": str(tmp_path / name)}).prepare()
