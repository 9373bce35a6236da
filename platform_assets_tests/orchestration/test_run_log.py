"""One query for many tables: it gives the answers that a separate query per table would give, and is sent once."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG

from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.names import group_op, run_tag
from testbed.samples import edge

TABLES = [TableRef.raw(f"clicks-{n}") for n in range(6)]
KEYS = [key_of(edge(n)) for n in range(4)]
LONG_AGO = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


def add(instance: dg.DagsterInstance, tags: dict[str, str], config: dict[str, Any] | None = None) -> None:
    instance.add_run(
        dg.DagsterRun(
            job_name="j",
            run_id=str(uuid.uuid4()),
            status=dg.DagsterRunStatus.FAILURE,
            tags=tags,
            run_config=config or {},
        )
    )


def filled(instance: dg.DagsterInstance, rng: random.Random) -> None:
    """Record 45 failed runs for single tables, and 10 failed runs for many tables."""
    for _ in range(45):
        first, last = sorted(rng.choices(KEYS, k=2))
        bounds = {ASSET_PARTITION_RANGE_START_TAG: first, ASSET_PARTITION_RANGE_END_TAG: last}
        add(instance, {dagster_records.TABLE_TAG: rng.choice(TABLES).name, **bounds})
    for _ in range(10):
        some = {t.topic: rng.sample(KEYS, 2) for t in rng.sample(TABLES, 3)}
        add(
            instance,
            {dagster_records.TABLE_TAG: run_tag(None)},
            dagster_records.config_of_many(group_op("small"), some),
        )


@pytest.mark.parametrize("most", [500, 40], ids=["all at once", "more than are asked for at once"])
def test_each_table_is_told_what_it_would_have_been_told_alone(
    instance: dg.DagsterInstance, rng: random.Random, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second case, the limit is below the total of all tables, but above the number for each single table."""
    monkeypatch.setattr(dagster_records, "NEWEST_FAILURES", most)
    filled(instance, rng)
    alone = {t: {f.run_id for f in dagster_records.failed_runs(instance, t, KEYS)} for t in TABLES}
    lately = {t: RunLog(instance).failed_since(t, LONG_AGO) for t in TABLES}
    assert sum(map(len, alone.values())) > 45
    log = RunLog(instance, TABLES)
    assert {t: {f.run_id for f in dagster_records.failed_runs(instance, t, KEYS, log)} for t in TABLES} == alone
    assert {t: log.failed_since(t, LONG_AGO) for t in TABLES} == lately


def test_dagster_is_asked_as_often_for_many_tables_as_for_one(
    instance: dg.DagsterInstance, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(instance, rng)
    asked: list[str] = []
    for name in ("get_runs", "get_run_records"):
        plain = getattr(instance, name)

        def counted(*given: Any, _name: str = name, _plain: Any = plain, **more: Any) -> Any:
            asked.append(_name)
            return _plain(*given, **more)

        monkeypatch.setattr(instance, name, counted)

    def look(tables: list[TableRef]) -> int:
        asked.clear()
        log, now = RunLog(instance, tables), datetime.now(UTC)
        for number, table in enumerate(tables):
            # Topics are not at the same window.
            dagster_records.failed_runs(instance, table, KEYS[number % 2 :], log)
            log.failed_since(table, now - timedelta(days=7))
            assert log.under_way == []
        return len(asked)

    assert look(TABLES) == look(TABLES[:1]) == 4
