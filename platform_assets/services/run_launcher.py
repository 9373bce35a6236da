"""Execute each Dagster run in a process that is forked from a process with the code already loaded. Such a process
starts in half a second instead of three.

The run has the environment of this process. A code server that was started separately can have another environment,
which determines where its tables are. That code server therefore starts the runs of its own code, unless the settings
say that its environment is the same as that of this process.

Starting a run in this way uses names in Dagster that are not part of a stable API. All of these names are in `_order`
and `_health`. If a name has moved, a warning is logged, and Dagster's own launcher starts the run.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import psutil
from dagster import DagsterRun, DagsterRunStatus, DefaultRunLauncher, Field, serialize_value

from platform_assets.services.printable import printable
from platform_assets.services.process import start_of
from platform_assets.services.run_process import TAGGED, execute

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from dagster._core.launcher import CheckRunHealthResult, LaunchRunContext
    from dagster._serdes import ConfigurableClassData

_log = logging.getLogger(__name__)

PROCESS_TAG: Final = "platform_assets/process"
"""Run tag that contains the id and the start time of the run's process, in the form `pid@start`. The start time is the
result of `platform_assets.services.process.start_of`."""

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
"""Modules to load before a run is requested. If a module is missing, it is skipped here, and each run loads what it
needs.

The project's own code is not included, because a run uses the version that is on disk when the run begins. For the
platform's code, see `preloaded`.
"""
PLATFORM: Final = "platform_assets.services.preloaded"
"""The module that loads the platform's code. It comes last, because that code needs the libraries."""

SERVERS_SHARE_ENVIRONMENT: Final = "servers_share_environment"
"""Launcher setting. The setting is true if the code servers that Dagster did not start itself have the same environment
as this process."""

_MOVED: Final = (ImportError, AttributeError, TypeError)
"""Errors which show that a name no longer exists, or that a call takes different arguments than before."""
_REMEDY: Final = (
    "Install the version of Dagster that requirements.lock pins, or adapt platform_assets/services/run_launcher.py."
)


