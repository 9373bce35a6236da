"""Everything that can happen to a topic's log happens to one topic, in random order. Following the messages resolves
each event."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platform_assets.model.declaration import ENGINES, EngineName
from platform_assets_tests.soak import day


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_day_ends_whole_by_what_messages_say(engine: EngineName, tmp_path: Path, rng: random.Random) -> None:
    found = day.run(rng.randrange(1 << 16), tmp_path, engine)
    print(day.HEADER, found.line(), sep="\n")
    assert found.anomalies == ()
    # Only a decision can resolve each of these.
    assert {"accept-loss", "accept-generation", "accept-cluster"} <= set(found.commands)
