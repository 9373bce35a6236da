"""Windows given to `load` as ranges and by options: the chosen windows, the output of a dry run, and the outcome. No
services are needed."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG
from rich.console import Console

from platform_assets.cli.load_progress import bars
from platform_assets.engines import choice
from platform_assets.errors import NotLoadedError, PlatformError
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.dagster_records import FAILURES_TAG, TABLE_TAG
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import Failures
from platform_assets_tests.support.decoded_topic import DecodedTopic, InProcessEngine, tables_without_spark
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.samples import recorded

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

NOBODY = {"SPARK_REMOTE": "sc://127.0.0.1:1", "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
DECODE = "  decode: {{value: {{format: string, max_bytes: {most}}}, dead_letters: {{warn: 0.9, fail: 1.0}}}}\n"
TOPIC, TABLE = "orders", "decoded/orders"
TERMINAL = {"TERM": "xterm"}
"""Without it, a test run in a dumb terminal would have no bars."""


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    """Return a topic with four windows in its raw table, one of them without records."""
    made = DecodedTopic(tmp_path / "lake", TOPIC, DecodeDeclaration(FormatSpec("string", {"max_bytes": 4})))
    made.load([b"ok", b"too long"], [b"ok"], [], [b"too long"])
    return made


@pytest.fixture
def shell(tmp_path: Path, topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """Return a shell of a project that declares the topic. It has its own Dagster instance and no other service."""
    made = Shell(tmp_path / "project", dict(NOBODY))
    declare(made, 4)
    (made.root / "dagster").mkdir()
    (made.root / "dagster" / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    made.variables |= {"LAKE_ROOT": str(topic.root), "DAGSTER_HOME": str(made.root / "dagster")}
    monkeypatch.setattr(choice, "decode_engine", lambda lake, *_: InProcessEngine(lake, tables_without_spark))
    return made


def declare(shell: Shell, most: int) -> None:
    file = shell.declare(TOPIC)
    file.write_text(file.read_text() + DECODE.format(most=most))


def planned(shell: Shell, *arguments: str) -> list[str]:
    """Return the windows that a dry run lists."""
    done = shell.run("load", *arguments, "--dry-run", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["dry_run"] is True
    return [window["window"] for window in found["plan"]]


def loaded(shell: Shell, *arguments: str) -> dict[str, Any]:
    """Return the outcomes of a load by window."""
    done = shell.run("load", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return {window["window"]: window["outcome"] for window in json.loads(done.stdout)["decoded"]}


def failed_run(shell: Shell, table: TableRef, key: str, error: PlatformError) -> None:
    tags = {PARTITION_NAME_TAG: key, TABLE_TAG: table.name, FAILURES_TAG: Failures.of({key: error}).to_tag()}
    with dg.DagsterInstance.from_config(shell.variables["DAGSTER_HOME"]) as instance:
        run_id, failed, keys = str(uuid.uuid4()), dg.DagsterRunStatus.FAILURE, frozenset([table_key(table)])
        instance.add_run(dg.DagsterRun("__ASSET_JOB", run_id, status=failed, tags=tags, asset_selection=keys))


def test_a_range_names_the_windows_that_can_be_loaded(shell: Shell, topic: DecodedTopic) -> None:
    keys = [window.key for window in topic.windows]
    assert planned(shell, TABLE, f"{keys[1]}..{keys[2]}") == keys[1:3]
    assert planned(shell, TOPIC, f"..{keys[1]}") == keys[:2]
    assert planned(shell, TABLE, f"{keys[3]}..", keys[0], f"..{keys[0]}") == [keys[3], keys[0]]
    assert loaded(shell, TABLE, f"..{keys[2]}") == {keys[0]: "loaded", keys[1]: "loaded", keys[2]: "empty"}
    assert set(topic.ledger.receipts(topic.declaration.decoded_table)) == set(keys[:3])
    for wrong in (f"{keys[1]}..{keys[0]}", f"{keys[0]}..foo", "..", "2030-01-01-00:00.."):
        refused = shell.run("load", TABLE, wrong)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"'{wrong}' is not a window of topic 'orders'" in refused.stderr
    # Windows that are sealed but not in the raw table cannot be decoded.
    other = topic.root.with_name("other")
    recorded(other, TOPIC, [{0: 0}, {0: 3}, {0: 5}])
    refused = shell.run("load", TABLE, f"..{keys[1]}", LAKE_ROOT=str(other))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "raw/orders has no loaded window in this range, so there is nothing to decode" in refused.stderr
    shell.variables["LAKE_ROOT"] = str(other)
    assert planned(shell, TOPIC, f"..{keys[1]}") == keys[:2]


def test_a_dry_run_says_what_there_is_and_changes_nothing(shell: Shell, topic: DecodedTopic) -> None:
    keys = [window.key for window in topic.windows]
    loaded(shell, TABLE, keys[0])
    before = topic.ledger.receipts(topic.declaration.decoded_table)
    done = shell.run("load", TABLE, f"{keys[0]}..{keys[1]}", "--dry-run")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "decoded/orders: 2 windows to decode", f"{keys[0]}: currently 1 rows, 1 dead letters", f"{keys[1]}: not loaded yet"
    ]  # fmt: skip
    assert topic.ledger.receipts(topic.declaration.decoded_table) == before
    done = shell.run("load", f"raw/{TOPIC}", f"{keys[0]}..{keys[2]}", "--dry-run")
    assert done.stdout.splitlines() == [
        "raw/orders: 3 windows to load",
        *(f"{key}: currently {rows} rows" for key, rows in zip(keys[:3], (2, 1, 0), strict=True)),
    ]  # fmt: skip


def test_options_choose_windows_and_narrow_each_other(shell: Shell, topic: DecodedTopic) -> None:
    keys = [window.key for window in topic.windows]
    assert planned(shell, TABLE, "--stale") == planned(shell, TABLE, "--dead-letters") == []
    loaded(shell, TABLE, f"{keys[0]}..")
    assert planned(shell, TABLE, "--stale") == []
    assert planned(shell, TABLE, "--dead-letters") == [keys[0], keys[3]]
    declare(shell, 400)
    assert planned(shell, TABLE, "--stale") == [keys[0], keys[1], keys[3]]
    assert planned(shell, TABLE, "--stale", "--dead-letters") == [keys[0], keys[3]]
    assert planned(shell, TABLE, "--stale", f"{keys[1]}..", keys[0]) == [keys[0], keys[1], keys[3]]
    assert planned(shell, f"dead_letters/{TOPIC}", "--dead-letters", f"{keys[1]}..") == [keys[3]]
    assert loaded(shell, TABLE, "--dead-letters") == {keys[0]: "replaced", keys[3]: "replaced"}
    assert planned(shell, TABLE, "--dead-letters") == []
    done = shell.run("load", TABLE, "--stale")
    assert (done.exit_code, done.stdout.splitlines()[0]) == (0, "decoded/orders: 1 window to decode again"), done.output
    assert f"{keys[1]}: decoded: replaced, 1 rows, 0 dead letters" in done.stdout
    for option in ("--stale", "--dead-letters"):
        refused = shell.run("load", TOPIC, option)
        assert refused.exit_code == 1
        assert (
            f"{option} applies only to decoded tables, but raw/orders is not one: use decoded/orders" in refused.stderr
        )
    assert "--stale, --dead-letters or --failed" in shell.run("load", TABLE).stderr


def test_windows_that_failed_in_dagster_are_chosen_until_they_are_loaded(shell: Shell, topic: DecodedTopic) -> None:
    keys, decoded = [window.key for window in topic.windows], topic.declaration.decoded_table
    assert planned(shell, TABLE, "--failed") == []
    loaded(shell, TABLE, keys[0])
    for key in (keys[0], keys[1], keys[3]):
        failed_run(shell, decoded, key, NotLoadedError(decoded.name, f"raw/{TOPIC}", key))
    # The first window is decoded by now.
    assert planned(shell, TABLE, "--failed") == [keys[1], keys[3]]
    assert planned(shell, TOPIC, "--failed") == []
    assert planned(shell, TABLE, "--failed", f"..{keys[2]}") == [keys[1]]
    assert shell.run("park", TABLE, keys[3], "--reason", "later").exit_code == 0
    assert planned(shell, TABLE, "--failed") == [keys[1]]
    refused = shell.run("load", TABLE, "--failed", DAGSTER_HOME=str(shell.root))
    assert refused.exit_code == 1
    assert (
        "--failed needs Dagster's records of failed runs, but there is no Dagster instance in DAGSTER_HOME"
        in refused.stderr
    )
    # The remedy in the message: give the windows as arguments instead.
    assert loaded(shell, TABLE, keys[1], "--failed") == {keys[1]: "loaded"}
    assert planned(shell, TABLE, "--failed") == []


def test_a_failed_window_that_the_raw_table_lacks_is_not_decoded(shell: Shell, topic: DecodedTopic) -> None:
    other, decoded = topic.root.with_name("other"), topic.declaration.decoded_table
    keys = recorded(other, TOPIC, [{0: 0}, {0: 3}, {0: 5}])
    shell.variables["LAKE_ROOT"] = str(other)
    for table in (decoded, topic.declaration.raw_table):
        failed_run(shell, table, keys[0].key, NotLoadedError(decoded.name, f"raw/{TOPIC}", keys[0].key))
    assert planned(shell, TABLE, "--failed") == []
    assert planned(shell, TOPIC, "--failed") == [keys[0].key]


def test_bars_show_how_far_each_kind_of_table_is_on_a_terminal_alone(capsys: pytest.CaptureFixture[str]) -> None:
    on_screen = io.StringIO()
    console = Console(file=on_screen, force_terminal=True, width=100, _environ=TERMINAL)
    with bars(["raw", "decoded"], 3, as_json=False, console=console) as shown:
        for kind in ("raw", "raw", "decoded"):
            shown.advance(kind)
        shown.show("a line")
        shown.show("an error", err=True)
    for text in ("loading", "2/3", "1/3"):
        assert text in on_screen.getvalue()
    # If stdout and stderr are not a terminal, each receives its own lines.
    assert tuple(capsys.readouterr()) == ("a line\n", "an error\n")
    for windows, terminal in ((1, True), (3, False)):
        quiet = io.StringIO()
        console = Console(file=quiet, force_terminal=terminal, _environ=TERMINAL)
        with bars(["raw"], windows, as_json=False, console=console) as shown:
            shown.advance("raw")
            shown.show("a line")
        assert (quiet.getvalue(), capsys.readouterr().out) == ("", "a line\n")


def test_lines_stand_above_the_bars_on_a_terminal() -> None:
    program = (
        "from platform_assets.cli.load_progress import bars\n"
        "with bars(['decoded'], 2, as_json=False) as shown:\n"
        "    shown.show('first \\x1b[31m [red]')\n"
        "    shown.advance('decoded')\n"
    )
    written = bytearray()

    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", program], {**os.environ, **TERMINAL})
    with suppress(OSError):  # Linux raises this when the other side has closed
        while found := os.read(terminal, 1 << 16):
            written += found
    assert os.waitpid(pid, 0)[1] == 0
    assert b"\x1b[2Kfirst \\x1b[31m [red]\r\n" in written
    assert b"1/2" in written
