"""Everything that can die, freeze or be cut off does so at random. Afterwards all data is complete without
intervention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.soak import storm


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_storm_is_healed_with_nobody_at_it(engine: EngineName, tmp_path: Path, rng: random.Random) -> None:
    found = storm.run(rng.randrange(1 << 16), 90, tmp_path, engine)
    print(storm.HEADER, found.line(), sep="\n")
    assert found.anomalies == ()
    # The storm did cause faults.
    assert sum(found.done.values()) > 3
    assert found.sends["ok"] > 1_000
