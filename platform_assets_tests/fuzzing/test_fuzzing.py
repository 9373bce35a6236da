"""A few seconds of each fuzz target, and the runner's reaction to cases that crash, hang or use too much memory."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from platform_assets_tests.fuzzing import faulty, running
from platform_assets_tests.fuzzing.target import case_rng, damaged
from platform_assets_tests.fuzzing.targets import TARGETS
from platform_assets_tests.support.shell import DAGSTER_WARNINGS

SECONDS = 2.0


@pytest.mark.parametrize("name", sorted(TARGETS))
@pytest.mark.filterwarnings(*DAGSTER_WARNINGS)
def test_cases_end_in_right_values_or_in_errors_of_ours(name: str, tmp_path: Path) -> None:
    """The test always runs the same sequence of cases, for a limited time; `make soak SCENARIO=fuzz-…` draws other
    cases."""
    assert running.sample(name, random.Random(name), SECONDS, tmp_path) > 0


def test_a_case_is_the_same_each_time() -> None:
    assert damaged(case_rng("x", 1, 2), b"abc" * 20) == damaged(case_rng("x", 1, 2), b"abc" * 20)
    assert case_rng("x", 1, 2).random() != case_rng("x", 1, 3).random()


@pytest.mark.parametrize(
    ("way", "says"),
    [("none", ""), ("raise", "ValueError"), ("crash", "killed"), ("hang", "hang"), ("memory", "MemoryError")],
)
def test_a_case_that_goes_wrong_is_named_with_the_command_that_repeats_it(tmp_path: Path, way: str, says: str) -> None:
    number = next(n for n in itertools.count() if faulty.way(case_rng("faulty", 5, n)) == way)
    found = running.run("faulty", 5, 60, tmp_path, only=number)
    assert found.cases == 1
    if not says:
        assert found.anomalies == []
        return
    (told,) = found.anomalies
    assert told.startswith(says)
    assert f"make soak SCENARIO=faulty SEED=5 ARGS='--case {number}'" in told
