"""The retention forecast as text, as a check, and in the sensor's reports between loads."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from platform_assets.errors import BrokerUnreachableError
from platform_assets.kafka.batches.observing import Coordinated, OpenTransaction
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.retention import Forecast, Retention
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import aging_checks, retention_check
from platform_assets.orchestration.aging_checks import Subject, evaluate_due
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.freshness import freshness
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.retention_check import RETENTION_IS_FAR
from platform_assets.windows.load import retention_forecast
from platform_assets.windows.load.retention_forecast import PartitionForecast, RetentionForecast
from testbed.samples import HOUR, START, edge

TABLE = TableRef.raw("clicks")
DECLARED = TopicDeclaration("clicks", "0 * * * *", START)
FAR = Forecast(0, 30.5, None, 0.9)
MINUTE = timedelta(minutes=1)


def table_forecast(*forecasts: Forecast | None, transactions: tuple[OpenTransaction, ...] = ()) -> RetentionForecast:
    """Return a forecast in which each partition has offsets [100, 150) to load, and 10 more offsets that are held back."""
    partitions = tuple(PartitionForecast(p, 100, 150, 160, f) for p, f in enumerate(forecasts))
    return RetentionForecast("clicks", partitions, transactions, Retention(34 * HOUR, None), ())


def transaction(*, began: float, minutes: int = 10, state: str = "Ongoing") -> OpenTransaction:
    known = Coordinated("sender-1", state, edge(began), minutes * MINUTE)
    return OpenTransaction(0, 150, 4711, 3, edge(began), known)


def messages(found: RetentionForecast, now: float) -> tuple[list[str], list[str]]:
    """Return the problems, and the warnings that disappear without any action."""
    return list(retention_check.problems(found, "b:1", edge(now))), list(
        retention_check.warnings(found, "b:1", edge(now))
    )


def test_what_is_far_is_no_word_worth() -> None:
    assert messages(table_forecast(FAR, None), 1) == ([], [])


def test_retention_that_comes_near_is_a_problem_with_offset_time_and_bound() -> None:
    (by_time, by_size, lost), warnings = messages(
        table_forecast(Forecast(0, 1.5, None, 0.2), Forecast(0, 5.0, 0.5, 0.1), Forecast(7, None, None, 0.0), FAR), 1
    )
    assert warnings == []
    assert (
        "will remove offset 100 of partition 0, which is not loaded, in 1.5 h at the earliest (retention.ms: 20%"
        in by_time
    )
    assert "partition 1, which is not loaded, in 30 min at the earliest (retention.bytes: 10%" in by_size
    assert "retention has removed 7 offsets of partition 2, from 100 on," in lost


def test_of_many_partitions_the_rest_is_counted() -> None:
    problems, _ = messages(table_forecast(*[Forecast(0, 0.0, None, 0.0)] * 5), 1)
    assert len(problems) == 4
    assert "at any moment" in problems[0]
    assert problems[-1] == "2 more partitions are close to their retention limit"


def test_a_short_transaction_is_not_worth_a_word() -> None:
    assert messages(table_forecast(FAR, transactions=(transaction(began=1),)), 1 + 0.5 / 60) == ([], [])


def test_a_long_transaction_is_named_with_its_end_and_becomes_a_problem_where_that_passes() -> None:
    held = table_forecast(FAR, transactions=(transaction(began=1),))
    problems, (warning,) = messages(held, 1 + 2 / 60)
    assert problems == []
    assert "producer id 4711, transactional id 'sender-1'" in warning
    assert "begun at 2026-01-01T01:00:00+00:00, and holds back 10 offsets" in warning
    assert "aborts it at 2026-01-01T01:10:00+00:00 (transaction.timeout.ms 600,000)" in warning
    (problem,), warnings = messages(replace(held, transactions=(transaction(began=1, state="PrepareAbort"),)), 1.5)
    assert warnings == []
    assert "should have been aborted at 2026-01-01T01:10:00+00:00, but is still PrepareAbort" in problem
    assert (
        "kafka-transactions.sh --bootstrap-server b:1 abort --topic clicks --partition 0 --start-offset 150" in problem
    )


def test_what_no_coordinator_knows_hangs_once_no_transaction_may_last_so_long() -> None:
    """Without the right to query coordinators, a client knows no more than this about any open transaction."""
    unknown = replace(transaction(began=1), coordinated=None)
    held = table_forecast(FAR, transactions=(unknown,))
    problems, (warning,) = messages(held, 1.2)
    assert problems == []
    assert "last written to at 2026-01-01T01:00:00+00:00" in warning
    (problem,), warnings = messages(held, 1.3)
    assert warnings == []
    assert "No coordinator that this client is allowed to query knows this transaction" in problem


# --- the check ------------------------------------------------------------------------------------------------------


def test_the_check_passes_while_retention_is_far_and_shows_each_partition() -> None:
    found = retention_check.result(TABLE, table_forecast(FAR, Forecast(0, None, 400.0, 0.5)))
    assert (found.passed, found.severity) == (True, dg.AssetCheckSeverity.WARN)
    assert found.description == "Retention will not remove any unloaded record for at least 30.5 h."
    metadata = found.metadata
    assert [metadata[name].value for name in ("lag", "held_back", "hours_left")] == [100, 20, 30.5]
    table = metadata["partitions"]
    assert isinstance(table, dg.TableMetadataValue)
    (first, second) = table.records
    assert first.data == {
        "partition": 0, "loaded_to": 100, "lag": 50, "held_back": 10, "hours_by_time": "30.50", "hours_by_size": "–"
    }  # fmt: skip
    assert second.data["hours_by_size"] == "400.00"


def test_the_check_warns_where_retention_comes_near() -> None:
    found = retention_check.result(TABLE, table_forecast(FAR, Forecast(0, 1.0, None, 0.1)))
    assert not found.passed
    assert found.severity is dg.AssetCheckSeverity.WARN
    assert (found.description or "").startswith(
        "**Retention is close**: retention will remove offset 100 of partition 1"
    )


def test_the_check_could_not_tell_without_a_forecast() -> None:
    found = retention_check.result(
        TABLE, replace(table_forecast(None), retention=None, unknown=("retention: refused",))
    )
    assert not found.passed
    assert found.description == "**Could not tell**: retention: refused"


# --- between loads --------------------------------------------------------------------------------------------------


class Brokers(Cluster):
    """A stand-in for a cluster; tests replace `look`, which would use it."""

    def __init__(self) -> None:
        super().__init__(None, ClientSettings("localhost:1"))

    def with_deadline(self, deadline: float) -> Cluster:
        return self


@pytest.fixture
def forecasts(monkeypatch: pytest.MonkeyPatch) -> list[RetentionForecast | BrokerUnreachableError]:
    """Results of the next forecasts; the last result is repeated."""
    found: list[RetentionForecast | BrokerUnreachableError] = [table_forecast(FAR)]

    def look(*_: object) -> RetentionForecast:
        if isinstance(found[-1], BrokerUnreachableError):
            raise found[-1]
        return found[-1]

    monkeypatch.setattr(retention_forecast, "look", look)
    monkeypatch.setattr(aging_checks, "_evaluated", {})
    return found


def ticked(root: Path, hours: float, *events: dg.AssetMaterialization) -> list[dg.AssetCheckEvaluation]:
    return evaluate_due(
        [retention_check.CHECK], Subject(DECLARED, Ledger(Lake.at(root)), Brokers(), edge(hours)), events
    )


def test_a_tick_reports_every_five_minutes(
    tmp_path: Path, forecasts: list[RetentionForecast | BrokerUnreachableError]
) -> None:
    (first,) = ticked(tmp_path, 1)
    assert (first.check_name, first.asset_key, first.passed) == (RETENTION_IS_FAR, table_key(TABLE), True)
    assert ticked(tmp_path, 1 + 4 / 60) == []
    forecasts.append(table_forecast(Forecast(0, 0.1, None, 0.1)))
    (second,) = ticked(tmp_path, 1 + 5 / 60)
    assert not second.passed


def test_a_tick_that_reports_a_load_reports_the_check_behind_it(
    tmp_path: Path, forecasts: list[RetentionForecast | BrokerUnreachableError]
) -> None:
    ticked(tmp_path, 1)
    load = dg.AssetMaterialization(table_key(TABLE), partition="2026-01-01-00:00")
    assert [e.check_name for e in ticked(tmp_path, 1 + 1 / 60, load)] == [RETENTION_IS_FAR]


def test_a_broker_that_does_not_answer_is_no_reason_for_a_tick_to_fail(
    tmp_path: Path, forecasts: list[RetentionForecast | BrokerUnreachableError]
) -> None:
    forecasts.append(BrokerUnreachableError("asking", 5, "refused"))
    (found,) = ticked(tmp_path, 1)
    assert not found.passed
    assert (found.description or "").startswith("**Could not tell**: no Kafka broker answered")


# --- freshness ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "warned", "failed"),
    [
        ("* * * * *", timedelta(minutes=4), timedelta(minutes=5)),
        ("0 * * * *", timedelta(hours=2, minutes=2), timedelta(hours=3, minutes=2)),
        # Three days from Friday to Monday.
        ("0 9 * * 1-5", timedelta(days=6, minutes=2), timedelta(days=9, minutes=2)),
    ],
)
def test_freshness_follows_from_the_longest_window(schedule: str, warned: timedelta, failed: timedelta) -> None:
    policy = freshness(replace(DECLARED, schedule=schedule))
    assert policy == dg.FreshnessPolicy.time_window(fail_window=failed, warn_window=warned)


def test_a_raw_table_has_the_check_and_the_policy() -> None:
    definitions = build_definitions(
        DECLARED, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    resources = {
        "kafka": KafkaResource(bootstrap_servers="localhost:1"),
        "lake": LakeResource(root="/lake"),
        "spark": SparkResource(remote="sc://localhost:1"),
    }
    both = dg.Definitions.merge(definitions, dg.Definitions(resources=resources))
    node = both.resolve_asset_graph().get(table_key(TABLE))
    assert node.freshness_policy == freshness(DECLARED)
    assert RETENTION_IS_FAR in {key.name for key in node.check_keys}
