"""The crash matrix: whichever part dies, and at whichever point, the platform recovers completely without intervention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.soak import matrix
from platform_assets_tests.soak.cells import cells
from platform_assets_tests.soak.matrix import CellOutcome


@pytest.mark.timeout(1800)
@pytest.mark.long
def test_a_sample_of_the_crash_matrix_heals_with_nobody_at_it(tmp_path: Path, rng: random.Random) -> None:
    chosen = [rng.choice([c for c in cells(engine) if c.fault != "disk full"]) for engine in ENGINES]
    print(f"cells: {', '.join(map(str, chosen))}")
    found = list(matrix.run(chosen, tmp_path, rng, records=6_000))
    assert [(o.cell, o.anomalies) for o in found] == [(cell, ()) for cell in chosen]
    assert all(o.strikes for o in found)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_cell_of_the_crash_matrix_heals_with_nobody_at_it(
    engine: EngineName, tmp_path: Path, rng: random.Random
) -> None:
    chosen = list(cells(engine))
    rng.shuffle(chosen)
    found: list[CellOutcome] = []
    for number, some in enumerate(matrix.batches(chosen)):
        found += matrix.run(some, tmp_path / str(number), rng)
    assert [o.line() for o in found if o.anomalies or not o.strikes] == []
