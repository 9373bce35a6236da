"""Output of `platform-assets status` for a table, with and without the checks' snapshot of older windows."""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, TickData, TickStatus
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus
from dagster._core.storage.tags import PARTITION_NAME_TAG
from dagster._utils.error import serializable_error_info_from_exc_info
from dagster_shared.error import SerializableErrorInfo
from rich.console import Console

from platform_assets.checks.baseline import older
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration, collect
from platform_assets.checks.registry import CHECKS
from platform_assets.cli.status_table import print_status
from platform_assets.errors import OffsetsExpiredError, SparkUnreachableError, UnprovedRowsError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.failures import LakeNotReadableError
from platform_assets.lake.location import Lake
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import dagster_records, health, raw_checks, status
from platform_assets.orchestration.dagster_records import FAILURES_TAG, TABLE_TAG
from platform_assets.orchestration.health import CheckStatus
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.planning import Failures
from platform_assets.orchestration.status import PartitionStatus, Status, TableStatus
from platform_assets.windows.load.retention_forecast import PartitionForecast
from testbed.samples import START, edge, loaded, recorded

TOPIC = "clicks"
WINDOWS = 9


def told(root: Path) -> TableStatus:
    declared = TopicDeclaration(TOPIC, "0 * * * *", START)
    (table,) = status.collect([declared], Ledger(Lake.at(root)), None, None, ("no_gaps",), edge(WINDOWS + 2)).tables
    return table


def test_a_table_is_told_by_its_ledger_alone(tmp_path: Path) -> None:
    windows = recorded(tmp_path, TOPIC, [{0: n * 10, 1: n * 5} for n in range(WINDOWS + 1)])
    for number, window in enumerate(windows):
        if number != 6:
            loaded(tmp_path, window, {0: [window.ranges.by_partition[0].start]})
    t = told(tmp_path)
    assert (t.windows_sealed, t.windows_loaded, t.windows_waiting, t.windows_failed) == (WINDOWS, WINDOWS - 1, 0, 1)
    assert (t.rows, t.offsets_without_row) == (WINDOWS - 1, 14 * (WINDOWS - 1))
    assert (t.newest_window, t.newest_window_age_seconds) == (windows[-1].key, 7200.0)
    assert t.partitions == (PartitionStatus(0, 60, 90, None, None), PartitionStatus(1, 30, 45, None, None))
    assert t.error is None


@pytest.mark.parametrize("left_out", [None, 5, 6, 8])
def test_what_is_remembered_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: int | None
) -> None:
    find = older.find
    monkeypatch.setattr(older, "find", lambda *given: find(*given, recent=4))
    ends = [{0: n * 10, 1: n * 5} for n in range(WINDOWS + 1)]
    for number, window in enumerate(recorded(tmp_path, TOPIC, ends)):
        if number != left_out:
            first = {p: [r.start] for p, r in window.ranges.items()}
            loaded(tmp_path, window, first, holes={"commit markers": 13}, proved_by="broker evidence")
    before = told(tmp_path)
    assert (
        collect(TableRef.raw(TOPIC), Ledger(Lake.at(tmp_path)), counting=CHECKS.values()).older.windows == WINDOWS - 4
    )
    assert told(tmp_path) == before


def test_the_lag_counts_from_the_log_start_before_the_first_load() -> None:
    log = PartitionForecast(0, 100, 150, 160, None)
    before, after = status._partition(0, {}, {}, {0: 150}, log), status._partition(0, {0: 120}, {}, {0: 150}, log)
    assert (before.committed, before.lag, before.lag_to_high_watermark) == (None, 50, 60)
    assert (after.committed, after.lag, after.lag_to_high_watermark) == (120, 30, 40)


