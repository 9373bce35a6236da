"""What `platform-assets status` tells of a table, with and without what the checks remember of older windows."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from platform_assets.checks.baseline import older
from platform_assets.checks.facts import collect
from platform_assets.checks.registry import CHECKS
from platform_assets.cli.status_table import print_status
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import status
from platform_assets.orchestration.status import CheckStatus, PartitionStatus, Status, TableStatus
from testbed.samples import START, edge, loaded, recorded

TOPIC = "clicks"
WINDOWS = 9


def told(root: Path) -> TableStatus:
    declared = TopicDeclaration(TOPIC, "0 * * * *", START)
    (table,) = status.collect([declared], Ledger(Lake.at(root)), None, None, ("no_gaps",), edge(WINDOWS + 2)).tables
    return table


def test_a_table_is_told_by_its_ledger_alone(tmp_path: Path) -> None:
    windows = recorded(tmp_path, TOPIC, [{0: n * 10, 1: n * 5} for n in range(WINDOWS + 1)])
    for number, window in enumerate(windows):
        if number != 6:
            loaded(tmp_path, window, {0: [window.ranges.by_partition[0].start]})
    t = told(tmp_path)
    assert (t.windows_sealed, t.windows_loaded, t.windows_waiting, t.windows_failed) == (WINDOWS, WINDOWS - 1, 0, 1)
    assert (t.rows, t.offsets_without_row) == (WINDOWS - 1, 14 * (WINDOWS - 1))
    assert (t.newest_window, t.newest_window_age_seconds) == (windows[-1].key, 7200.0)
    assert t.partitions == (PartitionStatus(0, 60, 90, None, None), PartitionStatus(1, 30, 45, None, None))
    assert t.error is None


@pytest.mark.parametrize("left_out", [None, 5, 6, 8])
def test_what_is_remembered_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: int | None
) -> None:
    find = older.find
    monkeypatch.setattr(older, "find", lambda *given: find(*given, recent=4))
    ends = [{0: n * 10, 1: n * 5} for n in range(WINDOWS + 1)]
    for number, window in enumerate(recorded(tmp_path, TOPIC, ends)):
        if number != left_out:
            first = {p: [r.start] for p, r in window.ranges.items()}
            loaded(tmp_path, window, first, holes={"commit markers": 13}, proved_by="broker evidence")
    before = told(tmp_path)
    assert (
        collect(TableRef.raw(TOPIC), Ledger(Lake.at(tmp_path)), counting=CHECKS.values()).older.windows == WINDOWS - 4
    )
    assert told(tmp_path) == before


def test_a_table_of_which_nothing_is_known_is_told_as_empty(tmp_path: Path) -> None:
    t = told(tmp_path)
    assert (t.windows_sealed, t.rows, t.newest_window, t.partitions, t.error) == (0, 0, None, (), None)
    assert status.collect([], Ledger(Lake.at(tmp_path)), None, None, (), datetime.now(UTC)).healthy


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    checks = tuple(CheckStatus(name, True, "2026-01-01T00:00:00Z", "") for name in ("no_gaps", "no_duplicates"))
    table = TableStatus(
        "raw/flights", "flights", 8_784, 8_700, 1_284, 1_100, 1_336_776_412, 17, "2013-12-31-23:00", 7_100.0,
        1_280_312, (), checks, None, None,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    print_status(Status("2026-01-01T00:00:00Z", (table,)), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for figure in ("1,284", "1,100", "1,336,776,412", "1,280,312", "118 min"):
        assert figure in text
    assert "…" not in text
    lines = text.splitlines()
    # What needs attention is prose, which a terminal wraps.
    assert max(len(line) for line in lines if not line.startswith("raw/flights:")) <= width
    for name in ("raw/flights", "8,700/8,784", "2013-12-31-23:00", "2 passed"):
        assert name in text
