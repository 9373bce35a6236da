"""Files are ordered so that all processes end at about the same time, and `make test-all` includes all tests that `make
test` omits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support import parts, schedule


def test_the_longest_file_comes_first_and_files_without_a_record_are_guessed() -> None:
    tests = [("short.py", True), ("new.py", True), ("long.py", True), ("new.py", True), ("few.py", True)]
    assert schedule.order(tests, {"short.py": 3.0, "long.py": 60.0}) == ["long.py", "new.py", "short.py", "few.py"]


def test_tests_that_disturb_the_services_run_beside_tests_that_need_none() -> None:
    tests = [
        ("unit.py", False),
        (schedule.DISTURBING, True),
        ("heavy.py", False),
        ("mixed.py", False),
        ("mixed.py", True),
    ]
    found = schedule.order(tests, {"heavy.py": 60.0, "mixed.py": 1.0})
    assert found == ["mixed.py", schedule.DISTURBING, "heavy.py", "unit.py"]


def test_test_all_runs_what_test_leaves_out() -> None:
    found = re.findall(
        r'^([a-z-]+): .*\n\t@((?:[A-Z_]+=\S+ )*)\$\(PYTEST\) -m "([^"]*)"', (CHECKOUT / "Makefile").read_text(), re.M
    )
    in_spark = f"{parts.JOBS.variable}=spark PLATFORM_TEST_EXAMPLES=200 "
    assert {target: (jobs, marks) for target, jobs, marks in found} == {
        "test": ("", f"not soak and not cluster and not {schedule.LONG}"),
        "test-all": (in_spark, "not soak and not cluster"),
        "coverage": (in_spark, "not soak and not cluster"),
    }


def test_a_run_in_processes_takes_long_files_first_says_what_ran_and_writes_the_seconds(tmp_path: Path) -> None:
    found = tmp_path / "durations.json"
    # Named in the wrong order: the second takes longer than the first.
    both = ["platform_assets_tests/support/test_walk.py", "platform_assets_tests/model/test_tables.py"]
    files = schedule.order([(file, False) for file in both], schedule.recorded())[::-1]
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'temporary'}", "-n", "1",
               "--dist", "loadgroup", "--no-loadscope-reorder", *files]  # fmt: skip
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, schedule.VARIABLE: str(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    passed = re.findall(r"PASSED (\S+?)::", done.stdout)
    assert list(dict.fromkeys(passed)) == files[::-1]
    assert f"ran {len(passed)} tests, 0 of them marked `long`" in done.stdout
    assert json.loads(found.read_text()).keys() == set(files)


def test_only_a_few_failed_tests_that_use_services_may_run_once_more(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(
        """
import os, pathlib, pytest
from platform_assets_tests.support import schedule

def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(schedule.Repeatable(pathlib.Path(os.environ["FAILED"])))

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.xdist_group(schedule.DISTURBING if "alone" in item.name else item.path.name))
        item.user_properties.append((schedule.USES_SERVICES, "pure" not in item.name))
"""
    )
    (tmp_path / "test_some.py").write_text(
        """
import os, pytest

@pytest.mark.parametrize("value", os.environ.get("VALUES", "a b,x@disturbing").split(","))
def test_alone(value): assert value == os.environ.get("VALUE")
@pytest.fixture
def broken(): raise OSError
def test_set_up(broken): pass
def test_pure(): assert not os.environ.get("PURE")
def test_passes(): pass
"""
    )
    found = tmp_path / "failed.txt"

    def run(*arguments: str, **environment: str) -> int:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--dist", "loadgroup", *arguments],
            cwd=tmp_path,
            # Without the options of this run.
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": str(CHECKOUT), "FAILED": str(found), **environment},
            capture_output=True,
            check=False,
        ).returncode

    alone = ["test_some.py::test_alone[a b]", "test_some.py::test_alone[x@disturbing]"]
    assert run("-n", "1") == 1
    assert sorted(found.read_text().splitlines()) == [*alone, "test_some.py::test_set_up"]
    assert run("-n", "0", f"@{found}", VALUE="a b") == 1
    assert sorted(found.read_text().splitlines()) == [alone[1], "test_some.py::test_set_up"]
    assert run("-n", "0", PURE="fails", VALUES="one") == 1
    assert not found.exists()
    assert run("-n", "0", VALUES="one,two,three") == 1
    assert not found.exists()
    assert run("-n", "0", "-k", "passes") == 0
    assert not found.exists()
    assert run("-n", "0", "test_some.py", "test_missing.py") == 4
    assert not found.exists()
