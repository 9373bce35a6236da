"""Both engines and every reader give the same rows for a random log; a row that differs is found."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from platform_assets_tests.soak import histories
from testbed.loads import TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

    from platform_assets_tests.conftest import Broker

pytestmark = [pytest.mark.broker, pytest.mark.spark]


def a_value_is_changed(lakes: Sequence[TopicLake]) -> None:
    lk = lakes[-1]
    row = next(r for r in reversed(lk.rows()) if r.value)
    where = f"kafka_partition = {row.partition} AND kafka_offset = {row.offset}"
    DeltaTable(lk.table).update(updates={"value": "decode('616e6f74686572', 'hex')"}, predicate=where)


@pytest.mark.long
def test_both_engines_and_all_readers_agree_but_for_a_value_that_was_changed(
    broker: Broker, connection: Callable[[], SparkSession], tmp_path: Path, rng: random.Random
) -> None:
    found = histories.run(rng.randrange(1 << 30), broker.bootstrap, connection, tmp_path, 200, a_value_is_changed)
    print(histories.HEADER, found.line(), sep="\n")
    assert found.rows > 0
    assert found.compared == 10 * found.rows
    of_consumer, of_readers, *healed = found.anomalies
    assert of_consumer == "rows loaded by connector differ from those that a consumer reads"
    assert of_readers.startswith("readers disagree")
    said = histories.summary([found, histories.SeedResult(7, sent=1_000, rows=900, windows=2, compared=9_000)])
    assert said.startswith(
        f"2 histories, of seeds {found.seed}, 7: {found.sent + 1_000:,} records sent, {found.rows + 900:,} of"
    )
    assert (
        f"by the engines columnar and connector, {found.compared + 9_000:,} rows compared between a read_committed"
        in said
    )
    assert said.endswith("; 1 histories with differences")
    # The window with that value may be one of the few that are loaded again.
    assert [a.rpartition(": ")[2] for a in healed] in ([], ["healed"])
