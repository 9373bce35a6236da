"""Runs numbered cases of a target in a separate process, which is watched from outside.

Each crash, hang or lack of memory is therefore attributed to one case, and later cases run in a new process. Target,
seed and number alone determine a case, so one command can repeat it.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from platform_assets_tests.fuzzing.target import case_rng
from platform_assets_tests.fuzzing.targets import target_of
from platform_assets_tests.fuzzing.worker import FINDINGS, PROGRESS, STACKS, Progress

HEADER: Final = (
    "| target | seed | cases | wall s | CPU s | peak MB | different findings |\n|---|---|---|---|---|---|---|"
)
OUTPUT: Final = "output"
_POLL_SECONDS: Final = 0.25
_DUMP_SECONDS: Final = 1.0
_MOST_UNBEGUN: Final = 10
_PAUSE_SECONDS: Final = 20.0


@dataclass
class FuzzResult:
    """Cases and findings of one run. For each distinct finding, `first` has its first case and its text, and `times`
    has its count."""

    target: str
    seed: int
    cases: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    peak: float = 0.0
    unbegun: int = 0
    first: dict[str, tuple[int, str]] = field(default_factory=dict)
    times: Counter[str] = field(default_factory=Counter)

    @property
    def anomalies(self) -> list[str]:
        """Return each distinct finding with the command that repeats it."""
        return [
            f"{key} ({self.times[key]}x, first: make soak SCENARIO={self.target} SEED={self.seed} ARGS='--case {number}')\n{text}"
            for key, (number, text) in self.first.items()
        ]

    def line(self) -> str:
        """Return this result as a row of the table."""
        return (
            f"| {self.target} | {self.seed} | {self.cases:,} | {self.wall:,.0f} | {self.cpu:,.0f} | {self.peak:,.0f} | "
            f"{'; '.join(self.first) or 'none'} |"
        )

    def add(self, number: int, key: str, text: str) -> None:
        """Add a finding."""
        self.times[key] += 1
        self.first.setdefault(key, (number, text))

    def to_json(self) -> str:
        """Return the result as JSON, for the record."""
        return json.dumps({**self.__dict__, "times": dict(self.times)}, indent=1)


def sample(name: str, rng: random.Random, seconds: float, folder: Path) -> int:
    """Run cases in this process for some seconds, for tests. Raise the first finding, or return the number of cases."""
    seed, number, until = rng.randrange(1 << 32), 0, time.monotonic() + seconds
    with target_of(name).open(folder) as case:
        while not number or time.monotonic() < until:
            try:
                case(case_rng(name, seed, number))
            except BaseException as error:
                error.add_note(f"make soak SCENARIO={name} SEED={seed} ARGS='--case {number}'")
                raise
            number += 1
    return number


def run(name: str, seed: int, seconds: float, folder: Path, only: int | None = None) -> FuzzResult:
    """Run the cases of a target for `seconds`, or only the case `only`. The record in `folder` is updated while cases
    run."""
    folder.mkdir(parents=True, exist_ok=True)
    found, began = FuzzResult(name, seed), time.monotonic()
    until, number = began + seconds, only or 0
    while time.monotonic() < until or not found.cases:
        number = _watched(found, number, until, folder, only)
        found.wall = time.monotonic() - began
        (folder / "found.json").write_text(found.to_json())
        if only is not None:
            break
    return found


def _watched(found: FuzzResult, first: int, until: float, folder: Path, only: int | None) -> int:
    """Run one process, starting with the case `first`, until the process ends or must be killed; return the number of
    the next case."""
    with _process(found, first, until, folder, only) as (process, progress):
        ended = _ended(found, process, progress, until, folder)
        number, done = progress.number, progress.done
        found.cases += done - first
        found.cpu += progress.cpu
        found.peak = max(found.peak, progress.peak_mb)
        for text in (folder / FINDINGS).read_text().splitlines():
            each: dict[str, Any] = json.loads(text)
            found.add(each["number"], each["key"], each["text"])
    if ended is None:
        return done
    if number < first:
        found.unbegun += 1
        if found.unbegun > _MOST_UNBEGUN:
            raise RuntimeError(f"target {found.target} did not begin: {ended}\n{_stacks(folder)}")
        time.sleep(_PAUSE_SECONDS)  # the machine may be short of a resource, or someone is editing the code under test
        return first
    found.add(number, ended.partition(":")[0] + _place(folder), f"{ended}\n{_stacks(folder)}")
    found.cases += 1
    return number + 1


@contextmanager
def _process(
    found: FuzzResult, first: int, until: float, folder: Path, only: int | None
) -> Iterator[tuple[subprocess.Popen[bytes], Progress]]:
    for name in (FINDINGS, STACKS):
        (folder / name).write_bytes(b"")
    progress = Progress.create(folder / PROGRESS, first)
    seconds = max(until - time.monotonic(), 0.0)
    last = "" if only is None else str(only)
    arguments = [found.target, str(found.seed), str(first), str(seconds), str(folder), last]
    with (folder / OUTPUT).open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "platform_assets_tests.fuzzing.worker", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process, progress
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        progress.close()


def _ended(
    found: FuzzResult, process: subprocess.Popen[bytes], progress: Progress, until: float, folder: Path
) -> str | None:
    """Wait for the process to end. Return the reason why its last case was not finished, or None."""
    target, seen, since, cpu = target_of(found.target), -1, time.monotonic(), 0.0
    while True:
        try:
            status = process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            used = _cpu_seconds(process.pid)
            if progress.number != seen or progress.at_rest:
                seen, since, cpu = progress.number, time.monotonic(), used
            elif used - cpu > target.cpu_seconds or time.monotonic() - since > target.wall_seconds:
                process.send_signal(signal.SIGUSR1)  # its handler dumps the stacks
                time.sleep(_DUMP_SECONDS)
                return f"hang: {used - cpu:.0f} s of processor time, {time.monotonic() - since:.0f} s in all"
            continue
        if not status:
            return None
        return f"killed: by signal {-status}" if status < 0 else f"ended: with exit code {status}"


def _cpu_seconds(pid: int) -> float:
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system + times.children_user + times.children_system)


def _stacks(folder: Path) -> str:
    output = folder / OUTPUT
    return (folder / STACKS).read_text(errors="replace")[:6_000] + (
        output.read_text(errors="replace")[-2_000:] if output.exists() else ""
    )


def _place(folder: Path) -> str:
    """Return the innermost position in this project's code in the dumped stacks."""
    for line in (folder / STACKS).read_text(errors="replace").splitlines():
        if "platform_assets/" in line and 'File "' in line:
            return (
                " at "
                + line.partition("platform_assets/")[2].replace('"', "").replace(", line ", ":").partition(" in ")[0]
            )
    return ""
