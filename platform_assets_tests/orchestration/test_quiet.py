"""Ticks of a topic that went quiet: each evaluates the checks behind the materialisation that it reports."""

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
from platform_assets.orchestration.tick import Group, Tick
from platform_assets_tests.support import answers, report_defs, tables
from platform_assets_tests.support.quiet_topic import LOADED, QuietTopic
from testbed import samples
from testbed.samples import edge

TOPIC = "orders"
FIVE = [*CHECKS, DEEP_AUDIT.name]

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def evaluations(result: dg.SensorResult) -> dict[str, dg.AssetCheckEvaluation]:
    """What the tick says of each check; each comes behind all materialisations."""
    kinds = [type(e) for e in result.asset_events]
    assert kinds == sorted(kinds, key=lambda kind: kind is dg.AssetCheckEvaluation)
    return {e.check_name: e for e in result.asset_events if isinstance(e, dg.AssetCheckEvaluation)}


def passed(result: dg.SensorResult) -> dict[str, bool]:
    return {name: e.passed for name, e in evaluations(result).items()}


def said(result: dg.SensorResult, check: str) -> str:
    """The text at the top of a check's page."""
    return plain(evaluations(result)[check].description or "")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as made:
        yield made


@pytest.fixture
def quiet(tmp_path: Path, instance: dg.DagsterInstance) -> QuietTopic:
    return QuietTopic(tmp_path, TOPIC, instance)


def test_a_quiet_window_is_reported_with_all_five_checks_evaluated_behind_it(quiet: QuietTopic) -> None:
    quiet.audit()

    for number in range(1, 4):
        result = quiet.tick()

        assert passed(result) == dict.fromkeys(FIVE, True)
        assert all(e.target_materialization_data is None for e in evaluations(result).values())
        assert result.run_requests == []
        # Evaluated with the window that this very tick reports.
        assert f"{LOADED + number} windows loaded, 80 rows" in said(result, no_gaps.NAME)
        assert f"say the same of {LOADED + number} windows" in said(result, agreement.NAME)


def test_dagster_counts_the_evaluations_of_a_tick_as_those_of_the_newest_materialisation(quiet: QuietTopic) -> None:
    """By Dagster's own rule, which the UI goes by."""
    quiet.audit()
    quiet.tick()

    keys = [dg.AssetCheckKey(quiet.key, name) for name in FIVE]
    records = quiet.instance.event_log_storage.get_latest_asset_check_execution_by_key(keys)
    context = LoadingContextForTest(quiet.instance)
    assert len(records) == len(FIVE)
    assert all(asyncio.run(r.targets_latest_materialization(context)) for r in records.values())


def test_before_the_first_deep_audit_a_tick_says_nothing_of_it(quiet: QuietTopic) -> None:
    assert passed(quiet.tick()) == dict.fromkeys(CHECKS, True)


def test_a_tick_that_reads_no_file_says_which_audit_did(quiet: QuietTopic) -> None:
    quiet.audit()

    text = said(quiet.tick(), DEEP_AUDIT.name)

    assert text.startswith("No file read by this report; the audit of 20")
    assert "read 4 windows with 80 rows: all as committed." in text


def test_a_check_that_fails_by_the_ledger_stays_failing(quiet: QuietTopic) -> None:
    damaged = quiet.windows[1].key
    before = quiet.ledger.receipts(quiet.table)[damaged]
    quiet.unbalance(1)

    for _ in range(2):
        result = quiet.tick()
        assert not passed(result)[accounted.NAME]
        assert evaluations(result)[accounted.NAME].severity is dg.AssetCheckSeverity.ERROR
        assert f"window {damaged}: 20 rows and 3 explained holes are not 20 offsets" in said(result, accounted.NAME)

    # It is evaluated each time: what was mended passes.
    quiet.ledger.record_receipts([before])
    assert passed(quiet.tick())[accounted.NAME]


def test_damage_that_only_reading_tells_of_has_the_checks_run(quiet: QuietTopic) -> None:
    quiet.audit()
    quiet.delete(f"window = '{quiet.windows[2].key}' and kafka_offset >= 25")

    result = quiet.tick()

    (run,) = result.run_requests or []
    assert run.asset_selection == []
    assert {key.name for key in run.asset_check_keys or ()} == set(CHECKS)
    assert run.run_key == f"raw/{TOPIC}/checks/{tables.key(LOADED)}"
    # The run will say of those four; of the deep audit the tick says what it can.
    assert list(passed(result)) == [DEEP_AUDIT.name]


