"""The wheel, unpacked without a checkout: a project in an empty folder is checked, loaded by Dagster and then run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import polars as pl
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from platform_assets.services.home import CHECKOUT
from testbed.homes import home_at, service_environment
from testbed.loads import Record, send, wait_until

BUILD: Final = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
COMMAND: Final = "import sys; from platform_assets.cli.main import run; run()"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the wheel installs."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, source)
    shutil.copytree(
        CHECKOUT / "platform_assets", source / "platform_assets", ignore=shutil.ignore_patterns("__pycache__")
    )
    subprocess.run([sys.executable, "-c", BUILD, str(made)], cwd=source, check=True, capture_output=True)
    (wheel,) = made.glob("*.whl")
    unpacked = made / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    return unpacked


def run(site: Path, folder: Path, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run the wheel's `platform-assets` in a folder."""
    environ = service_environment() | {"PYTHONPATH": str(site), "PLATFORM_JARS": str(home_at(folder).jars)}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        cwd=folder, env=environ, capture_output=True, text=True, check=False, timeout=timeout,
    )  # fmt: skip


def declare(project: Path) -> None:
    """Declare the example topic as the project's README describes, with the current hour as its start."""
    example = project / "defs" / "orders" / "defs.yaml.example"
    lines = [line.removeprefix("# ") for line in example.read_text().splitlines()[1:]]
    text = "\n".join(lines).replace("2026-01-01T00:00Z", f"{datetime.now(UTC):%Y-%m-%dT%H:00Z}")
    example.with_name("defs.yaml").write_text(text.replace("0 * * * *", "* * * * *") + "\n")


def test_it_installs_the_package_and_nothing_else(site: Path) -> None:
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"platform_assets"}
    at = subprocess.run(
        [sys.executable, "-c", "import platform_assets; print(platform_assets.__file__)"],
        env=os.environ | {"PYTHONPATH": str(site)}, cwd=site, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(at.stdout.strip()).is_relative_to(site)


def test_an_empty_folder_says_how_to_begin_and_the_project_is_checked(site: Path, tmp_path: Path) -> None:
    refused = run(site, tmp_path, "status")
    assert refused.returncode == 1
    assert f"{tmp_path} is not a project folder" in refused.stderr
    remedy = refused.stderr.rpartition("create a project: platform-assets ")[2].split()
    assert remedy == ["init", "shop", "&&", "cd", "shop"]
    assert run(site, tmp_path, *remedy[:2]).returncode == 0
    project = tmp_path / "shop"
    declare(project)
    checked = run(site, project, "check")
    assert checked.stdout.startswith("topics declared: orders; no mistakes\n"), checked.stderr
    assert "Warning" not in checked.stderr
    (project / ".env").write_text("PLATFORM_ASSET_PREFIX=north\n")
    loaded = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=project, env=service_environment() | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Validation successful for code location platform_assets" in loaded.stdout + loaded.stderr


def test_the_demo_says_that_it_needs_the_checkout(site: Path, tmp_path: Path) -> None:
    refused = run(site, tmp_path, "demo", "--once")
    assert refused.returncode == 1
    assert "The demo runs only from a source checkout" in refused.stderr


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_project_loads_and_proves_a_topic_without_a_checkout(site: Path, tmp_path: Path) -> None:
    assert run(site, tmp_path, "init", "shop").returncode == 0
    project = tmp_path / "shop"
    declare(project)
    try:
        up = run(site, project, "up", timeout=900)
        assert up.returncode == 0, up.stderr
        env = run(site, project, "env").stdout
        (server,) = re.findall(r"^export KAFKA_BOOTSTRAP_SERVERS=\'?([\w.:]+)", env, re.MULTILINE)
        (lake,) = re.findall(r"^export LAKE_ROOT=(\S+)", env, re.MULTILINE)
        admin = AdminClient({"bootstrap.servers": server})
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(60)
        sent = [Record(value=b"%d" % number, partition=number % 2) for number in range(1000)]
        send(Producer({"bootstrap.servers": server}), "orders", sent)
        # The wheel's own daemon seals the window once its minute is over, and its run loads it.
        wait_until("all is loaded", lambda: '"rows": 1000' in run(site, project, "status", "--json").stdout, 600)
        audited = run(site, project, "audit", "raw/orders", "--deep", timeout=600)
        assert audited.returncode == 0, audited.stdout + audited.stderr
        values = pl.scan_delta(f"{lake}/raw/orders").select("value").collect()["value"].to_list()
        assert sorted(values) == sorted(record.value for record in sent if record.value)
    finally:
        assert run(site, project, "down").returncode == 0
