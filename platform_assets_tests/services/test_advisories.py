"""Security advisories for the packages that the locks install: `infra/advisories.toml` contains an assessment of each
advisory."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from platform_assets_tests.support import audit
from platform_assets_tests.support.audit import Component

ADVISORY = {"id": "CVE-0", "jar": "thing", "since": "1.2", "before": "1.10.1"}
ASSESSMENT = {"id": "CVE-0", "place": "broker", "name": "thing", "version": "1.9.Final", "verdict": "not used"}
THING = Component("broker", "thing", "1.9.Final")


def test_each_advisory_is_assessed_for_what_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.main() == 0, capsys.readouterr().err
    listed = tomllib.loads(audit.ADVISORIES.read_text("utf-8"))
    assert all(each["verdict"] for each in listed["assessment"])
    assert all(audit.numbers(a.get("since", "0")) < audit.numbers(a["before"]) for a in listed["advisory"])
    names = {component.name for component in audit.installed()}
    assert {"dagster", "uv", "kafka-clients", "netty-codec-http", "lz4-java", "log4j-core", "jackson-core"} <= names


@pytest.mark.parametrize(
    ("version", "concerned"),
    [("1.1.9", False), ("1.2", True), ("1.9.Final", True), ("1.10.0", True), ("1.10.1", False), ("2.0-rc1", False)],
)
def test_versions_are_compared_by_their_numbers(version: str, concerned: bool) -> None:
    assert audit.concerns(ADVISORY, Component("broker", "thing", version)) is concerned
    assert not audit.concerns(ADVISORY, Component("python", "thing", version))


def test_what_is_not_assessed_fails_and_assessing_it_helps() -> None:
    (problem,) = audit.problems({"advisory": [ADVISORY]}, [THING])
    assert problem == (
        "CVE-0 concerns thing 1.9.Final (broker), and nobody has assessed it. Upgrade it, or add an [[assessment]]."
    )
    assert list(audit.problems({"advisory": [ADVISORY], "assessment": [ASSESSMENT]}, [THING])) == []
    assert list(audit.problems({"advisory": [ADVISORY]}, [Component("broker", "thing", "1.10.1")])) == []


def test_an_assessment_of_what_is_no_longer_installed_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (problem,) = audit.problems({"advisory": [ADVISORY], "assessment": [ASSESSMENT]}, [])
    assert "CVE-0 is assessed for thing 1.9.Final (broker), which is not installed or not concerned" in problem
    without = tmp_path / "advisories.toml"
    without.write_text(audit.ADVISORIES.read_text("utf-8").split("# --- Assessments")[0])
    assert audit.main(without) == 1
    assert "CVE-2025-12183 concerns lz4-java 1.8.0 (pyspark)" in capsys.readouterr().err
