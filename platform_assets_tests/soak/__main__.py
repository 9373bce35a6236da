"""`make soak`: run scenarios, and print the findings.

The scenarios are storms, crashes, outages, days of a topic, random logs, restarts, decoders, recovery, decisions, states,
publishers, pipelines, databases and canaries. The exit code is 1 if anything was found, or if something did not recover by itself.
A scenario continues after a finding.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from platform_assets.engines.shared.session import connect
from platform_assets.model.declaration import ENGINES
from platform_assets_tests.fuzzing import running
from platform_assets_tests.fuzzing.targets import TARGETS
from platform_assets_tests.soak import (
    canary,
    database,
    day,
    decisions,
    decoders,
    histories,
    matrix,
    outages,
    pipeline,
    publishing,
    races,
    recovery,
    restarts,
    states,
    storm,
    streaming,
)
from platform_assets_tests.soak.cells import cells
from platform_assets_tests.soak.outages import OUTAGES
from platform_assets_tests.soak.production import PARTS
from testbed import postgres
from testbed.homes import engines

SCENARIOS: Final = (
    "storm", "matrix", "outages", "day", "histories", "restarts", "decoders", "recovery", "decisions", "races", "states",
    "publishing", "pipeline", "streaming", "database", "canary", *TARGETS,
)  # fmt: skip
_SOON_COMPACTED: Final = {"log.cleaner.backoff.ms": "1000", "log.initial.task.delay.ms": "500"}


class Report:
    """A report of findings. Findings are printed as soon as they are reported, and again as tables at the end."""

    def __init__(self) -> None:
        self.failed = 0
        self._lines: dict[str, list[str]] = {}

    def add(self, header: str, line: str, anomalies: Sequence[str]) -> None:
        """Add a row to the table with this header."""
        self._lines.setdefault(header, []).append(line)
        self.failed += bool(anomalies)
        print(line, flush=True)

    @contextmanager
    def going_on(self, what: str) -> Iterator[None]:
        """Record an error raised in the block as a finding, and continue after the block."""
        try:
            yield
        except Exception:  # noqa: BLE001 - one that does not heal must not hide what the others find
            self.failed += 1
            print(f"{what}: did not recover without help\n{traceback.format_exc()}", flush=True)

    def print(self) -> None:
        """Print all tables."""
        for header, lines in self._lines.items():
            print("\n" + "\n".join([header, *lines]))
        print(f"\nfound: {self.failed or 'nothing'}", flush=True)


def _storms(report: Report, first: int, seeds: int, seconds: float, root: Path) -> None:
    for seed in range(first, first + seeds):
        engine = ENGINES[seed % len(ENGINES)]
        with report.going_on(f"storm of seed {seed}"):
            found = storm.run(seed, seconds, root / f"storm-{seed}", engine)
            report.add(storm.HEADER, found.line(), found.anomalies)


def _matrices(report: Report, first: int, seeds: int, seconds: float, root: Path, only: str) -> None:
    """Run the crash matrix on both engines. For each seed, shuffle the cells whose names contain `only`, and run as
    many as fit in the seed's time limit."""
    for seed in range(first, first + seeds):
        rng = random.Random(seed)
        chosen = [cell for engine in ENGINES for cell in cells(engine) if only in str(cell)]
        rng.shuffle(chosen)
        until = time.monotonic() + seconds
        platforms = itertools.count()
        for some in matrix.batches(chosen):
            left = some
            while left and time.monotonic() < until:
                with report.going_on(f"seed {seed}, {left[0]}"):
                    for found in matrix.run(left, root / f"matrix-{seed}-{next(platforms)}", rng, until=until):
                        report.add(matrix.HEADER, found.line(), found.anomalies)
                        left = left[left.index(found.cell) + 1 :]
                    left = []
                # The cell that did not recover is skipped from now on; the other cells get a new platform.
                left = left[1:]


def _outages(report: Report, minutes: float, root: Path) -> None:
    for engine in ENGINES:
        for name in OUTAGES:
            with report.going_on(f"outage of {name}"):
                found = outages.run(name, minutes, root / f"outage-{name}-{engine}", engine=engine)
                print(found.markdown())
                report.add(outages.HEADER, found.line(), found.anomalies)


def _days(report: Report, first: int, seeds: int, root: Path) -> None:
    for seed in range(first, first + seeds):
        with report.going_on(f"day of seed {seed}"):
            found = day.run(seed, root / f"day-{seed}", ENGINES[seed % len(ENGINES)])
            report.add(day.HEADER, found.line(), found.anomalies)


