"""One window as users load it, in a Dagster run with ledger and checks, compared with a bare Spark write of the same
records."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg

from benchmarks.bulk import PARTITIONS, VALUE_BYTES, Bulk
from benchmarks.dagster_runs import QUIET, instance_in, job_of, passed
from benchmarks.rounds import WARM_UP, alternate, ratio
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.engines.columnar.engine import ColumnarEngine
from platform_assets.engines.connector.engine import SparkEngine
from platform_assets.engines.shared.session import connect
from platform_assets.lake import raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of
from platform_assets.orchestration import resources
from platform_assets.windows.load import replacing, sealing

RUN = "Dagster run: sealed, loaded, in the ledger, four checks"
BARE = "bare Spark write"

_PARTS: Mapping[str, Sequence[tuple[Any, str]]] = {
    "new ledger and table": ((Ledger, "create"), (raw_table, "create")),
    "sealing": ((sealing, "sealed_window"),),
    "Spark session": ((resources, "connect"),),
    "read and write": ((SparkEngine, "write"), (ColumnarEngine, "write")),
    "commit": ((WindowCommit, "replace"),),
    "receipt and ledger": ((replacing, "receipt_of"), (Ledger, "record_receipts")),
}
"""Maps each part of a load to the functions that are timed for it. None of these functions calls another of them."""


@dataclass(frozen=True)
class Runs:
    """First loads of the only window of `bulk`. Each load uses an empty lake at `root` and a new instance. The lake has
    the same path each time, so its Spark session is started only once, as on a running platform."""

    bulk: Bulk
    remote: str
    start: datetime
    root: Path
    instances: Iterator[dg.DagsterInstance]
    divided: list[dict[str, float]]

    def load(self) -> None:
        """Load the window. Raises RuntimeError if not all records were loaded, or if a check did not pass."""
        instance = next(self.instances)
        declaration = TopicDeclaration(self.bulk.topic, "0 * * * *", self.start)
        began = time.perf_counter()
        with _timed() as parts:
            result = job_of(declaration, self.bulk.bootstrap, self.root, self.remote).execute_in_process(
                QUIET, instance, partition_key=key_of(self.start)
            )
        took = time.perf_counter() - began
        passed(result, key_of(self.start))
        receipts = Ledger(Lake.at(self.root)).receipts(declaration.raw_table)
        if sum(r.rows for r in receipts.values()) != self.bulk.records:
            raise RuntimeError("not all records were loaded: the measurement is invalid")
        self.divided.append(_divided(took, parts, instance, result.run_id))

    def clear(self) -> None:
        """Remove the data that the two ways of loading have written."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.bulk.clear()


def run(bench: Bench) -> Measured:
    """Measure everything that the platform does in addition to a write. The window has the size of a busy topic's
    window."""
    records, rounds = bench.pick(1_000_000, 100_000), bench.pick(5, 2)
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    start = end - timedelta(hours=1)
    bench.report(f"producing {records:,} records")
    bulk = Bulk.produced(
        bench.bootstrap, connect(bench.remote), bench.root / "bare", records, at=start + timedelta(minutes=30)
    )
    with ExitStack() as stack:
        made = [instance_in(stack, bench.root / f"whole-{number}")[1] for number in range(WARM_UP + rounds)]
        runs = Runs(bulk, bench.remote, start, bench.root / "whole", iter(made), [])
        seconds = alternate({RUN: runs.load, BARE: bulk.load_bare}, rounds, bench.report, runs.clear)
    counted = runs.divided[WARM_UP:]
    return Measured(
        "whole-window",
        seconds,
        [
            at_most(
                "duration of a whole run of one window, relative to the bare write",
                0.6,
                ratio(seconds[RUN], seconds[BARE]),
            )
        ],
        setting={"records": records, "bytes a record": VALUE_BYTES, "partitions": PARTITIONS},
        more={"median seconds": {part: round(statistics.median(d[part] for d in counted), 3) for part in counted[0]}},
    )


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """Measure the seconds that each of `_PARTS` takes while the block runs."""
    seconds = dict.fromkeys(_PARTS, 0.0)
    with ExitStack() as stack:
        for part, places in _PARTS.items():
            for owner, name in places:
                stack.enter_context(patch.object(owner, name, _timing(getattr(owner, name), part, seconds)))
        yield seconds


def _timing(call: Callable[..., Any], part: str, seconds: dict[str, float]) -> Callable[..., Any]:
    def timed(*arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return call(*arguments, **named)
        finally:
            seconds[part] += time.perf_counter() - began

    return timed


def _divided(took: float, parts: Mapping[str, float], instance: dg.DagsterInstance, run_id: str) -> dict[str, float]:
    steps = {s.step_key: (s.end_time or 0) - (s.start_time or 0) for s in instance.get_run_step_stats(run_id)}
    checks = sum(s for key, s in steps.items() if key.endswith("_checks"))
    return {
        **parts,
        "rest of the load's step": sum(steps.values()) - checks - sum(parts.values()),
        "step of the checks": checks,
        "Dagster around the steps": took - sum(steps.values()),
        "whole run": took,
    }
