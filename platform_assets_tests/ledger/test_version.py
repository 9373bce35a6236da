"""Ledger versions: a later release's ledger is refused, an earlier release's ledger is upgraded, and an interrupted
upgrade is completed."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import Field
from deltalake.schema import PrimitiveType

from platform_assets.errors import LedgerCorruptError, LedgerNewerError
from platform_assets.lake.location import Lake
from platform_assets.ledger import decisions, version
from platform_assets.ledger.decisions import Decision
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.services.home import CHECKOUT
from testbed import samples

FIRST_VERSION = CHECKOUT / "platform_assets_tests" / "data" / "first_version"


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """Return the ledger of a lake that the platform's first version wrote."""
    shutil.copytree(FIRST_VERSION, tmp_path / "lake")
    return Ledger(Lake.at(tmp_path / "lake"))


def of_version(ledger: Ledger, number: int) -> None:
    ledger.lake.ledger.write(version.FILE, b'{"version": %d}' % number)


def test_a_ledger_without_a_version_is_of_the_first_and_gets_it(ledger: Ledger) -> None:
    assert len(ledger.cuts("orders")) == 5
    assert ledger.lake.ledger.read(version.FILE) is None
    ledger.create()
    assert ledger.lake.ledger.read(version.FILE) == b'{"version": 1}'
    assert len(ledger.cuts("orders")) == 5


def test_a_new_ledger_is_of_this_release(tmp_path: Path) -> None:
    made = Ledger(Lake.at(tmp_path))
    made.create()
    assert version._recorded(made.lake) == version.VERSION


def test_a_ledger_of_a_later_release_is_neither_read_nor_written(ledger: Ledger) -> None:
    of_version(ledger, version.VERSION + 1)
    for attempt in (ledger.create, lambda: ledger.cuts("orders"), lambda: ledger.receipts(TableRef.raw("orders"))):
        with pytest.raises(LedgerNewerError, match=r"Upgrade this installation.*restore `_ledger`"):
            attempt()
    assert version._recorded(ledger.lake) == version.VERSION + 1


def test_a_version_that_cannot_be_read_is_said(ledger: Ledger) -> None:
    ledger.lake.ledger.write(version.FILE, b"{}")
    with pytest.raises(LedgerCorruptError, match=version.FILE):
        ledger.create()


def test_columns_of_a_later_release_stay_empty_where_this_one_writes(ledger: Ledger) -> None:
    decisions.record(ledger.lake, Decision("orders", "park", (), "somebody", "because"))
    for folder in (ledger.lake.cuts, ledger.lake.commits, ledger.lake.decisions):
        folder.delta().alter.add_columns([Field("of_a_later_release", PrimitiveType("long"))])
    newest = ledger.newest_cut("orders")
    assert newest is not None
    topic_id = newest.topic_id
    following = samples.cut("orders", newest.edge + timedelta(minutes=1), {0: 12, 1: 10}, topic_id=topic_id)
    assert ledger.record_cuts([following], newest.edge)
    window = ledger.windows("orders")[-1]
    ledger.record_receipts([samples.receipt(window, version=9)])
    decisions.record(ledger.lake, Decision("orders", "unpark", (), "somebody", "because"))
    assert ledger.cuts("orders")[-1].edge == following.edge
    assert ledger.receipts(TableRef.raw("orders"))[window.key].rows == 2
    assert [d.kind for d in decisions.decisions(ledger.lake, "orders")] == ["park", "unpark"]


def test_steps_are_taken_in_order_and_one_that_was_cut_short_is_taken_again(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = list[int]()

    def third(lake: Lake) -> None:
        taken.append(3)
        if taken.count(3) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(version, "VERSION", 4)
    monkeypatch.setattr(version, "_STEPS", {2: lambda lake: taken.append(2), 3: third, 4: lambda lake: taken.append(4)})
    with pytest.raises(KeyboardInterrupt):
        ledger.create()
    assert version._recorded(ledger.lake) == 2
    ledger.create()
    ledger.create()
    assert taken == [2, 3, 3, 4]
    assert version._recorded(ledger.lake) == 4
