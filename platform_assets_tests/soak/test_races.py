"""One round of races between upkeep and each of its rivals; `make soak SCENARIO=races ROUNDS=100` runs more rounds."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from platform_assets_tests.soak import races
from platform_assets_tests.soak.races import RIVALS

pytestmark = pytest.mark.usefixtures("flat")


@pytest.mark.long
def test_upkeep_and_its_rivals_leave_each_row_once(tmp_path: Path, rng: random.Random) -> None:
    found = list(races.run(rng.randrange(1 << 16), 1, tmp_path))
    assert [(f.rival, f.rounds, f.anomalies) for f in found] == [(rival, 1, []) for rival in RIVALS]
    assert {p.name for p in tmp_path.iterdir()} == {"templates"}, "lakes without findings are deleted"


def test_a_row_that_is_there_twice_is_found_and_its_lake_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    race = races._Round._race

    def and_a_row_twice(self: races._Round, rival: Callable[[], str]) -> None:
        race(self, rival)
        table = DeltaTable(self._place("raw"))
        write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")

    monkeypatch.setattr(races._Round, "_race", and_a_row_twice)
    (found,) = races.run(1, 1, tmp_path, rivals=["load"])
    (anomaly,) = found.anomalies
    assert "raw has 1 rows twice" in anomaly
    assert (tmp_path / "load-1-0").exists()
