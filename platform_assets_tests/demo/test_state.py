"""A second demo uses the same start time as the first, and two demos at the same time are refused."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from platform_assets.demo import state
from platform_assets.errors import ConfigurationError
from testbed.homes import home_at

NOW = datetime(2026, 3, 1, 12, 34, 56, 789, tzinfo=UTC)


def test_the_first_start_is_kept(tmp_path: Path) -> None:
    root = tmp_path / "data folder"
    first = state.remembered_start(root, NOW)
    assert first == NOW.replace(microsecond=0)
    assert state.remembered_start(root, NOW + timedelta(days=3)) == first


def test_the_topics_start_a_minute_before_the_backlog() -> None:
    assert state.start_setting(NOW) == "2026-03-01T12:03:00Z"


@pytest.mark.parametrize("content", ["", "{}", '{"start": 5}', '{"start": "2026"', '{"start": "2026-03-01T12:00:00"}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "demo.json").write_text(content)
    with pytest.raises(ConfigurationError, match=r"demo\.json"):
        state.remembered_start(tmp_path)


def test_two_demos_on_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        state.exclusive_demo(tmp_path),
        pytest.raises(ConfigurationError, match="another demo is using"),
        state.exclusive_demo(tmp_path),
    ):
        pass
    with state.exclusive_demo(tmp_path):
        pass


def test_a_killed_demo_lets_go(tmp_path: Path) -> None:
    code = (
        "import os, sys, pathlib; from platform_assets.demo.state import exclusive_demo\n"
        "with exclusive_demo(pathlib.Path(sys.argv[1])): os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2], env=os.environ)
    assert done.returncode == -9
    with state.exclusive_demo(tmp_path):
        pass


def test_services_of_a_killed_demo_are_its_own_and_no_others(tmp_path: Path) -> None:
    running = {"kafka": 10, "spark": 20, "dagster-daemon": 30}
    assert state.left_services(tmp_path, running) == set()
    state.remember_services(tmp_path, {"kafka": 10, "spark": 19, "dagster-daemon": None, "dagster-webserver": 40})
    assert state.left_services(tmp_path, running) == {"kafka", "dagster-daemon"}
    (tmp_path / "demo-services.json").write_text("[1")
    with pytest.raises(ConfigurationError, match=r"demo-services\.json"):
        state.left_services(tmp_path, running)


def test_the_start_is_published_to_services_of_now_and_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(state.START_VARIABLE, raising=False)
    home = home_at(tmp_path)
    path = home.variables_file
    path.write_text("OTHER=1\nDEMO_START=old\n")
    assert state.publish_start(home, "2026-03-01T12:03:00Z")
    assert os.environ[state.START_VARIABLE] == "2026-03-01T12:03:00Z"
    assert path.read_text() == "OTHER=1\nDEMO_START=2026-03-01T12:03:00Z\n"
    assert not state.publish_start(home, "2026-03-01T12:03:00Z")
