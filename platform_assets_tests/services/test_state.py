"""The run state of a home: it survives damage to its files."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from platform_assets.services import state
from platform_assets.services.errors import BusyError, ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.process import ProcessRecord

RECORD = ProcessRecord("kafka", 4711, "boot:1", "mark", "/log", "127.0.0.1:1", (1, 2), ready=True)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return an empty home."""
    made = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "a home")})
    made.prepare()
    return made


def test_record_is_read_as_it_was_written(home: Home) -> None:
    state.write_record(home, RECORD)
    assert state.read_records(home) == {"kafka": RECORD}
    state.remove_record(home, "kafka")
    assert state.read_records(home) == {}


def test_state_is_the_owners_alone(home: Home) -> None:
    state.write_record(home, RECORD)
    assert home.state_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 99, "services": {}}', '{"version": 1, "services": {"a": 1}}']
)
def test_damaged_state_is_named_and_not_guessed_at(home: Home, text: str) -> None:
    home.state_file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"state\.json is damaged"):
        state.read_records(home)


def test_damaged_memory_of_ports_costs_only_the_memory(home: Home) -> None:
    (home.run / "ports.json").write_text("{")
    assert state.remembered_ports(home, "kafka") == ()
    state.remember_ports(home, "kafka", (1, 2))
    assert state.remembered_ports(home, "kafka") == (1, 2)


def hold(root: str, held: multiprocessing.synchronize.Event, release: multiprocessing.synchronize.Event) -> None:
    """Hold the lock of a home until the test lets go of it."""
    with state.exclusive(Home.from_environment({"PLATFORM_HOME": root})):
        held.set()
        release.wait(30)


def test_second_command_on_one_home_waits_and_then_says_so(home: Home) -> None:
    context = multiprocessing.get_context("spawn")
    held, release = context.Event(), context.Event()
    holder = context.Process(target=hold, args=(str(home.root), held, release))
    holder.start()
    try:
        assert held.wait(30)
        with pytest.raises(BusyError, match="another command"), state.exclusive(home, wait_seconds=0.2):
            pass
        release.set()
        with state.exclusive(home, wait_seconds=30):
            pass
    finally:
        release.set()
        holder.join(30)
