"""Managed processes: a process is never mistaken for another process, and its death is reported immediately."""

from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import psutil
import pytest

from platform_assets.services import log_keeper, process
from platform_assets.services.errors import ServiceStartError
from platform_assets.services.home import CHECKOUT, Home
from platform_assets.services.process import ProcessRecord
from platform_assets_tests.support import services
from testbed.loads import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return an empty home."""
    made = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "a home")})
    made.prepare()
    return made


def started(home: Home, code: str, timeout: float = 30.0) -> ProcessRecord:
    """Start a stand-in for a service and wait until it is ready."""
    spec = services.spec_of(home, "thing", code, timeout=timeout)
    record = process.spawn(spec, process.planned(spec))
    return process.wait_ready(spec, record)


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that does not belong to the platform."""
    with subprocess.Popen([sys.executable, "-c", services.HANGS], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        yield other
        other.kill()


def test_dead_service_is_told_at_once_with_its_log_named_and_quoted(home: Home) -> None:
    begun = time.monotonic()
    with pytest.raises(ServiceStartError) as caught:
        started(home, services.DIES, timeout=60.0)
    assert time.monotonic() - begun < 10
    assert caught.value.log_path == str(home.log_file("thing"))
    assert str(home.log_file("thing")) in str(caught.value)
    assert "no such luck" in str(caught.value)


def test_service_that_never_answers_is_told_after_its_time(home: Home) -> None:
    spec = services.spec_of(home, "thing", services.HANGS, timeout=0.5)
    record = process.spawn(spec, process.planned(spec))
    with pytest.raises(ServiceStartError, match=r"not ready within 0\.5 s"):
        process.wait_ready(spec, record)
    assert process.terminate(record, grace=5)
    assert services.marked(record) == []


def test_program_that_does_not_exist_is_a_start_error(home: Home) -> None:
    spec = replace(services.spec_of(home, "thing", ""), command=(str(home.root / "none"),))
    with pytest.raises(ServiceStartError, match="No such file"):
        process.spawn(spec, process.planned(spec))


def test_pid_that_now_belongs_to_another_is_left_alone(home: Home, bystander: subprocess.Popen[bytes]) -> None:
    stale = ProcessRecord("thing", bystander.pid, "an earlier boot:1", "mark", "/log", "nowhere", (), ready=True)
    assert not process.is_alive(stale)
    assert not process.terminate(stale, grace=1)
    assert bystander.poll() is None


def test_deaf_service_is_killed_after_the_grace(home: Home) -> None:
    record = started(home, services.DEAF)
    assert process.terminate(record, grace=0.3)
    assert services.marked(record) == []


def test_child_in_a_session_of_its_own_ends_with_the_service(home: Home) -> None:
    record = started(home, services.WITH_CHILD)
    child = services.child_of(home, "thing")
    assert set(services.marked(record)) == {record.pid, child}
    process.terminate(record, grace=5)
    assert services.marked(record) == []


def test_orphan_of_a_killed_service_is_found_and_ended(home: Home) -> None:
    record = started(home, services.WITH_CHILD)
    child = services.child_of(home, "thing")
    services.kill(record)
    assert services.marked(record) == [child]
    assert process.terminate(record, grace=5)
    assert services.marked(record) == []


def test_killed_child_of_this_program_counts_as_dead_though_unreaped(home: Home) -> None:
    record = started(home, services.SERVES)
    os.kill(record.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while process.is_alive(record) and time.monotonic() < deadline:
        os.sched_yield()
    assert not process.is_alive(record)
    process.terminate(record, grace=1)


STARTS = """
import json, sys
from platform_assets.services.home import Home
from platform_assets.services.process import planned, spawn, wait_ready
from platform_assets_tests.support import services
spec = services.spec_of(Home.from_environment({"PLATFORM_HOME": sys.argv[1]}), "thing", services.SERVES)
print(json.dumps(wait_ready(spec, spawn(spec, planned(spec))).to_json()), flush=True)
sys.stdin.readline()
"""


def test_service_ends_at_once_though_the_program_that_started_it_lives_on(home: Home) -> None:
    """The ended service remains a zombie until the program that started it waits for it."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTS, str(home.root)], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as starter:  # fmt: skip
        assert starter.stdout is not None
        record = ProcessRecord.from_json(json.loads(starter.stdout.readline()))
        with ThreadPoolExecutor(1) as pool:
            ending = pool.submit(process.terminate, record, grace=40.0)
            try:
                assert ending.result(timeout=20)
                assert psutil.Process(record.pid).status() == psutil.STATUS_ZOMBIE
            finally:
                starter.communicate("end\n", timeout=60)


def test_logs_of_earlier_starts_are_kept(home: Home) -> None:
    for _ in range(6):
        with pytest.raises(ServiceStartError):
            started(home, services.DIES)
    names = sorted(path.name for path in home.logs.iterdir())
    assert names == ["thing.log", "thing.log.1", "thing.log.2", "thing.log.3"]
    assert home.log_file("thing").stat().st_mode & 0o777 == 0o600


def test_a_log_is_bounded_while_its_service_runs(home: Home) -> None:
    code = (
        "import pathlib, sys, time\n"
        "for n in range(50_000): print(f'line {n:05}')\n"
        "sys.stdout.flush(); pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    spec = replace(services.spec_of(home, "thing", code), log_bytes=30_000)
    record = process.wait_ready(spec, process.spawn(spec, process.planned(spec)))
    assert process.terminate(record, grace=5)
    sizes = {path.name: path.stat().st_size for path in home.logs.iterdir()}
    assert sorted(sizes) == ["thing.log", "thing.log.1", "thing.log.2", "thing.log.3"]
    assert max(sizes.values()) <= 65_536
    assert home.log_file("thing").read_text().endswith("line 49999\n")
    assert {stat.S_IMODE(path.stat().st_mode) for path in home.logs.iterdir()} == {0o600}


def test_the_end_of_the_output_begins_no_new_log(home: Home) -> None:
    """In an earlier version, if the last chunk was larger than a log file, the current log was left empty."""
    reading, writing = os.pipe()
    os.write(writing, b"x" * 40_000)
    os.close(writing)
    home.logs.mkdir(parents=True, exist_ok=True)
    log_keeper.keep(reading, home.log_file("thing"), 30_000)
    os.close(reading)
    assert [path.name for path in home.logs.iterdir()] == ["thing.log"]
    assert home.log_file("thing").stat().st_size == 40_000


def test_a_service_goes_on_without_the_program_that_keeps_its_log(home: Home) -> None:
    code = (
        "import logging, pathlib, sys, time\n"
        "logging.basicConfig(stream=sys.stdout)\n"
        "flag = pathlib.Path(sys.argv[1]); flag.touch()\n"
        "while flag.exists(): time.sleep(0.01)\n"
        "for n in range(10_000): logging.warning('line %05d', n)\n"
        "flag.touch(); time.sleep(600)"
    )
    spec = services.spec_of(home, "thing", code)
    record = process.wait_ready(spec, process.spawn(spec, process.planned(spec)))
    keeper = process._keepers[record.pid]
    keeper.kill()
    keeper.wait()
    (flag,) = home.root.glob("*.flag")
    flag.unlink()
    wait_until("the service continues", flag.exists)
    assert process.terminate(record, grace=5)
    # The next start has a log again.
    again = process.wait_ready(spec, process.spawn(spec, process.planned(spec)))
    assert process._keepers[again.pid].poll() is None
    assert process.terminate(again, grace=5)


def test_a_log_is_printable_wherever_its_pieces_end(rng: Random) -> None:
    text = "\x1b[34m2026-01-01\x1b[0m a line\n\ta grüße line \x1b]0;title\x07 \x1b[2J \x9b31m \u202e \x00\r\n\x1b[31"
    shown = "2026-01-01 a line\n\ta grüße line \\x1b]0;title\\x07 \\x1b[2J \\x9b31m \\u202e \\x00\\r\n\\x1b[31 \\xff"
    content = text.encode() + b" \xff"
    for _ in range(200):
        cuts = sorted(rng.sample(range(len(content)), rng.randrange(8)))
        made = log_keeper.Printable()
        found = [made.add(content[a:b]) for a, b in pairwise([0, *cuts, len(content)])]
        assert b"".join([*found, made.add(b"", final=True)]).decode() == shown, cuts


def test_a_terminal_acts_on_nothing_that_a_service_logs(home: Home) -> None:
    code = (
        "import pathlib, sys, time\n"
        "print('\\x1b]0;title\\x07\\u202e', flush=True); pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"
    )
    record = started(home, code)
    assert process.terminate(record, grace=5)
    assert home.log_file("thing").read_text() == "\\x1b]0;title\\x07\\u202e\n"


def test_a_full_disk_holds_up_no_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.write(write, b"lost")
    os.close(write)

    def full(target: int, piece: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("platform_assets.services.log_keeper.os.write", full)
    log_keeper.keep(read, tmp_path / "log", 1000)
    os.close(read)
    assert (tmp_path / "log").read_bytes() == b""


def test_record_survives_json() -> None:
    record = ProcessRecord("kafka", 1, "boot:1", "mark", "/log", "127.0.0.1:1", (1, 2), ready=True)
    assert ProcessRecord.from_json(record.to_json()) == record


def test_variable_of_this_process_can_be_kept_from_a_service(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_A_CLIENT", "here")
    code = (
        "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(sorted(os.environ))); time.sleep(600)"
    )
    spec = replace(services.spec_of(home, "thing", code), environment={"OF_A_CLIENT": None, "OF_THE_SERVICE": "x"})
    record = process.wait_ready(spec, process.spawn(spec, process.planned(spec)))
    process.terminate(record, grace=5)
    seen = (home.root / "thing.flag").read_text()
    assert "OF_A_CLIENT" not in seen
    assert "OF_THE_SERVICE" in seen
