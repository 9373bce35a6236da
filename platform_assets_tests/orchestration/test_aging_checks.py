"""A check whose result ages: one entry in a list adds the check to runs, ticks and `status`. A tick that cannot load
also evaluates it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.errors import BrokerUnreachableError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import aging_checks, dagster_records, raw_checks, status
from platform_assets.orchestration import tick as tick_of
from platform_assets.orchestration.aging_checks import AgingCheck, Messages, Subject
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import LoadRequest
from platform_assets.orchestration.retention_check import RETENTION_IS_FAR
from platform_assets.orchestration.tick import Group, Tick
from testbed.samples import START, edge

DECLARED = TopicDeclaration("clicks", "0 * * * *", START)
PAUSED = replace(DECLARED, paused=True)
OTHER = replace(DECLARED, topic="orders")
AGE = "age"


def evaluate(subject: Subject) -> dg.AssetCheckResult:
    hours = (subject.now - START) / timedelta(hours=1)
    return dg.AssetCheckResult(
        passed=hours < 5,
        asset_key=table_key(subject.declaration.raw_table),
        check_name=AGE,
        description=f"{hours:.0f} h",
    )


CHECK = AgingCheck(
    AGE,
    "Not older than five hours.",
    timedelta(minutes=30),
    evaluate,
    lambda subject: Messages(("it is too old",) if not evaluate(subject).passed else ()),
    lambda declaration: declaration.topic != OTHER.topic,
)


@pytest.fixture(autouse=True)
def listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_checks, "AGING", (*raw_checks.AGING, CHECK))
    monkeypatch.setattr(aging_checks, "_evaluated", {})


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def tick(instance: dg.DagsterInstance, root: Path, hours: float, *declarations: TopicDeclaration) -> None:
    """Run one tick without any broker."""
    nobody = Cluster.connect(ClientSettings("127.0.0.1:1"), timeout=0.5)
    group = Group(None if len(declarations) == 1 else "g", declarations)
    Tick(group, nobody, Ledger(Lake.at(root)), instance, edge(hours)).evaluate(None)


def newest(
    instance: dg.DagsterInstance, check: str, declaration: TopicDeclaration = DECLARED
) -> tuple[bool, str] | None:
    key = dg.AssetCheckKey(table_key(declaration.raw_table), check)
    found = dagster_records.newest_evaluations(instance, [key]).get(key)
    return None if found is None else (found[1].passed, found[1].description or "")


def test_a_check_is_of_those_topics_that_it_applies_to() -> None:
    def specs(declaration: TopicDeclaration) -> dict[str, bool]:
        return {s.name: s.blocking for s in raw_checks.build_checks(declaration).check_specs}

    assert [name for name, blocking in specs(DECLARED).items() if not blocking] == [RETENTION_IS_FAR, AGE]
    assert AGE not in specs(OTHER)


def test_a_run_of_a_window_has_all_checks_of_its_topic() -> None:
    request = LoadRequest("2026-01-01-00:00", "2026-01-01-00:00", 1, 1, 1)
    for declaration in (DECLARED, OTHER):
        run = tick_of._run_request(declaration, declaration.raw_table, request)
        names = {key.name for key in run.asset_check_keys or ()}
        assert names == {check.name for check in raw_checks.checks_of(declaration)}
        assert (AGE in names) == (declaration is DECLARED)


def test_a_topic_ages_while_its_tick_fails(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    with pytest.raises(BrokerUnreachableError):
        tick(instance, tmp_path, 1, DECLARED)
    assert newest(instance, AGE) == (True, "1 h")
    passed, text = newest(instance, RETENTION_IS_FAR) or (True, "")
    assert not passed
    assert text.startswith("**Could not tell**: no Kafka broker answered")
    with pytest.raises(BrokerUnreachableError):
        tick(instance, tmp_path, 1.4, DECLARED)
    assert newest(instance, AGE) == (True, "1 h")
    with pytest.raises(BrokerUnreachableError):
        tick(instance, tmp_path, 5, DECLARED)
    assert newest(instance, AGE) == (False, "5 h")


def test_a_paused_topic_ages_alone_and_in_a_group(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    tick(instance, tmp_path, 1, PAUSED)
    assert newest(instance, AGE) == (True, "1 h")
    assert newest(instance, RETENTION_IS_FAR) is not None
    with pytest.raises(BrokerUnreachableError):
        tick(instance, tmp_path, 6, PAUSED, OTHER)
    assert newest(instance, AGE) == (False, "6 h")
    assert newest(instance, AGE, OTHER) is None


def test_a_check_that_has_an_error_could_not_tell(tmp_path: Path) -> None:
    def fails(_: Subject) -> dg.AssetCheckResult:
        raise BrokerUnreachableError("asking", 5, "refused")

    subject = Subject(DECLARED, Ledger(Lake.at(tmp_path)), "the brokers do not answer", edge(1))
    found = aging_checks.result(replace(CHECK, evaluate=fails), subject)
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (found.description or "").startswith("**Could not tell**: no Kafka broker answered")


def test_status_judges_age_by_itself(tmp_path: Path) -> None:
    def problems(hours: float, declaration: TopicDeclaration) -> tuple[str, ...]:
        found = status.collect([declaration], Ledger(Lake.at(tmp_path)), None, None, (), edge(hours))
        return found.tables[0].problems

    assert "it is too old" not in problems(4, DECLARED)
    assert "it is too old" in problems(6, DECLARED)
    assert "it is too old" in problems(6, PAUSED)
    assert "it is too old" not in problems(6, OTHER)
