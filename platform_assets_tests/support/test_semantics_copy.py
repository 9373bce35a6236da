"""Programs that copy records from topic to topic lose and duplicate exactly the records that their crashes must
affect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets_tests.support.semantics import copier, copying
from platform_assets_tests.support.semantics.pages import SEED, recorded

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker


@pytest.mark.broker
def test_only_the_transaction_neither_loses_nor_doubles(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    def target() -> str:
        return topic(partitions=copying.PARTITIONS, stem="copied")

    source = topic(partitions=copying.PARTITIONS, stem="source")
    crashes: list[copying.Crash] = [(0, "between the writes"), (1, "half sent")]
    results = copying.run(broker.bootstrap, source, target, tmp_path, 1, crashes, rounds=2)
    assert all(r.as_due for r in results)
    most, least, exact = results
    assert (bool(most.lost), bool(most.doubled)) == (True, False)
    assert (bool(least.lost), bool(least.doubled)) == (False, True)
    assert (bool(exact.lost), bool(exact.doubled)) == (False, False)
    assert exact.outputs.total() == exact.records


@pytest.mark.broker
@pytest.mark.long
def test_the_recorded_copies_come_out_the_same(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    def target() -> str:
        return topic(partitions=copying.PARTITIONS, stem="copied")

    source = topic(partitions=copying.PARTITIONS, stem="source")
    results = copying.run(broker.bootstrap, source, target, tmp_path, SEED)
    assert all(r.as_due for r in results)
    for r in results:
        assert {point for point, _ in r.crashes} == set(copier.POINTS)
    assert copying.leg(results) == recorded()["copy"]
