"""The crash matrix on a platform whose lake is in an object store; the store crashes too.

A real daemon ticks, seals, launches runs and runs their checks without intervention. At the end, `audit --deep` finds
no problem.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.object_store.conftest import SECRET
from platform_assets_tests.soak import matrix
from platform_assets_tests.soak.cells import Cell, store_cells

if TYPE_CHECKING:
    from testbed.object_store import ObjectStore

pytestmark = pytest.mark.cluster


@pytest.mark.timeout(1800)
def test_a_sample_of_the_crash_matrix_heals_with_nobody_at_it(
    store: ObjectStore, tmp_path: Path, rng: random.Random
) -> None:
    chosen = [Cell("files written", "SIGKILL of the store", "columnar")]
    chosen += [rng.choice(store_cells(engine)) for engine in ENGINES]
    print(f"cells: {', '.join(map(str, chosen))}")
    found = list(matrix.run(chosen, tmp_path, rng, records=6_000, store=store))
    assert [(o.cell, o.anomalies) for o in found] == [(cell, ()) for cell in chosen]
    assert all(o.strikes for o in found)
    logs = [path for path in tmp_path.rglob("*.log") if path.is_file()]
    assert logs
    shown = [path for path in tmp_path.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert shown == [], "nothing that the platform or Dagster keeps has the store's secret"


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_cell_of_the_crash_matrix_heals_with_nobody_at_it(
    store: ObjectStore, engine: EngineName, tmp_path: Path, rng: random.Random
) -> None:
    chosen = list(store_cells(engine))
    rng.shuffle(chosen)
    found = [
        outcome
        for number, some in enumerate(matrix.batches(chosen))
        for outcome in matrix.run(some, tmp_path / f"{engine}-{number}", rng, store=store)
    ]
    assert [o.line() for o in found if o.anomalies or not o.strikes] == []
