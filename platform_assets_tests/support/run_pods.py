"""The Kubernetes job that Dagster's own launcher creates for a run when the overlay `runs-in-pods` is used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest import mock

import dagster as dg
import kubernetes.client
import yaml
from dagster._core.launcher import LaunchRunContext

from platform_assets_tests.support.manifests import FOLDER

OVERLAY: Final = FOLDER / "runs-in-pods"
_NOBODY: Final = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "none", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "none", "user": {}}],
    "contexts": [{"name": "none", "context": {"cluster": "none", "user": "none"}}],
    "current-context": "none",
}
Job = dict[str, Any]


class _Recorder:
    """Stand-in for the Kubernetes API server. It stores the requested jobs."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def create_namespaced_job_with_retries(self, body: Any, namespace: str) -> None:
        job = kubernetes.client.ApiClient().sanitize_for_serialization(body)
        job["metadata"]["namespace"] = namespace
        self.jobs.append(job)


@contextmanager
def instance_of_overlay(folder: Path, *, own_storage: bool = False) -> Iterator[tuple[dg.DagsterInstance, list[Job]]]:
    """Return the Dagster instance that the overlay's dagster.yaml defines, and a list that receives the jobs that the
    instance's launcher requests. The overlay's file is copied to `folder`. With `own_storage`, the instance uses SQLite
    in `folder` instead of PostgreSQL."""
    given = yaml.safe_load((OVERLAY / "dagster.yaml").read_text("utf-8"))
    if own_storage:
        del given["storage"]
    # Outside of a cluster, its API's address comes from a file; this one does not exist.
    (folder / "kubeconfig").write_text(yaml.safe_dump(_NOBODY))
    given["run_launcher"]["config"] |= {"load_incluster_config": False, "kubeconfig_file": str(folder / "kubeconfig")}
    (folder / "dagster.yaml").write_text(yaml.safe_dump(given))
    recorder = _Recorder()
    with (
        mock.patch("dagster_k8s.client.DagsterKubernetesClient.production_client", return_value=recorder),
        dg.DagsterInstance.from_config(str(folder)) as instance,
    ):
        yield instance, recorder.jobs


def job_of(instance: dg.DagsterInstance, jobs: list[Job], run: dg.DagsterRun) -> Job:
    """Return the Kubernetes job that the launcher creates to execute `run`."""
    instance.run_launcher.launch_run(LaunchRunContext(run, None))
    return jobs.pop()