def test_the_run_that_a_tick_asks_for_evaluates_the_checks_and_loads_nothing(
    quiet: QuietTopic, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet.delete(f"window = '{quiet.windows[2].key}' and kafka_offset >= 25")
    (request,) = quiet.tick().run_requests or []
    monkeypatch.setenv("LAKE_ROOT", str(quiet.root))
    answers.given(monkeypatch)
    job = report_defs.of_topics([TOPIC], [TOPIC]).get_repository_def().get_job("__ASSET_JOB")
    wanted = job.get_subset(
        asset_selection=frozenset(request.asset_selection or ()),
        asset_check_selection=frozenset(request.asset_check_keys or ()),
    )

    done = wanted.execute_in_process(instance=quiet.instance, raise_on_error=False)

    found = {e.check_name: e.passed for e in done.get_asset_check_evaluations()}
    assert found == {
        no_gaps.NAME: False, no_duplicates.NAME: True, accounted.NAME: False, agreement.NAME: True
    }  # fmt: skip
    assert done.get_asset_materialization_events() == []


def test_no_second_run_of_the_checks_is_asked_for_while_one_is_under_way(quiet: QuietTopic) -> None:
    quiet.delete(f"window = '{quiet.windows[2].key}' and kafka_offset >= 25")
    (run,) = quiet.tick().run_requests or []
    quiet.instance.add_run(
        dg.DagsterRun(
            job_name="__ASSET_JOB",
            status=dg.DagsterRunStatus.STARTED,
            asset_check_selection=frozenset(run.asset_check_keys or ()),
        )
    )

    assert quiet.tick().run_requests == []


def test_what_a_deep_audit_found_stays_until_the_files_are_others(quiet: QuietTopic) -> None:
    damaged = quiet.windows[1]
    quiet.shorten(1)
    quiet.audit()

    for _ in range(2):
        result = quiet.tick()
        assert passed(result) == {**dict.fromkeys(CHECKS, True), DEEP_AUDIT.name: False}
        assert evaluations(result)[DEEP_AUDIT.name].severity is dg.AssetCheckSeverity.ERROR
        text = said(result, DEEP_AUDIT.name)
        assert text.startswith("1 window still damaged: the files are those that were audited.")
        assert f"Offsets not accounted for: window {damaged.key}: 19 rows, the load committed 20" in text
        assert f"What to do: Materialise partition {damaged.key} of raw/{TOPIC}" in text

    # The remedy: a load writes the window again.
    samples.loaded(quiet.root, damaged, holes={}, proved_by="load digest")
    result = quiet.tick()
    assert passed(result)[DEEP_AUDIT.name]
    assert said(result, DEEP_AUDIT.name).startswith("Nothing that audits found still stands.")


def test_damaged_files_that_somebody_replaced_without_a_load_are_not_called_sound(quiet: QuietTopic) -> None:
    damaged = quiet.windows[1]
    quiet.delete(f"window = '{damaged.key}' and kafka_offset >= 15")
    quiet.audit()
    quiet.delete(f"window = '{damaged.key}' and kafka_offset >= 12")

    result = quiet.tick()

    assert not passed(result)[DEEP_AUDIT.name]
    assert "its files are others than the audit of" in said(result, DEEP_AUDIT.name)


def test_an_audit_that_could_not_read_takes_back_no_damage(quiet: QuietTopic) -> None:
    quiet.shorten(1)
    quiet.audit()
    DEEP_AUDIT.evaluate(answers.unanswered(quiet.root, TOPIC))

    result = quiet.tick()

    assert not passed(result)[DEEP_AUDIT.name]
    assert evaluations(result)[DEEP_AUDIT.name].severity is dg.AssetCheckSeverity.ERROR
    assert said(result, DEEP_AUDIT.name).startswith("1 window still damaged")


def test_an_audit_of_other_windows_takes_back_no_damage(quiet: QuietTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    quiet.shorten(1)
    quiet.audit()
    answers.given(monkeypatch)
    others = frozenset(w.key for w in quiet.windows[2:])
    assert DEEP_AUDIT.evaluate(answers.unanswered(quiet.root, TOPIC, windows=others)).passed

    assert not passed(quiet.tick())[DEEP_AUDIT.name]


def test_a_table_that_cannot_be_read_is_said_of_every_check_and_the_window_is_reported(quiet: QuietTopic) -> None:
    quiet.audit()
    for file in (quiet.root / "raw" / TOPIC / "_delta_log").glob("*.json"):
        file.write_text("{")

    result = quiet.tick()

    assert passed(result) == dict.fromkeys(FIVE, False)
    assert {e.severity for e in evaluations(result).values()} == {dg.AssetCheckSeverity.WARN}
    assert all(said(result, name).startswith("Could not tell: ") for name in FIVE)
    assert sum(isinstance(e, dg.AssetMaterialization) for e in result.asset_events) == 2


def test_a_table_that_was_never_loaded_has_nothing_to_check(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    samples.recorded(tmp_path, TOPIC, [{0: 0}, {0: 0}])
    tick = Tick(
        Group.of(tables.declaration(TOPIC)),
        Cluster(None, ClientSettings("127.0.0.1:1")),
        Ledger(Lake.at(tmp_path)),
        instance,
        edge(1),
    )

    result = tick.plan(None)

    assert [type(e) for e in result.asset_events] == [dg.AssetMaterialization] * 2
