"""Runs of Dagster like those that the sensor requests, but executed in this process: load, checks and events of one
window."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Final

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.checks.registry import CHECKS
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key
from testbed.project import definitions

QUIET: Final = {"loggers": {"console": {"config": {"log_level": "WARNING"}}}}
_JOB: Final = "window"


class WindowRuns:
    """Runs that load windows of one topic into the lake at `root`. If `root` is not given, they load into a new lake
    below `folder`."""

    def __init__(
        self,
        stack: ExitStack,
        declaration: TopicDeclaration,
        bootstrap: str,
        remote: str,
        folder: Path,
        root: Path | None = None,
    ) -> None:
        own, self._instance = instance_in(stack, folder)
        self.root = root or own
        self._job = job_of(declaration, bootstrap, self.root, remote)

    def load(self, key: str) -> None:
        """Load a window. Raises RuntimeError in the same cases as `passed`."""
        passed(self._job.execute_in_process(QUIET, self._instance, partition_key=key), key)

    def load_range(self, first: str, last: str) -> None:
        """Load all windows from `first` to `last` in one run, as the sensor does for a backlog."""
        tags = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
        passed(self._job.execute_in_process(QUIET, self._instance, tags=tags), f"{first}..{last}")


def passed(result: dg.ExecuteInProcessResult, windows: str) -> None:
    """Raise RuntimeError if the run for `windows` failed, or if one of the four checks did not pass."""
    check_results = {e.check_name: e.passed for e in result.get_asset_check_evaluations()}
    if not result.success or check_results != dict.fromkeys(CHECKS, True):
        raise RuntimeError(f"the run for {windows} failed, or not all checks passed: {check_results}")


def instance_in(stack: ExitStack, folder: Path) -> tuple[Path, dg.DagsterInstance]:
    """Return the root of a lake, and a Dagster instance whose SQLite databases already exist. Creating the databases is
    not part of a window's cost."""
    storage = folder / "dagster"
    storage.mkdir(parents=True)
    instance = stack.enter_context(dg.DagsterInstance.local_temp(str(storage), {"telemetry": {"enabled": False}}))
    instance.get_runs_count()
    instance.all_asset_keys()
    instance.all_instigator_state()
    # The store of events without a run, which a sensor's first report creates.
    instance.report_runless_asset_event(dg.AssetMaterialization("made"))
    return folder / "lake", instance


def job_of(declaration: TopicDeclaration, bootstrap: str, root: Path, remote: str) -> dg.JobDefinition:
    """Return the job for which the sensor requests runs: it loads the table and runs the load's checks."""
    key = table_key(TableRef.raw(declaration.topic))
    checks = dg.AssetSelection.checks(*(dg.AssetCheckKey(key, name) for name in CHECKS))
    job = dg.define_asset_job(_JOB, dg.AssetSelection.assets(key).without_checks() | checks)
    found = dg.Definitions.merge(
        definitions(declaration, bootstrap, root, remote),
        dg.Definitions(jobs=[job], executor=dg.in_process_executor),
    )
    return found.resolve_job_def(_JOB)
