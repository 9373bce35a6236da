"""Each order is executed once, at its point and for its topic. All points exist in the platform's code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.soak import points
from platform_assets_tests.soak.cells import cells
from platform_assets_tests.soak.points import RUN_POINTS, SENSOR_POINTS, UPKEEP_POINTS, Order, Orders, Point, SoakFault
from platform_assets_tests.support.dying_upkeep import upkeep
from platform_assets_tests.support.erasures import MadeTopic

_INSTALLED = """
import sys
from platform_assets_tests.soak.points import Orders, install
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
install(Orders.below(sys.argv[1]))
class Cut:
    topic = "orders"
Ledger(Lake.at(sys.argv[1])).record_cuts([Cut], None)
"""


def test_an_order_is_carried_out_once_at_its_point_and_for_its_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    orders = Orders.below(tmp_path)
    orders.reach("orders", "tick begun")
    orders.give("one", Order("orders", "tick begun", "raise"))
    orders.reach("orders", "tick done")
    orders.reach("refunds", "tick begun")
    assert orders.taken_by("one") is None
    with pytest.raises(SoakFault, match="tick begun"):
        orders.reach("orders", "tick begun")
    assert orders.taken_by("one") == os.getpid()
    orders.reach("orders", "tick begun")


def test_an_order_waits_for_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    orders = Orders.below(tmp_path)
    orders.give("one", Order("orders", "files written", "lose the answer", loaded=1))
    orders.reach("orders", "files written")
    assert orders.withdraw("one")
    assert not orders.withdraw("one")


def test_a_process_dies_in_the_platforms_own_call(tmp_path: Path) -> None:
    orders = Orders.below(tmp_path)
    orders.give("one", Order("orders", "cuts taken", "kill"))
    command = [sys.executable, "-c", _INSTALLED, str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=CHECKOUT,
        env={**os.environ, "LAKE_ROOT": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (-9, "")


@pytest.mark.usefixtures("flat")
def test_a_load_and_an_upkeep_reach_their_points_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Point] = []
    monkeypatch.setattr(Orders, "reach", lambda orders, topic, point: reached.append(point))
    # The points are gone after the test.
    monkeypatch.setattr(points, "setattr", monkeypatch.setattr, raising=False)
    monkeypatch.setattr(points, "_gate", lambda orders: None)
    made = MadeTopic(tmp_path)
    sealed = made.seal([{0: [(b"k", b"v")]}] * 2)
    points.install(Orders.below(tmp_path))
    for window in sealed:
        made.load(window)
    assert reached == ["files written", "commit made"] * 2
    reached.clear()
    monkeypatch.setattr(sys, "argv", ["", "upkeep"])
    upkeep(made.ledger, made.topic, "raw")
    assert reached == list(UPKEEP_POINTS)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_matrix_has_every_point_and_each_cell_once(engine: EngineName) -> None:
    found = cells(engine)
    assert len(set(found)) == len(found)
    assert {c.place for c in found} == {*RUN_POINTS, *SENSOR_POINTS, *UPKEEP_POINTS, "mid-read", "mid-merge"}
