"""Disk space that a window takes in the ledgers, in the table's log and in the orchestrator's store, by number of
windows per run."""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from benchmarks.bulk import VALUE_BYTES
from benchmarks.dagster_runs import WindowRuns
from benchmarks.producing import Sent, create, produce
from benchmarks.scenario import Bench, Measured
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.windows import key_of

PARTITIONS: Final = 12
_MINUTE: Final = timedelta(minutes=1)


def run(bench: Bench) -> Measured:
    """Measure bytes and files per window, averaged over windows that are loaded in separate runs, and over windows that
    are loaded in a single run."""
    windows = bench.pick(60, 10)
    topic = f"growth-{uuid.uuid4().hex[:8]}"
    start = datetime.now(UTC).replace(second=0, microsecond=0) - (2 * windows + 2) * _MINUTE
    create(bench.bootstrap, [topic], PARTITIONS)
    stamps = [round((start + n * _MINUTE).timestamp() * 1000) + 1 for n in range(2 * windows)]
    value = bytes(VALUE_BYTES)
    produce(bench.bootstrap, (Sent(topic, p, value, None, at) for at in stamps for p in range(PARTITIONS)))
    declaration = TopicDeclaration(topic, "* * * * *", start)
    rounds: dict[str, list[float]] = {}
    files: dict[str, float] = {}
    with ExitStack() as stack:
        runs = WindowRuns(stack, declaration, bench.bootstrap, bench.remote, bench.root / "growth")
        places = {
            "ledger of cuts": runs.root / "_ledger" / "cuts",
            "ledger of commits": runs.root / "_ledger" / "commits",
            "table's log": runs.root / declaration.raw_table.name / "_delta_log",
            "orchestrator's store": bench.root / "growth" / "dagster",
        }
        before = {name: _held(place) for name, place in places.items()}
        for number in range(windows):
            runs.load(key_of(start + number * _MINUTE))
            if number % 10 == 9:
                bench.report(f"{number + 1} of {windows} runs")
        between = {name: _held(place) for name, place in places.items()}
        bench.report(f"one run of {windows} windows")
        runs.load_range(key_of(start + windows * _MINUTE), key_of(start + (2 * windows - 1) * _MINUTE))
        after = {name: _held(place) for name, place in places.items()}
    for kind, (earlier, later) in {"a run each": (before, between), "one run": (between, after)}.items():
        for name in places:
            rounds[f"{name}, {kind}"] = [(later[name][1] - earlier[name][1]) / windows]
            files[f"{name}, {kind}"] = round((later[name][0] - earlier[name][0]) / windows, 2)
    setting = {"windows": windows, "partitions": PARTITIONS, "records a window": PARTITIONS}
    return Measured("growth", rounds, unit="bytes", setting=setting, more={"files a window": files})


def _held(place: Path) -> tuple[int, int]:
    """Return the number of files below `place`, and their total size in bytes."""
    sizes = [path.stat().st_size for path in place.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)
