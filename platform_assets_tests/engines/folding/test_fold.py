"""Folding converges: whatever the order and the number of loads and folds, a state has the rows that a plain dictionary
gives."""

from __future__ import annotations

import os
import random

import pytest

from platform_assets_tests.support.state_histories import history

HISTORIES = 250


def _run(first: int, count: int) -> int:
    base = os.environ.get("STATE_SEED", str(random.randrange(1 << 30)))
    print(f"STATE_SEED={base}")
    rebuilds = 0
    for number in range(first, first + count):
        made = history(f"{base}/{number}")
        made.run()
        made.check()
        rebuilds += made.rebuilds
    return rebuilds


def test_random_histories_end_in_the_state_of_a_dictionary() -> None:
    assert _run(0, HISTORIES) > 0, "no history had to rebuild the state, so rebuilding was not tested"


@pytest.mark.long
def test_ten_thousand_histories() -> None:
    _run(HISTORIES, 10_000)
