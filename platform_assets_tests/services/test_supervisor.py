"""Services that one call starts: either all of them start, or none of them keeps running."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from platform_assets.services import state
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.process import ProcessRecord, is_alive, planned, spawn
from platform_assets.services.supervisor import bring_up, end
from platform_assets_tests.support import services


def quiet(message: str) -> None:
    """Discard the reported text."""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return an empty home."""
    made = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "a home")})
    made.prepare()
    return made


def end_all(home: Home) -> None:
    """End the processes that a test left running on purpose."""
    for record in state.read_records(home).values():
        end(home, record, quiet, grace=2)


def test_one_failure_ends_the_others_and_names_the_first_cause(home: Home) -> None:
    said: list[str] = []
    launches = [
        services.launch_of(home, "serves", services.SERVES),
        services.launch_of(home, "hangs", services.HANGS),
        services.launch_of(home, "dies", services.DIES),
    ]
    with pytest.raises(ServiceStartError, match="no such luck") as caught:
        bring_up(home, launches, said.append)
    assert caught.value.service == "dies"
    assert state.read_records(home) == {}
    assert services.naming(home.root) == []


def test_second_call_leaves_what_runs_alone(home: Home) -> None:
    launches = [services.launch_of(home, "one", services.SERVES), services.launch_of(home, "two", services.SERVES)]
    try:
        first = {record.service: record.pid for record in bring_up(home, launches, quiet)}
        said: list[str] = []
        assert bring_up(home, launches, said.append) == ()
        assert {name: record.pid for name, record in state.read_records(home).items()} == first
        assert all("already running" in line for line in said)
    finally:
        end_all(home)


def test_what_runs_already_stays_when_a_later_start_fails(home: Home) -> None:
    try:
        (kept,) = bring_up(home, [services.launch_of(home, "kept", services.SERVES)], quiet)
        with pytest.raises(ServiceStartError):
            bring_up(home, [services.launch_of(home, "dies", services.DIES)], quiet)
        assert is_alive(kept)
        assert set(state.read_records(home)) == {"kept"}
    finally:
        end_all(home)


def test_killed_service_is_started_anew_and_its_orphans_ended(home: Home) -> None:
    launch = services.launch_of(home, "thing", services.WITH_CHILD)
    try:
        (first,) = bring_up(home, [launch], quiet)
        services.kill(first)
        (second,) = bring_up(home, [launch], quiet)
        assert second.pid != first.pid
        assert services.marked(first) == []
        assert is_alive(second)
    finally:
        end_all(home)


def test_hung_service_is_replaced(home: Home) -> None:
    try:
        (first,) = bring_up(home, [services.launch_of(home, "thing", services.SERVES, answers=False)], quiet)
        (second,) = bring_up(home, [services.launch_of(home, "thing", services.SERVES, answers=False)], quiet)
        assert not is_alive(first)
        assert is_alive(second)
    finally:
        end_all(home)


@pytest.mark.parametrize("pid_written", [True, False], ids=["pid-written", "died-before-the-pid-was-written"])
def test_half_started_state_is_ended_and_started_whole(home: Home, pid_written: bool) -> None:
    spec = services.spec_of(home, "thing", services.HANGS)
    plan = planned(spec)
    half = spawn(spec, plan)
    state.write_record(home, half if pid_written else plan)
    said: list[str] = []
    try:
        (whole,) = bring_up(home, [services.launch_of(home, "thing", services.SERVES)], said.append)
        assert services.marked(half) == []
        assert is_alive(whole)
        assert any("an earlier start did not complete" in line for line in said)
    finally:
        end_all(home)


def test_stale_record_whose_pid_is_anothers_starts_anew_and_spares_the_other(home: Home) -> None:
    with subprocess.Popen([sys.executable, "-c", services.HANGS], stdout=subprocess.PIPE) as other:
        state.write_record(home, ProcessRecord("thing", other.pid, "boot:0", "m", "/log", "nowhere", (), ready=True))
        try:
            bring_up(home, [services.launch_of(home, "thing", services.SERVES)], quiet)
            assert other.poll() is None
        finally:
            end_all(home)
            other.kill()


INTERRUPTED = """
import sys
from platform_assets.services.home import Home
from platform_assets.services.supervisor import bring_up, signals_end_in_order
from platform_assets_tests.support import services
home = Home.from_environment({"PLATFORM_HOME": sys.argv[1]})
launches = [services.launch_of(home, "serves", services.SERVES), services.launch_of(home, "hangs", services.HANGS)]
with signals_end_in_order():
    bring_up(home, launches, lambda line: print(line, flush=True))
"""

STARTED = """
import sys
from platform_assets.services.home import Home
from platform_assets.services.supervisor import bring_up, signals_end_in_order
from platform_assets_tests.support import services
home = Home.from_environment({"PLATFORM_HOME": sys.argv[1]})
with signals_end_in_order(), signals_end_in_order():
    bring_up(home, [services.launch_of(home, "serves", services.SERVES)], lambda line: print(line, flush=True))
    sys.stdin.readline()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_interrupted_start_leaves_no_process(home: Home, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(home.root)],
        cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        for line in command.stdout:
            if line.startswith("serves: ready"):
                break
        records = state.read_records(home)
        assert {name for name, record in records.items() if services.marked(record)} >= {"serves"}
        command.send_signal(number)
        command.communicate(timeout=60)
    assert command.returncode != 0
    assert [pid for record in records.values() for pid in services.marked(record)] == []
    assert state.read_records(home) == {}


def test_what_a_shell_has_the_command_ignore_is_not_ignored_by_services(home: Home) -> None:
    """A shell makes background commands in scripts ignore SIGINT, and nohup makes commands ignore SIGHUP. The command
    must continue after such a signal, but its services must end on request."""
    command = shlex.join([sys.executable, "-c", STARTED, str(home.root)])
    with subprocess.Popen(
        ["sh", "-c", f"trap '' INT HUP; exec {command}"], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as shell:  # fmt: skip
        try:
            assert shell.stdout is not None
            for line in shell.stdout:
                if line.startswith("serves: ready"):
                    break
            for number in (signal.SIGINT, signal.SIGHUP):
                shell.send_signal(number)
            shell.communicate("go on\n", timeout=60)
            assert shell.returncode == 0
            (record,) = state.read_records(home).values()
            ignored = re.search(r"^SigIgn:\s*(\w+)$", Path(f"/proc/{record.pid}/status").read_text(), re.MULTILINE)
            assert ignored is not None
            numbers = {n for n in signal.Signals if int(ignored[1], 16) >> (n - 1) & 1}
            assert numbers.isdisjoint({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        finally:
            end_all(home)


def test_killed_command_is_cleaned_up_after_by_the_next(home: Home) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(home.root)],
        cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as command:  # fmt: skip
        assert command.stdout is not None
        for line in command.stdout:
            if line.startswith("serves: ready"):
                break
        command.kill()
        command.communicate(timeout=60)
    left = state.read_records(home)
    try:
        bring_up(home, [services.launch_of(home, name, services.SERVES) for name in ("serves", "hangs")], quiet)
        assert services.marked(left["hangs"]) == [] if "hangs" in left else True
        assert all(record.ready and is_alive(record) for record in state.read_records(home).values())
    finally:
        end_all(home)


def test_starting_in_a_thread_needs_no_signal_handlers(home: Home) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            bring_up(home, [services.launch_of(home, "thing", services.SERVES)], quiet)
        except ServiceStartError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    try:
        assert not failed
        assert set(state.read_records(home)) == {"thing"}
    finally:
        end_all(home)
