"""Time that a new process takes to load the code location, compared with a process that only imports Dagster."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

from benchmarks.rounds import alternate, middle
from benchmarks.scenario import Bench, Measured, at_most
from platform_assets.services.home import CHECKOUT

LOCATION = "platform_assets.definitions, all definitions loaded"
DAGSTER = "import dagster alone"

# The work of a code server before it answers.
_LOAD = """
import sys
from platform_assets.definitions import defs
defs().get_repository_def().load_all_definitions()
if "pyspark" in sys.modules:
    sys.exit("pyspark was imported, but the code location must load without it")
"""


def run(bench: Bench) -> Measured:
    """Measure the seconds from the start to the end of a process. After the first round, no process compiles anything."""
    environment = {**os.environ, "PLATFORM_HOME": str(bench.root / "home"), "DAGSTER_DISABLE_TELEMETRY": "yes"}
    contenders = {
        LOCATION: partial(_python, _LOAD, environment),
        DAGSTER: partial(_python, "import dagster", environment),
    }
    seconds = alternate(contenders, bench.pick(5, 3), bench.report)
    return Measured("code-location", seconds, [at_most("code location loaded", 3, middle(seconds[LOCATION]), "s")])


def _python(code: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
