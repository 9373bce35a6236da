"""Processor time of one task of a load, function by function. The task runs alone, in this process and on one thread."""

from __future__ import annotations

import cProfile
import pstats
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.bulk import WINDOW, Bulk
from benchmarks.file_formats import kinds
from benchmarks.producing import Sent, create, produce
from benchmarks.scenario import Bench, Measured
from platform_assets.engines.columnar import task
from platform_assets.engines.columnar.engine import FETCH_BYTES, PATIENCE
from platform_assets.engines.columnar.work import Piece, Share, Source, Work
from platform_assets.engines.shared.session import connect
from platform_assets.lake import raw_table
from platform_assets.lake.location import Folder, load_folder

Function = tuple[str, int, str]
"""File, line and name of a function, in the form in which Python's profiler reports them."""
Callers = Mapping[Function, tuple[int, int, float, float]]

STEPS: Final[Mapping[str, str]] = {
    "kafka/batches/wire.py": "fetching from the broker",
    "kafka/batches/fetching.py": "fetching from the broker",
    "kafka/batches/reading.py": "fetching from the broker",
    "kafka/batches/record_batches.py": "CRCs, batch headers, unpacking",
    "kafka/batches/unpacking.py": "CRCs, batch headers, unpacking",
    "engines/columnar/columns.py": "records to Arrow columns",
    "engines/shared/digests.py": "digests",
    "kernels/arrow.py": "records to Arrow columns",
    "kernels/hashing.py": "digests",
    "kernels/records.py": "records to Arrow columns",
    "engines/shared/files.py": "Parquet",
}
"""Maps each module to its step in a task. Time in numba's kernels and in libraries counts toward the function that
calls them."""
_PACKAGE: Final = "/platform_assets/"


@dataclass(frozen=True, slots=True)
class OneTask:
    """A part of a topic's records, in the form in which a Spark worker gets it."""

    bulk: Bulk
    table: Path
    records: int

    def run(self) -> None:
        """Read all of the topic's partition 0 and write its files. The caller's `clear` deletes these files."""
        below = load_folder(WINDOW.key, str(uuid.uuid4()))
        whole = self.bulk.ranges.by_partition[0]
        source = Source(self.bulk.topic, self.bulk.topic_id, str(self.table))
        share = Share(WINDOW.key, below, (Piece(0, whole),), source)
        work = Work(self.bulk.bootstrap, (), (share,), 200_000, PATIENCE, FETCH_BYTES)
        rows = 0
        for report in task.reports(work, [0]):
            if report.error is not None:
                raise report.error
            rows += 0 if report.file is None else report.file.rows
        if rows != self.records:
            raise RuntimeError(f"{rows} rows from {self.records} records: the measurement is invalid")


def run(bench: Bench) -> Measured:
    """Measure the processor seconds of one task, by kind of value, and the share of each step and of each function."""
    records, rounds = bench.pick(1_500_000, 150_000), bench.pick(5, 3)
    seconds: dict[str, list[float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for kind, values in kinds(records).items():
        one = _task(bench, values)
        one.run()  # numba and pyarrow are loaded, the log is in memory
        seconds[kind] = [_timed(one.run) for _ in range(rounds)]
        one.bulk.clear()
        shares[kind] = _profile(one.run)
        one.bulk.clear()
        for what, share in shares[kind].items():
            bench.report(f"{kind}: {share:.1%} {what}")
    return Measured("load-profile", seconds, setting={"records": records, "threads": 1}, more={"shares": shares})


def _task(bench: Bench, values: pa.Array) -> OneTask:
    topic = f"profile-{uuid.uuid4().hex[:8]}"
    create(bench.bootstrap, [topic], 1)
    produce(bench.bootstrap, _sent(topic, values))
    root = bench.root / "profile"
    bulk = Bulk.of(bench.bootstrap, connect(bench.remote), root, len(values), topic)
    table = root / "table"
    raw_table.create(Folder.at(table), topic)
    return OneTask(bulk, table, len(values))


def _sent(topic: str, values: Any) -> Iterator[Sent]:
    for number, value in enumerate(values):
        yield Sent(topic, 0, value.as_py(), number.to_bytes(8, "big"))


def _timed(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def _profile(call: Callable[[], object]) -> dict[str, float]:
    """Return shares of the time that `call` takes: first the share of each step, then the share of each function with
    at least 1 %. Both parts are sorted, the largest share first."""
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(call)
    own = own_time(pstats.Stats(profiler).stats)  # type: ignore[attr-defined]
    whole = sum(own.values())
    by_step: dict[str, float] = {}
    for (file, _, _), spent in own.items():
        step = next((name for module, name in STEPS.items() if file.endswith(module)), "the rest")
        by_step[step] = by_step.get(step, 0.0) + spent
    functions = {
        f"{file.rpartition(_PACKAGE)[2]}: {name}": spent
        for (file, _, name), spent in own.items()
        if spent > whole / 100
    }
    return {
        name: round(spent / whole, 4)
        for found in (by_step, functions)
        for name, spent in sorted(found.items(), key=lambda item: -item[1])
    }


def own_time(stats: Mapping[Function, tuple[int, int, float, float, Callers]]) -> dict[Function, float]:
    """Return the time of each platform function, including the time of the libraries and built-in functions that it
    calls."""
    own: dict[Function, float] = {}

    def give(function: Function, spent: float, below: frozenset[Function]) -> None:
        callers: Callers = stats[function][4] if function in stats else {}
        whole = sum(c[3] for c in callers.values())
        if _PACKAGE in function[0] or not whole or function in below:
            own[function] = own.get(function, 0.0) + spent
            return
        for caller, (_, _, _, cumulative) in callers.items():
            give(caller, spent * cumulative / whole, below | {function})

    for function, (_, _, spent, _, _) in stats.items():
        if spent:
            give(function, spent, frozenset())
    return own
