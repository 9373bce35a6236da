"""Points in a load, in a sensor tick and in upkeep at which a test can make the process fail, die or wait from within.

The product has no hooks. In a process whose code location is `soak.location`, `install` wraps some methods in functions
from this module. Orders are files in the data folder's subfolder `orders` that define what happens at a given point.
Each order is executed once, by the first process that claims it.
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import dagster as dg
from deltalake import DeltaTable

from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.lake import merging
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import execution, raw_checks
from platform_assets.orchestration.tick import Tick
from platform_assets.windows.load import catching_up
from platform_assets.windows.load.loading import Loader
from platform_assets.windows.maintain import upkeep
from platform_assets.windows.maintain.merging import Upkeep

RunPoint = Literal[
    "before the plan",
    "plan recorded",
    "files written",
    "commit made",
    "table committed",
    "ledger written",
    "event sent",
]
"""Points in a run, for one window, in order: nothing is done; the window's offsets are known and Kafka has them; the
window's files are written next to those of the table; the files are committed, but the loader has no answer yet; the
loader has the answer; the ledger has the receipt; Dagster has the materialization."""
SensorPoint = Literal["tick begun", "cuts taken", "cuts recorded", "tick done"]
"""Points in the sensor, in order: nothing is done; the cuts are known; the ledger has the cuts; everything is done, but
Dagster has not been informed."""
UpkeepPoint = Literal[
    "merge planned",
    "files merged",
    "merge made",
    "merge committed",
    "log folded",
    "files deleted",
    "upkeep recorded",
]
"""Points in the command `upkeep`, for one table, in order: the files to merge are known; the merged files are written
and proved; the merged files are committed, but upkeep has no answer yet; upkeep has the answer; a checkpoint is
written, and old log files are deleted; files that no kept version needs are deleted; the outcome is recorded."""
Point = RunPoint | SensorPoint | UpkeepPoint
RUN_POINTS: Final[tuple[RunPoint, ...]] = get_args(RunPoint)
SENSOR_POINTS: Final[tuple[SensorPoint, ...]] = get_args(SensorPoint)
UPKEEP_POINTS: Final[tuple[UpkeepPoint, ...]] = get_args(UpkeepPoint)

Deed = Literal["raise", "kill", "lose the answer", "wait"]
"""raise: raise an error that the platform does not expect; kill: the process sends SIGKILL to itself; lose the answer:
the work before the point is done, but its caller gets a broken connection; wait: wait until `Orders.release` is called.
"""

_PATIENCE: Final = 600.0


class SoakFault(Exception):
    """The error that a point raises when an order says so."""


@dataclass(frozen=True, slots=True)
class Order:
    """A fault for `topic` at `point`. It is caused once at least `loaded` windows of the topic that have rows are
    loaded."""

    topic: str
    point: Point
    deed: Deed
    loaded: int = 0


@dataclass(frozen=True, slots=True)
class Orders:
    """Orders in a folder. The test writes them, and processes of the platform execute them."""

    folder: Path

    @classmethod
    def below(cls, home: str | Path) -> Orders:
        """Return the orders for the platform with this data folder."""
        return cls(Path(home) / "orders")

    def give(self, name: str, order: Order) -> None:
        """Write an order."""
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f".{name}"
        part.write_text(json.dumps(asdict(order)))
        part.replace(self.folder / f"{name}.order")

    def taken_by(self, name: str) -> int | None:
        """Return the id of the process that has reached the point of an order; None if no process has reached it yet."""
        try:
            return int((self.folder / f"{name}.taken").read_text() or 0) or None
        except FileNotFoundError:
            return None

    def release(self, name: str) -> None:
        """Let the process that waits at this order continue."""
        (self.folder / f"{name}.released").touch()

    def open_gate(self, topic: str) -> None:
        """Let the sensor of a topic tick. Before this call, the sensor finds nothing to do."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{topic}.gate").touch()

    def is_open(self, topic: str) -> bool:
        """Return True if the topic's sensor may tick."""
        return (self.folder / f"{topic}.gate").exists()

    def withdraw(self, name: str) -> bool:
        """Withdraw an order. Return True if no process had taken the order."""
        try:
            (self.folder / f"{name}.order").unlink()
        except FileNotFoundError:
            return False
        return True

    def take(self, topic: str, points: tuple[Point, ...], loaded: Callable[[], int]) -> tuple[str, Order] | None:
        """Take an order for one of these points and this topic, and return it. Return None if there is no such order,
        or if another process has taken it."""
        for path in sorted(self.folder.glob("*.order")) if self.folder.exists() else ():
            try:
                order = Order(**json.loads(path.read_text()))
            except FileNotFoundError:
                continue
            if order.topic != topic or order.point not in points or loaded() < order.loaded:
                continue
            taken = path.with_suffix(".mine")
            try:
                path.rename(taken)
            except FileNotFoundError:
                continue
            (self.folder / f".{path.stem}").write_text(str(os.getpid()))
            (self.folder / f".{path.stem}").rename(path.with_suffix(".taken"))
            taken.unlink()
            return path.stem, order
        return None

    def reach(self, topic: str, point: Point) -> None:
        """Report that this process has reached `point`. If there is an order for the point, execute it. Raises the
        error that the order requires."""
        found = self.take(topic, (point,), lambda: _loaded(topic))
        if found is None:
            return
        name, order = found
        if order.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if order.deed == "raise":
            raise SoakFault(f"{point}, topic {topic}")
        if order.deed == "lose the answer":
            raise OSError("the answer to the commit was lost")
        deadline = time.monotonic() + _PATIENCE
        while not (self.folder / f"{name}.released").exists() and time.monotonic() < deadline:
            time.sleep(0.01)


