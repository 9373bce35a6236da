"""The commands, fields, columns and checks in the docs match the code."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import fields
from datetime import UTC, datetime
from typing import get_args

import pytest

from platform_assets.checks.audit import Audit, CheckOutcome
from platform_assets.checks.findings import CheckResult, Finding, FindingKind
from platform_assets.checks.postgres.comparing import Comparison
from platform_assets.cli import compare_postgres
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Span
from platform_assets.orchestration.changes_status import ChangesStatus
from platform_assets.orchestration.decoded_status import DecodedStatus
from platform_assets.orchestration.derived_status import DerivedStatus, InputStatus
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.retention_check import TransactionStatus
from platform_assets.orchestration.state_status import StateStatus
from platform_assets.orchestration.status import PartitionStatus, Status, TableStatus
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support import reference

COMMANDS = (reference.DOCS / "commands.md").read_text()
CHECKS = (reference.DOCS / "checks.md").read_text()
CONFIGURATION = (reference.DOCS / "configuration.md").read_text()


def first_column(page: str, after: str) -> list[str]:
    """Return the names in backquotes in the first column of the first table after the text `after`."""
    assert page.count(after) == 1, after
    rows = page.split(after)[1].split("|---|", 1)[1].split("\n\n")[0]
    return [name for row in rows.splitlines() for name in re.findall(r"`([^`]+)`", row.partition(" | ")[0])]


def same(documented: Collection[str], real: Collection[str]) -> bool:
    """Return True if both lists contain the same names, each name exactly once."""
    return sorted(documented) == sorted(real)


@pytest.mark.parametrize("name", reference.SECTIONS)
def test_a_section_says_what_the_code_says(name: str) -> None:
    page, make = reference.SECTIONS[name]
    text = page.read_text()
    assert reference.with_section(text, name, make()) == text, "run: python -m platform_assets_tests.support.reference"


def test_a_section_is_written_between_its_markers_alone() -> None:
    page = "a\n<!-- x:begin -->\nold\n<!-- x:end -->\n<!-- y:begin --><!-- y:end -->\n"
    assert reference.with_section(page, "x", "new") == (
        "a\n<!-- x:begin -->\n\nnew\n\n<!-- x:end -->\n<!-- y:begin --><!-- y:end -->\n"
    )
    with pytest.raises(ValueError, match="0 sections"):
        reference.with_section(page, "z", "new")


@pytest.mark.parametrize(
    "kind",
    [
        TableStatus,
        PartitionStatus,
        TransactionStatus,
        CheckStatus,
        DecodedStatus,
        ChangesStatus,
        StateStatus,
        DerivedStatus,
        InputStatus,
    ],
)
def test_each_field_of_the_json_of_status_is_documented(kind: type) -> None:
    # A dataclass's fields are the JSON's.
    assert same(first_column(COMMANDS, f"<!-- {kind.__name__} -->"), [f.name for f in fields(kind)])


def test_the_outer_fields_of_the_json_of_status_are_documented() -> None:
    assert same(first_column(COMMANDS, "## JSON of `status`"), Status("now", ()).to_json())


def test_each_field_of_the_json_of_audit_is_documented() -> None:
    found = Finding("rows missing", "t", "w", 0, (OffsetRange(0, 1),), "detail", "remedy")
    outcome = CheckOutcome("no_gaps", CheckResult("no_gaps", TableRef.raw("t"), (found,), "headline", ()), None)
    given = Audit("raw/t", datetime.now(UTC).isoformat(), Span(), False, (outcome,), None).to_json()
    (check,) = given["checks"]
    (finding,) = check["findings"]
    assert same(first_column(COMMANDS, "<!-- audit -->"), given)
    assert same(first_column(COMMANDS, "<!-- audit check -->"), check)
    assert same(first_column(COMMANDS, "<!-- audit finding -->"), finding)


def test_each_field_of_the_json_of_compare_postgres_is_documented() -> None:
    found = Comparison("t", "public.t", "1:1:", ("id",), ("id",), {}, (), [])
    assert same(first_column(COMMANDS, "## JSON of `compare-postgres`"), compare_postgres.to_json(found))


def test_each_kind_of_finding_is_documented() -> None:
    assert same(first_column(CHECKS, "## Findings, and what to do"), get_args(FindingKind))


def test_variables_of_the_environment_are_ones_that_the_code_reads() -> None:
    sources = [p.read_text() for p in (CHECKOUT / "platform_assets").rglob("*.py")]
    read = set(re.findall(r'"([A-Z]+(?:_[A-Z0-9]+)+)"', "".join(sources)))
    documented = first_column(CONFIGURATION, "## Environment")
    assert documented
    assert set(documented) <= read
    own = {
        n
        for n in read
        if re.fullmatch(r"(KAFKA|KAFKA_[23]|SPARK|SPARK_CONNECT|DAGSTER)_(PORT|HEAP)|PLATFORM_[A-Z]+", n)
    }
    assert own <= {*documented}