def _histories(report: Report, first: int, seeds: int, root: Path) -> None:
    """Load random logs with both engines. All logs use the same broker and the same Spark server."""
    with engines(root / "services", _SOON_COMPACTED) as (bootstrap, remote):
        session = connect(remote)
        done: list[histories.SeedResult] = []
        for seed in range(first, first + seeds):
            with report.going_on(f"history of seed {seed}"):
                found = histories.run(seed, bootstrap, lambda: session, root / f"history-{seed}")
                done.append(found)
                report.add(histories.HEADER, found.line(), found.anomalies)
        print(histories.summary(done), flush=True)


def _restarts(report: Report, first: int, seeds: int, bound: float, root: Path, only: str) -> None:
    """For each seed, restart all parts whose names contain `only`."""
    parts = [part for part in PARTS if only in part]
    for seed in range(first, first + seeds):
        with report.going_on(f"restarts of seed {seed}"):
            found = restarts.run(seed, root / f"restarts-{seed}", ENGINES[seed % len(ENGINES)], parts, bound=bound)
            print(found.markdown(), flush=True)
            report.add(restarts.HEADER, found.line(), found.anomalies)


def _decoders(report: Report, first: int, seeds: int, seconds: float) -> None:
    for seed in range(first, first + seeds):
        found = decoders.run(seed, seconds)
        report.add(decoders.HEADER, found.line(), found.anomalies)


def _recoveries(report: Report, first: int, seeds: int, seconds: float, root: Path) -> None:
    for seed in range(first, first + seeds):
        found = recovery.run(seed, seconds, root / f"recovery-{seed}")
        report.add(recovery.HEADER, found.line(), found.anomalies)


def _decisions(report: Report, first: int, seeds: int, seconds: float, root: Path) -> None:
    for seed in range(first, first + seeds):
        found = decisions.run(seed, seconds, root / f"decisions-{seed}")
        report.add(decisions.HEADER, found.line(), found.anomalies)


def _states(report: Report, first: int, seeds: int, seconds: float, root: Path) -> None:
    for seed in range(first, first + seeds):
        found = states.run(seed, seconds, root / f"states-{seed}")
        report.add(states.HEADER, found.line(), found.anomalies)


def _races(report: Report, first: int, seeds: int, rounds: int, root: Path) -> None:
    """Run the rounds of each seed, once in a folder and once in an object store."""
    for seed in range(first, first + seeds):
        for store in (False, True):
            below = root / f"races-{seed}-{'s3' if store else 'folder'}"
            with report.going_on(f"races of seed {seed}"):
                for found in races.run_at(seed, rounds, below, in_store=store):
                    report.add(races.HEADER, found.line(), found.anomalies)


def _publishers(report: Report, first: int, seeds: int, rounds: int, root: Path) -> None:
    for seed in range(first, first + seeds):
        with report.going_on(f"publishers of seed {seed}"):
            found = publishing.run(seed, rounds, root / f"publishing-{seed}")
            report.add(publishing.HEADER, found.line(), found.anomalies)


def _streams(report: Report, first: int, seeds: int, minutes: float, root: Path) -> None:
    for seed in range(first, first + seeds):
        with report.going_on(f"streaming reader of seed {seed}"):
            found = streaming.run(seed, minutes * 60, root / f"streaming-{seed}")
            report.add(streaming.HEADER, found.line(), found.anomalies)


def _pipelines(report: Report, first: int, seeds: int, minutes: float, root: Path, **given: Any) -> None:
    """Report what is wrong with the platform's results. What is wrong with the peer's is shown, but it is no finding."""
    for seed in range(first, first + seeds):
        with report.going_on(f"pipeline of seed {seed}"):
            for found in pipeline.run(seed, minutes, root / f"pipeline-{seed}", **given):
                report.add(pipeline.HEADER, found.line(), found.anomalies if found.by == "platform" else ())


def _databases(report: Report, first: int, seeds: int, root: Path) -> None:
    """Run all seeds with the same broker, Spark server and PostgreSQL server."""
    if postgres.programs() is None:
        print(f"database: left out, because {postgres.HOW}", flush=True)
        return
    with report.going_on("services of the databases"), database.services(root / "database") as services:
        for seed in range(first, first + seeds):
            with report.going_on(f"database of seed {seed}"):
                found = database.run(seed, services, root / f"database-{seed}")
                report.add(database.HEADER, found.line(), found.anomalies)


def _canaries(report: Report, root: Path) -> None:
    with report.going_on("canaries"):
        found = canary.run(root / "canary")
        print(found.details(), flush=True)
        report.add(canary.HEADER, found.line(), found.anomalies)


