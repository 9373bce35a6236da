"""Memory of a decode hop for windows with 1, 4 and 16 times as many records. Measured are Spark's Python workers and
the process that drives the hop.

`python -m benchmarks.decoding_memory BOOTSTRAP TOPIC RECORDS LAKE` is that process. It decodes one raw window, with
`SPARK_REMOTE` from the environment, and prints its own peak memory in bytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa

from benchmarks.avro_flights import FAULTS, SCHEMA, broken, whole
from benchmarks.bulk import Bulk
from benchmarks.decoding import Typed, made
from benchmarks.decoding_avro import SPEC
from benchmarks.memory import listening, most_held
from benchmarks.scenario import Bench, Goal, Measured
from platform_assets.engines.shared.session import connect
from platform_assets.lake.location import Lake
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.services.home import CHECKOUT

WORKER: Final = "the largest Python worker"
DRIVER: Final = "the process that drives the job"
TIMES: Final = (1, 4, 16)
_PEAK_RSS: Final = "5"
"""Value to write to /proc/<pid>/clear_refs in order to reset the peak memory."""


def run(bench: Bench) -> Measured:
    """Measure the peaks of resident memory in bytes, beginning with the smallest window.

    One record in 20 is broken, so both tables get rows.
    """
    least = bench.pick(200_000, 50_000)
    server = listening(bench.remote)
    some = broken(whole(100_000, SCHEMA), SCHEMA, FAULTS["cut by a byte"])
    values = pa.concat_arrays([some] * -(-TIMES[-1] * least // len(some)))[: TIMES[-1] * least]
    largest = made(bench, values, "memory", SPEC).bulk
    rounds: dict[str, list[float]] = {}
    windows = {times: part_of(largest, times * least).load("columnar") for times in TIMES}
    for times, lake in windows.items():
        with peak_of_workers(server) as peak:
            held = subprocess.run(
                [sys.executable, "-m", __name__, bench.bootstrap, largest.topic, str(times * least), str(lake)],
                env={**os.environ, "SPARK_REMOTE": bench.remote}, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        rounds[f"{WORKER}, {times * least:,} records"] = [float(max(peak.values()))]
        rounds[f"{DRIVER}, {times * least:,} records"] = [float(held.stdout.split()[-1])]
        bench.report(", ".join(f"{name}: {peaks[0] / 1e6:,.0f} MB" for name, peaks in rounds.items()))
    goals = [
        Goal(
            f"{what} with {times} times the records, relative to {least:,}",
            rounds[f"{what}, {times * least:,} records"][0] / rounds[f"{what}, {least:,} records"][0],
            1.2,
            True,
        )
        for what in (WORKER, DRIVER)
        for times in TIMES[1:]
    ]
    return Measured("decoding-memory", rounds, goals, unit="bytes", setting={"least records": least})


def part_of(bulk: Bulk, records: int) -> Bulk:
    """Return `bulk`, limited to the first `records` records. All partitions of its topic must have the same number of
    records."""
    each = records // len(bulk.ranges.by_partition)
    ranges = TopicRanges({partition: OffsetRange(0, each) for partition in bulk.ranges.by_partition})
    return replace(bulk, records=each * len(bulk.ranges.by_partition), ranges=ranges)


@contextmanager
def peak_of_workers(server: psutil.Process) -> Iterator[dict[int, int]]:
    """While the block runs, measure the peak memory, in bytes, of each of the server's Python workers. Yield the peaks
    by process id."""
    peaks: dict[int, int] = {}
    done = threading.Event()
    for child in server.children(recursive=True):
        with suppress(OSError):  # it has ended
            Path(f"/proc/{child.pid}/clear_refs").write_text(_PEAK_RSS)

    def watch() -> None:
        # The kernel keeps the peak. It is read often only because a worker can end.
        while not done.wait(0.1):
            for child in server.children(recursive=True):
                with suppress(OSError, StopIteration):  # it has ended
                    peaks[child.pid] = max(most_held(child.pid), peaks.get(child.pid, 0))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield peaks
    finally:
        done.set()
        watcher.join()


def main(bootstrap: str, topic: str, records: str, lake: str) -> None:
    """Decode a window, and print the peak memory of this process."""
    bulk = Bulk.of(bootstrap, connect(os.environ["SPARK_REMOTE"]), Path(lake).parent, int(records), topic)
    Typed(part_of(bulk, int(records)), Lake.at(Path(lake)), SPEC).decode()
    print(most_held())


if __name__ == "__main__":
    main(*sys.argv[1:])