def test_a_table_of_which_nothing_is_known_is_told_as_empty(tmp_path: Path) -> None:
    t = told(tmp_path)
    assert (t.windows_sealed, t.rows, t.newest_window, t.partitions, t.error) == (0, 0, None, (), None)
    assert status.collect([], Ledger(Lake.at(tmp_path)), None, None, (), datetime.now(UTC)).healthy


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_figure_is_cut_off_in_a_narrow_terminal(width: int) -> None:
    checks = tuple(CheckStatus(name, True, "2026-01-01T00:00:00Z", "") for name in ("no_gaps", "no_duplicates"))
    table = TableStatus(
        "raw/flights", "flights", 8_784, 8_700, 1_284, 1_100, 1_336_776_412, 17, "2013-12-31-23:00", 7_100.0,
        1_280_312, (), checks, None, None,
    )  # fmt: skip
    console = Console(file=io.StringIO(), width=width)
    print_status(Status("2026-01-01T00:00:00Z", (table,)), console)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for figure in ("1,284", "1,100", "1,336,776,412", "1,280,312", "118 min"):
        assert figure in text
    assert "…" not in text
    lines = text.splitlines()
    # What needs attention is prose, which a terminal wraps.
    assert max(len(line) for line in lines if not line.startswith("raw/flights:")) <= width
    for name in ("raw/flights", "8,700/8,784", "2013-12-31-23:00", "2 passed"):
        assert name in text


# --- what keeps windows from being loaded ---------------------------------------------------------------------------

NOW = datetime.now(UTC)


def seen(root: Path, instance: dg.DagsterInstance, now: datetime = NOW) -> TableStatus:
    """Return the status, using Dagster's records."""
    declared = TopicDeclaration(TOPIC, "0 * * * *", START)
    status_now = status.collect(
        [declared], Ledger(Lake.at(root)), Unasked(), instance, (), now, "no broker in this test"
    )
    (table,) = status_now.tables
    return table


class Unasked(Cluster):
    """A cluster that is never queried, because the test supplies the reason why it does not answer."""

    def __init__(self) -> None:
        super().__init__(None, ClientSettings("localhost:1"))


def iso(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")


def run(instance: dg.DagsterInstance, state: dg.DagsterRunStatus, key: str, failures: Failures | None = None) -> None:
    tags = {PARTITION_NAME_TAG: key, TABLE_TAG: f"raw/{TOPIC}"}
    if failures is not None:
        tags[FAILURES_TAG] = failures.to_tag()
    keys = frozenset([table_key(TableRef.raw(TOPIC))])
    instance.add_run(dg.DagsterRun("__ASSET_JOB", str(uuid.uuid4()), status=state, tags=tags, asset_selection=keys))


def sensor_state(instance: dg.DagsterInstance, state: InstigatorStatus) -> InstigatorState:
    """Return the state that Dagster stores for the topic's sensor."""
    location = RegisteredCodeLocationOrigin("here")
    origin = RemoteRepositoryOrigin(location, "__repository__").get_instigator_origin(f"{TOPIC}_windows")
    return instance.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, state))


def tick_of(
    instance: dg.DagsterInstance, state: InstigatorState, outcome: TickStatus, at: datetime, error: str | None = None
) -> None:
    instance.create_tick(
        TickData(
            state.instigator_origin_id,
            state.instigator_name,
            InstigatorType.SENSOR,
            outcome,
            at.timestamp(),
            run_ids=[] if outcome is TickStatus.SUCCESS else None,
            selector_id=state.selector_id,
            error=None if error is None else SerializableErrorInfo(error, [], "SomeError"),
        )
    )


@pytest.fixture
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dg.DagsterInstance]:
    """An instance that stores sensor states, which in-memory instances do not."""
    with dg.DagsterInstance.local_temp(str(tmp_path_factory.mktemp("dagster"))) as made:
        yield made


