"""Runs of Dagster in processes that are forked from one with the code loaded: they start in half a second, not in three.

Starting a run so leans on names that Dagster does not promise to keep. They are all asked for in `_order` and `_health`:
where one has moved, a warning says so, and the run starts as it does with Dagster's own launcher.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import signal
import sys
from typing import TYPE_CHECKING, Final

import psutil
from dagster import DagsterRun, DefaultRunLauncher, serialize_value

from infra.process import start_of
from infra.run_process import execute

if TYPE_CHECKING:
    from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext

_log = logging.getLogger(__name__)

PROCESS_TAG: Final = "platform_assets/process"
"""Of a run: id of its process, and when that began, as `infra.process.start_of` returns it: `pid@start`."""

LIBRARIES: Final = (
    "alembic.command",
    "confluent_kafka.admin",
    "croniter",
    "dagster._cli.api",
    "dagster._core.storage.fs_io_manager",
    "dagster._core.storage.noop_compute_log_manager",
    "dagster._core.storage.sqlite_storage",
    "dagster._daemon.cli",
    "dagster.components",
    "dagster_pyspark",
    "deltalake",
    "jinja2.nativetypes",
    "kafka",
    "numba",
    "numpy",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.session",
    "sqlalchemy.dialects.sqlite",
    "tomlkit",
    "upath.implementations.local",
)
"""Loaded before a run is asked for; one that is not there is passed over, and the run loads what it needs by itself.

The project's own code is not among them: a run has it as it is on disk then. So it has the platform's (`infra/preloaded.py`).
"""
PLATFORM: Final = "infra.preloaded"
"""The module that loads the platform's code. It comes last, since that code needs the libraries."""

_MOVED: Final = (ImportError, AttributeError, TypeError)
"""How a name shows that is gone, or a call that takes other arguments now."""
_REMEDY: Final = "Install the version of Dagster that requirements.lock names, or correct infra/run_launcher.py."


class PreloadedRunLauncher(DefaultRunLauncher):
    """Starts runs itself where their code has this process's interpreter; others are left to the code server.

    Unlike the default, it knows whether the process of a run is alive, so run monitoring finds one that was killed.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run in a process of its own."""
        order = self._order(context)
        if order is None:
            super().launch_run(context)
            return
        # Loads them the first time, in a process without threads.
        multiprocessing.set_forkserver_preload([*LIBRARIES, PLATFORM])
        run_id = context.dagster_run.run_id
        process = multiprocessing.get_context("forkserver").Process(target=execute, args=(order,), name=f"run {run_id}")
        process.start()
        if process.pid is not None and (began := start_of(process.pid)) is not None:
            self._instance.add_run_tags(run_id, {PROCESS_TAG: f"{process.pid}@{began}"})

    def terminate(self, run_id: str) -> bool:
        """Interrupt the process of a run, from any process of this machine; whether there was one."""
        run = self._instance.get_run_by_id(run_id)
        if run is None or run.is_finished:
            return False
        if PROCESS_TAG not in run.tags:
            return bool(super().terminate(run_id))  # type: ignore[no-untyped-call]
        self._instance.report_run_canceling(run)
        process = _of_run(run)
        if process is None:
            return False
        process.send_signal(signal.SIGINT)
        return True

    @property
    def supports_check_run_worker_health(self) -> bool:
        """Whether run monitoring can be answered; False where Dagster's classes for the answer have moved."""
        return _can_answer_monitoring()

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the process of a run is alive. A run of the code server's is its own to watch."""
        if PROCESS_TAG not in run.tags or _of_run(run) is not None:
            return _health(alive=True)
        named = run.tags[PROCESS_TAG]
        return _health(alive=False, message=f"process {named.split('@')[0]} ended and recorded no reason")

    def _order(self, context: LaunchRunContext) -> str | None:
        """What the run's process is to execute, serialised; None where the code server has to start the run."""
        run = context.dagster_run
        try:
            # The run's process will need the command; here it would be too late to go another way.
            from dagster._cli.api import execute_run_command as _command  # noqa: F401
            from dagster._grpc.types import ExecuteRunArgs

            origin = context.job_code_origin
            if origin is None or origin.repository_origin.executable_path != sys.executable:
                return None
            return serialize_value(ExecuteRunArgs(origin, run.run_id, self._instance.get_ref()))
        except _MOVED as moved:
            _log.warning(
                "run %s is left to Dagster's own launcher, which is slower: %s. %s", run.run_id, moved, _REMEDY
            )
            return None


@functools.cache
def _can_answer_monitoring() -> bool:
    """Asked for at each round of run monitoring; the warning is for once."""
    try:
        _health(alive=True)
    except _MOVED as moved:
        _log.warning("run monitoring cannot see whether the process of a run is alive: %s. %s", moved, _REMEDY)
        return False
    return True


def _health(*, alive: bool, message: str | None = None) -> CheckRunHealthResult:
    from dagster._core.launcher import CheckRunHealthResult, WorkerStatus

    return CheckRunHealthResult(WorkerStatus.RUNNING if alive else WorkerStatus.NOT_FOUND, message)


def _of_run(run: DagsterRun) -> psutil.Process | None:
    """The live process that `run` was started in: not another one with its id, nor one that no launcher started."""
    pid, _, began = run.tags[PROCESS_TAG].partition("@")
    if not pid.isdecimal() or start_of(int(pid)) != began:
        return None
    try:
        process = psutil.Process(int(pid))
        return process if any("multiprocessing.forkserver" in part for part in process.cmdline()) else None
    except psutil.NoSuchProcess:
        return None
