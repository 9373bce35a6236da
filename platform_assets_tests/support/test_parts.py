"""A test session gets exactly the requested parts, or fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support import part_runs, parts
from platform_assets_tests.support.part_runs import Run


def test_the_first_kind_is_the_default() -> None:
    assert [part.chosen({}) for part in parts.PARTS] == [part.kinds[0] for part in parts.PARTS]
    assert parts.SPARK.chosen({"PLATFORM_TEST_SPARK": "cluster"}) == "cluster"
    assert (
        parts.line({"PLATFORM_TEST_SPARK": "cluster"})
        == "lake root: folder, Spark: cluster, brokers: plain, new tables: flat, jobs: in-process"
    )


@pytest.mark.parametrize("part", parts.PARTS, ids=lambda part: part.variable)
def test_a_kind_that_no_fixture_gives_is_refused_with_those_that_there_are(part: parts.Part) -> None:
    with pytest.raises(ValueError, match=f"{part.variable}='other' .*: {', '.join(part.kinds)}"):
        parts.line({part.variable: "other"})


def test_jobs_run_in_spark_where_the_test_or_the_session_is_for_spark() -> None:
    assert parts.does_without_spark({"broker"}, {})
    for mark in ("spark", "cluster", "soak"):
        assert not parts.does_without_spark({"broker", mark}, {})
    for part, kind in ((parts.LAKE, "s3"), (parts.SPARK, "cluster"), (parts.BROKERS, "secure3"), (parts.JOBS, "spark")):
        assert not parts.does_without_spark({"broker"}, {part.variable: kind})


def test_a_cluster_is_not_shared_by_processes_of_pytest() -> None:
    parts.together(2, {})
    parts.together(0, {"PLATFORM_TEST_SPARK": "cluster"})
    with pytest.raises(ValueError, match="leave out -n"):
        parts.together(2, {"PLATFORM_TEST_SPARK": "cluster"})
    with pytest.raises(ValueError, match="leave out -n"):
        parts.together(2, {"PLATFORM_TEST_LAKE": "s3"})


def test_pytest_says_what_it_has_and_refuses_what_it_has_not() -> None:
    def asked(kind: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "--collect-only", "-q", str(Path(__file__)), "-k", "default"]
        environment = {**os.environ, "PLATFORM_TEST_SPARK": kind}
        return subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False)

    refused = asked("other")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "PLATFORM_TEST_SPARK='other' is none of the kinds that there are: local, cluster" in refused.stderr
    assert asked("cluster").returncode == pytest.ExitCode.OK


def test_the_modules_of_portable_tests_exist() -> None:
    tests = Path(__file__).parents[1]
    assert [module for module in parts.PORTABLE if not (tests / module).is_file()] == []


def test_portable_are_the_tests_that_use_services() -> None:
    module = CHECKOUT / "platform_assets_tests/windows/test_rebuild.py"
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "portable", str(module)]
    found = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    assert "deselected" in found, "tests without services hold everywhere, once"
    assert "test_rebuild.py::" in found


def test_every_run_is_done_and_one_that_fails_is_the_outcome(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs of pytest in a separate folder, without a configuration."""
    (tmp_path / "test_one.py").write_text("import os\ndef test_one(): assert os.environ['KIND'] == 'good'\n")
    monkeypatch.setattr(part_runs, "CHECKOUT", tmp_path)
    good, bad = (Run(f"{kind} ones", "not nothing", {"KIND": kind}) for kind in ("good", "bad"))
    assert part_runs.main([], [bad, good]) == 1
    said = capfd.readouterr().out.splitlines()
    assert said[-2].startswith("FAILED (1) in ")
    assert said[-2].endswith("s: bad ones (KIND=bad)")
    assert said[-1].startswith("passed in ")
    assert part_runs.main([], [good]) == 0
    assert part_runs.main(["-k", "nothing"], [good]) == 1, "that no test ran is no success"


def test_no_test_at_all_is_a_failure_unless_somebody_chose_among_them() -> None:
    assert part_runs.outcome(part_runs.NOTHING_CHOSEN, []) == "FAILED (5)"
    assert part_runs.outcome(part_runs.NOTHING_CHOSEN, ["-k", "some"]) == "no such test"
