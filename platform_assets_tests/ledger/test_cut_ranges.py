"""A long ledger read by ranges: the amount of data that is read does not grow with the ledger, and nothing is omitted."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pytest

from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger import cut_ranges, unloaded
from platform_assets.ledger.entries import RecordedCut, recorded_cuts
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import Window
from platform_assets.orchestration.names import topic_key
from platform_assets.orchestration.tick import Group
from testbed.samples import HOUR, START, cut, edge, receipt, recorded
from testbed.ticks import PlanningTick

PARTITIONS, A_TICK = 3, 50


class Unasked(Cluster):
    """A cluster that must not be queried."""

    def __init__(self) -> None:
        super().__init__(None, ClientSettings("localhost:1"))

    def with_deadline(self, deadline: float) -> Cluster:
        pytest.fail("asked the broker")


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Return a function that counts how many ledger rows and windows were turned into objects since the function's last
    call."""
    number = 0

    def cuts(rows: pa.Table) -> list[RecordedCut]:
        nonlocal number
        number += rows.num_rows
        return recorded_cuts(rows)

    def window(*given: object) -> Window:
        nonlocal number
        number += 1
        return Window(*given)  # type: ignore[arg-type]

    def since() -> int:
        nonlocal number
        found, number = number, 0
        return found

    for module in (cut_ranges, unloaded):
        monkeypatch.setattr(module, "recorded_cuts", cuts)
    monkeypatch.setattr("platform_assets.ledger.store.recorded_cuts", cuts)
    monkeypatch.setattr(unloaded, "Window", window)
    return since


@pytest.mark.parametrize("windows", [400, 3_200])
def test_a_tick_that_has_lost_its_cursor_builds_as_much_of_a_long_ledger_as_of_a_short_one(
    tmp_path: Path, built: Callable[[], int], windows: int
) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    ends = [dict.fromkeys(range(PARTITIONS), n) for n in range(windows + 1)]
    ledger.record_receipts([receipt(w) for w in recorded(tmp_path, "t", ends)])
    declaration = TopicDeclaration("t", "0 * * * *", START, max_edges_per_tick=A_TICK)
    with dg.DagsterInstance.ephemeral() as instance:
        cursor, reported = None, []
        for _ in range(3):
            built()
            ticked = PlanningTick(Group.of(declaration), Unasked(), ledger, instance, edge(windows)).evaluate(cursor)
            # Only the boundaries of the tick's windows and the newest cut are read, nothing about loaded windows.
            assert built() <= (A_TICK + 2) * PARTITIONS
            cursor = ticked.cursor
            reported += [e.partition for e in ticked.asset_events if e.asset_key == topic_key("t")]
    assert reported == ledger.edges("t")[: 3 * A_TICK]


def test_windows_that_are_read_by_ranges_are_those_of_the_whole_ledger(tmp_path: Path, rng: random.Random) -> None:
    """Windows are from minutes to weeks long, and their cuts are in many files."""
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    at, newest = START, None
    for _ in range(12):
        cuts = []
        for _ in range(rng.randrange(1, 40)):
            at += rng.choice((HOUR / 60, HOUR, 24 * 9 * HOUR))
            cuts.append(cut("t", at, {0: rng.randrange(3), 1: 0}))
        cuts = [replace(c, cut=replace(c.cut, offsets={0: 5, 1: 5})) for c in cuts]
        assert ledger.record_cuts(cuts, newest)
        newest = at
    whole = ledger.windows("t")
    assert cut_ranges.first_edge(ledger, "t") == whole[0].window.start
    assert cut_ranges.first_edge(ledger, "another") is None
    assert cut_ranges.next_windows(ledger, "another", None, 5) == []
    read, reached = [], None
    while some := cut_ranges.next_windows(ledger, "t", reached, limit := rng.randrange(1, 60)):
        assert len(some) <= limit
        read += some
        reached = some[-1].window.end
    assert read == whole


def test_the_first_edge_is_looked_up_again_where_the_ledger_was_put_back(tmp_path: Path) -> None:
    ledger = Ledger(Lake.at(tmp_path))
    ledger.create()
    assert ledger.record_cuts([cut("t", edge(1), {0: 0}), cut("t", edge(2), {0: 1})], None)
    assert cut_ranges.first_edge(ledger, "t") == edge(1)
    assert ledger.record_cuts([cut("t", edge(3), {0: 2})], edge(2))
    assert cut_ranges.first_edge(ledger, "t") == edge(1)
    ledger.lake.root.delete()
    ledger.create()
    assert cut_ranges.first_edge(ledger, "t") is None
    assert ledger.record_cuts([cut("t", edge(5), {0: 0})], None)
    assert cut_ranges.first_edge(ledger, "t") == edge(5)
