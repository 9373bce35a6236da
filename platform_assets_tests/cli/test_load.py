"""Windows loaded from a shell by their key in the ledger, reported to Dagster, and checked; and runs that would be
lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest

from platform_assets.checks.registry import CHECKS
from platform_assets.model.windows import key_of
from platform_assets.orchestration import dagster_records, events
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.runs_of import materializations, materialize, minutes_ago
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell, ShellOf
from testbed.homes import service_environment
from testbed.loads import TopicLake, numbered, records

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker, LakeMaker, TopicMaker

pytestmark = [pytest.mark.broker, *map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


def instance_of(shell: Shell) -> dg.DagsterInstance:
    return dg.DagsterInstance.from_config(str(Path(shell.variables["PLATFORM_HOME"]) / "dagster"))


def test_windows_are_loaded_reported_and_checked(lake: LakeMaker, shell_of: ShellOf, spark_remote: str) -> None:
    lk = lake(partitions=2, start=minutes_ago(6))
    keys = [lk.window_of(numbered(10, 2)), lk.window_of([]), lk.window_of(numbered(4))]
    shell = shell_of(lk)
    result = shell.run("load", lk.topic, *keys)
    assert result.exit_code == 0, result.output
    assert [line.partition(",")[0] for line in result.stdout.splitlines()[:3]] == [
        f"{keys[0]}: loaded", f"{keys[1]}: empty", f"{keys[2]}: loaded"
    ]  # fmt: skip
    assert records(lk.rows()) == records(lk.committed())
    table = table_key(lk.declaration.raw_table)
    with instance_of(shell) as instance:
        found = materializations(instance, table)
        assert [found[k][events.ROWS] for k in keys] == [10, 0, 4]
        assert set(materializations(instance, topic_key(lk.topic))) == set(keys)
        checks = [dg.AssetCheckKey(table, name) for name in CHECKS]
        latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(checks)
        for key in checks:
            event = latest[key].event
            assert event is not None
            assert event.asset_check_evaluation is not None
            assert event.asset_check_evaluation.passed
        # A later run finds nothing that Dagster lacks.
        later = lk.window_of(numbered(3))
        assert materialize(lk, spark_remote, [later], instance).success
    assert records(lk.rows()) == records(lk.committed())


def test_a_window_that_an_earlier_schedule_sealed_is_loaded_by_its_key_and_no_other(
    lake: LakeMaker, shell_of: ShellOf
) -> None:
    lk = lake(start=minutes_ago(30))
    keys = [lk.window_of(numbered(5)) for _ in range(16)]
    off_the_hour = next(k for k in keys if k[-2:] not in ("00", "15", "30", "45"))
    shell = shell_of(lk)
    shell.declare(lk.topic, f"{lk.start:%Y-%m-%dT%H:%MZ}", "*/15 * * * *")
    result = shell.run("load", lk.topic, off_the_hour, "--json")
    found = json.loads(result.stdout)
    assert found["windows"] == [
        {"window": off_the_hour, "outcome": "loaded", "rows": 5, "offsets": 5, "table_version": 1}
    ]
    assert set(lk.ledger.receipts(lk.declaration.raw_table)) == {off_the_hour}


def test_a_key_that_names_no_window_is_refused_and_the_others_are_loaded(lake: LakeMaker, shell_of: ShellOf) -> None:
    lk = lake(start=minutes_ago(6))
    key = lk.window_of(numbered(5))
    open_still = key_of(datetime.now(UTC) + timedelta(hours=1))
    result = shell_of(lk).run("load", f"raw/{lk.topic}", "2020-01-01-00:00", open_still, key)
    assert result.exit_code == 1
    assert (
        f"2020-01-01-00:00: failed: window 2020-01-01-00:00 of topic '{lk.topic}' is before the topic's first"
        in result.stderr
    )
    assert f"{open_still}: failed: window {open_still} of topic '{lk.topic}' is still open" in result.stderr.replace(
        "\n", " "
    )
    assert set(lk.ledger.receipts(lk.declaration.raw_table)) == {key}
    # Sealed windows that were not requested are found by the checks, as in a run.
    assert f"{key}: loaded, 5 rows from 5 offsets" in result.stdout


def test_a_broker_that_is_gone_is_worth_another_try(lake: LakeMaker, shell_of: ShellOf) -> None:
    lk = lake(start=minutes_ago(6))
    key = lk.window_of(numbered(5))
    result = shell_of(lk).run("load", lk.topic, key, "--json", KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["windows"][0]["outcome"] == "failed"


# --- runs from the shell --------------------------------------------------------------------------------------------


def materialize_in_a_shell(lk: TopicLake, key: str, shell: Shell, script: str = "") -> subprocess.CompletedProcess[str]:
    """Run `dagster asset materialize`, which `dg launch` calls, in a separate shell after `script`."""
    command = [sys.executable, "-m", "dagster", "asset", "materialize", "-m", "platform_assets.definitions"]
    command += ["--select", f'key:"raw/{lk.topic}"', "--partition", key]
    bin_folder = Path(sys.executable).parent
    return subprocess.run(
        ["bash", "-c", f'{script}\nexec "$@"', "bash", *command],
        cwd=shell.root, capture_output=True, text=True, check=False, timeout=300,
        env={
            **service_environment(), **shell.variables,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(CHECKOUT),
        },
    )  # fmt: skip


def test_a_run_without_a_lasting_dagster_is_refused_before_the_load_and_the_remedy_works(
    lake: LakeMaker, shell_of: ShellOf
) -> None:
    lk = lake(start=minutes_ago(6))
    keys = [lk.window_of(numbered(5)) for _ in range(2)]
    shell = shell_of(lk)
    assert shell.run("load", lk.topic, keys[0]).exit_code in (0, 1)
    before = lk.snapshot()
    refused = materialize_in_a_shell(lk, keys[1], shell)
    assert refused.returncode != 0
    said = refused.stdout + refused.stderr
    assert "DAGSTER_HOME is not set" in said
    assert 'eval "$(platform-assets env)"' in said
    assert "STEP_UP_FOR_RETRY" not in said
    assert lk.snapshot() == before
    done = materialize_in_a_shell(lk, keys[1], shell, 'eval "$(platform-assets env)"')
    assert done.returncode == 0, done.stdout + done.stderr
    assert records(lk.rows()) == records(lk.committed())
    with instance_of(shell) as instance:
        assert dagster_records.reported_partitions(instance, table_key(lk.declaration.raw_table), keys) == frozenset(
            keys
        )


@pytest.mark.long
def test_a_topic_with_the_longest_name_is_loaded_decoded_checked_and_read(
    broker: Broker, topic: TopicMaker, connection: Callable[[], SparkSession], shell_of: ShellOf, tmp_path: Path
) -> None:
    name = topic(stem="X" * 236)
    assert len(name) == 249
    lk = TopicLake(broker.bootstrap, name, tmp_path / "lake", connection, start=minutes_ago(6))
    key = lk.window_of(numbered(10))
    shell = shell_of(lk)
    file = shell.root / "defs" / name / "defs.yaml"
    file.write_text(file.read_text().rstrip() + "\n  decode: {value: {format: string}}\n")
    assert shell.run("check").exit_code == 0
    for _ in range(2):
        done = shell.run("load", name, key)
        assert done.exit_code == 0, done.output
    for table in (name, f"decoded/{name}"):
        audited = shell.run("audit", table, "--deep")
        assert audited.exit_code == 0, audited.output
    assert json.loads(shell.run("status", "--json").stdout)["tables"][0]["rows"] == 10
    assert shell.run("read", f"decoded/{name}").exit_code == 0
