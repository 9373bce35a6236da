"""Code location for the report tests, with hand-made tables in the lake `LAKE_ROOT`."""

from __future__ import annotations

from collections.abc import Sequence

import dagster as dg

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.support import tables

TOPICS = (tables.SOUND, tables.TORN, tables.AT_ODDS)
AUDITED = (tables.SOUND, tables.TORN)
JOB, AUDIT_JOB = "evaluate_checks", "evaluate_deep_audits"


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of the sound, the damaged and the inconsistent tables."""
    return of_topics(TOPICS, AUDITED)


def of_topics(topics: Sequence[str], audited: Sequence[str]) -> dg.Definitions:
    """Return the code location of `topics`. It has one job that runs all checks, and one job that runs the deep audits
    of the topics `audited`. Neither a broker nor Spark is available, so checks that need these services cannot
    determine a result."""
    every = [dg.AssetCheckKey(table_key(TableRef.raw(t)), name) for t in topics for name in CHECKS]
    audits = [dg.AssetCheckKey(table_key(TableRef.raw(t)), DEEP_AUDIT.name) for t in audited]
    return dg.Definitions.merge(
        *(
            build_definitions(
                tables.declaration(topic),
                group="reports",
                description=None,
                owners=(),
                sensor_running=False,
                deep_audit=DeepAudit(running=False),
            )
            for topic in topics
        ),
        dg.Definitions(
            resources={
                "kafka": KafkaResource(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.5),
                "lake": LakeResource(root=dg.EnvVar("LAKE_ROOT")),
                "spark": SparkResource(remote="sc://127.0.0.1:9"),
            },
            jobs=[
                dg.define_asset_job(JOB, selection=dg.AssetSelection.checks(*every)),
                dg.define_asset_job(AUDIT_JOB, selection=dg.AssetSelection.checks(*audits)),
            ],
            executor=dg.in_process_executor,
        ),
    )
