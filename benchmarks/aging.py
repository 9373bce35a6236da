"""Flat tables as they age, with upkeep. Measured are the time to open them, the next window's load, its checks and
`status`, and the size of log and ledger in bytes."""

from __future__ import annotations

import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

import dagster as dg
from deltalake import DeltaTable

from benchmarks import made_lake
from benchmarks.many_windows import PARTITIONS, RECORDS, Grown, timed
from benchmarks.rounds import counted, middle, ratio
from benchmarks.scenario import Bench, Goal, Measured, at_most

WINDOWS_A_FILE: Final = 2_880
"""Number of five-minute windows that upkeep merges into a file of 128 MB. With 45 kB per window, this is ten days of
windows."""
A_DAY: Final = 288
STEPS: Final = ("open", "load", "checks", "status")


def run(bench: Bench) -> Measured:
    """Measure the seconds that each step takes for the next window of each table, one table after another."""
    sizes = (10, 6_000) if bench.quick else (10, 10_000, 100_000)
    rounds = bench.pick(7, 3)
    seconds: dict[str, list[float]] = {f"{step}, {n:,} windows": [] for step in STEPS for n in sizes}
    with tempfile.TemporaryDirectory(dir=bench.root) as folder, dg.DagsterInstance.local_temp(folder) as instance:
        grown = []
        for windows in sizes:
            bench.report(f"making a flat table of {windows:,} windows")
            grown.append(Grown(bench, windows, instance, a_file=WINDOWS_A_FILE))
        held: dict[str, dict[str, float]] = {f"{one.windows:,} windows": _held(one) for one in grown}
        bench.report("making the log of thirty days")
        kept = bench.pick(30 * A_DAY, 2 * A_DAY)
        log = _bytes(made_lake.make_log(bench.root / "year", "year", kept, A_DAY, PARTITIONS)) / (365 * A_DAY)
        held["a year of windows"] = {"table's log": round(log, 1)}
        for number in counted(rounds):
            for one in grown:
                one.prepare()
                one.tick()
                for step in STEPS:
                    took = timed(partial(_open, one) if step == "open" else getattr(one, step))
                    if step == "load":
                        one.report()
                    if number > 0:
                        seconds[f"{step}, {one.windows:,} windows"].append(took)
                    bench.report(f"round {number} of {rounds}: {step}, {one.windows:,} windows: {took * 1000:.0f} ms")
    few = sizes[0]
    year = log + sum(v for name, v in held[f"{sizes[-1]:,} windows"].items() if name != "table's log")
    goals = [Goal("bytes of log and ledger per window, after a year", year, 1_000, True, "B")]
    goals += [at_most(f"open {sizes[-1]:,} windows", 0.05, middle(seconds[f"open, {sizes[-1]:,} windows"]), "s")]
    for n in sizes[1:]:
        pairs = zip(seconds[f"load, {n:,} windows"], seconds[f"load, {few:,} windows"], strict=True)
        more = statistics.median([grown - base for grown, base in pairs])
        goals.append(Goal(f"extra time of a load after {n:,} windows, compared with {few:,}", more, 0.1, True, "s"))
        for step in ("checks", "status"):
            found = ratio(seconds[f"{step}, {n:,} windows"], seconds[f"{step}, {few:,} windows"])
            goals.append(
                at_most(f"{step} after {n:,} windows, relative to {few:,}", 1.1 if n <= 10_000 else 1.3, found)
            )
    setting = {"partitions": PARTITIONS, "records a window": RECORDS, "windows a file": WINDOWS_A_FILE}
    return Measured("aging", seconds, goals, setting=setting, more={"bytes a window": held})


def _open(one: Grown) -> None:
    DeltaTable(one.root / "raw" / one.topic).get_add_actions(flatten=True)


def _held(one: Grown) -> dict[str, float]:
    """Return the bytes per window of each part of the ledger, and of the log when it has few commits."""
    places = {
        "ledger of cuts": one.root / "_ledger" / "cuts",
        "ledger of loads": one.root / "_ledger" / "commits",
        "contents of files": one.root / "_ledger" / "files",
        "table's log": one.root / "raw" / one.topic / "_delta_log",
    }
    return {name: round(_bytes(place) / one.windows, 1) for name, place in places.items()}


def _bytes(place: Path) -> int:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
