"""A new project outside this source tree: it is created, checked, and loaded by Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from platform_assets.cli.main import main
from platform_assets.components.declared import declarations, defs_folder
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.homes import service_environment

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


def in_project(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script in the project, as its README describes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-ec", script],
        cwd=root, capture_output=True, text=True, check=False, timeout=300,
        env={**service_environment(), "PATH": path, "PYTHONPATH": str(CHECKOUT), "DAGSTER_DISABLE_TELEMETRY": "yes",
             "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1", "SPARK_REMOTE": "sc://127.0.0.1:1", "LAKE_ROOT": "/nowhere"},
    )  # fmt: skip


NAMES = (
    "python -c 'from platform_assets.definitions import defs; "
    "print(sorted(k.to_user_string() for k in defs().resolve_asset_graph().get_all_asset_keys()))'"
)


def test_a_new_project_loads_empty_and_then_with_its_example(tmp_path: Path) -> None:
    root = tmp_path / "my project's topics"
    made = CliRunner().invoke(main, ["init", str(root)])
    assert made.exit_code == 0, made.output
    empty = in_project(root, NAMES)
    assert empty.stdout.strip() == "[]", empty.stderr
    example = root / "defs" / "orders" / "defs.yaml.example"
    text = example.read_text().splitlines()[1:]
    (root / "defs" / "orders" / "defs.yaml").write_text("\n".join(line.removeprefix("# ") for line in text) + "\n")
    example.unlink()
    loaded = in_project(root, f"{NAMES}\ndagster definitions validate -w workspace.yaml")
    assert loaded.returncode == 0, loaded.stdout + loaded.stderr
    assert loaded.stdout.splitlines()[0] == "['kafka/orders', 'raw/orders']"
    assert "Validation successful for code location platform_assets" in loaded.stdout + loaded.stderr


def test_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    result = CliRunner().invoke(main, ["init", str(tmp_path)])
    assert result.exit_code == 1
    assert "already contains README.md" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["README.md"]
    assert (tmp_path / "README.md").read_text() == "mine"


def test_definitions_outside_are_declared_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shell = Shell(tmp_path)
    monkeypatch.setenv("PLATFORM_DEFS", shell.variables["PLATFORM_DEFS"])
    assert declarations() == {}
    shell.declare("orders")
    assert list(declarations()) == ["orders"]
    shell.declare("returns")
    assert list(declarations()) == ["orders", "returns"]


def test_a_relative_folder_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["check"], env={"PLATFORM_DEFS": "defs"})
    assert result.exit_code == 1
    assert "PLATFORM_DEFS must be an absolute path of a folder, not 'defs'" in result.stderr
    monkeypatch.delenv("PLATFORM_DEFS", raising=False)
    assert defs_folder() == CHECKOUT / "platform_assets" / "defs"
