"""All that Dagster loads: every component of the definitions folder, and the shared resources."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from platform_assets import secret_files
from platform_assets.components.declared import declaration_of, declarations, definitions
from platform_assets.orchestration import decision_jobs
from platform_assets.orchestration.maintenance import jobs
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.services import platform, project

_FILES = dg.fs_io_manager.configured(lambda _: {}, config_schema={})


@dg.definitions
def defs() -> dg.Definitions:
    """The code location. Services set in the environment take precedence over those that `platform-assets up` started."""
    project.adopt(os.environ, Path.cwd())
    secret_files.take(os.environ, secret_files.STORE)
    for name, value in platform.environment().items():
        os.environ.setdefault(name, value)
    declared = definitions()
    # Dagster's default takes its folder from a run's config, or from a variable that a run's config names.
    own = {} if "io_manager" in (declared.resources or {}) else {"io_manager": _FILES}
    return dg.Definitions.merge(
        declared,
        jobs.definitions(jobs.days_of(os.environ.get(platform.KEEP_RUNS)), declarations),
        decision_jobs.definitions(declaration_of),
        dg.Definitions(
            resources={
                **own,
                "kafka": KafkaResource(bootstrap_servers=dg.EnvVar("KAFKA_BOOTSTRAP_SERVERS")),
                "lake": LakeResource(root=dg.EnvVar("LAKE_ROOT")),
                "spark": SparkResource(remote=dg.EnvVar("SPARK_REMOTE")),
            },
            # The steps of a run are a thin client of Spark: one process serves them all.
            executor=dg.in_process_executor,
        ),
    )
