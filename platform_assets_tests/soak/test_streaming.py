"""A minute of the scenario `streaming`: after loads, upkeep, maintenance by other tools, and repairs, the reader has
each record once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets_tests.soak import streaming
from platform_assets_tests.soak.streaming import Pace

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("flat")
def test_a_reader_of_the_stream_has_each_record_once(
    broker: Broker, spark_remote: str, tmp_path: Path, rng: random.Random
) -> None:
    pace = Pace(upkeep=10, others=6, restart=25, repairs_from=0.2)
    found = streaming.run_with(rng.randrange(1 << 16), 60, tmp_path, broker.bootstrap, spark_remote, pace)
    print(streaming.HEADER, found.line(), sep="\n")
    assert found.anomalies == ()
    assert found.rows == found.sends["ok"] > 500
    assert found.done["upkeep: merged"] > 0
