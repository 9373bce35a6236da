"""Memory of the Spark server, of its Python workers and of the run's process, for a window with many records and for a
window with ten times as many.

Both windows are in one lake and therefore use the same Spark session. With two sessions, the workers of the other
session would be counted too, because Spark ends idle workers only after a minute.

`python -m benchmarks.memory BOOTSTRAP TOPIC START FOLDER LAKE` is the run's process. It loads one window, with
`SPARK_REMOTE` from the environment, and prints its peak memory in bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psutil

from benchmarks.bulk import PARTITIONS, VALUE_BYTES, Bulk
from benchmarks.dagster_runs import WindowRuns
from benchmarks.scenario import Bench, Goal, Measured
from platform_assets.engines.shared.session import connect
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of
from platform_assets.services.home import CHECKOUT

SERVER: Final = "Spark server and its Python workers"
ALONE: Final = "Spark server without its workers"
WORKER: Final = "the largest Python worker"
RUN: Final = "run's process"


def run(bench: Bench) -> Measured:
    """Measure the peaks of resident memory in bytes. One server loads both windows, the smaller window first."""
    sizes = (200_000, 2_000_000) if bench.quick else (2_000_000, 20_000_000)
    end = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    start = end - timedelta(hours=1)
    server = listening(bench.remote)
    rounds: dict[str, list[float]] = {}
    for records in sizes:
        bench.report(f"producing {records:,} records")
        bulk = Bulk.produced(
            bench.bootstrap, connect(bench.remote), bench.root / "none", records, at=start + timedelta(minutes=30)
        )
        with _peak(server) as peak:
            held = subprocess.run(
                [sys.executable, "-m", __name__, bench.bootstrap, bulk.topic, start.isoformat(),
                 str(bench.root / f"memory-{records}"), str(bench.root / "memory" / "lake")],
                env={**os.environ, "SPARK_REMOTE": bench.remote}, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        rounds[f"{SERVER}, {records:,} records"] = [peak.together]
        rounds[f"{ALONE}, {records:,} records"] = [peak.server]
        rounds[f"{WORKER}, {records:,} records"] = [peak.worker]
        rounds[f"{RUN}, {records:,} records"] = [float(held.stdout.split()[-1])]
        bench.report(", ".join(f"{name}: {values[0] / 1e6:,.0f} MB" for name, values in rounds.items()))
    few, many = (rounds[f"{SERVER}, {n:,} records"][0] for n in sizes)
    goals = [
        Goal(f"{SERVER} with {sizes[1]:,} records in a window, relative to {sizes[0]:,}", many / few, 1.1, True),
        Goal(WORKER, rounds[f"{WORKER}, {sizes[1]:,} records"][0] / 1e6, 400, True, "MB"),
        Goal("run's process", rounds[f"{RUN}, {sizes[1]:,} records"][0] / 1e6, 350, True, "MB"),
    ]
    setting = {"bytes a record": VALUE_BYTES, "partitions": PARTITIONS}
    return Measured("memory", rounds, goals, unit="bytes", setting=setting)


def listening(remote: str) -> psutil.Process:
    """Return the process of a Spark Connect server on this machine, found by the address at which it listens."""
    port = int(remote.removeprefix("sc://").split("/")[0].rsplit(":", 1)[1])
    for connection in psutil.net_connections("tcp"):
        address = connection.laddr
        if connection.status == psutil.CONN_LISTEN and address and address.port == port and connection.pid:
            return psutil.Process(connection.pid)
    raise RuntimeError(
        f"no process on this machine listens on port {port}: run this scenario on the machine of the Connect server"
    )


@dataclass
class Peak:
    """Peak number of bytes of a server together with its Python workers, of the server alone, and of a single worker."""

    together: float = 0.0
    server: float = 0.0
    worker: float = 0.0

    def take(self, server: psutil.Process) -> None:
        """Read the memory use once. Because workers are forked, each worker counts only its share of the memory that
        several workers use (PSS)."""
        together = float(server.memory_info().rss)
        self.server = max(self.server, together)
        for child in server.children(recursive=True):
            try:
                held = child.memory_full_info()
            except psutil.NoSuchProcess:
                continue
            together += held.pss
            self.worker = max(self.worker, float(held.rss))
        self.together = max(self.together, together)


@contextmanager
def _peak(process: psutil.Process) -> Iterator[Peak]:
    """While the block runs, measure the memory of `process` and its descendants ten times a second. Yield the peaks."""
    peak, done = Peak(), threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            peak.take(process)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield peak
    finally:
        done.set()
        watcher.join()


def main(bootstrap: str, topic: str, start: str, folder: str, lake: str) -> None:
    """Load the window as a Dagster run does, and print the peak memory."""
    declaration = TopicDeclaration(topic, "0 * * * *", datetime.fromisoformat(start))
    with ExitStack() as stack:
        runs = WindowRuns(stack, declaration, bootstrap, os.environ["SPARK_REMOTE"], Path(folder), Path(lake))
        runs.load(key_of(declaration.first_edge))
    print(most_held())


def most_held(process: int | None = None) -> int:
    """Return the peak number of bytes of a process; of this process by default. Unlike the result of `getrusage`, this
    value does not start with the peak of the parent process. Raises OSError and StopIteration if the process has ended.
    """
    status = Path(f"/proc/{process or 'self'}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
