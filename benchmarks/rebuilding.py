"""Duration and peak memory of `rebuild-ledger` for a table with many windows.

`python -m benchmarks.rebuilding LAKE TOPIC` is the process that runs the command. It rebuilds the ledger, with
`SPARK_REMOTE` from the environment, and prints the seconds, the number of receipts, and the bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Final

from benchmarks import made_lake
from benchmarks.memory import most_held
from benchmarks.scenario import Bench, Measured
from platform_assets.engines.choice import choose_engine
from platform_assets.engines.shared.session import connect
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.services.home import CHECKOUT
from platform_assets.windows.recover.rebuild import rebuild
from testbed.samples import START

TOPIC: Final = "orders"
_PARTITIONS: Final = 4
_MONTH: Final = 720
"""Number of hourly windows in 30 days. A log keeps its commits for that time."""


def run(bench: Bench) -> Measured:
    """Measure the seconds and bytes by number of windows, once with all loads in the table's log, and once with only
    the loads of the newest 30 days."""
    seconds: dict[str, list[float]] = {}
    held: dict[str, int] = {}
    for windows in (100, 1_000) if bench.quick else (1_000, 10_000):
        for name, in_log in {"all loads in the log": windows, "30 days of loads in the log": _MONTH}.items():
            if in_log > windows:
                continue
            what = f"{windows:,} windows, {name}"
            bench.report(f"{what}: making the table")
            root = bench.root / f"lake-{windows}-{in_log}"
            made_lake.make_readable(root, TOPIC, windows, _PARTITIONS, in_log=in_log)
            done = subprocess.run(
                [sys.executable, "-m", __name__, str(root), TOPIC],
                env={**os.environ, "SPARK_REMOTE": bench.remote}, cwd=CHECKOUT, check=True, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            took, receipts, peak = done.stdout.split()[-3:]
            if int(receipts) != windows:
                raise RuntimeError(f"{receipts} receipts instead of {windows}: the measurement is invalid")
            seconds[what], held[what] = [float(took)], int(peak)
            bench.report(f"{what}: {float(took):.1f} s, {int(peak) / 1e6:,.0f} MB")
            shutil.rmtree(root)
    setting = {"partitions": _PARTITIONS, "records a window": _PARTITIONS}
    return Measured("rebuilding", seconds, setting=setting, more={"most bytes held by the process": held})


def main(root: str, topic: str) -> None:
    """Rebuild the ledger as the command does; print the seconds and the memory."""
    lake = Lake.at(Path(root))
    session = cache(lambda: connect(os.environ["SPARK_REMOTE"]))
    engine = choose_engine(lake, lambda: ClientSettings("127.0.0.1:1"), session)
    began = time.perf_counter()
    done = rebuild(TopicDeclaration(topic, "0 * * * *", START), Ledger(lake), engine)
    print(time.perf_counter() - began, done.receipts, most_held())


if __name__ == "__main__":
    main(*sys.argv[1:])
