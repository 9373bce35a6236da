"""Order in which the processes of a run take test files. Long files come before short ones, so that all processes end
at about the same time, and tests that disturb the services run beside tests that need no services.

A run with `PLATFORM_TEST_DURATIONS=FILE` writes the duration of each file in seconds;
`platform_assets_tests/durations.json` is such a file. A run with `PLATFORM_TEST_REPEATABLE=FILE` that fails writes the
tests that may run once more, if all that failed may.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest

from platform_assets.services.home import CHECKOUT

VARIABLE: Final = "PLATFORM_TEST_DURATIONS"
REPEATABLE_VARIABLE: Final = "PLATFORM_TEST_REPEATABLE"
USES_SERVICES: Final = "uses_services"
"""Property of the reports of tests that use the session's services."""
MOST_REPEATED: Final = 3
"""Largest number of failed tests that may run once more."""
RECORDED: Final = CHECKOUT / "platform_assets_tests" / "durations.json"
LONG: Final = "long"
DISTURBING: Final = "disturbing"
"""Name of the group of tests that stop, freeze or inspect the session's services."""

_GUESSED_SECONDS: Final = {True: 2.0, False: 0.1}
"""Assumed duration in seconds of a test in a file without a recorded duration, for a test that uses the session's
services and for a test that does not use them."""


def recorded(path: Path = RECORDED) -> dict[str, float]:
    """Return the recorded duration of each file in seconds. Paths are relative to the checkout."""
    return {str(file): float(seconds) for file, seconds in json.loads(path.read_text()).items()}


def order(tests: Iterable[tuple[str, bool]], seconds: Mapping[str, float]) -> list[str]:
    """Return the groups of `tests` in the order in which processes take them: first the files that use the session's
    services, then `DISTURBING`, then the files that use no services. Among files, the longest come first.

    While a test of `DISTURBING` runs, other processes cannot run tests that use the services. This order gives them
    other tests to run.

    A test is a pair: its group, and True if the test needs the session's services. A group is a file or `DISTURBING`.
    The flag is also used to estimate durations that are missing in `seconds`.
    """
    guessed: dict[str, float] = defaultdict(float)
    using: set[str] = set()
    for group, needs_services in tests:
        guessed[group] += _GUESSED_SECONDS[needs_services]
        if needs_services:
            using.add(group)
    return sorted(
        guessed,
        key=lambda group: (group not in using, group == DISTURBING, -seconds.get(group, guessed[group]), group),
    )


class Durations:
    """Plugin for the process that gets all reports. It lists the tests that ran, and writes the duration of each file
    in seconds."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._ran: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.when == "call":
            self._ran[report.nodeid] = LONG in report.keywords

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._ran:
            return
        long = sum(self._ran.values())
        terminalreporter.write_line(f"ran {len(self._ran)} tests, {long} of them marked `{LONG}`")

    def pytest_sessionfinish(self) -> None:
        if self._path is not None:
            found = {file: round(seconds, 1) for file, seconds in sorted(self._seconds.items())}
            self._path.write_text(json.dumps(found, indent=1) + "\n")


class Repeatable:
    """Plugin for the process that gets all reports. It writes the failed tests, one per line, in the form that `pytest
    @FILE` reads.

    It writes none if more than `MOST_REPEATED` failed, if one of them uses no services, or if anything but tests
    failed. A test without services fails for a reason in the code. One with services can also fail because a limit of
    a client was too short for a busy machine.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._failed: dict[str, bool] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            # pytest-xdist adds the group to the name of a test.
            name = re.sub(rf"@({DISTURBING}|{re.escape(report.nodeid.partition('::')[0])})$", "", report.nodeid)
            self._failed[name] = dict(report.user_properties).get(USES_SERVICES) is True

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._path.unlink(missing_ok=True)
        only_tests = exitstatus == pytest.ExitCode.TESTS_FAILED
        if only_tests and 0 < len(self._failed) <= MOST_REPEATED and all(self._failed.values()):
            self._path.write_text("".join(f"{name}\n" for name in self._failed))