def test_loads_that_keep_failing_are_named_with_their_error_and_the_next_try(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    windows = recorded(tmp_path, TOPIC, [{0: n * 10} for n in range(4)])
    spark = SparkUnreachableError("10.1.2.3:15002", "refused")
    for _ in range(2):
        run(instance, dg.DagsterRunStatus.FAILURE, windows[0].key, Failures.of({windows[0].key: spark}))
    t = seen(tmp_path, instance)
    assert (t.windows_waiting, t.windows_failed) == (3, 0)
    assert [(w.window, w.state, w.tries) for w in t.unloaded] == [
        (windows[0].key, "failed", 2), (windows[1].key, "to be asked for", 0), (windows[2].key, "to be asked for", 0)
    ]  # fmt: skip
    failing = t.unloaded[0]
    assert failing.failed_at is not None
    assert failing.again_at is not None
    waits = datetime.fromisoformat(failing.again_at) - datetime.fromisoformat(failing.failed_at)
    assert waits == timedelta(seconds=60)
    (problem,) = (p for p in t.problems if "failed to load" in p)
    assert windows[0].key in problem
    assert "(tried 2 times)" in problem
    assert f"first at {failing.failing_since}, most recently at {failing.failed_at}" in problem
    assert "Spark Connect server at 10.1.2.3:15002 does not answer: refused" in problem
    assert not Status("", (t,)).healthy
    # It stays so during the next try, and ends with it.
    run(instance, dg.DagsterRunStatus.STARTED, windows[0].key)
    t = seen(tmp_path, instance)
    assert t.unloaded[0].state == "under way"
    assert any("a run is in progress" in p for p in t.problems)
    for window in windows:
        loaded(tmp_path, window)
    assert seen(tmp_path, instance).unloaded == ()
    assert not any("failed to load" in p for p in seen(tmp_path, instance).problems)


def test_a_window_that_waits_for_somebody_says_what_for(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (window,) = recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}])
    error = OffsetsExpiredError(TOPIC, window.key, [(0, 0, 5)], "Accept the loss with `accept-loss`.")
    run(instance, dg.DagsterRunStatus.FAILURE, window.key, Failures.of({window.key: error}))
    t = seen(tmp_path, instance)
    assert [(w.state, w.again_at) for w in t.unloaded] == [("waits for somebody", None)]
    since = t.unloaded[0].failing_since
    assert any(
        f"window {window.key} has needed attention since {since}" in p and "`accept-loss`" in p for p in t.problems
    )


def test_a_window_of_rows_without_a_receipt_names_the_command_that_ends_the_wait(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (window,) = recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}])
    error = UnprovedRowsError(f"raw/{TOPIC}", window.key, 10, 4, "partition 0 offsets [0, 6)")
    run(instance, dg.DagsterRunStatus.FAILURE, window.key, Failures.of({window.key: error}))
    t = seen(tmp_path, instance)
    assert [(w.state, w.again_at) for w in t.unloaded] == [("waits for somebody", None)]
    command = f"`platform-assets accept-loss raw/{TOPIC} {window.key} "
    assert any(f"window {window.key} has needed attention" in p and command in p for p in t.problems)


def test_of_many_windows_that_wait_for_somebody_the_rest_is_counted(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    windows = recorded(tmp_path, TOPIC, [{0: n * 10} for n in range(6)])
    for window in windows:
        error = OffsetsExpiredError(TOPIC, window.key, [(0, 0, 5)], "Accept the loss with `accept-loss`.")
        run(instance, dg.DagsterRunStatus.FAILURE, window.key, Failures.of({window.key: error}))
    problems = seen(tmp_path, instance).problems
    assert sum("has needed attention since" in p for p in problems) == 3
    assert any("2 more windows need attention" in p for p in problems)


def test_a_sensor_that_is_stopped_or_fails_is_a_problem(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    for window in recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}]):
        loaded(tmp_path, window)
    now = edge(1.5)
    assert seen(tmp_path, instance, now).problems == ()
    state = sensor_state(instance, InstigatorStatus.RUNNING)
    tick_of(instance, state, TickStatus.SKIPPED, NOW)
    t = seen(tmp_path, instance, now)
    assert t.problems == ()
    assert t.sensor is not None
    assert (t.sensor.name, t.sensor.running, t.sensor.error) == (f"{TOPIC}_windows", True, None)
    tick_of(instance, state, TickStatus.FAILURE, NOW + timedelta(seconds=30), "no Kafka broker answered within 10 s")
    (problem,) = seen(tmp_path, instance, now).problems
    assert f"its sensor clicks_windows is failing, last at {iso(NOW + timedelta(seconds=30))}" in problem
    assert f"no tick has succeeded since {iso(NOW)}" in problem
    assert "no Kafka broker answered" in problem
    instance.update_instigator_state(state.with_status(InstigatorStatus.STOPPED))
    (problem,) = seen(tmp_path, instance, now).problems
    assert f"is stopped, and ticked last at {iso(NOW + timedelta(seconds=30))}" in problem
    assert "start it in the UI" in problem


