"""`make bench`: run every scenario next to its peers, in one run on one machine, and print and store the results.

The services are those in `KAFKA_BOOTSTRAP_SERVERS` and `SPARK_REMOTE`. If these are not set, the run starts its own
services and ends them when it is done.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform as machine
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks import plots
from benchmarks.machine import touch_memory
from benchmarks.scenario import Bench, Measured
from benchmarks.scenarios import SCENARIOS
from testbed.homes import engines

RESULTS = Path(__file__).with_name("results")
PACKAGES = ("dagster", "pyspark", "delta-spark", "deltalake", "confluent-kafka", "kafka-python", "pyarrow")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the scenarios, print the results and write them. Return 0 if every scenario completed, whether or not it
    reached its goals."""
    parser = argparse.ArgumentParser(prog="benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="use fewer records and rounds, to finish in minutes")
    parser.add_argument(
        "--only", nargs="+", choices=SCENARIOS, metavar="NAME", help=f"run only these out of {', '.join(SCENARIOS)}"
    )
    chosen = parser.parse_args(arguments)
    progress, printed = Console(stderr=True), Console()
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%d}{'-quick' if chosen.quick else ''}.json"
    RESULTS.mkdir(exist_ok=True)
    touch_memory(partial(_tell, progress, "memory"))
    for name in chosen.only or SCENARIOS:
        began = time.monotonic()
        # Each scenario has its own services, so that one scenario's garbage does not slow down the next.
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, engines(Path(folder)) as (bootstrap, remote):
            bench = Bench(Path(folder), bootstrap, remote, chosen.quick, partial(_tell, progress, name))
            measured = SCENARIOS[name](bench)
        progress.print(f"{name}: done in {time.monotonic() - began:.0f} s")
        show(measured, printed)
        _write(path, measured)
    document, curves = json.loads(path.read_text()), path.with_name(f"{path.stem}-curves.svg")
    plots.draw(document, path.with_suffix(".svg"))
    plots.draw_curves(document, curves)
    drawn = [str(plot) for plot in (path.with_suffix(".svg"), curves) if plot.exists()]
    print(f"results of every round: {path}\nplots: {', '.join(drawn)}")
    return 0


def _tell(console: Console, name: str, text: str) -> None:
    console.print(f"{name}: {text}", soft_wrap=True)


def show(measured: Measured, console: Console) -> None:
    """Print the scenario's results as a table, followed by its goals."""
    setting = ", ".join(f"{name} {value}" for name, value in measured.setting.items())
    table = Table(title=f"{measured.name} ({setting})" if setting else measured.name, caption=measured.unit)
    # Names wrap if space is short; figures are never cut.
    table.add_column("", overflow="fold")
    for heading in ("median", "lowest", "highest", "rounds"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, values in measured.rounds.items():
        figures = (_figure(v) for v in (statistics.median(values), min(values), max(values)))
        table.add_row(name, *figures, str(len(values)))
    console.print(table)
    for goal in measured.goals:
        console.print(f"{'[green]✓[/]' if goal.reached else '[red]✗[/]'} {goal.sentence}", soft_wrap=True)


def _figure(value: float) -> str:
    return f"{value:,.3f}" if abs(value) < 1_000 else f"{value:,.0f}"


def _write(path: Path, measured: Measured) -> None:
    """Add the new results to the day's results. Results of other scenarios from earlier runs on that day are kept."""
    known = json.loads(path.read_text())["scenarios"] if path.exists() else {}
    document = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "memory_bytes": psutil.virtual_memory().total,
            "python": machine.python_version(),
            "kernel": machine.release(),
        },
        "versions": {name: importlib.metadata.version(name) for name in PACKAGES},
        "scenarios": {**known, measured.name: {"at": _now(), **measured.to_json()}},
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    sys.exit(main())
