"""`platform-assets migrate-layout`: its output and its effects. Its remedy works."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import DeltaTable

from platform_assets_tests.support import partitioned_lake
from platform_assets_tests.support.erasures import MadeTopic, proved
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    return partitioned_lake.unpacked(tmp_path)


@pytest.fixture
def shell(tmp_path: Path, topic: MadeTopic) -> Shell:
    made = Shell(tmp_path / "project")
    made.declare(topic.topic)
    made.variables["LAKE_ROOT"] = str(topic.root)
    return made


def test_a_table_is_planned_migrated_and_flat_then(shell: Shell, topic: MadeTopic) -> None:
    planned = shell.run("migrate-layout", "people", "--dry-run")
    assert planned.exit_code == 0, planned.output
    assert planned.output.startswith("raw/people: would copy ")
    assert "from 5 files with 5 windows; 0 bytes have already been copied" in planned.output
    assert DeltaTable(topic.root / "raw" / "people").metadata().partition_columns == ["window"]

    done = shell.run("migrate-layout", "raw/people", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    version = DeltaTable(topic.root / "raw" / "people").version()
    assert (found["layout"], found["windows"], found["files"], found["table_version"]) == ("flat", 5, 1, version)
    assert found["unproved"] == []
    assert DeltaTable(topic.root / "raw" / "people").metadata().partition_columns == []
    proved(topic)

    again = shell.run("migrate-layout", "people")
    assert again.output.startswith("raw/people already has the flat layout: 1 file, ")
    looked = shell.run("migrate-layout", "people", "--dry-run", "--json")
    assert json.loads(looked.stdout)["layout"] == "flat"


def test_rows_that_no_receipt_proves_are_named_and_damage_is_refused(shell: Shell, topic: MadeTopic) -> None:
    window = topic.ledger.windows(topic.topic)[0]
    first = window.ranges.by_partition[0].start
    DeltaTable(topic.root / "raw" / "people").delete(f"kafka_partition = 0 AND kafka_offset = {first}")
    refused = shell.run("migrate-layout", "people")
    assert refused.exit_code == 1
    assert f"Load these windows again (`platform-assets load raw/people {window.key}`)" in refused.output
    topic.load(window)
    topic.load(topic.ledger.windows(topic.topic)[6])
    topic.ledger.lake.commits.delete()
    done = shell.run("migrate-layout", "people")
    assert done.exit_code == 0, done.output
    assert "the rows of 6 windows (2026-01-01-00:00, " in done.output


def test_a_table_that_is_not_there_yet_is_reported(shell: Shell) -> None:
    shell.declare("orders")
    refused = shell.run("migrate-layout", "orders")
    assert refused.exit_code == 1
    assert "raw/orders has no files yet, because nothing has been loaded into it" in refused.output
