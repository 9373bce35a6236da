"""Credentials and run config: users who launch runs cannot obtain a credential, neither with another address nor with a
variable's name."""

# No postponed annotations here: Dagster reads those of ops.

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.errors import DagsterInvalidConfigError

from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import decision_jobs
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource, values_of
from platform_assets.services.project import DEFS_VARIABLE
from platform_assets_tests.support.shell import DAGSTER_WARNINGS

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]

CANARY = "canary-4711"
DEFS = """type: platform_assets.components.TopicTables
attributes:
  topics:
    - orders
    - topic: clicks
      decode: {value: {format: json, schema: "id BIGINT"}}
  together: small
  each: {window: "0 * * * *", start: "2026-01-01T00:00Z"}
---
type: platform_assets.components.TopicTable
attributes: {topic: payments, window: "0 * * * *", start: "2026-01-01T00:00Z"}
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dg.JobDefinition]:
    """Return every job of the platform's code location, with all kinds of topics."""
    from platform_assets.definitions import defs

    (tmp_path / "defs" / "shop").mkdir(parents=True)
    (tmp_path / "defs" / "shop" / "defs.yaml").write_text(DEFS)
    for name, value in {
        DEFS_VARIABLE: tmp_path / "defs",
        "PLATFORM_HOME": tmp_path / "home",
        "DAGSTER_HOME": tmp_path / "dagster",
        "LAKE_ROOT": tmp_path / "lake",
    }.items():
        monkeypatch.setenv(name, str(value))
    return list(defs().get_repository_def().get_all_jobs())


def _fields(config_type: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and type of every field of a config, including fields inside lists and mappings."""
    yield path, config_type
    for inner in ("inner_type", "key_type"):
        if hasattr(config_type, inner):
            yield from _fields(getattr(config_type, inner), path)
    for name, field in getattr(config_type, "fields", {}).items():
        yield from _fields(field.config_type, f"{path}/{name}")


def test_no_job_reads_the_environment_or_configures_a_resource_by_its_run_config(jobs: list[dg.JobDefinition]) -> None:
    assert {job.name for job in jobs} >= {
        "accept_loss",
        "erase_records",
        "vacuum_tables",
        "prune_runs",
        "payments_load",
    }
    assert any("small" in job.name for job in jobs)
    for job in jobs:
        for path, found in _fields(job.run_config_schema.run_config_schema_type):
            assert not isinstance(found, dg.ScalarUnion), f"{job.name} {path}"
            if path.startswith("/resources/") and path.count("/") > 2:
                assert path.endswith("/config"), f"{job.name} {path}"


@pytest.fixture
def accept_loss(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dg.JobDefinition:
    """A job that repeats its topic's name in an error. The job's environment contains a secret."""
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", CANARY)
    monkeypatch.setenv("BROKERS", "real:9092")

    def declared(topic: str) -> TopicDeclaration:
        raise AssertionError(f"no topic {topic}")

    resources = {
        "kafka": KafkaResource(bootstrap_servers=dg.EnvVar("BROKERS")),
        "lake": LakeResource(root=str(tmp_path)),
        "spark": SparkResource(remote="sc://localhost:1"),
    }
    found = dg.Definitions.merge(decision_jobs.definitions(declared), dg.Definitions(resources=resources))
    return found.resolve_job_def("accept_loss")


@pytest.mark.parametrize("field", ["topic", "reason", "by", "window", "dry_run"])
def test_a_config_that_names_a_variable_is_refused_without_its_value(accept_loss: dg.JobDefinition, field: str) -> None:
    config = {"topic": "orders", "reason": "r", "window": "w", field: {"env": "KAFKA_SASL_PASSWORD"}}
    with pytest.raises(DagsterInvalidConfigError) as refused:
        accept_loss.execute_in_process({"ops": {"accept_loss_of_window": {"config": config}}})
    assert CANARY not in str(refused.value)
    assert field in str(refused.value)


@pytest.mark.parametrize(
    ("resource", "config"),
    [
        ("kafka", {"bootstrap_servers": "evil:9092"}),
        ("lake", {"root": "/evil"}),
        ("lake", {"root": {"env": "KAFKA_SASL_PASSWORD"}}),
        ("spark", {"remote": "sc://evil:15002"}),
    ],
)
def test_no_run_sends_credentials_to_another_address(
    accept_loss: dg.JobDefinition, resource: str, config: dict[str, Any]
) -> None:
    op = {"accept_loss_of_window": {"config": {"topic": "orders", "reason": "r", "window": "w"}}}
    with pytest.raises(DagsterInvalidConfigError, match=f"unexpected config entry.*{resource}:config") as refused:
        accept_loss.execute_in_process({"ops": op, "resources": {resource: {"config": config}}})
    assert CANARY not in str(refused.value)


def test_the_code_locations_own_values_still_come_from_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKERS", "real:9092")
    seen: list[tuple[str, float]] = []

    @dg.op(required_resource_keys={"kafka"})
    def look(context: dg.OpExecutionContext) -> None:
        seen.append((context.resources.kafka.bootstrap_servers, context.resources.kafka.timeout_seconds))

    @dg.job(resource_defs={"kafka": KafkaResource(bootstrap_servers=dg.EnvVar("BROKERS"), timeout_seconds=3)})
    def looking() -> None:
        look()

    assert looking.execute_in_process().success
    assert seen == [("real:9092", 3.0)]


def test_a_config_of_an_unknown_type_is_refused_when_it_is_declared() -> None:
    class Anything(dg.Config):
        value: Any

    with pytest.raises(TypeError, match="type Any might read environment variables"):
        values_of(Anything)
