"""The table of a topic that is no longer declared disappears from `status`, but it can be read, audited and vacuumed.

Once the topic is declared again, its windows continue.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from platform_assets.lake.location import Lake
from platform_assets.ledger import unloaded
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed.samples import edge, hourly, loaded, recorded

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Return a shell of a lake with a retired topic, whose three windows are loaded and proved, and with a declared
    topic."""
    for window in recorded(tmp_path / "lake", "orders", [{0: 2 * n} for n in range(4)]):
        loaded(tmp_path / "lake", window, holes={}, proved_by="load digest", proved_at=edge(0))
    made = Shell(tmp_path)
    made.declare("payments")
    made.variables["LAKE_ROOT"] = str(tmp_path / "lake")
    return made


def test_a_retired_table_is_out_of_status_and_can_be_audited_read_and_vacuumed(shell: Shell) -> None:
    tables = json.loads(shell.run("status", "--json").output)["tables"]
    assert [t["table"] for t in tables] == ["raw/payments"]
    for name in ("orders", "raw/orders"):
        audit = shell.run("audit", name, "--json")
        assert (audit.exit_code, json.loads(audit.output)["windows"]["count"]) == (0, 3), audit.output
    assert json.loads(shell.run("read", "orders", "--json").output)["path"].endswith("raw/orders")
    assert shell.run("vacuum", "orders", "--dry-run").exit_code == 0


def test_what_is_amiss_in_a_retired_table_is_found(shell: Shell) -> None:
    table = Lake.at(shell.variables["LAKE_ROOT"]).table(TableRef.raw("orders"))
    with table.writing():
        table.delta().delete("kafka_offset = 3")
    audit = shell.run("audit", "orders")
    assert audit.exit_code == 1, audit.output
    assert "offset" in audit.output


def test_a_table_that_never_was_is_unknown_as_ever(shell: Shell) -> None:
    for command in ("audit", "read", "vacuum"):
        refused = shell.run(command, "nothing")
        assert refused.exit_code in (1, 2)
        assert "'nothing' is not a table of this project" in refused.output


def test_brought_back_it_goes_on_at_its_positions(shell: Shell) -> None:
    shell.declare("orders")
    ledger = Ledger(Lake.at(shell.variables["LAKE_ROOT"]))
    (orders, _) = json.loads(shell.run("status", "--json").output)["tables"]
    assert (orders["windows_loaded"], orders["windows_sealed"]) == (3, 3)
    following = hourly("orders", [{0: 2 * n} for n in range(5)])[-1]
    assert ledger.record_cuts([following], edge(3))
    left = unloaded.find(ledger, TableRef.raw("orders"), edge(4))
    assert list(left.windows) == ["2026-01-01-03:00"]
