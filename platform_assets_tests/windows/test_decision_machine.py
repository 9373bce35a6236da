"""A few histories of the rule-based machine for operators' decisions; `make soak SCENARIO=decisions` runs many more."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from platform_assets_tests.support import decision_machine
from platform_assets_tests.support.variants import long_after


@pytest.mark.parametrize("flat", [False, True], ids=["partitioned", "flat"])
@pytest.mark.parametrize("seed", long_after(1, [1, 2]))
def test_random_decisions_maintenance_and_crashes_lose_and_double_nothing(
    tmp_path: Path, seed: int, flat: bool
) -> None:
    history = decision_machine.steps(random.Random(seed), 14)
    assert decision_machine.run(tmp_path, history, flat=flat)


def test_a_history_that_fails_is_shortened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(machine: decision_machine.Machine, _: int) -> None:
        raise decision_machine.Wrong("the log starts at 0")

    monkeypatch.setattr(decision_machine.Machine, "maintain", fails)
    history = [("produce", (1, 0)), ("tick", (0, 0)), ("maintain", (0,)), ("tick", (0, 0))]
    assert decision_machine.shortened(tmp_path, history, flat=False) == [("maintain", (0,))]
