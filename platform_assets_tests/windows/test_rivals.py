"""Two concurrent first loads of one window, many times, with each pair of engines: they never leave two sets of rows.

Both loads open the table before either commits, so the later one commits from an outdated handle. A first load removes
nothing, so Delta's own rules do not keep the second commit out. If Spark runs a task twice, or a task continues after
its load's commit, it leaves only files that no version refers to.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.columnar import engine, task
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.columnar.work import Work
from platform_assets.engines.shared.reports import Report
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Folder, Lake
from platform_assets.lake.vacuum import vacuum
from platform_assets.model.declaration import EngineName
from testbed.loads import numbered, records

if TYPE_CHECKING:
    from platform_assets_tests.conftest import LakeMaker

pytestmark = pytest.mark.broker

PAIRS: Final[tuple[tuple[EngineName, EngineName], ...]] = (
    ("columnar", "columnar"),
    ("connector", "connector"),
    ("columnar", "connector"),
)


class Rivals:
    """Holds both loads of a round right before their first commits, then releases them at the same time."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2)
        self._held = threading.local()

    def begin(self) -> None:
        """Reset this thread; each of the two threads calls this before it loads."""
        self._held.at_commit = False

    @contextmanager
    def at_commit(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Make the commits of both threads wait for each other within the block."""
        replace = WindowCommit.replace

        def together(commit: WindowCommit, *arguments: Any) -> Any:
            if not self._held.at_commit:
                self._held.at_commit = True
                self._barrier.wait(120)
            return replace(commit, *arguments)

        with monkeypatch.context() as patched:
            patched.setattr(WindowCommit, "replace", together)
            yield


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
@pytest.mark.parametrize("rounds", [2, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_of_two_first_loads_at_once_one_wins_each_time(
    lake: LakeMaker,
    monkeypatch: pytest.MonkeyPatch,
    rng: random.Random,
    pair: tuple[EngineName, EngineName],
    rounds: int,
) -> None:
    lk = lake(partitions=2)
    rivals = Rivals()
    loaders = [lk.loader(engine=choose_engine(Lake.at(lk.root), lambda: lk.settings, lk.spark, name)) for name in pair]
    winners: Counter[str | None] = Counter()

    def load(number: int, key: str) -> str:
        rivals.begin()
        loaded = loaders[number].load(key)
        if loaded.outcome == "loaded":
            winners[loaded.receipt.engine] += 1
        return loaded.outcome

    expected = 0
    with rivals.at_commit(monkeypatch), ThreadPoolExecutor(2) as pool:
        for n in range(rounds):
            count = rng.randint(1, 400)
            expected += count
            key = lk.window_of(numbered(count, 2, f"round {n} "))
            outcomes = list(pool.map(load, range(2), [key, key]))
            assert sorted(outcomes) == ["loaded", "unchanged"]
            assert len(lk.rows(key)) == count

    assert lk.version() == rounds, "one commit per window, after the one that created the table"
    assert len(lk.rows()) == expected
    assert records(lk.rows()) == records(lk.committed())
    assert lk.orphans() == [], "the load that lost has deleted its files"
    print(f"rounds won: {dict(winners)}")


def test_files_of_a_task_that_ran_twice_are_deleted_at_the_commit_and_later_ones_by_vacuum(
    lake: LakeMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task runs twice, as with speculation or when a live worker is considered dead: one copy writes before the
    commit, the other after it."""
    lk = lake(partitions=2)
    works: list[Work] = []
    reports_of = engine.reports_of

    def with_a_twin(spark: Any, work: Work, tasks: int) -> Generator[Report, None, None]:
        works.append(work)
        assert done(work) > 0
        return (yield from reports_of(spark, work, tasks))

    with monkeypatch.context() as patched:
        patched.setattr("platform_assets.engines.columnar.engine.reports_of", with_a_twin)
        key = lk.window_of(numbered(300, 2))
        own = ColumnarEngine(Lake.at(lk.root), lambda: lk.settings, lk.spark)
        assert lk.loader(engine=own).load(key).outcome == "loaded"
    (work,) = works
    assert lk.orphans() == []
    late = done(work)
    assert len(lk.orphans()) == late > 0
    assert (lk.version(), len(lk.rows())) == (1, 300)
    assert records(lk.rows()) == records(lk.committed())
    assert lk.load(key).outcome == "unchanged"

    for path in lk.orphans():
        os.utime(path, (0, 0))
    deleted = vacuum(lk.declaration.raw_table, Folder.at(lk.table))
    assert len(deleted.files) == late
    assert lk.orphans() == []
    assert records(lk.rows()) == records(lk.committed())
    assert lk.load(key).outcome == "unchanged"


def done(work: Work) -> int:
    """Do all shares of `work` as a task would, without reports; return the number of files written."""
    found = list(task.reports(work, range(len(work.shares))))
    assert not [report.error for report in found if report.error]
    return sum(report.file is not None for report in found)
