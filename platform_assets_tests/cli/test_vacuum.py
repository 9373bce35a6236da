"""`platform-assets vacuum`: the files that it lists and deletes, and the requests that it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from platform_assets.lake import raw_table
from platform_assets.lake.location import Lake
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    made = Shell(tmp_path / "project")
    made.declare("orders")
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    return made


def test_what_no_version_names_is_listed_and_then_deleted(shell: Shell) -> None:
    folder = Lake.at(shell.variables["LAKE_ROOT"]).table(TableRef.raw("orders"))
    raw_table.create(folder, "orders")
    dead = folder.path / "window=2026-01-01-00%3A00" / "dead" / "part-0.parquet"
    dead.parent.mkdir(parents=True)
    dead.write_bytes(b"never ended")
    os.utime(dead, (0, 0))

    listed = shell.run("vacuum", "orders", "--dry-run")
    assert listed.exit_code == 0, listed.output
    assert listed.output.splitlines() == [
        "window=2026-01-01-00%3A00/dead/part-0.parquet",
        "raw/orders: would delete 1 file, 11 bytes",
    ]
    assert dead.exists()

    done = shell.run("vacuum", "raw/orders", "--json")
    assert json.loads(done.output) == {
        "version": 1,
        "table": "raw/orders",
        "dry_run": False,
        "files": ["window=2026-01-01-00%3A00/dead/part-0.parquet"],
        "bytes": 11,
    }
    assert not dead.exists()

    refused = shell.run("vacuum", "orders", "--retain-hours", "1")
    assert refused.exit_code == 1
    assert "168 hours" in refused.output


def test_a_table_that_is_not_there_yet_is_said_to_be(shell: Shell) -> None:
    refused = shell.run("vacuum", "orders")
    assert refused.exit_code == 1
    assert "raw/orders has no files yet, because nothing has been loaded into it" in refused.output
