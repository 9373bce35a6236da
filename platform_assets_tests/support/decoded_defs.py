"""Code location for the browser tests of decoded tables, in the lake `LAKE_ROOT`."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import dagster as dg

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.support import tables

FAILING, CORRECTED = "orders", "refunds"
"""Two topics: the declaration of one makes valid records fail, and the declaration of the other was corrected later."""
STRICT: Final = DecodeDeclaration(
    FormatSpec("json", {"schema": "id BIGINT NOT NULL, amount DECIMAL(12, 2) NOT NULL"}),
    key=FormatSpec("string"),
    warn_share=0.1,
    fail_share=0.3,
)
LENIENT: Final = replace(
    STRICT, value=FormatSpec("json", {"schema": "id BIGINT NOT NULL, amount DECIMAL(12, 2), note STRING"})
)
DECLARED: Final = {FAILING: STRICT, CORRECTED: LENIENT}


def declaration(topic: str, declared: DecodeDeclaration) -> TopicDeclaration:
    """Return a declaration with hourly windows, decoded as `declared`."""
    return replace(tables.declaration(topic), decode=declared)


def of_declared(declared: dict[str, DecodeDeclaration]) -> dg.Definitions:
    """Return the code location of these topics, in which neither a broker nor Spark is available."""
    return dg.Definitions.merge(
        *(
            build_definitions(
                declaration(topic, each),
                group="typed",
                description=None,
                owners=(),
                sensor_running=False,
                deep_audit=DeepAudit(running=False),
            )
            for topic, each in declared.items()
        ),
        dg.Definitions(
            resources={
                "kafka": KafkaResource(bootstrap_servers="127.0.0.1:9", timeout_seconds=0.5),
                "lake": LakeResource(root=dg.EnvVar("LAKE_ROOT")),
                "spark": SparkResource(remote="sc://127.0.0.1:9"),
            },
            executor=dg.in_process_executor,
        ),
    )


@dg.definitions
def defs() -> dg.Definitions:
    """Return the definitions of both topics, as currently declared."""
    return of_declared(DECLARED)
