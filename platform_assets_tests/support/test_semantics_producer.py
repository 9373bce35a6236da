"""Each configuration of a producer loses, duplicates and reorders exactly the records that the faults must affect."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import NewTopic

from platform_assets_tests.support.semantics import judging, producing
from platform_assets_tests.support.semantics.judging import ALL_SETUPS, SETUPS, Fault, Judged, Notes, applies, refusal
from platform_assets_tests.support.semantics.pages import recorded
from platform_assets_tests.support.semantics.producing import Scene
from platform_assets_tests.support.trio import Trio
from testbed.homes import home_at

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker


@dataclass(frozen=True)
class OneBroker(Trio):
    """The session's broker, for the faults that need no other broker."""

    address: str = ""

    @property
    def bootstrap(self) -> str:
        """Address of the broker."""
        return self.address

    def create(self, name: str, *_: Any, **__: Any) -> None:
        """Create a topic with one partition."""
        admin = self.admin()
        admin.create_topics([NewTopic(name, 1, -1)])[name].result(30)


@pytest.mark.long
@pytest.mark.broker
@pytest.mark.parametrize("fault", ["request lost", "answer lost", "producer killed"])
def test_faults_of_the_connection_do_what_they_must(broker: Broker, tmp_path: Path, fault: Fault) -> None:
    scene = Scene(OneBroker(home_at(tmp_path), address=broker.bootstrap), f"sent-{uuid.uuid4().hex[:12]}")
    chosen = [s for s in SETUPS if s.acks != "1" and applies(s, fault)]
    results = [producing.CAUSES[fault](scene, setup, fault) for setup in chosen]
    assert [j.setup.told for j in results if not j.as_due] == []


@pytest.mark.cluster
@pytest.mark.timeout(1800)
def test_the_recorded_faults_of_producers_come_out_the_same(tmp_path: Path) -> None:
    results = producing.run(tmp_path)
    assert [(j.setup.told, j.fault) for j in results if not j.as_due] == []
    assert judging.leg(results) == recorded()["producer"]


def test_the_client_refuses_the_combinations_that_are_not_run() -> None:
    assert [s for s in ALL_SETUPS if refusal(s) is None] == list(SETUPS)


NOTES = Notes((0, 1, 2, 3), {0: 0, 1: 1, 2: 2})


@pytest.mark.parametrize(
    ("log", "lost", "doubled", "disordered", "foreign"),
    [
        ([0, 1, 2, 3], set(), set(), set(), set()),
        ([0, 2], {1}, set(), set(), set()),
        ([0, 1, 1, 2], set(), {1}, set(), set()),
        # A second copy after a later value is not out of order.
        ([0, 1, 2, 1, 2], set(), {1, 2}, set(), set()),
        ([0, 2, 1, 3], set(), set(), {1}, set()),
        ([3, 2, 1, 0], set(), set(), {0, 1, 2}, set()),
        ([0, 1, 2, 7], set(), set(), set(), {7}),
    ],
)
def test_the_judge_names_each_anomaly(
    log: list[int], lost: set[int], doubled: set[int], disordered: set[int], foreign: set[int]
) -> None:
    judged = Judged(SETUPS[0], "request lost", NOTES, tuple(enumerate(log)))
    found = [set(each) for each in (judged.lost, judged.doubled, judged.disordered, judged.foreign)]
    assert found == [lost, doubled, disordered, foreign]
