"""Results of browser tests on a machine that has no browser."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support import browser
from testbed.browser import VARIABLE

BROWSER_TESTS = ("platform_assets_tests/checks/report/test_report_ui.py", "platform_assets_tests/test_ui.py")

AUTOMATIC = ("unsynced_databases", "kept_migrations", "session_store", "request", "tmp_path_factory")
"""Fixtures that cost nothing, or that every test has."""


def run_without_browser(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run all tests marked `browser` in the same way as on a machine without a browser."""
    environ = {n: v for n, v in os.environ.items() if n not in (VARIABLE, browser.REQUIRED_VARIABLE)}
    environ["PATH"] = str(folder)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "browser", "-p", "no:cacheprovider",
         f"--basetemp={folder / 'temporary'}", *BROWSER_TESTS],
        cwd=CHECKOUT, env=environ | more, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_browser_tests_request_the_browser_before_all_other_fixtures(request: pytest.FixtureRequest) -> None:
    """So without a browser they skip at once, before services start. Fixtures of wider scopes are set up first. No other
    test requests the browser."""
    for test in request.session.items:
        names = [n for n in getattr(test, "fixturenames", ()) if n not in AUTOMATIC]
        if test.get_closest_marker("browser"):
            assert names[0] == "chromium", f"{test.nodeid}: {names}"
        else:
            assert "chromium" not in names, f"{test.nodeid} needs the mark `browser`"


@pytest.mark.long
def test_every_browser_test_skips_without_a_browser_and_says_why(tmp_path: Path) -> None:
    done = run_without_browser(tmp_path)

    assert done.returncode == 0, done.stdout
    assert "no Chromium: install the system's package `chromium`, or name an executable in CHROMIUM" in done.stdout
    summary = done.stdout.splitlines()[-1]
    assert " skipped" in summary
    assert "passed" not in summary


def test_where_a_browser_is_required_its_lack_is_a_failure(tmp_path: Path) -> None:
    # Each outcome is caught, because an uncaught skip would skip this test.
    for environ, expected in (({browser.REQUIRED_VARIABLE: "1"}, pytest.fail.Exception), ({}, pytest.skip.Exception)):
        with pytest.raises((pytest.fail.Exception, pytest.skip.Exception), match="no Chromium") as caught:
            browser.executable({"PATH": str(tmp_path), **environ})
        assert caught.type is expected


@pytest.mark.long
def test_where_a_browser_is_required_none_skips(tmp_path: Path) -> None:
    done = run_without_browser(tmp_path, **{browser.REQUIRED_VARIABLE: "1"})

    assert done.returncode == 1
    assert "no Chromium" in done.stdout
    assert "skipped" not in done.stdout.splitlines()[-1]


def test_browser_that_is_named_and_is_none_fails_rather_than_skips(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"CHROMIUM=/no/such/file is no executable: install"):
        browser.executable({"PATH": str(tmp_path), VARIABLE: "/no/such/file"})


@pytest.mark.parametrize("name", ["chromium", "chromium-browser", "google-chrome"])
def test_browser_is_found_by_each_of_its_names(tmp_path: Path, name: str) -> None:
    program = tmp_path / name
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    assert browser.executable({"PATH": str(tmp_path)}) == str(program)


def test_named_browser_comes_before_the_systems(tmp_path: Path) -> None:
    for name in ("chromium", "mine"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)

    found = browser.executable({"PATH": str(tmp_path), VARIABLE: str(tmp_path / "mine")})

    assert found == str(tmp_path / "mine")
