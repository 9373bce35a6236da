"""The end of the demo: the exit code is 0 only if everything passed, a failure comes with a remedy, and the demo's
services are stopped."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from platform_assets.demo import run, state
from platform_assets.demo.display import Display
from platform_assets.services import platform
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.platform import ServiceState
from testbed.homes import home_at


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "SPARK_REMOTE", "DAGSTER_HOME", "LAKE_ROOT"):
        monkeypatch.delenv(name, raising=False)
    # Set first, so that the original value is restored afterwards: the demo sets its own.
    monkeypatch.setenv(state.START_VARIABLE, "2026-01-01T00:00:00Z")


def demo(root: Path) -> tuple[int, str]:
    out = io.StringIO()
    code = run.run_demo(home_at(root), once=True, display=Display(Console(file=out, width=200)))
    return code, out.getvalue()


def raising(error: BaseException) -> object:
    def up(*args: object, **kwargs: object) -> None:
        raise error

    return up


def test_a_service_that_does_not_start_fails_the_demo_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ServiceStartError("kafka", "its port is taken", "/logs/kafka.log")
    monkeypatch.setattr(platform, "up", raising(error))
    code, text = demo(tmp_path)
    assert code == 1
    assert "The demo failed: kafka did not start: its port is taken. Its log: /logs/kafka.log" in text
    assert f"Logs: {tmp_path / 'logs'}" in text


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "up", raising(KeyboardInterrupt()))
    code, text = demo(tmp_path)
    assert code == 130
    assert text.endswith("Interrupted. Run the demo again to continue from here.\n")


def test_a_second_demo_on_the_folder_is_refused(tmp_path: Path) -> None:
    with state.exclusive_demo(tmp_path):
        code, text = demo(tmp_path)
    assert code == 1
    assert "another demo is using" in text


def test_a_project_without_the_demos_topics_is_named_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "up", raising(AssertionError("something was started")))
    (tmp_path / "defs").mkdir()
    monkeypatch.setenv("PLATFORM_DEFS", str(tmp_path / "defs"))
    code, text = demo(tmp_path / "home")
    assert code == 1
    assert "the demo's topics flights, planes, weather are not declared under" in text.replace("\n", " ")
    assert "unset PLATFORM_DEFS" in text.replace("\n", " ")


def test_only_services_that_the_demo_started_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    running = [ServiceState("spark", "running")]
    ended: list[str] = []

    def up(home: object, options: platform.UpOptions, **kwargs: object) -> tuple[ServiceState, ...]:
        running.append(ServiceState("kafka", "running"))
        return tuple(running)

    def fail(*args: object, **kwargs: object) -> None:
        raise ServiceStartError("kafka", "it went away", "/logs/kafka.log")

    monkeypatch.setattr(platform, "running_state", lambda home: tuple(running))
    monkeypatch.setattr(platform, "up", up)
    monkeypatch.setattr(platform, "environment", fail)
    monkeypatch.setattr(platform, "down", lambda home, services, report: ended.extend(services))
    code, _ = demo(tmp_path)
    assert code == 1
    assert ended == ["kafka"]


def test_dagster_services_that_know_another_start_are_ended_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = tuple(ServiceState(service, "running") for service in platform.SERVICES)
    ended: list[str] = []
    monkeypatch.setattr(platform, "running_state", lambda home: running)
    monkeypatch.setattr(platform, "up", raising(KeyboardInterrupt()))
    monkeypatch.setattr(platform, "down", lambda home, services, report: ended.extend(services))
    demo(tmp_path)
    assert ended == list(run.DAGSTER)
    ended.clear()
    demo(tmp_path)
    assert ended == []
