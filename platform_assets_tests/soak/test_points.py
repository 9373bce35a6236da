"""Each order is executed once, at its point and for its topic; and the points exist in the platform's code."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.soak.cells import cells
from platform_assets_tests.soak.points import RUN_POINTS, SENSOR_POINTS, UPKEEP_POINTS, Order, Orders, SoakFault

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

_LOADED_AND_MERGED = """
import sys
from pathlib import Path
from unittest.mock import patch
from platform_assets_tests.soak.points import Orders, install
from platform_assets_tests.support import dying_upkeep
from platform_assets_tests.support.erasures import MadeTopic
reached = []
patch.object(Orders, "reach", lambda orders, topic, point: reached.append((topic, point))).start()
install(Orders.below(sys.argv[2]))
made = MadeTopic(Path(sys.argv[2]))
made.fill(made.seal([{0: [(b"k", b"v")]}] * 3))
reached.append(("", "all loaded"))
dying_upkeep.upkeep(made.ledger, made.topic, "raw")
print(reached)
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


def test_a_load_and_an_upkeep_reach_their_points_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _LOADED_AND_MERGED, "upkeep", str(tmp_path)]
    done = subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, text=True)
    reached = ast.literal_eval(done.stdout.splitlines()[-1])
    assert reached[:2] == [("people", "files written"), ("people", "commit made")]
    assert reached[reached.index(("", "all loaded")) + 1 :] == [("people", point) for point in UPKEEP_POINTS]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_matrix_has_every_point_and_each_cell_once(engine: EngineName) -> None:
    found = cells(engine)
    assert len(set(found)) == len(found)
    assert {c.place for c in found} == {*RUN_POINTS, *SENSOR_POINTS, *UPKEEP_POINTS, "mid-read", "mid-merge"}
