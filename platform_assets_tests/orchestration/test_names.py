"""Name prefixes: a prefix changes all names that Dagster has for a topic, and nothing else."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.storage.tags import PARTITION_NAME_TAG

from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import dagster_records, decision_jobs
from platform_assets.orchestration.definitions import DeepAudit, build_definitions, build_group
from platform_assets.orchestration.maintenance import jobs as maintenance_jobs
from platform_assets.orchestration.names import (
    PREFIX_VARIABLE,
    all_names,
    earlier_windows_op,
    is_own,
    key_prefix,
    read_run_tag,
    run_tag,
    sensor_name,
    table_key,
    topic_key,
)
from platform_assets.orchestration.planning import Failures
from platform_assets.orchestration.tick import Group
from platform_assets.services import platform
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.samples import edge

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

RAW = TableRef.raw("orders")
KEY = "2026-03-01-00:00"


def test_without_a_prefix_names_are_those_of_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREFIX_VARIABLE, raising=False)
    assert topic_key("orders").path == ["kafka", "orders"]
    assert table_key(RAW).path == ["raw", "orders"]
    assert sensor_name("orders") == "orders_windows"
    assert (run_tag(RAW), run_tag(None)) == ("raw/orders", "many")


def test_a_prefix_stands_before_keys_sensors_and_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "plant/north")
    assert topic_key("orders").path == ["plant", "north", "kafka", "orders"]
    assert table_key(RAW).path == ["plant", "north", "raw", "orders"]
    assert sensor_name("orders") == "plant__north__orders_windows"
    assert sensor_name("", "shop") == "plant__north__shop_together_windows"
    assert (run_tag(RAW), run_tag(None)) == ("plant/north/raw/orders", "plant/north/many")
    assert RAW.name == "raw/orders"
    assert TopicDeclaration("orders", "0 * * * *", edge(0)).raw_table.parts == ("raw", "orders")


@pytest.mark.parametrize("prefix", ["", "plant", "plant/north"])
def test_a_tag_is_read_by_any_code_location(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, prefix)
    own, many = run_tag(TableRef("decoded", "many")), run_tag(None)
    monkeypatch.setenv(PREFIX_VARIABLE, "another")
    parts = tuple(prefix.split("/")) if prefix else ()
    assert read_run_tag(own) == (parts, TableRef("decoded", "many"))
    assert read_run_tag(many) == (parts, None)


@pytest.mark.parametrize("prefix", ["/", "plant/", "pla nt", "plant.north", "raw", "plant/kafka", "many"])
def test_a_prefix_that_is_none_is_refused_and_the_remedy_helps(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, prefix)
    with pytest.raises(ConfigurationError, match="Names consist of letters, digits and underscores"):
        table_key(RAW)
    monkeypatch.setenv(PREFIX_VARIABLE, "plant_1/north")
    assert key_prefix() == ("plant_1", "north")
    monkeypatch.delenv(PREFIX_VARIABLE)
    assert key_prefix() == ()


def test_whose_an_asset_is_follows_from_its_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX_VARIABLE, "plant")
    assert is_own(dg.AssetKey(["plant", "raw", "orders"]))
    assert is_own(dg.AssetKey(["plant", "kafka", "orders"]))
    for other in (["raw", "orders"], ["other", "raw", "orders"], ["plant", "orders"], ["orders"]):
        assert not is_own(dg.AssetKey(other))


def test_runs_of_another_prefix_are_not_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    """If another prefix has a topic with the same name and windows, the topic's running and failed runs are ignored."""

    @dg.op(name=earlier_windows_op("orders"), config_schema={"windows": dg.Field([str], is_required=False)})
    def nothing() -> None: ...

    @dg.job
    def loading() -> None:
        nothing()

    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {earlier_windows_op("orders"): {"config": {"windows": [KEY]}}}}
        for prefix in ("north", "south"):
            monkeypatch.setenv(PREFIX_VARIABLE, prefix)
            for listed in (config, {}):
                tags = {dagster_records.TABLE_TAG: run_tag(RAW), **({} if listed else {PARTITION_NAME_TAG: KEY})}
                status = dg.DagsterRunStatus.STARTED if prefix == "north" else dg.DagsterRunStatus.FAILURE
                run = instance.create_run_for_job(loading, run_config=listed, tags=tags, status=status)
                if prefix == "south":
                    dagster_records.record_failures(
                        instance, run.run_id, {RAW: Failures.of({KEY: ConfigurationError("refused")})}
                    )
        for prefix, under_way, failed in (("north", {KEY}, 0), ("south", set(), 2), ("", set(), 0)):
            monkeypatch.setenv(PREFIX_VARIABLE, prefix)
            assert dagster_records.windows_in_flight(instance, table_key(RAW), [KEY]) == under_way
            assert len(dagster_records.failed_runs(instance, RAW, [KEY])) == failed


def test_services_are_started_with_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert platform.ASSET_PREFIX == PREFIX_VARIABLE
    monkeypatch.setenv(PREFIX_VARIABLE, "plant")
    assert platform.environment()[PREFIX_VARIABLE] == "plant"


def test_topics_whose_names_are_alike_are_all_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREFIX_VARIABLE, raising=False)
    alike = [
        "shop-orders",
        "shop.orders",
        "shop_orders",
        "Shop_Orders",
        "a",
        "a_decoded",
        "a_earlier",
        "a_load",
        "raw__a",
    ]
    alike += ["x_together", "a_deep_audit", "a_earlier_windows", "a_checks", "y" * 249, "y" * 248 + "."]
    spec = DecodeDeclaration(FormatSpec("string"))
    declared = [TopicDeclaration(topic, "0 * * * *", edge(0), decode=spec) for topic in alike]
    group = Group(
        "x", tuple(TopicDeclaration(t, "0 * * * *", edge(0), decode=spec, together="x") for t in ("b", "b.c"))
    )
    made = [
        build_definitions(d, group="g", description=None, owners=(), sensor_running=True, deep_audit=DeepAudit())
        for d in (*declared, *group.declarations)
    ]
    jobs = [job for each in made[-2:] for job in each.jobs or ()]
    audits = {d.topic: DeepAudit() for d in group.declarations}
    resources = dict.fromkeys(("kafka", "lake", "spark"), dg.ResourceDefinition.hardcoded_resource(None))
    whole = dg.Definitions.merge(
        *made,
        build_group(group, True, jobs, audits),
        decision_jobs.definitions(lambda _: declared[0]),
        maintenance_jobs.definitions(30),
        dg.Definitions(resources=resources),
    )
    whole.get_repository_def().load_all_definitions()
    names = [name for d in (*declared, *group.declarations) for name in all_names(d) if d.together is None]
    assert len({name.lower() if name.startswith("catalogue") else name for name in names}) == len(names)
