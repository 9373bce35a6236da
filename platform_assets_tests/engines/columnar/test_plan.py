"""A job's plan: offsets of different orders are in different shares, and each share is in one task."""

from __future__ import annotations

import random

import pytest

from platform_assets.engines.columnar.engine import LARGEST_SHARE, Plan
from platform_assets.engines.protocol import Order, Records
from platform_assets.engines.shared.job import shares_of
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

TABLE = TableRef.raw("t")


def order(number: int, *sizes: int) -> Order:
    """Return a window with this number of offsets in each partition."""
    ranges = TopicRanges({p: OffsetRange(7, 7 + size) for p, size in enumerate(sizes)})
    return Order(Records("t", "A" * 22, f"2026-01-01-00:{number:02}", ranges), f"load {number}", TABLE)


def nobody_asks() -> int:
    raise AssertionError("the cores were asked for")


def test_small_windows_share_tasks_without_asking_for_cores() -> None:
    orders = [order(n, 10, 5) for n in range(40)]
    plan = Plan.of(orders, 1_000, nobody_asks, str, apart=False)
    assert plan.owners == tuple(range(40)), "each is one share"
    assert plan.tasks == 5
    assert [len(plan.of_task(task)) for task in range(5)] == [8] * 5
    apart = Plan.of(orders, 1_000, nobody_asks, str, apart=True)
    assert apart.tasks == 40
    assert {len(apart.of_task(task)) for task in range(40)} == {1}


def test_a_large_window_is_divided_among_tasks_and_one_without_offsets_has_none() -> None:
    orders = [order(0, 10), order(1, 0, 0), order(2, 3_000, 3_000), order(3, 1)]
    plan = Plan.of(orders, 1_000, lambda: 4, str, apart=False)
    assert plan.owners == (0, 2, 2, 2, 2, 3)
    assert [share for share in range(6) if plan.is_last(share)] == [0, 4, 5]
    assert plan.of_order(1) == ()
    assert plan.tasks == 6
    most = Plan.of([order(0, 9 * LARGEST_SHARE)], 1_000, lambda: 4, str, apart=True)
    assert max(sum(p.wanted.size for p in share.pieces) for share in most.shares) <= LARGEST_SHARE


@pytest.mark.parametrize("apart", [True, False])
def test_every_offset_is_in_one_share_and_every_share_in_one_task(rng: random.Random, apart: bool) -> None:
    for _ in range(200):
        orders = [
            order(n, *(rng.choice([0, 1, 9, 500, 5_000]) for _ in range(rng.randint(1, 4))))
            for n in range(rng.randint(1, 30))
        ]
        plan = Plan.of(orders, rng.choice([1, 100, 1_000]), lambda: 3, str, apart=apart)
        for index, each in enumerate(orders):
            pieces = [piece for share in plan.of_order(index) for piece in share.pieces]
            assert sum(p.wanted.size for p in pieces) == each.records.ranges.size
            for partition, whole in each.records.ranges.non_empty().items():
                own = sorted((p.wanted for p in pieces if p.partition == partition), key=lambda r: r.start)
                assert (own[0].start, own[-1].end) == (whole.start, whole.end)
        done = [number for task in range(plan.tasks) for number in shares_of(task, len(plan.shares), plan.tasks)]
        assert done == list(range(len(plan.shares)))
