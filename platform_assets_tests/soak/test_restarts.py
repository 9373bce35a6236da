"""Parts of the production setup are killed under load and restarted. Everything recovers in time without intervention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platform_assets_tests.soak import restarts
from platform_assets_tests.soak.production import PARTS, Part
from testbed import postgres

pytestmark = pytest.mark.skipif(postgres.programs() is None, reason=postgres.HOW)


@pytest.mark.cluster
@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_platform_whose_parts_are_restarted_is_whole_in_time(tmp_path: Path, rng: random.Random) -> None:
    other = rng.choice([part for part in PARTS if part not in ("postgres", "connect")])
    parts: tuple[Part, ...] = ("postgres", "connect", other)
    found = restarts.run(rng.randrange(1 << 16), tmp_path, "columnar", parts)
    print(found.markdown(), restarts.HEADER, found.line(), sep="\n")
    assert found.anomalies == ()
    assert {r.part for r in found.restarts} == {*parts}
    assert all(r.after <= restarts.BOUND for r in found.restarts)
    assert found.records > 1_000
