"""Runs of Dagster in processes that are forked from one with the libraries loaded: they start in one second, not in three."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from typing import Final

import psutil
from dagster import DagsterRun
from dagster._core.launcher import CheckRunHealthResult, DefaultRunLauncher, LaunchRunContext, WorkerStatus
from dagster._grpc.types import ExecuteRunArgs
from dagster._serdes import serialize_value

from infra.process import start_of
from infra.run_process import execute

PROCESS_TAG: Final = "platform_assets/process"
"""Of a run: id of its process, and when that began, as `infra.process.start_of` tells it: `pid@start`."""

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
    "numpy",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyspark.sql.connect.functions",
    "pyspark.sql.connect.session",
    "sqlalchemy.dialects.sqlite",
    "tomlkit",
    "upath.implementations.local",
)
"""Loaded before a run is asked for. The project's own code is not among them: a run has it as it is on disk then."""


class PreloadedRunLauncher(DefaultRunLauncher):
    """Starts runs itself where their code has this process's interpreter; others are left to the code server.

    Unlike the default, it knows whether the process of a run is alive, so run monitoring finds one that was killed.
    """

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run in a process of its own."""
        run, origin = context.dagster_run, context.job_code_origin
        if origin is None or origin.repository_origin.executable_path != sys.executable:
            super().launch_run(context)
            return
        arguments = ExecuteRunArgs(origin, run.run_id, self._instance.get_ref())
        # Loads the libraries the first time, in a process without threads.
        multiprocessing.set_forkserver_preload(list(LIBRARIES))
        process = multiprocessing.get_context("forkserver").Process(
            target=execute, args=(serialize_value(arguments),), name=f"run {run.run_id}"
        )
        process.start()
        self._run_ids.add(run.run_id)
        if process.pid is not None and (began := start_of(process.pid)) is not None:
            self._instance.add_run_tags(run.run_id, {PROCESS_TAG: f"{process.pid}@{began}"})

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
        """True."""
        return True

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Whether the process of a run is alive. A run of the code server's is its own to watch."""
        if PROCESS_TAG not in run.tags or _of_run(run) is not None:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        named = run.tags[PROCESS_TAG]
        return CheckRunHealthResult(WorkerStatus.NOT_FOUND, f"process {named.split('@')[0]} ended without a word")


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