class PreloadedRunLauncher(DefaultRunLauncher):
    """Launcher that starts a run itself if the run's code has this process's interpreter and environment. The launcher
    leaves all other runs to the code server.

    Unlike Dagster's default launcher, this launcher can check if the process of a run is alive. Run monitoring
    therefore finds a run whose process was killed. If a process is killed before its run has begun, the launcher itself marks the
    run as failed.
    """

    def __init__(
        self, inst_data: ConfigurableClassData | None = None, *, servers_share_environment: bool = False
    ) -> None:
        """Create the launcher as Dagster does.

        Args:
            inst_data: Dagster's settings.
            servers_share_environment: true if the code servers that Dagster did not start have the same environment as
                this process.
        """
        self._servers_share_environment = servers_share_environment
        super().__init__(inst_data)

    @classmethod
    def config_type(cls) -> dict[str, Field]:
        """Return the schema of the settings in `dagster.yaml`."""
        return {SERVERS_SHARE_ENVIRONMENT: Field(bool, is_required=False, default_value=False)}

    @classmethod
    def from_config_value(
        cls, inst_data: ConfigurableClassData, config_value: Mapping[str, Any]
    ) -> PreloadedRunLauncher:
        """Create the launcher from Dagster's settings."""
        return cls(inst_data, **config_value)

    def launch_run(self, context: LaunchRunContext) -> None:
        """Start the run in its own process."""
        order = self._order(context)
        if order is None:
            super().launch_run(context)
            return
        # The first call loads the modules, in a process without threads.
        multiprocessing.set_forkserver_preload([*LIBRARIES, PLATFORM])
        run_id = context.dagster_run.run_id
        forked = multiprocessing.get_context("forkserver")
        hears, tells = forked.Pipe(duplex=False)
        # Without the tag, nothing could detect that the process has ended. So the process waits until the tag is
        # written; if writing fails, or this process ends before, it ends too.
        with tells:
            with hears:
                process = forked.Process(target=execute, args=(order, hears), name=f"run {run_id}")
                process.start()
            if process.pid is not None and (began := start_of(process.pid)) is not None:
                self._instance.add_run_tags(run_id, {PROCESS_TAG: f"{process.pid}@{began}"})
                tells.send_bytes(TAGGED)
        threading.Thread(target=self._watch, args=(run_id, process), name=f"watch {run_id}", daemon=True).start()

    def _watch(self, run_id: str, process: BaseProcess) -> None:
        """Wait until the process of a run ends. If the run had not begun by then, mark it as failed, so that Dagster starts it again.
        Run monitoring would notice only after `start_timeout_seconds`."""
        process.join()
        if process.exitcode == 0:
            return
        try:
            run = self._instance.get_run_by_id(run_id)
            if run is None or run.status not in (DagsterRunStatus.NOT_STARTED, DagsterRunStatus.STARTING):
                return
            # If the fork server has ended, all of its processes seem to have ended.
            if PROCESS_TAG not in run.tags or _of_run(run) is None:
                self._instance.report_run_failed(run, f"process {process.pid} ended before the run had begun")
        except Exception:  # noqa: BLE001 - a thread has no caller
            text = f"run {run_id} cannot be looked up after its process ended; run monitoring will notice"
            _log.exception("%s", printable(text))

    def terminate(self, run_id: str) -> bool:
        """Interrupt the process of a run. This works from any process on the same machine. Return True if the run has a
        live process."""
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
        """Return True if run monitoring is supported, or False if the Dagster classes that it needs have moved."""
        return _can_answer_monitoring()

    def check_run_worker_health(self, run: DagsterRun) -> CheckRunHealthResult:
        """Check if the process of a run is alive."""
        if PROCESS_TAG not in run.tags or _of_run(run) is not None:
            return _health(alive=True)
        named = run.tags[PROCESS_TAG]
        return _health(alive=False, message=f"process {named.split('@')[0]} ended without recording a reason")

    def _shares_environment(self, run: DagsterRun) -> bool:
        """Return True if the code of a run was loaded with the environment of this process."""
        from dagster._core.remote_origin import GrpcServerCodeLocationOrigin

        origin = run.remote_job_origin
        if origin is None or self._servers_share_environment:
            return True
        return not isinstance(origin.repository_origin.code_location_origin, GrpcServerCodeLocationOrigin)

    def _order(self, context: LaunchRunContext) -> str | None:
        """Return the serialized command for the run's process, or None if the code server has to start the run."""
        run = context.dagster_run
        try:
            # The run's process needs this command; if it were checked there, it would be too late to use the other
            # launcher.
            from dagster._cli.api import execute_run_command as _command  # noqa: F401
            from dagster._grpc.types import ExecuteRunArgs

            origin = context.job_code_origin
            if origin is None or origin.repository_origin.executable_path != sys.executable:
                return None
            if not self._shares_environment(run):
                return None
            return serialize_value(ExecuteRunArgs(origin, run.run_id, self._instance.get_ref()))
        except _MOVED as moved:
            text = f"run {run.run_id} is started by Dagster's own launcher, which is slower: {moved}. {_REMEDY}"
            _log.warning("%s", printable(text))
            return None


@functools.cache
def _can_answer_monitoring() -> bool:
    """Return True if health checks of run monitoring can be answered. Each monitoring round calls this function, but it
    warns only once."""
    try:
        _health(alive=True)
    except _MOVED as moved:
        text = f"run monitoring cannot see whether the process of a run is alive: {moved}. {_REMEDY}"
        _log.warning("%s", printable(text))
        return False
    return True


def _health(*, alive: bool, message: str | None = None) -> CheckRunHealthResult:
    from dagster._core.launcher import CheckRunHealthResult, WorkerStatus

    return CheckRunHealthResult(WorkerStatus.RUNNING if alive else WorkerStatus.NOT_FOUND, message)


def _of_run(run: DagsterRun) -> psutil.Process | None:
    """Return the live process in which `run` was started. If another process has taken over the process id, or no
    launcher started a process, return None."""
    pid, _, began = run.tags[PROCESS_TAG].partition("@")
    if not pid.isdecimal() or start_of(int(pid)) != began:
        return None
    try:
        process = psutil.Process(int(pid))
        return process if any("multiprocessing.forkserver" in part for part in process.cmdline()) else None
    except psutil.NoSuchProcess:
        return None
