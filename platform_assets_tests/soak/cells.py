"""Cells of the crash matrix. Each cell is a fault and the point at which it strikes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from platform_assets.model.declaration import EngineName
from platform_assets_tests.soak.points import RUN_POINTS, SENSOR_POINTS, UPKEEP_POINTS, Point

Place = Point | Literal["mid-read", "mid-merge"]
"""The middle of a read or of a merge. At this point, the first new data file exists."""
Fault = Literal[
    "exception",
    "SIGKILL of the process",
    "SIGKILL of Spark",
    "SIGKILL of the broker",
    "SIGKILL of a worker",
    "SIGKILL of the store",
    "lost answer",
    "disk full",
    "a new run during the write of a killed one",
]
"""Kinds of faults. "The process" is the process of the run. For a fault in the sensor, it is the code server that
Dagster's daemon keeps running; for a fault in upkeep, it is the process of the command."""

_ANYWHERE: Final[tuple[Fault, ...]] = ("SIGKILL of the process", "SIGKILL of Spark", "SIGKILL of the broker")


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one point of a load by `engine`, of a sensor tick, or of upkeep."""

    place: Place
    fault: Fault
    engine: EngineName

    @property
    def is_of_upkeep(self) -> bool:
        """Return True if the fault strikes upkeep."""
        return self.place in (*UPKEEP_POINTS, "mid-merge")

    def __str__(self) -> str:
        return f"{self.engine}: {self.place}: {self.fault}"


def store_cells(engine: EngineName) -> tuple[Cell, ...]:
    """Return the cells for a lake in an object store. The store itself may be killed, but there is no disk that can
    fill up."""
    found = [cell for cell in cells(engine) if cell.fault != "disk full"]
    places: tuple[Place, ...] = (*RUN_POINTS, "mid-read", *SENSOR_POINTS, *UPKEEP_POINTS)
    return (*found, *(Cell(place, "SIGKILL of the store", engine) for place in places))


def cells(engine: EngineName) -> tuple[Cell, ...]:
    """Return every possible combination of fault and point for a lake in a folder."""
    found: list[tuple[Place, Fault]] = [(p, f) for p in RUN_POINTS for f in ("exception", *_ANYWHERE)]
    found += [("mid-read", fault) for fault in _ANYWHERE]
    # The connector reads in threads of the Spark server.
    found += [("mid-read", "SIGKILL of a worker")] if engine == "columnar" else []
    found += [("mid-read", "a new run during the write of a killed one")]
    found += [(place, "lost answer") for place in ("commit made", "ledger written", "cuts recorded")]
    found += [(place, "disk full") for place in ("plan recorded", "files written", "table committed", "cuts taken")]
    for place in SENSOR_POINTS:
        found += [(place, fault) for fault in ("exception", "SIGKILL of the process", "SIGKILL of the broker")]
    found += [(place, fault) for place in UPKEEP_POINTS for fault in ("exception", "SIGKILL of the process")]
    found += [("merge made", "lost answer"), ("merge planned", "SIGKILL of Spark")]
    found += [(place, "disk full") for place in ("merge planned", "files merged", "merge committed")]
    found += [("mid-merge", fault) for fault in ("SIGKILL of the process", "SIGKILL of Spark", "SIGKILL of a worker")]
    return tuple(Cell(place, fault, engine) for place, fault in found)
