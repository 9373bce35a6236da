"""`make test-cluster`: run the tests that need a cluster, then the portable tests on each kind of lake root, Spark and
brokers.

Each run is a separate pytest process. If a run fails, the other runs continue. Command-line arguments are passed to
each run.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from platform_assets.services.home import CHECKOUT

NOTHING_CHOSEN: Final = 5
"""Exit code of pytest when it has run no tests."""


@dataclass(frozen=True, slots=True)
class Run:
    """One pytest run, with the tests that the expression `marks` selects. `environment` is added to the environment of
    this process."""

    what: str
    marks: str
    environment: Mapping[str, str] = field(default_factory=dict)


_PORTABLE: Final = "portable and not soak"
RUNS: Final = (
    Run("an object store, a Spark cluster, PostgreSQL: the tests of each", "cluster and not soak"),
    Run(
        "loads, conflicts, crashes and audits with the lake in an object store", _PORTABLE, {"PLATFORM_TEST_LAKE": "s3"}
    ),
    Run("the same with Spark on a cluster of two workers", _PORTABLE, {"PLATFORM_TEST_SPARK": "cluster"}),
    Run("the same with three brokers, TLS and SASL", _PORTABLE, {"PLATFORM_TEST_BROKERS": "secure3"}),
)


def outcome(code: int, arguments: Sequence[str]) -> str:
    """Return the meaning of pytest's exit code.

    A run without tests is a failure, unless `arguments` might have excluded all tests.
    """
    if code == 0:
        return "passed"
    return "no such test" if code == NOTHING_CHOSEN and arguments else f"FAILED ({code})"


def main(arguments: Sequence[str], runs: Sequence[Run] = RUNS) -> int:
    """Execute all runs. Return 1 if any run failed or if no run had a test."""
    said: list[str] = []
    found: list[str] = []
    for run in runs:
        print(f"=== {_titled(run)}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", "-m", run.marks, *arguments]
        code = subprocess.run(command, cwd=CHECKOUT, env={**os.environ, **run.environment}, check=False).returncode
        found.append(outcome(code, arguments))
        said.append(f"{found[-1]} in {time.monotonic() - began:.0f} s: {_titled(run)}")
        print(f"=== {said[-1]}\n", flush=True)
    print("\n".join(said), flush=True)
    return int(any(each.startswith("FAILED") for each in found) or "passed" not in found)


def _titled(run: Run) -> str:
    return " ".join([run.what, *(f"({name}={value})" for name, value in run.environment.items())])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
