"""Paths of a home: they follow the environment, and paths that Java or Kafka cannot use are refused."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.services.home import CHECKOUT, Home


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


def test_homes_of_one_user_share_the_jars_in_the_users_cache(tmp_path: Path) -> None:
    one, other = ({"PLATFORM_HOME": str(tmp_path / name), "HOME": str(tmp_path)} for name in ("one", "other"))
    shared = tmp_path / ".cache" / "platform-assets" / "jars"
    assert Home.from_environment(one).jars == Home.from_environment(other).jars == shared
    elsewhere = Home.from_environment(one | {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert elsewhere.jars == tmp_path / "cache" / "platform-assets" / "jars"
    assert Home.from_environment(one | {"XDG_CACHE_HOME": "cache"}).jars == shared


def test_a_home_with_jars_of_an_earlier_release_goes_on_with_them(tmp_path: Path) -> None:
    (tmp_path / "one" / "jars").mkdir(parents=True)
    assert (
        Home.from_environment({"PLATFORM_HOME": str(tmp_path / "one"), "HOME": "/home/a"}).jars
        == tmp_path / "one" / "jars"
    )


def test_relative_home_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Home.from_environment({"PLATFORM_HOME": "here"}).root == tmp_path / "here"


def test_the_home_and_its_folders_are_the_owners_alone_even_if_they_were_open(tmp_path: Path) -> None:
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "home")})
    home.run.mkdir(mode=0o755, parents=True)
    home.root.chmod(0o755)
    before = os.umask(0)
    try:
        home.prepare()
    finally:
        os.umask(before)
    found = {folder: stat.S_IMODE(folder.stat().st_mode) for folder in (home.root, home.run, home.logs, home.spark)}
    assert {*found.values()} == {0o700}, found


def test_a_home_that_another_user_made_keeps_its_mode_and_its_folders_are_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path)})
    tmp_path.chmod(0o775)
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    home.prepare()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o775
    assert stat.S_IMODE(home.run.stat().st_mode) == stat.S_IMODE(home.logs.stat().st_mode) == 0o700


@pytest.mark.parametrize("name", ["a:b", "a,b", "a\nb"])
def test_separator_in_the_path_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="must not contain"):
        Home.from_environment({"PLATFORM_HOME": str(tmp_path / name)}).prepare()


def test_a_separator_in_the_path_of_the_jars_is_refused_and_their_variable_helps(tmp_path: Path) -> None:
    variables = {"PLATFORM_HOME": str(tmp_path / "home"), "HOME": str(tmp_path / "a:b")}
    with pytest.raises(ConfigurationError, match="must not contain ':': set PLATFORM_JARS to another folder"):
        Home.from_environment(variables).prepare()
    Home.from_environment(variables | {"PLATFORM_JARS": str(tmp_path / "jars")}).prepare()