def test_a_sensor_that_never_did_well_and_one_that_never_ticked_are_said_to_be(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}])
    state = sensor_state(instance, InstigatorStatus.STOPPED)
    assert any("is stopped, and has never ticked" in p for p in seen(tmp_path, instance, edge(1.5)).problems)
    instance.update_instigator_state(state.with_status(InstigatorStatus.RUNNING))
    tick_of(instance, state, TickStatus.FAILURE, NOW, "no Kafka broker answered within 10 s")
    assert any("no recorded tick succeeded" in p for p in seen(tmp_path, instance, edge(1.5)).problems)


def test_of_a_failing_tick_the_platforms_own_error_is_shown_and_not_what_lies_below_it(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    """The platform's error contains the remedy. It may wrap a system error, and Dagster wraps the platform's error in
    its own."""
    recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}])
    state = sensor_state(instance, InstigatorStatus.RUNNING)
    blocked = tmp_path / "blocked"
    blocked.write_text("a file")
    try:
        try:
            Ledger(Lake.at(blocked / "lake")).create()
        except LakeNotReadableError as e:
            raise dg.DagsterInvariantViolationError("the tick failed") from e
    except dg.DagsterError:
        error = serializable_error_info_from_exc_info(sys.exc_info())
    instance.create_tick(
        TickData(
            state.instigator_origin_id,
            state.instigator_name,
            InstigatorType.SENSOR,
            TickStatus.FAILURE,
            NOW.timestamp(),
            selector_id=state.selector_id,
            error=error,
        )
    )
    (problem,) = (p for p in seen(tmp_path, instance, edge(1.5)).problems if "is failing" in p)
    assert f"the lake cannot be read at {blocked}" in problem
    assert "Correct LAKE_ROOT" in problem


def test_a_topic_of_which_nothing_was_ever_sealed_says_that_its_sensor_never_ticked(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    assert seen(tmp_path, instance, edge(0.5)).warning is None
    warning = seen(tmp_path, instance, edge(1.5)).warning
    assert warning is not None
    assert "its sensor clicks_windows has never ticked" in warning
    sensor_state(instance, InstigatorStatus.RUNNING)
    assert seen(tmp_path, instance, edge(1.5)).warning is None


# --- checks that a run is about to evaluate again
# ------------------------------------------------------------------------


@pytest.mark.parametrize("found", [True, False])
def test_what_a_check_found_holds_until_it_has_found_something_else(instance: dg.DagsterInstance, found: bool) -> None:
    """A run that is about to evaluate the check has no result yet. The earlier failure still counts, and blocks
    downstream assets."""
    key = dg.AssetCheckKey(table_key(TableRef.raw(TOPIC)), "no_gaps")
    assert [c.passed for c in health.latest_checks(instance, [key])] == [None]
    assert not dagster_records.blocked_by(instance, [key])
    evaluation = dg.AssetCheckEvaluation(key.asset_key, key.name, found, {}, severity=dg.AssetCheckSeverity.ERROR)
    instance.report_runless_asset_event(evaluation)
    before = health.latest_checks(instance, [key])
    assert [c.passed for c in before] == [found]
    planned = DagsterEvent(
        DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value,
        "a job",
        event_specific_data=AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name),
    )
    instance.report_dagster_event(planned, str(uuid.uuid4()))
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key([key])
    assert records[key].status is AssetCheckExecutionRecordStatus.PLANNED
    assert health.latest_checks(instance, [key]) == before
    assert dagster_records.blocked_by(instance, [key]) is not found


