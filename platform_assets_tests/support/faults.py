"""Crashes at chosen points of a load, for the platform's loader and for the control loaders. A crash is an exception
that no handler of the platform catches. Nothing happens after the crash, so the files on disk are the same as after the
process is killed."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from platform_assets.engines.choice import choose_engine
from platform_assets.engines.connector import raw
from platform_assets.lake.location import load_folder
from platform_assets.ledger.entries import Receipt
from platform_assets.ledger.store import Ledger
from platform_assets.windows.load.loading import Loader
from testbed.loads import TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

Point = Literal["before the plan", "after the plan", "files written", "between the writes", "after all"]
"""Points at which a load can crash: before it has read anything; when its plan is known; when data files are written
but not committed; between storing the data and storing the position; and at the end of the load, before the result is
reported."""
POINTS: tuple[Point, ...] = get_args(Point)


class Crash(BaseException):
    """The simulated end of the process."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The point at which one attempt to load crashes. By default, the attempt does not crash."""

    point: Point | None = None

    def reach(self, point: Point) -> None:
        """Report that the attempt has reached `point`. Raises Crash if the attempt must end at this point."""
        if point == self.point:
            raise Crash(point)

    def reach_plan(self, lake: TopicLake, key: str) -> None:
        """Report that the attempt has planned its reads of window `key`, and is about to write."""
        self.reach("after the plan")
        if self.point == "files written":
            leave_files(lake, key)
            raise Crash(self.point)


def leave_files(lake: TopicLake, key: str) -> None:
    """Write data files of a window in the state in which a killed writer would leave them. No commit refers to these
    files."""
    sealed = lake.ledger.window(lake.topic, key)
    assert sealed is not None
    ranges = sealed.ranges.non_empty()
    frame = raw.kafka_frame(lake.spark(), lake.settings.java(), lake.topic, sealed.topic_id, key, [ranges])
    folder = lake.table / load_folder(key, str(uuid.uuid4()))
    frame.drop("window").write.parquet(str(folder))


class InterruptedLedger(Ledger):
    """A ledger that crashes its caller at chosen points: at the beginning, or between a data commit and its ledger
    entry."""

    def __init__(self, lake: TopicLake, faults: Faults) -> None:
        super().__init__(lake.lake)
        self._faults = faults

    def create(self) -> None:
        """Create the ledger, which is the first step of a load."""
        self._faults.reach("before the plan")
        super().create()

    def record_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Record the receipts, which is the last step of a load."""
        self._faults.reach("between the writes")
        super().record_receipts(receipts)


@dataclass(frozen=True, slots=True)
class InterruptedLoader:
    """The platform's loader. It requests its session only when its plan is known."""

    lake: TopicLake
    faults: Faults

    def load(self, key: str) -> str:
        """Load one window, and return the outcome."""

        def session() -> SparkSession:
            self.faults.reach_plan(self.lake, key)
            return self.lake.spark()

        engine = choose_engine(self.lake.lake, lambda: self.lake.settings, session)
        loader: Loader = self.lake.loader(ledger=InterruptedLedger(self.lake, self.faults), engine=engine)
        outcome = loader.load(key).outcome
        self.faults.reach("after all")
        return outcome