def _loaded(topic: str) -> int:
    return loaded_windows(Ledger(Lake.at(os.environ["LAKE_ROOT"])), topic)


def loaded_windows(ledger: Ledger, topic: str) -> int:
    """Return the number of loaded windows of a topic that have rows."""
    return sum(receipt.rows > 0 for receipt in ledger.receipts(TableRef.raw(topic)).values())


def in_run() -> bool:
    """Return True if this process is a run started by the platform's launcher."""
    return multiprocessing.current_process().name.startswith("run ")


def in_upkeep() -> bool:
    """Return True if this process runs the command `upkeep`."""
    return sys.argv[1:2] == ["upkeep"]


def install(orders: Orders) -> None:
    """Install the points in this process."""

    def around(
        owner: Any,
        name: str,
        topic: Callable[..., str | None],
        before: Point | None = None,
        after: Point | None = None,
        where: Callable[[], bool] = lambda: True,
    ) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*arguments: Any, **options: Any) -> Any:
            of = topic(*arguments) if where() else None
            if of is not None and before is not None:
                orders.reach(of, before)
            result = original(*arguments, **options)
            if of is not None and after is not None:
                orders.reach(of, after)
            return result

        setattr(owner, name, wrapped)

    around(Loader, "load", lambda loader, key: loader.declaration.topic, "before the plan")
    around(catching_up, "_prepared", lambda loader, windows: loader.declaration.topic, "before the plan")
    for engine in (SparkEngine, ColumnarEngine):
        around(engine, "write", lambda engine, records, *_: records.topic, "plan recorded")
        around(engine, "write_many", _topic_of_orders, "plan recorded")
    around(WindowCommit, "replace", lambda commit, metadata, *_: metadata.topic, "files written")
    around(Ledger, "record_receipts", _topic_of_load, "table committed", "ledger written", where=in_run)
    for module in (execution, raw_checks):
        around(module, "evaluation", lambda declaration, *_: declaration.topic, "event sent", where=in_run)
    around(Ledger, "record_cuts_of_many", _topic_of_proposed, "cuts taken", "cuts recorded")
    around(WindowCommit, "_commit", lambda commit, metadata, *_: metadata.topic, after="commit made")
    around(Tick, "evaluate", lambda tick, cursor: tick.group.first.topic, "tick begun", "tick done")
    around(Upkeep, "merge", lambda of, plan: of.table.topic if plan.groups else None, "merge planned")
    around(DeltaTable, "create_write_transaction", _topic_of_handle, after="merge made", where=in_upkeep)
    around(merging, "commit", lambda folder, *_: folder.name, "files merged", "merge committed", in_upkeep)
    around(DeltaTable, "cleanup_metadata", _topic_of_handle, after="log folded", where=in_upkeep)
    around(upkeep, "vacuum", lambda table, *_: table.topic, after="files deleted")
    around(upkeep, "remember", lambda lake, table, *_: table.topic, after="upkeep recorded")
    _gate(orders)


def _topic_of_handle(handle: DeltaTable, *_: Any) -> str:
    return handle.table_uri.rstrip("/").rpartition("/")[2]


def _topic_of_orders(_: Any, orders: Any, *__: Any) -> str | None:
    return orders[0].records.topic if orders else None


def _topic_of_proposed(ledger: Ledger, proposed: Any) -> str | None:
    return next((each.cuts[0].topic for each in proposed if each.cuts), None)


def _topic_of_load(ledger: Ledger, receipts: Any) -> str | None:
    return next((r.topic for r in receipts if r.kind != "empty"), None)


def _gate(orders: Orders) -> None:
    original = Tick.evaluate

    @functools.wraps(original)
    def evaluate(self: Tick, cursor: str | None) -> dg.SensorResult:
        topic = self.group.first.topic
        if not orders.is_open(topic):
            return dg.SensorResult(skip_reason=f"topic {topic}: its gate is closed", cursor=cursor)
        return original(self, cursor)

    Tick.evaluate = evaluate  # type: ignore[method-assign]
