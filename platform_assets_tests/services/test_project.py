"""Choosing which project a command uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from platform_assets.services import project
from platform_assets.services.home import CHECKOUT


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Return a project's folder."""
    (tmp_path / "shop" / "defs").mkdir(parents=True)
    (tmp_path / "shop" / "workspace.yaml").touch()
    return tmp_path / "shop"


def test_a_project_sets_its_declarations_its_data_and_what_its_env_says(shop: Path) -> None:
    (shop / ".env").write_text(
        "LAKE_ROOT=/srv/lake\nSPARK_REMOTE='sc://spark.example:15002/;token=x'\n# A=1\nB\nC=shop\n"
    )
    environ = {"C": "shell"}
    project.adopt(environ, shop)
    assert environ == {
        "C": "shell",
        "LAKE_ROOT": "/srv/lake",
        "SPARK_REMOTE": "sc://spark.example:15002/;token=x",
        "PLATFORM_DEFS": str(shop / "defs"),
        "PLATFORM_HOME": str(shop / ".platform"),
    }


def test_the_shell_takes_precedence(shop: Path) -> None:
    environ = {"PLATFORM_DEFS": f"{shop}/../shop/defs", "PLATFORM_HOME": "/srv/platform"}
    project.adopt(environ, shop)
    assert environ == {"PLATFORM_DEFS": f"{shop}/../shop/defs", "PLATFORM_HOME": "/srv/platform"}


def test_commands_about_other_declarations_do_not_get_this_projects_data(shop: Path, tmp_path: Path) -> None:
    (shop / ".env").write_text("LAKE_ROOT=/srv/lake\n")
    environ = {"PLATFORM_DEFS": str(tmp_path / "other" / "defs")}
    project.adopt(environ, shop)
    assert environ == {"PLATFORM_DEFS": str(tmp_path / "other" / "defs")}


def test_another_folder_changes_nothing_and_the_checkout_is_no_project(tmp_path: Path) -> None:
    environ: dict[str, str] = {}
    for folder in (tmp_path, CHECKOUT):
        project.adopt(environ, folder)
    assert environ == {}


def test_the_workspace_file_is_the_one_beside_the_declarations(shop: Path, tmp_path: Path) -> None:
    assert project.workspace_file({"PLATFORM_DEFS": str(shop / "defs")}) == shop / "workspace.yaml"
    assert project.workspace_file({"PLATFORM_DEFS": str(tmp_path / "defs")}) == CHECKOUT / "workspace.yaml"
    assert project.workspace_file({}) == CHECKOUT / "workspace.yaml"