def _fuzzing(report: Report, target: str, first: int, seeds: int, seconds: float, root: Path, case: int | None) -> None:
    """For each seed, run different fuzz cases for a target, or run a single case."""
    for seed in range(first, first + seeds):
        found = running.run(target, seed, seconds, root / f"{target}-{seed}", case)
        report.add(running.HEADER, found.line(), found.anomalies)
        print("".join(f"\n{each}" for each in found.anomalies), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a scenario, then print its actions and findings."""
    parser = argparse.ArgumentParser(prog="make soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scenario", choices=(*SCENARIOS, "all"), default="all")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds to run, beginning with --seed")
    parser.add_argument(
        "--seconds", type=float, default=120, help="duration in seconds of each seed in scenarios with a time limit"
    )
    parser.add_argument(
        "--minutes", type=float, default=3, help="duration in minutes of each outage, streaming reader and pipeline"
    )
    parser.add_argument("--rate", type=int, default=10_000, help="records per second that a pipeline gets")
    parser.add_argument("--kills", type=int, help="number of kills in a pipeline; default: one for each minute")
    parser.add_argument(
        "--peer",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="after a pipeline, let Structured Streaming do the same",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=10,
        help="number of races between upkeep and each rival, or of disturbed publishers",
    )
    parser.add_argument(
        "--cell",
        default="",
        help="run only the matrix cells whose names contain this text, such as 'columnar: mid-read'",
    )
    parser.add_argument(
        "--bound",
        type=float,
        default=restarts.BOUND,
        help="time limit in seconds for the recovery after the restart of a part",
    )
    parser.add_argument(
        "--part", default="", help="restart only the parts whose names contain this text, such as 'kafka'"
    )
    parser.add_argument("--case", type=int, help="in a fuzz scenario, run only this case of each seed")
    parser.add_argument("--folder", type=Path, help="folder for data and logs; default: a temporary folder")
    chosen = parser.parse_args(arguments)
    report = Report()
    root = chosen.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seeds {chosen.seed} to {chosen.seed + chosen.seeds - 1}; data and logs are in {root}", flush=True)
    if chosen.scenario in ("storm", "all"):
        _storms(report, chosen.seed, chosen.seeds, chosen.seconds, root)
    if chosen.scenario in ("matrix", "all"):
        _matrices(report, chosen.seed, chosen.seeds, chosen.seconds, root, chosen.cell)
    if chosen.scenario in ("outages", "all"):
        _outages(report, chosen.minutes, root)
    if chosen.scenario in ("day", "all"):
        _days(report, chosen.seed, chosen.seeds, root)
    if chosen.scenario in ("histories", "all"):
        _histories(report, chosen.seed, chosen.seeds, root)
    if chosen.scenario in ("restarts", "all"):
        _restarts(report, chosen.seed, chosen.seeds, chosen.bound, root, chosen.part)
    if chosen.scenario in ("decoders", "all"):
        _decoders(report, chosen.seed, chosen.seeds, chosen.seconds)
    if chosen.scenario in ("recovery", "all"):
        _recoveries(report, chosen.seed, chosen.seeds, chosen.seconds, root)
    if chosen.scenario in ("decisions", "all"):
        _decisions(report, chosen.seed, chosen.seeds, chosen.seconds, root)
    if chosen.scenario in ("states", "all"):
        _states(report, chosen.seed, chosen.seeds, chosen.seconds, root)
    if chosen.scenario in ("races", "all"):
        _races(report, chosen.seed, chosen.seeds, chosen.rounds, root)
    if chosen.scenario in ("publishing", "all"):
        _publishers(report, chosen.seed, chosen.seeds, chosen.rounds, root)
    if chosen.scenario in ("streaming", "all"):
        _streams(report, chosen.seed, chosen.seeds, chosen.minutes, root)
    if chosen.scenario in ("pipeline", "all"):
        given = {"rate": chosen.rate, "kills": chosen.kills, "peer": chosen.peer}
        _pipelines(report, chosen.seed, chosen.seeds, chosen.minutes, root, **given)
    if chosen.scenario in ("database", "all"):
        _databases(report, chosen.seed, chosen.seeds, root)
    if chosen.scenario in ("canary", "all"):
        _canaries(report, root)
    for target in TARGETS:
        if chosen.scenario in (target, "all"):
            _fuzzing(report, target, chosen.seed, chosen.seeds, chosen.seconds, root, chosen.case)
    report.print()
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