# --- a backlog that grows -------------------------------------------------------------------------------------------


def behind(waiting: Sequence[float], done: Mapping[float, float], now: float) -> Sequence[str]:
    """Return the problems of an hourly topic at `now`. `waiting` has the ends of windows that are not loaded; `done`
    has the ends of loaded windows with the load times."""
    declared = TopicDeclaration(TOPIC, "0 * * * *", START)
    found = health.backlog(
        declared, [edge(n) for n in waiting], [(edge(e), edge(at)) for e, at in done.items()], edge(now)
    )
    return list(health.problems(declared, [], None, None, edge(now), behind=found))


def test_checks_whose_results_dagster_has_lost_are_not_known_to_pass(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (window,) = recorded(tmp_path, TOPIC, [{0: 0}, {0: 5}])
    loaded(tmp_path, window, holes={}, proved_by="load digest")
    declared, ledger = TopicDeclaration(TOPIC, "0 * * * *", START, paused=True), Ledger(Lake.at(tmp_path))

    def seen(minutes: float, of: dg.DagsterInstance | None = instance) -> Status:
        now = datetime.now(UTC) + timedelta(minutes=minutes)
        return status.collect([declared], ledger, None, of, ("no_gaps", "no_duplicates"), now)

    # A run comes to its checks a moment after its load.
    assert seen(0).tables[0].problems == ()
    assert seen(60, None).tables[0].problems == ()
    (problem,) = seen(60).tables[0].problems
    assert problem.startswith("the result of no_gaps, no_duplicates is not known: Dagster has no record of them")
    assert f"`platform-assets load raw/{TOPIC} {window.key}` evaluates and reports the checks" in problem
    assert not seen(60).healthy
    # As the command that it names does.
    nobody: Any = None  # all is known from ledger and log
    evaluation = Evaluation(declared, ledger, Orchestration(), nobody, nobody, nobody, counting=CHECKS.values())
    for judged in raw_checks.judge(evaluation):
        instance.report_runless_asset_event(judged.event)
    assert seen(60).tables[0].problems == ()


def test_windows_that_become_more_and_more_are_a_problem() -> None:
    (problem,) = behind(range(6, 13), {n: n + 6 for n in range(1, 6)}, 12.5)
    assert (
        "7 sealed windows are waiting, the oldest since 2026-01-01T06:00:00+00:00; 180 minutes ago, there were 6"
        in problem
    )


@pytest.mark.parametrize(
    ("waiting", "done"),
    [
        pytest.param([], {n: n + 0.1 for n in range(1, 13)}, id="none waits"),
        pytest.param([10, 11, 12], {n: n + 0.1 for n in range(1, 10)}, id="a few wait"),
        pytest.param(range(8, 13), dict.fromkeys(range(1, 8), 12.1), id="an outage is over"),
        pytest.param(range(100 - 12), {}, id="a topic of years begins"),
    ],
)
def test_a_backlog_that_does_not_grow_is_none(waiting: Sequence[float], done: Mapping[float, float]) -> None:
    ends = [n - 88 for n in waiting] if len(waiting) > 20 else waiting
    assert behind(ends, done, 12.5) == []


def test_a_growing_backlog_is_seen_in_ledger_and_clock(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    for window in recorded(tmp_path, TOPIC, [{0: n * 10} for n in range(9)])[:2]:
        loaded(tmp_path, window)
    assert any("6 sealed windows are waiting" in p for p in seen(tmp_path, instance, edge(8.2)).problems)


# --- a backlog that is caught up with
# ----------------------------------------------------------------------------------


def caught_up_to(
    root: Path, instance: dg.DagsterInstance, ticks: Mapping[float, TickStatus], hours: float = 40.5
) -> TableStatus:
    """Return the status `hours` after the start, with eight hourly windows, of which three are loaded. The keys of
    `ticks` say how many minutes ago each tick began."""
    for window in recorded(root, TOPIC, [{0: n * 10} for n in range(9)])[:3]:
        loaded(root, window)
    now = edge(hours)
    state = sensor_state(instance, InstigatorStatus.RUNNING)
    for minutes, became in ticks.items():
        tick_of(instance, state, became, now - timedelta(minutes=minutes))
    return seen(root, instance, now)


@pytest.mark.parametrize(
    "ticks",
    [
        pytest.param({0.5: TickStatus.STARTED}, id="the first one"),
        pytest.param({1.9: TickStatus.SUCCESS, 0.1: TickStatus.STARTED}, id="a later one"),
    ],
)
def test_while_a_sensor_catches_up_status_says_how_far_it_is_and_names_no_problem(
    tmp_path: Path, instance: dg.DagsterInstance, ticks: Mapping[float, TickStatus]
) -> None:
    """Windows that the current tick has sealed are not requested yet: Dagster first gets the windows, then the
    requests."""
    t = caught_up_to(tmp_path, instance, ticks)
    assert t.problems == ()
    assert t.warning is not None
    assert "8 windows are sealed, and 32 more have ended, the first of them at 2026-01-01T09:00:00+00:00" in t.warning


@pytest.mark.parametrize(
    "ticks",
    [
        pytest.param({}, id="none ever"),
        pytest.param({3: TickStatus.SUCCESS}, id="none lately"),
        pytest.param({9: TickStatus.SUCCESS, 8: TickStatus.STARTED}, id="one that died"),
    ],
)
def test_a_sensor_that_has_not_ticked_for_long_is_no_catching_up(
    tmp_path: Path, instance: dg.DagsterInstance, ticks: Mapping[float, TickStatus]
) -> None:
    t = caught_up_to(tmp_path, instance, ticks)
    assert any("has not been sealed, because the sensor is not ticking" in p for p in t.problems)
    assert any("5 windows" in p and "with no known run" in p for p in t.problems)
    assert t.warning is None


def test_windows_that_a_tick_has_left_without_a_run_are_a_problem_although_it_catches_up(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    (problem,) = caught_up_to(tmp_path, instance, {0.5: TickStatus.SUCCESS}).problems
    assert "5 windows" in problem
    assert "with no known run" in problem


# --- Spark ------------------------------------------------------------------------------------------------------------


def test_a_spark_that_does_not_answer_is_no_good_health(tmp_path: Path) -> None:
    assert Status("", ()).healthy
    found = status.collect([], Ledger(Lake.at(tmp_path)), None, None, (), NOW, spark_error="Spark does not answer")
    assert not found.healthy
    assert found.to_json()["spark_error"] == "Spark does not answer"
    console = Console(file=io.StringIO(), width=200)
    print_status(found, console)
    assert isinstance(console.file, io.StringIO)
    assert "Spark does not answer" in console.file.getvalue()


def test_a_daemon_that_is_gone_shows_in_the_windows_that_nobody_seals(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    for window in recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}]):
        loaded(tmp_path, window)
    assert seen(tmp_path, instance, edge(2) + timedelta(minutes=1)).problems == ()
    (problem,) = seen(tmp_path, instance, edge(2) + timedelta(minutes=3)).problems
    assert "the window that ends at 2026-01-01T02:00:00+00:00 has not been sealed" in problem


def test_each_problem_is_printed_below_the_table(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (window,) = recorded(tmp_path, TOPIC, [{0: 0}, {0: 10}])
    spark = SparkUnreachableError("10.1.2.3:15002", "refused")
    run(instance, dg.DagsterRunStatus.FAILURE, window.key, Failures.of({window.key: spark}))
    console = Console(file=io.StringIO(), width=200)
    print_status(Status("", (seen(tmp_path, instance),)), console)
    assert isinstance(console.file, io.StringIO)
    assert f"raw/{TOPIC}: 1 window ({window.key}) failed to load" in console.file.getvalue()
