"""A reader that reads a table while the table is being loaded, and remembers which states of each window it saw."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

_PAUSE: Final = 0.1


@dataclass(frozen=True, slots=True, order=True)
class Sight:
    """State of a window at one table version: the number of its rows, and the number of distinct offsets among them."""

    window: str
    rows: int
    offsets: int


@dataclass
class Reader:
    """A reader that reads each version of `table` it finds while `reading`. `sights` are the distinct states that it
    saw."""

    table: Path
    sights: set[Sight] = field(default_factory=set)
    versions: int = 0
    error: BaseException | None = None

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        """Read in a separate thread while the block runs. Raises errors that occur in that thread."""
        stop = threading.Event()
        thread = threading.Thread(target=self._read, args=(stop,), name="reader")
        thread.start()
        try:
            yield self
        finally:
            stop.set()
            thread.join()
        if self.error is not None:
            raise self.error

    def wrong(self, whole: Mapping[str, int]) -> list[str]:
        """Return the states in `sights` in which a window was neither empty nor complete. `whole` has the number of
        rows of each complete window."""
        return [
            f"a reader saw {s.rows} rows with {s.offsets} offsets in window {s.window}, which has {whole.get(s.window, 0)} records"
            for s in sorted(self.sights)
            if not s.rows == s.offsets == whole.get(s.window, 0)
        ]

    def _read(self, stop: threading.Event) -> None:
        seen = -1
        try:
            while not stop.wait(_PAUSE):
                seen = self._look(seen)
        except BaseException as e:  # noqa: BLE001 - raised where `reading` ends
            self.error = e

    def _look(self, seen: int) -> int:
        try:
            table = DeltaTable(self.table)
        except TableNotFoundError:
            return seen
        if table.version() == seen:
            return seen
        held = table.to_pyarrow_table(columns=["window", "kafka_partition", "kafka_offset"])
        self.versions += 1
        place = pc.add(pc.multiply(held["kafka_offset"], 1000), held["kafka_partition"].cast(pa.int64()))
        counted = pa.table({"window": held["window"], "place": place}).group_by("window")
        for row in counted.aggregate([("place", "count"), ("place", "count_distinct")]).to_pylist():
            self.sights.add(Sight(row["window"], row["place_count"], row["place_count_distinct"]))
        return table.version()
