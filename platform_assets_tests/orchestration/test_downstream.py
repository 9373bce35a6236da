"""User assets downstream of a decoded table: Dagster's automation requests them, except while a check blocks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.checks import decoded as checks
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets_tests.support import tables

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")

DECLARATION = replace(tables.declaration(tables.SOUND), decode=DecodeDeclaration(FormatSpec("string", {})))
DECODED = table_key(DECLARATION.decoded_table)
GUARDED = dg.AutomationCondition.eager() & dg.AutomationCondition.all_deps_blocking_checks_passed()


def location(condition: dg.AutomationCondition[dg.AssetKey], root: Path) -> dg.Definitions:
    """Return the platform's definitions of a topic, with an asset downstream of its decoded table."""
    platform = dg.Definitions.merge(
        build_definitions(
            DECLARATION,
            group="g",
            description=None,
            owners=(),
            sensor_running=False,
            deep_audit=DeepAudit(running=False),
        ),
        dg.Definitions(
            resources={
                "kafka": KafkaResource(bootstrap_servers="127.0.0.1:9"),
                "lake": LakeResource(root=str(root)),
                "spark": SparkResource(remote="sc://127.0.0.1:9"),
            }
        ),
    )
    partitions = platform.resolve_asset_graph().get(DECODED).partitions_def

    @dg.asset(deps=[DECODED], partitions_def=partitions, automation_condition=condition)
    def report() -> None:
        """An asset that users derive from each window."""

    return dg.Definitions.merge(platform, dg.Definitions(assets=[report]))


def evaluation(name: str, passed: bool) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(DECODED, name, passed, severity=dg.AssetCheckSeverity.ERROR)


@pytest.mark.parametrize(("condition", "while_blocked"), [(GUARDED, 0), (dg.AutomationCondition.eager(), 1)])
def test_a_window_flows_on_by_itself_and_waits_for_blocking_checks(
    condition: dg.AutomationCondition[dg.AssetKey], while_blocked: int, tmp_path: Path
) -> None:
    """The conditions are those in docs/guide/dagster.md. Without the second condition, a window with wrong rows would
    be passed on."""
    code, instance = location(condition, tmp_path), dg.DagsterInstance.ephemeral()
    partitions = code.resolve_asset_graph().get(DECODED).partitions_def
    assert partitions is not None
    window = partitions.get_partition_keys()[-1]
    before = dg.evaluate_automation_conditions(code, instance)
    assert before.total_requested == 0
    instance.report_runless_asset_event(dg.AssetMaterialization(DECODED, partition=window))
    instance.report_runless_asset_event(evaluation(checks.CONSERVATION, passed=False))
    instance.report_runless_asset_event(evaluation(checks.SHARE, passed=True))

    blocked = dg.evaluate_automation_conditions(code, instance, cursor=before.cursor)
    assert blocked.total_requested == while_blocked

    instance.report_runless_asset_event(evaluation(checks.CONSERVATION, passed=True))
    free = dg.evaluate_automation_conditions(code, instance, cursor=blocked.cursor)
    assert blocked.total_requested + free.total_requested == 1
    if not while_blocked:
        assert free.get_requested_partitions(dg.AssetKey("report")) == {window}
