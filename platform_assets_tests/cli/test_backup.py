"""Backup commands in a shell: their output and their effects. Each remedy in a message works."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from platform_assets.services import state
from platform_assets.services.home import Home
from platform_assets.services.process import ProcessRecord, start_of
from platform_assets_tests.support.backed_up import ORDERS, BackedUp
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture(autouse=True)
def _others_keep_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sync", lambda: None)


@pytest.fixture
def platform(tmp_path: Path) -> BackedUp:
    """Return a lake with two windows, loaded and reported to Dagster."""
    made = BackedUp(tmp_path)
    made.seal(2)
    made.load()
    made.report("2026-01-01-00:00")
    made.report("2026-01-01-01:00")
    return made


@pytest.fixture
def shell(platform: BackedUp) -> Shell:
    """Return a shell for that lake and its Dagster instance."""
    made = Shell(platform.folder / "project")
    made.declare("orders")
    made.variables |= {"LAKE_ROOT": str(platform.lake), "DAGSTER_HOME": str(platform.home)}
    return made


def ran(shell: Shell, *arguments: str) -> str:
    done = shell.run(*arguments)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_destination_in_an_object_store_is_refused(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = shell.run("backup", "s3://bucket/backups")
    assert done.exit_code == 1
    assert "'s3://bucket/backups' is a URL, but backups are written only to folders on this machine" in done.output
    assert not (tmp_path / "s3:").exists()


def test_all_is_backed_up_destroyed_and_restored(platform: BackedUp, shell: Shell) -> None:
    wanted, there = platform.state, str(platform.destination)
    assert "ledger, raw/orders, dagster" in ran(shell, "backup", there)
    taken = json.loads(ran(shell, "backup", there, "--json"))
    assert (taken["version"], taken["parts"]) == (1, ["ledger", "raw/orders", "dagster"])
    assert taken["tables"] == {"_ledger/commits": 2, "raw/orders": 2, "_ledger/cuts": 1}
    assert (taken["files_copied"], taken["bytes_copied"], taken["left_out"]) == (0, 0, [])
    platform.destroy("ledger", "raw/orders", "dagster")

    assert "nothing was restored" in ran(shell, "restore", there, "--dry-run")
    restored = json.loads(ran(shell, "restore", there, "--json"))

    assert restored == {
        "version": 1,
        "backup": taken["backup"],
        "at": taken["at"],
        "dry_run": False,
        "parts": taken["parts"],
        "files": taken["files"],
        "bytes": taken["bytes"],
        "to_be_loaded_again": {},
        "then": [],
    }
    assert platform.state == wanted


def test_a_ledger_older_than_its_tables_is_rebuilt_as_the_command_says(platform: BackedUp, shell: Shell) -> None:
    ran(shell, "backup", str(platform.destination))
    platform.seal()
    platform.load()
    wanted = platform.ledger.receipts(ORDERS).keys()
    platform.destroy("ledger")

    said = ran(shell, "restore", str(platform.destination), "--only", "ledger")

    assert "the ledger is older than raw/orders" in said
    assert platform.ledger.receipts(ORDERS).keys() != wanted
    command = said.partition("`platform-assets ")[2].partition("`")[0]
    assert command == "rebuild-ledger"


def test_a_table_older_than_its_ledger_is_named_with_what_is_loaded_again(platform: BackedUp, shell: Shell) -> None:
    ran(shell, "backup", str(platform.destination))
    platform.seal(2)
    platform.load()
    platform.destroy("raw/orders")
    said = ran(shell, "restore", str(platform.destination), "--only", "orders")
    assert "raw/orders: 2 windows loaded since the backup will be loaded again" in said


def test_a_dagster_older_than_its_tables_is_told_as_the_command_says(platform: BackedUp, shell: Shell) -> None:
    ran(shell, "backup", str(platform.destination))
    platform.seal(2)
    platform.load()
    keys = set(platform.ledger.receipts(ORDERS))
    platform.destroy("dagster")

    said = ran(shell, "restore", str(platform.destination), "--only", "dagster")

    assert platform.state["reported"] < keys
    command = said.partition("`platform-assets ")[2].partition("`")[0]
    # Two windows of the table, and all four windows of the topic.
    assert "orders: 6 materializations reported" in ran(shell, command)
    assert platform.state["reported"] == keys
    assert "orders: 0 materializations reported" in ran(shell, command)


def test_a_dagster_that_is_lost_without_a_backup_is_told_what_the_ledger_has(platform: BackedUp, shell: Shell) -> None:
    platform.destroy("dagster")
    refused = shell.run("report-loads")
    assert refused.exit_code == 1
    assert "`platform-assets up` creates one" in refused.output
    platform.home.mkdir()
    (platform.home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    assert "orders: 4 materializations reported" in ran(shell, "report-loads", "orders")
    assert platform.state["reported"] == set(platform.ledger.receipts(ORDERS))


def test_nothing_is_restored_while_dagster_runs(platform: BackedUp, shell: Shell) -> None:
    ran(shell, "backup", str(platform.destination))
    del shell.variables["DAGSTER_HOME"]
    home = Home.from_environment(shell.variables)
    home.prepare()
    began = start_of(os.getpid())
    assert began is not None
    record = ProcessRecord("dagster-daemon", os.getpid(), began, "", "", str(home.dagster), ())
    state.write_record(home, record)
    refused = shell.run("restore", str(platform.destination), "--force")
    assert refused.exit_code == 1
    assert "`platform-assets down --service dagster-daemon` before the restore" in refused.output
    assert not home.dagster.exists()
    state.remove_record(home, "dagster-daemon")
    ran(shell, "restore", str(platform.destination), "--force")
    assert (home.dagster / "dagster.yaml").is_file()
