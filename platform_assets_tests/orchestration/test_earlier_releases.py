"""State of earlier releases in Dagster's storage: queued and failed runs, and sensor cursors."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import dagster as dg
import pytest

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.decoding import DecodeDeclaration, FormatSpec
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.definitions import DeepAudit, build_definitions, build_group
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.tick import Group, Position
from platform_assets_tests.support.shell import DAGSTER_WARNINGS
from testbed.samples import edge

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

CLICKS, VIEWS = TableRef.raw("clicks"), TableRef.raw("views")
DECODED = TableRef("decoded", "clicks")
KEYS = [key_of(edge(n)) for n in range(3)]
LISTED: dict[str, Any] = {"ops": {"clicks_earlier_windows_load_op": {"config": {"windows": KEYS[:2]}}}}
DECODE_ONLY: dict[str, Any] = {
    "ops": {"clicks_earlier_windows_load_op": {"config": {"windows": KEYS[:2], "decode_only": True}}}
}
OF_MANY: dict[str, Any] = {"ops": {"shop_together_load_op": {"config": {"windows": {"clicks": KEYS[:2], "views": []}}}}}
ONE_TABLE = f'{{"causes": {{"{KEYS[0]}": "decision"}}, "error": "gone", "decided": {{}}}}'
MANY_TABLES = '{"tables": {"raw/clicks": ' + json.dumps(ONE_TABLE) + '}, "error": "gone"}'


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def add(
    instance: dg.DagsterInstance, status: dg.DagsterRunStatus, tags: dict[str, str], config: dict[str, Any]
) -> None:
    run = dg.DagsterRun("j", str(uuid.uuid4()), status=status, tags=tags, run_config=config)
    instance.add_run(run)


@pytest.mark.parametrize(
    ("tags", "config", "tables"),
    [
        ({"platform_assets/table": "raw/clicks"}, LISTED, {CLICKS, DECODED}),
        ({"platform_assets/table": "decoded/clicks"}, DECODE_ONLY, {DECODED}),
        ({"platform_assets/table": "many"}, OF_MANY, {CLICKS, DECODED}),
        ({"platform_assets/table": "raw/clicks", "dagster/asset_partition_range_start": KEYS[0],
          "dagster/asset_partition_range_end": KEYS[1]}, {}, {CLICKS, DECODED, VIEWS}),
    ],
    ids=["listed", "decoded again", "of many topics", "partitions"],
)  # fmt: skip
def test_windows_of_queued_runs_are_not_requested_again(
    instance: dg.DagsterInstance, tags: dict[str, str], config: dict[str, Any], tables: set[TableRef]
) -> None:
    add(instance, dg.DagsterRunStatus.NOT_STARTED, tags, config)
    for table in (CLICKS, DECODED, VIEWS):
        expected = set(KEYS[:2]) if table in tables else set()
        assert dagster_records.windows_in_flight(instance, table_key(table), KEYS) == expected


@pytest.mark.parametrize(
    ("tags", "config"),
    [
        ({"platform_assets/table": "raw/clicks", "platform_assets/failures": ONE_TABLE}, LISTED),
        ({"platform_assets/table": "many", "platform_assets/failures": MANY_TABLES}, OF_MANY),
    ],
    ids=["of one topic", "of many"],
)
def test_why_runs_failed_is_read(instance: dg.DagsterInstance, tags: dict[str, str], config: dict[str, Any]) -> None:
    add(instance, dg.DagsterRunStatus.FAILURE, tags, config)
    (failed,) = dagster_records.failed_runs(instance, CLICKS, KEYS)
    assert [failed.cause(key) for key in KEYS[:2]] == ["decision", "passing"]
    assert failed.error_of(KEYS[0]) == "gone"


def test_jobs_have_the_steps_of_queued_runs_and_accept_their_config() -> None:
    declared = TopicDeclaration("clicks", "0 * * * *", edge(0), decode=DecodeDeclaration(FormatSpec("string")))
    made = build_definitions(
        declared, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    both = Group("shop", (TopicDeclaration("clicks", "0 * * * *", edge(0), together="shop"),))
    group = build_group(both, False, [], {"clicks": DeepAudit()})
    jobs = {job.name: job for job in (*(made.jobs or ()), *(group.jobs or ()))}
    for name, config in (
        ("clicks_earlier_windows", LISTED),
        ("clicks_earlier_windows", DECODE_ONLY),
        ("shop_together_load", OF_MANY),
    ):
        job = jobs[name]
        assert isinstance(job, dg.JobDefinition)
        dg.validate_run_config(job, config)
        # Dagster executes a queued run with the steps that its job had at that time.
        ops = {"load_op", "check_op"} if name == "clicks_earlier_windows" else {"op"}
        assert {node.name for node in job.nodes} == {f"{name}_{op}" for op in ops}


def test_the_cursor_of_a_sensor_of_one_topic_is_read() -> None:
    cursor = f'{{"version": 1, "reported": {round(edge(2).timestamp())}}}'
    assert Position.from_cursor(cursor, ["clicks"]) == Position({"clicks": edge(2)})
    # A group ignores it, and starts fresh.
    assert Position.from_cursor(cursor, ["clicks", "views"]) == Position()
    again = Position.from_cursor(Position({"clicks": edge(2) + timedelta(hours=1)}).to_cursor(), ["clicks"])
    assert again.reported == {"clicks": edge(3)}
