"""Ticks of an idle topic: each tick evaluates the checks after the empty window that it reports."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.loader import LoadingContextForTest

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report.description import plain
from platform_assets.checks.rules import accounted, agreement, no_duplicates, no_gaps
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.orchestration.tick import Group
from platform_assets_tests.support import answers, report_defs, tables
from platform_assets_tests.support.idle_topic import LOADED, IdleTopic
from testbed import samples
from testbed.samples import edge
from testbed.ticks import PlanningTick

TOPIC = "orders"
FIVE = [*CHECKS, DEEP_AUDIT.name]

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def evaluations(result: dg.SensorResult) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the tick's result of each check; fail unless all results come after all materializations."""
    kinds = [type(e) for e in result.asset_events]
    assert kinds == sorted(kinds, key=lambda kind: kind is dg.AssetCheckEvaluation)
    return {e.check_name: e for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)}


def passed(result: dg.SensorResult) -> dict[str, bool]:
    return {name: e.passed for name, e in evaluations(result).items()}


def check_text(result: dg.SensorResult, check: str) -> str:
    """Return the text at the top of a check's page."""
    return plain(evaluations(result)[check].description or "")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def idle_topic(tmp_path: Path, instance: dg.DagsterInstance) -> IdleTopic:
    return IdleTopic(tmp_path, TOPIC, instance)


def test_an_empty_window_is_reported_with_all_five_checks_evaluated_after_it(idle_topic: IdleTopic) -> None:
    idle_topic.audit()

    for number in range(1, 4):
        result = idle_topic.tick()

        assert passed(result) == dict.fromkeys(FIVE, True)
        assert all(e.target_materialization_data is None for e in evaluations(result).values())
        assert result.run_requests == []
        # Evaluated with the window that this very tick reports.
        assert f"{LOADED + number} windows loaded, 80 rows" in check_text(result, no_gaps.NAME)
        assert f"agree on {LOADED + number} windows" in check_text(result, agreement.NAME)


def test_dagster_counts_the_evaluations_of_a_tick_as_those_of_the_newest_materialization(idle_topic: IdleTopic) -> None:
    """This follows Dagster's own rule, which the UI uses."""
    idle_topic.audit()
    idle_topic.tick()

    keys = [dg.AssetCheckKey(idle_topic.key, name) for name in FIVE]
    records = idle_topic.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    context = LoadingContextForTest(idle_topic.instance)
    assert len(records) == len(FIVE)
    assert all(asyncio.run(r.targets_latest_materialization(context)) for r in records.values())


def test_before_the_first_deep_audit_a_tick_says_nothing_of_it(idle_topic: IdleTopic) -> None:
    assert passed(idle_topic.tick()) == dict.fromkeys(CHECKS, True)


def test_a_tick_that_reads_no_file_says_which_audit_did(idle_topic: IdleTopic) -> None:
    idle_topic.audit()

    text = check_text(idle_topic.tick(), DEEP_AUDIT.name)

    assert text.startswith("This report read no files; the audit of 20")
    assert "read 4 windows with 80 rows, all unchanged since the load." in text


def test_a_check_that_fails_by_the_ledger_stays_failing(idle_topic: IdleTopic) -> None:
    damaged = idle_topic.windows[1].key
    before = idle_topic.ledger.receipts(idle_topic.table)[damaged]
    idle_topic.unbalance(1)

    for _ in range(2):
        result = idle_topic.tick()
        assert not passed(result)[accounted.NAME]
        assert evaluations(result)[accounted.NAME].severity is dg.AssetCheckSeverity.ERROR
        assert f"window {damaged}: 20 rows and 3 explained holes do not add up to 20 offsets" in check_text(
            result, accounted.NAME
        )

    # The check is evaluated each time, so a repaired window passes.
    idle_topic.ledger.record_receipts([before])
    assert passed(idle_topic.tick())[accounted.NAME]


def test_damage_that_only_reading_tells_of_has_the_checks_run(idle_topic: IdleTopic) -> None:
    idle_topic.audit()
    idle_topic.delete(f"window = '{idle_topic.windows[2].key}' and kafka_offset >= 25")

    result = idle_topic.tick()

    (run,) = result.run_requests or []
    assert run.asset_selection == []
    assert {key.name for key in run.asset_check_keys or ()} == set(CHECKS)
    assert run.run_key == f"raw/{TOPIC}/checks/{tables.key(LOADED)}"
    # The run will report those four; the tick reports the deep audit as far as it can.
    assert list(passed(result)) == [DEEP_AUDIT.name]


