"""A mistyped argument gives a one-line error that names the value, the argument, and a next step that works."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from platform_assets.engines import choice
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.services import platform
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.homes import service_environment
from testbed.samples import loaded, recorded

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

ALERTS = Path(__file__).parents[2] / "docs" / "guide" / "alerts.md"
NOBODY = {"SPARK_REMOTE": "sc://127.0.0.1:1", "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
SPAN = "2026-01-01-00:00..2026-01-01-01:00"


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell of a project with a topic that has three sealed windows, none of which is loaded."""
    made = Shell(tmp_path)
    made.declare("orders")
    recorded(tmp_path / "lake", "orders", [{0: 0}, {0: 3}, {0: 5}, {0: 5}])
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    return made


@pytest.mark.parametrize("command", [["load"], ["dead-letters"], ["load", "--json"]])
@pytest.mark.parametrize("window", ["foo", "2026-01-01", "2026-02-31-00:00", "2026-1-1-00:00", "§"])
def test_what_is_no_window_is_named_before_anything_is_asked(shell: Shell, command: list[str], window: str) -> None:
    done = shell.run(*command, "orders", window, **NOBODY)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(
        f"platform-assets: {window!r} is not a window key: a key is the window's start in UTC, "
    )
    assert "Traceback" not in done.output
    assert "`platform-assets replay`" not in done.stderr


def test_the_commands_that_are_named_for_several_windows_take_them(shell: Shell) -> None:
    refused = shell.run("dead-letters", "orders", SPAN, **NOBODY)
    assert (refused.exit_code, refused.stdout) == (1, "")
    named = "`platform-assets load`, `platform-assets replay` and `platform-assets audit --windows` take a range A..B"
    assert named in refused.stderr
    assert shell.run("load", "orders", SPAN, "--dry-run", **NOBODY).exit_code == 0
    assert shell.run("audit", "orders", "--windows", SPAN).exit_code == 0
    assert "no Kafka broker answered" in shell.run("replay", "orders", SPAN, "--dry-run", **NOBODY).output


def test_a_deep_audit_of_a_topic_without_rows_finds_nothing_missing(shell: Shell) -> None:
    done = shell.run("audit", "orders", "--deep")
    assert "deleted or moved away" not in done.output
    assert "deep_audit: 0 windows with 0 rows read again, all unchanged since the load." in done.output
    assert done.exit_code == shell.run("audit", "orders").exit_code == 0
    # If windows were loaded and the table is missing, it has been deleted or moved.
    lake = Lake.at(shell.variables["LAKE_ROOT"])
    (window, *_) = Ledger(lake).windows("orders")
    loaded(shell.root / "lake", window)
    (shell.root / "lake" / "raw" / "orders").rename(shell.root / "elsewhere")
    assert "deleted or moved away" in shell.run("audit", "orders", "--deep").output


def test_check_names_a_start_with_which_nothing_is_sealed_and_the_remedy_helps(shell: Shell) -> None:
    file = shell.declare("orders", start="2025-12-01T00:00Z")
    done = shell.run("check")
    assert done.exit_code == 1
    assert (
        f"{file}:5: start: start 2025-12-01T00:00Z of topic 'orders' is before the topic's first window" in done.stdout
    )
    (better,) = re.findall(r'until you set `start` in its defs.yaml to "(.*?)" or later', done.stdout)
    shell.declare("orders", start=better)
    assert shell.run("check").exit_code == 0


def test_the_line_for_cron_judges_the_project_and_nothing_else(tmp_path: Path) -> None:
    (line,) = re.findall(r"^\*/5 \* \* \* \*  (.*)$", ALERTS.read_text(), re.MULTILINE)
    project = tmp_path / "lake project"
    assert Shell(tmp_path).run("init", str(project)).exit_code == 0
    defs = project / "defs" / "mine"
    defs.mkdir()
    (defs / "defs.yaml").write_text(Shell(tmp_path).declare("mine").read_text())
    program = str(Path(sys.executable).with_name("platform-assets"))
    line = line.replace("/srv/lake/.venv/bin/platform-assets", program).replace("cd /srv/lake", f"cd '{project}'")
    line = line.replace('mail -s "lake" team@example.com', "cat")
    # Like cron, with an almost empty environment.
    bare = {name: value for name, value in service_environment().items() if name in ("PATH", "HOME", "PYTHONPATH")}
    done = subprocess.run(["/bin/sh", "-c", line], env=bare, capture_output=True, text=True, cwd="/", check=False)
    assert "raw/mine" in done.stdout, (done.stdout, done.stderr)
    assert "flights" not in done.stdout


def test_a_load_by_hand_asks_the_registry_that_runs_here_although_the_shell_has_no_address(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, asked = "http://127.0.0.1:8081", list[str]()

    class Reached(Exception):
        """The load reached the engine."""

    def engine(lake: Lake, session: object, remote: object = None, environ: Mapping[str, str] | None = None) -> object:
        asked.append((environ or {}).get("SCHEMA_REGISTRY_URL", "none"))
        raise Reached

    running = platform.environment
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)
    monkeypatch.setattr(platform, "environment", lambda: {**running(), "SCHEMA_REGISTRY_URL": address})
    monkeypatch.setattr(choice, "decode_engine", engine)
    with shell.declare("orders").open("a") as file:
        file.write("  decode: {value: {format: string}}\n")
    done = shell.run("load", "decoded/orders", "2026-01-01-00:00", **NOBODY)
    assert isinstance(done.exception, Reached)
    assert asked == [address]
