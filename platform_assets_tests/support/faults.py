"""Crashes at chosen points of a load, for the platform's loader and for those that it is compared with.

A crash is an exception that no handler of the platform's catches, so that nothing after the point is done: what a
killed process leaves on disk is left here too.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.spark import raw
from platform_assets.lake.location import load_folder
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.windows.load.loading import Loader
from testbed.loads import TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Point = Literal["before the plan", "after the plan", "files written", "between the writes", "after all"]
"""Points at which a load is ended: before it has read anything; when its plan is known; when data files are written but not
committed; between storing data and position; and at its end, before its result is reported.
"""
POINTS: tuple[Point, ...] = get_args(Point)


class Crash(BaseException):
    """The process is gone, as far as what it was doing is concerned."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Points at which one attempt to load crashes; none by default."""

    point: Point | None = None

    def reach(self, point: Point) -> None:
        """Say that the attempt has come to `point`. Raises Crash where it ends there."""
        if point == self.point:
            raise Crash(point)

    def reach_plan(self, lake: TopicLake, key: str) -> None:
        """Say that the attempt knows what to read of window `key`, and is about to write."""
        self.reach("after the plan")
        if self.point == "files written":
            leave_files(lake, key)
            raise Crash(self.point)


def leave_files(lake: TopicLake, key: str) -> None:
    """Data files of a window in the table's folder that no commit names: what a writer that was killed leaves."""
    sealed = lake.ledger.window(lake.topic, key)
    assert sealed is not None
    ranges = sealed.ranges.non_empty()
    frame = raw.kafka_frame(lake.spark(), lake.settings.java(), lake.topic, sealed.topic_id, key, [ranges])
    folder = lake.table / load_folder(key, str(uuid.uuid4()))
    frame.drop("window").write.parquet(str(folder))


class InterruptedLedger(Ledger):
    """A ledger whose caller may crash when it begins, and between a data commit and its entry."""

    def __init__(self, lake: TopicLake, faults: Faults) -> None:
        super().__init__(lake.lake)
        self._faults = faults

    def create(self) -> None:
        """The first thing that a load does."""
        self._faults.reach("before the plan")
        super().create()

    def record_receipts(self, receipts: Sequence[Receipt]) -> None:
        """The last thing that a load does."""
        self._faults.reach("between the writes")
        super().record_receipts(receipts)


@dataclass(frozen=True, slots=True)
class InterruptedLoader:
    """The platform's loader, whose session is asked for when it knows what to read."""

    lake: TopicLake
    faults: Faults

    def load(self, key: str) -> str:
        """Load one window, and give the outcome."""

        def session() -> SparkSession:
            self.faults.reach_plan(self.lake, key)
            return self.lake.spark()

        engine = choose_engine(self.lake.lake, lambda: self.lake.settings, session)
        loader: Loader = self.lake.loader(ledger=InterruptedLedger(self.lake, self.faults), engine=engine)
        outcome = loader.load(key).outcome
        self.faults.reach("after all")
        return outcome