def test_the_run_that_a_tick_asks_for_evaluates_the_checks_and_loads_nothing(
    idle_topic: IdleTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle_topic.delete(f"window = '{idle_topic.windows[2].key}' and kafka_offset >= 25")
    (request,) = idle_topic.tick().run_requests or []
    monkeypatch.setenv("LAKE_ROOT", str(idle_topic.root))
    answers.given(monkeypatch)
    job = report_defs.of_topics([TOPIC], [TOPIC]).get_repository_def().get_job("__ASSET_JOB")
    wanted = job.get_subset(
        asset_selection=frozenset(request.asset_selection or ()),
        asset_check_selection=frozenset(request.asset_check_keys or ()),
    )

    done = wanted.execute_in_process(instance=idle_topic.instance, raise_on_error=False)

    found = {e.check_name: e.passed for e in done.get_asset_check_evaluations()}
    assert found == {
        no_gaps.NAME: False, no_duplicates.NAME: True, accounted.NAME: False, agreement.NAME: True
    }  # fmt: skip
    assert done.get_asset_materialization_events() == []


def test_no_second_run_of_the_checks_is_asked_for_while_one_is_under_way(idle_topic: IdleTopic) -> None:
    idle_topic.delete(f"window = '{idle_topic.windows[2].key}' and kafka_offset >= 25")
    (run,) = idle_topic.tick().run_requests or []
    idle_topic.instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=dg.DagsterRunStatus.STARTED,
            asset_check_selection=frozenset(run.asset_check_keys or ()),
        )
    )

    assert idle_topic.tick().run_requests == []


def test_what_a_deep_audit_found_stays_until_the_files_are_others(idle_topic: IdleTopic) -> None:
    damaged = idle_topic.windows[1]
    idle_topic.shorten(1)
    idle_topic.audit()

    for _ in range(2):
        result = idle_topic.tick()
        assert passed(result) == {**dict.fromkeys(CHECKS, True), DEEP_AUDIT.name: False}
        assert evaluations(result)[DEEP_AUDIT.name].severity is dg.AssetCheckSeverity.ERROR
        text = check_text(result, DEEP_AUDIT.name)
        assert text.startswith("1 window still damaged: the files have not changed since the audit.")
        assert (
            f"Offsets not accounted for: window {damaged.key}: the window has 19 rows (its load committed 20)" in text
        )
        assert f"What to do: Materialize partition {damaged.key} of raw/{TOPIC}" in text

    # The remedy: a load writes the window again.
    samples.loaded(idle_topic.root, damaged, holes={}, proved_by="load digest")
    result = idle_topic.tick()
    assert passed(result)[DEEP_AUDIT.name]
    assert check_text(result, DEEP_AUDIT.name).startswith("No finding of earlier audits remains; the audit of 20")


def test_damaged_files_that_somebody_replaced_without_a_load_are_not_called_sound(idle_topic: IdleTopic) -> None:
    damaged = idle_topic.windows[1]
    idle_topic.delete(f"window = '{damaged.key}' and kafka_offset >= 15")
    idle_topic.audit()
    idle_topic.delete(f"window = '{damaged.key}' and kafka_offset >= 12")

    result = idle_topic.tick()

    assert not passed(result)[DEEP_AUDIT.name]
    assert "its files have changed since the audit of" in check_text(result, DEEP_AUDIT.name)


def test_an_audit_that_could_not_read_takes_back_no_damage(idle_topic: IdleTopic) -> None:
    idle_topic.shorten(1)
    idle_topic.audit()
    DEEP_AUDIT.evaluate(answers.unanswered(idle_topic.root, TOPIC))

    result = idle_topic.tick()

    assert not passed(result)[DEEP_AUDIT.name]
    assert evaluations(result)[DEEP_AUDIT.name].severity is dg.AssetCheckSeverity.ERROR
    assert check_text(result, DEEP_AUDIT.name).startswith("1 window still damaged")


def test_an_audit_of_other_windows_takes_back_no_damage(idle_topic: IdleTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    idle_topic.shorten(1)
    idle_topic.audit()
    answers.given(monkeypatch)
    others = frozenset(w.key for w in idle_topic.windows[2:])
    assert DEEP_AUDIT.evaluate(answers.unanswered(idle_topic.root, TOPIC, windows=others)).passed

    assert not passed(idle_topic.tick())[DEEP_AUDIT.name]


def test_a_table_that_cannot_be_read_is_said_of_every_check_and_the_window_is_reported(idle_topic: IdleTopic) -> None:
    idle_topic.audit()
    for file in (idle_topic.root / "raw" / TOPIC / "_delta_log").glob("*.json"):
        file.write_text("{")

    result = idle_topic.tick()

    assert passed(result) == dict.fromkeys(FIVE, False)
    assert {e.severity for e in evaluations(result).values()} == {dg.AssetCheckSeverity.WARN}
    assert all(check_text(result, name).startswith("Could not tell: ") for name in FIVE)
    assert sum(isinstance(e, dg.AssetMaterialization) for e in result.asset_events) == 2


def test_a_table_that_was_never_loaded_has_nothing_to_check(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    samples.recorded(tmp_path, TOPIC, [{0: 0}, {0: 0}])
    tick = PlanningTick(
        Group.of(tables.declaration(TOPIC)),
        Cluster(None, ClientSettings("127.0.0.1:1")),
        Ledger(Lake.at(tmp_path)),
        instance,
        edge(1),
    )

    result = tick.evaluate(None)

    assert [type(e) for e in result.asset_events] == [dg.AssetMaterialization] * 2
