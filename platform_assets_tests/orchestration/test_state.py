"""A topic's state in Dagster: ticks request folds, a step folds, checks judge it, and `status` and commands show it."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import dagster as dg
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_END_TAG, ASSET_PARTITION_RANGE_START_TAG
from deltalake import write_deltalake

from platform_assets.checks import state as checks
from platform_assets.cli.state_snippets import as_of, can_broadcast, changes_from, fresh_view
from platform_assets.engines.folding import fold as folding
from platform_assets.engines.folding.history import chained
from platform_assets.errors import ChangesOutdatedError, StateOutdatedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import state_table
from platform_assets.lake.location import Folder
from platform_assets.ledger.decisions import Author
from platform_assets.model.state import POSITION, Deletes, StateDeclaration
from platform_assets.orchestration import state_definitions, state_status
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.definitions import DeepAudit, build_definitions
from platform_assets.orchestration.names import STATE_TAG, fold_job, fold_op, load_job, state_keys, state_tag
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.topic_tick import TopicTick
from platform_assets.windows.decide.parking import park
from platform_assets.windows.state import folding as folding_of_states
from platform_assets.windows.state.folding import Pending, TopicState
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.shell import DAGSTER_WARNINGS, Shell
from testbed import samples

STATE = StateDeclaration(("id",), deletes="none", history=True)

pytestmark = [*map(pytest.mark.filterwarnings, DAGSTER_WARNINGS)]


@pytest.fixture
def topic(tmp_path: Path) -> DecodedTopic:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.state = STATE
    made.load([order(1), order(1), order(2)], [order(1), None, order(3)])
    made.decode()
    for window in made.windows:
        made.changer.make(window.key)
    return made


def state_of(topic: DecodedTopic) -> TopicState:
    return TopicState(topic.topic, STATE, topic.lake)


def requested(
    topic: DecodedTopic, instance: dg.DagsterInstance, after: timedelta = timedelta(), coming: int = 0
) -> list[dg.RunRequest]:
    now = topic.windows[-1].window.end + after
    return state_definitions.run_requests(topic.declaration, topic.ledger, instance, now, requested=coming)


def job_of(topic: DecodedTopic, name: str) -> dg.JobDefinition:
    made = build_definitions(
        topic.declaration, group="g", description=None, owners=(), sensor_running=False, deep_audit=DeepAudit()
    )
    resources = {
        "kafka": KafkaResource(bootstrap_servers="localhost:1"),
        "lake": LakeResource(root=str(topic.root)),
        "spark": SparkResource(remote="sc://localhost:1"),
    }
    return dg.Definitions.merge(made, dg.Definitions(resources=cast("Any", resources))).resolve_job_def(name)


def materialize(topic: DecodedTopic, instance: dg.DagsterInstance, request: dg.RunRequest) -> dg.ExecuteInProcessResult:
    """Execute a requested run as the daemon would: the job, with the request's selection and without a partition."""
    return job_of(topic, request.job_name or "").execute_in_process(
        instance=instance, asset_selection=request.asset_selection, tags=dict(request.tags), raise_on_error=False
    )


def ids(topic: DecodedTopic) -> list[int]:
    return sorted(pl.scan_delta(str(topic.root / "state" / "orders")).collect()["id"].to_list())


def test_a_tick_requests_a_fold_and_its_run_makes_the_state(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    (request,) = requested(topic, instance)
    assert request.job_name == fold_job(topic.declaration.topic)
    assert request.asset_selection == state_keys(topic.declaration)
    result = materialize(topic, instance, request)
    assert result.success
    found = {e.check_name: e for e in result.get_asset_check_evaluations()}
    assert {name: each.passed for name, each in found.items()} == dict.fromkeys(
        (*checks.NAMES, checks.HISTORY), True
    ), found
    assert ids(topic) == [1, 2, 3]
    (event, _, of_history) = result.asset_materializations_for_node(fold_op("orders"))
    assert of_history.asset_key == state_keys(topic.declaration)[2]
    assert of_history.metadata["dagster/row_count"].value == 4
    values = {name: each.value for name, each in event.metadata.items()}
    assert (values["rows"], values["windows_applied"], values["made"]) == (3, 2, "rebuild")
    assert values["through"] == topic.windows[-1].key
    assert requested(topic, instance) == []
    row = state_status.collect(topic.declaration, STATE, topic.ledger, instance)
    assert (row.rows, row.pending_windows, row.is_due, row.through) == (3, 0, False, topic.windows[-1].key)
    assert row.healthy


def test_a_failed_run_is_requested_again_later(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    job = build_job(topic)
    run = instance.create_run_for_job(
        job, tags={STATE_TAG: state_tag(topic.declaration)}, status=dg.DagsterRunStatus.FAILURE
    )
    (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run.run_id]))
    failed_at = record.update_timestamp - topic.windows[-1].window.end
    assert requested(topic, instance, failed_at + timedelta(seconds=30)) == []
    assert len(requested(topic, instance, failed_at + timedelta(minutes=2))) == 1
    assert "the last fold failed" in state_status.collect(topic.declaration, STATE, topic.ledger, instance).problems[0]
    instance.create_run_for_job(job, tags={STATE_TAG: state_tag(topic.declaration)}, status=dg.DagsterRunStatus.STARTED)
    assert requested(topic, instance, failed_at + timedelta(minutes=2)) == [], "a run is under way"


def test_a_fold_waits_while_more_windows_are_loaded_than_are_pending(
    tmp_path: Path, instance: dg.DagsterInstance
) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    one, two, three, four, five = topic.load(*([order(number)] for number in range(5)))
    topic.decode()
    topic.changer.make(one)
    assert requested(topic, instance, coming=4), "the first fold does not wait: there is no state yet"
    state_of(topic).fold()
    topic.changer.make(two)
    assert len(requested(topic, instance, coming=1)) == 1
    assert requested(topic, instance, coming=2) == []
    minutes = [n for n in range(1, 12) if requested(topic, instance, timedelta(minutes=n), coming=2)]
    assert minutes == [10], "it waits for ten minutes, and then for ten minutes again"
    tags = {ASSET_PARTITION_RANGE_START_TAG: three, ASSET_PARTITION_RANGE_END_TAG: five}
    run = instance.create_run_for_job(build_job(topic), tags=tags, status=dg.DagsterRunStatus.STARTED)
    assert requested(topic, instance) == [], "three windows are being loaded, and one is pending"
    topic.changer.make(three)
    assert len(requested(topic, instance)) == 1, "two windows are still missing, and two are pending"
    topic.changer.make(four)
    assert len(requested(topic, instance, coming=2)) == 1
    assert requested(topic, instance, coming=3) == []
    instance.report_run_canceled(run)
    assert len(requested(topic, instance, coming=3)) == 1
    pending = state_of(topic).pending()
    assert pending.awaits_more(4)
    for wrong in ({"replaces": True}, {"erases": True}, {"is_interrupted": True}, {"rebuild": "requested"}):
        assert not replace(pending, **wrong).awaits_more(4)


def waits(topic: DecodedTopic) -> tuple[str, ...]:
    return state_status.collect(topic.declaration, STATE, topic.ledger, None).waits_for


def test_status_says_what_a_state_waits_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    one, two, three, four = topic.load([order(1)], [order(2)], [order(3), order(4)], [order(5)])
    topic.decode(one, two, four)
    topic.changer.make(one)
    assert waits(topic) == (
        "it is to be made from all changes (the state does not exist yet), 1 window: the sensor requests the fold, or run "
        "`platform-assets fold orders`",
    )
    state_of(topic).fold()
    assert waits(topic) == (), "windows that are newer than the newest one in the state are not late"
    topic.changer.make(four)
    (pending,) = waits(topic)
    assert (
        pending
        == f"1 window with 1 change, from {four} on: the sensor requests the fold, or run `platform-assets fold orders`"
    )
    with monkeypatch.context() as patched:
        patched.setattr(folding_of_states, "SMALL_ROWS", 0)
        patched.setattr(folding_of_states, "SHARE", 2)
        assert f"1 window with 1 change, from {four} on: a fold is due from 4 changes on" in waits(topic)[0]
    state_of(topic).fold()
    left = [
        f"1 older window is not yet in changes/orders, for example {two}: the sensor requests it, or run "
        f"`platform-assets load changes/orders {two}`",
        f"1 older window is not yet in decoded/orders, for example {three}: the sensor requests it, or run "
        f"`platform-assets load decoded/orders {three}`",
    ]
    assert sorted(waits(topic)) == left
    park(topic.declaration.decoded_table, [three], Author("tester", "broken"), topic.ledger)
    assert f"1 older window is parked in decoded/orders, for example {three}" in sorted(waits(topic))[1]
    assert f"`platform-assets unpark decoded/orders {three}` brings it back" in sorted(waits(topic))[1]
    topic.decode(three)
    topic.changer.make(three)
    topic.changer.make(two)
    state_of(topic).fold()
    assert waits(topic) == ()
    topic.state = replace(STATE, key=("amount",))
    (again,) = state_status.collect(topic.declaration, topic.state, topic.ledger, None).waits_for
    assert "nothing is folded yet: 4 windows have changes that were made with other columns" in again
    assert "the sensor requests these changes, or run `platform-assets load changes/orders --stale`" in again


def test_changes_that_a_damaged_file_lost_are_made_again_before_the_state_is(
    topic: DecodedTopic, instance: dg.DagsterInstance
) -> None:
    state = state_of(topic)
    state.fold()
    one, two = (window.key for window in topic.windows)
    state.changes_folder.delta().optimize.compact()
    (path,) = map(Path, state.changes_folder.delta().file_uris())
    path.write_bytes(path.read_bytes()[:200])
    topic.changer.make(one)
    waits = state_status.collect(topic.declaration, STATE, topic.ledger, None).waits_for
    assert f"1 window has no changes, but may be in the state, for example window {two}" in waits[0]
    with pytest.raises(ChangesOutdatedError, match=two):
        state.fold()
    newest = topic.windows[-1].window.end
    log = RunLog(instance, [topic.declaration.raw_table])
    tick = TopicTick(topic.declaration, cast("Cluster", None), topic.ledger, instance, newest, log)
    assert list(tick._unchanged(newest)) == [two]
    # Only if the window counts as replaced, the state can lose key 3, which its lost changes had.
    start = dict(topic.windows[1].ranges.items())[0].start
    values = {(0, start + n): value for n, value in enumerate([order(1), None, order(4)])}
    samples.loaded(topic.root, topic.windows[1], values=values, holes={}, proved_by="load digest")
    topic.declared = replace(topic.declared, revision=2)
    topic.decode(two)
    topic.changer.make(two)
    assert not tick._unchanged(newest)
    outcome = state.fold()
    assert "lost with damaged files" in outcome.reason
    assert ids(topic) == [1, 2, 4]


def build_job(topic: DecodedTopic) -> dg.JobDefinition:
    @dg.op
    def nothing() -> None: ...

    @dg.job
    def folding() -> None:
        nothing()

    return folding


def test_checks_find_what_another_program_changed(topic: DecodedTopic) -> None:
    state_of(topic).fold()
    table = state_of(topic).live_folder
    handle = table.delta()
    handle.delete("id = 2")
    found = {each.check: each for each in checks.results(topic.declaration, STATE, topic.ledger, seed="1")}
    assert found[checks.COMPLETE].alarming
    assert "another program" in found[checks.COMPLETE].headline


def test_checks_fail_if_files_of_a_state_are_lost_and_a_rebuild_repairs_it(topic: DecodedTopic) -> None:
    state = state_of(topic)
    state.fold()
    (path,) = (topic.root / "state").rglob("bucket-*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:200])
    found = {each.check: each for each in checks.results(topic.declaration, STATE, topic.ledger, seed="1")}
    for name in (checks.ONE_ROW, checks.EQUALS):
        assert found[name].alarming
        assert "data files of state/orders are missing or damaged" in found[name].headline
        assert found[name].findings[0].remedy == "Run `platform-assets fold orders --rebuild`."
    with pytest.raises(StateOutdatedError, match="fold orders --rebuild`, then compare again"):
        state.compare()
    state.fold(rebuild=True)
    assert all(each.passed for each in checks.results(topic.declaration, STATE, topic.ledger, seed="1"))
    assert state.compare().is_equal


@pytest.mark.parametrize(
    ("fault", "check", "text"),
    [
        ("missing", checks.EQUALS, "is missing"),
        ("twice", checks.ONE_ROW, "more than one row"),
        ("older", checks.EQUALS, "counts"),
        ("gap", checks.HISTORY, "instead of"),
        ("validity", checks.HISTORY, "has other values in valid_to"),
    ],
)
def test_checks_find_a_wrong_fold(
    topic: DecodedTopic, monkeypatch: pytest.MonkeyPatch, fault: str, check: str, text: str
) -> None:
    """Rows that a fold itself writes wrongly, so that its own commit describes them."""
    plain = folding.folded

    def wrong_history(*given: Any) -> Any:
        rows = chained(*given)
        if fault == "validity":
            return rows.set_column(rows.column_names.index("valid_to"), "valid_to", rows["valid_from"])
        return rows.slice(1) if fault == "gap" else rows

    def wrong(live: Any, dead: Any, changes: Any, *rest: Any) -> Any:
        if fault == "older" and changes is not None:
            changes = changes.filter(pc.not_equal(changes["window"], topic.windows[-1].key))
        rows, deleted = plain(live, dead, changes, *rest)
        if fault == "missing":
            rows = rows.slice(1)
        if fault == "twice":
            rows = pa.concat_tables([rows, rows.slice(0, 1)])
        return rows, deleted

    monkeypatch.setattr(folding, "folded", wrong)
    monkeypatch.setattr(folding, "chained", wrong_history)
    state_of(topic).fold()
    found = {each.check: each for each in checks.results(topic.declaration, STATE, topic.ledger, seed="1")}
    assert found[check].alarming, found
    assert text in found[check].findings[0].detail
    deep = checks.audit(topic.declaration, STATE, topic.ledger, topic.windows[-1].window.end, deep=False, seed="1")
    assert deep.exit_code == 1
    monkeypatch.undo()
    whole = checks.audit(topic.declaration, STATE, topic.ledger, topic.windows[-1].window.end, deep=True, seed="1")
    assert whole.checks[-1].outcome == "anomalies"


def test_a_late_window_is_named_until_it_is_folded(topic: DecodedTopic) -> None:
    state_of(topic).fold()
    topic.declared = replace(topic.declared, revision=2)
    first = topic.windows[0].key
    topic.decode(first)
    assert checks_of(topic)[checks.COMPLETE].passed
    topic.changer.make(first)
    assert all(each.passed for each in checks_of(topic).values()), "the same rows change nothing"


def checks_of(topic: DecodedTopic) -> dict[str, Any]:
    return {each.check: each for each in checks.results(topic.declaration, STATE, topic.ledger, seed="1")}


def test_a_state_that_does_not_exist_is_undecided(topic: DecodedTopic) -> None:
    assert all(each.undecided for each in checks_of(topic).values())


def test_fresh_rows_are_those_of_a_fold(tmp_path: Path) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    topic.load([order(1), order(1), order(2)], [order(1), None, order(3)], [order(7), order(2)])
    topic.decode()
    first, second, third = (window.key for window in topic.windows)
    topic.changer.make(first)
    topic.changer.make(second)
    state_of(topic).fold()
    topic.changer.make(third)
    pending = state_of(topic).pending()
    assert pending.windows == (third,)
    columns = state_of(topic).opened().live.columns.names
    texts = fresh_view(state_of(topic), columns, min(pending.windows), None)
    found = {}
    for reader in ("polars", "duckdb"):
        names: dict[str, Any] = {}
        exec(texts[reader], names)
        rows = names["fresh"].collect() if reader == "polars" else names["fresh"].pl()
        found[reader] = rows.select("id", "window").sort("id").rows()
    assert found["polars"] == found["duckdb"] == [(1, second), (2, third), (3, second), (7, third)]
    state_of(topic).fold()
    assert ids(topic) == [1, 2, 3, 7]


@pytest.mark.parametrize(
    ("pending", "expected"),
    [
        (Pending(("2025-01-02",), 1_000, "2025-01-01", 1_000_000, 60 << 20), True),
        (Pending(("2025-01-02",), 2_000_000, "2025-01-01", 1_000_000, 60 << 20), False),
        (Pending(("2025-01-01",), 1_000, "2025-01-01", 1_000_000, 60 << 20), False),
        (Pending(("2025-01-02",), 1_000, "", 0, 0, "the state does not exist yet"), False),
        (Pending((), 0, "2025-01-01", 0, 0), False),
    ],
    ids=["few", "many", "also folded windows", "no state", "nothing"],
)
def test_spark_sends_keys_to_its_tasks_only_if_they_are_few(pending: Pending, *, expected: bool) -> None:
    assert can_broadcast(pending) is expected


def test_a_history_can_be_read_as_of_each_window(topic: DecodedTopic) -> None:
    state_of(topic).fold()
    first, second = (window.key for window in topic.windows)
    for window, expected in (
        (first, [(1, first), (2, first)]),
        (second, [(1, second), (2, first), (3, second)]),
        ("' OR 1=1 --", []),
    ):
        texts = as_of(state_of(topic), window, None)
        for reader in ("polars", "duckdb"):
            names: dict[str, Any] = {}
            exec(texts[reader], names)
            rows = names["rows"].collect() if reader == "polars" else names["rows"].pl()
            assert rows.select("id", "valid_from").sort("id").rows() == expected, (reader, window)


def test_a_lost_history_is_made_again(topic: DecodedTopic, instance: dg.DagsterInstance) -> None:
    state_of(topic).fold()
    assert not requested(topic, instance)
    shutil.rmtree(topic.root / "history" / topic.topic)
    (request,) = requested(topic, instance)
    assert materialize(topic, instance, request).success
    assert not requested(topic, instance)
    assert pl.scan_delta(str(topic.root / "history" / topic.topic)).collect().height == 4


def test_commands_fold_and_judge(topic: DecodedTopic, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "project")
    file = shell.declare("orders", "2025-01-01T00:00Z")
    file.write_text(
        file.read_text()
        + '  decode:\n    value: {format: json, schema: "id BIGINT NOT NULL, amount DECIMAL(12, 2)"}\n'
        + "  state: {key: [id], deletes: none, history: true}\n"
    )
    shell.variables["LAKE_ROOT"] = str(topic.root)
    dry = shell.run("fold", "orders", "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "state/orders: would be made from all changes: the state does not exist yet" in dry.stdout
    assert not state_of(topic).exists
    done = shell.run("fold", "state/orders", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["made"], found["rows"], found["deleted"], found["history"]) == ("rebuild", 3, 0, 4)
    assert "nothing to apply" in shell.run("fold", "orders").stdout
    audit = shell.run("audit", "state/orders", "--deep")
    assert audit.exit_code == 0, audit.output
    read = shell.run("read", "state/orders", "--json")
    assert read.exit_code == 0, read.output
    assert "fresh polars" in json.loads(read.stdout)["snippets"]
    read = shell.run("read", "history/orders", "--json")
    assert read.exit_code == 0, read.output
    assert f"window = '{topic.windows[-1].key}'" in json.loads(read.stdout)["snippets"]["as of duckdb"]
    unknown = shell.run("fold", "payments")
    assert unknown.exit_code == 1
    assert "the states of this project are: state/orders" in unknown.stderr


def test_files_of_other_programs_leave_after_an_erasure(topic: DecodedTopic) -> None:
    state_of(topic).fold()
    folder = state_of(topic).live_folder
    handle = folder.delta()
    handle.optimize.compact(target_size=1 << 30) if len(handle.file_uris()) > 1 else handle.optimize.z_order(["id"])
    others = [name for name in folder.files() if name.endswith(".parquet")]
    assert others, "the other program wrote no file"
    made = state_of(topic).fold(rebuild=True, erases=True)
    assert made.rows == 3
    assert [name for name in folder.files() if name.endswith(".parquet")] == []
    assert state_table.past_files(folder, folder.delta().version()) == []


def test_the_job_that_loads_windows_folds_nothing(topic: DecodedTopic) -> None:
    """Otherwise a backfill would write the whole state once for each partition."""
    selected = job_of(topic, load_job("orders")).asset_layer.selected_asset_keys
    assert selected.isdisjoint(state_keys(topic.declaration))


def test_wrong_rows_are_made_again_without_new_changes(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    topic = DecodedTopic(tmp_path / "lake", "orders")
    topic.state = STATE
    topic.load([order(1)], [order(3)])
    topic.decode()
    for window in topic.windows:
        topic.changer.make(window.key)
        made = state_of(topic).fold()
    assert made.made == "fold"
    assert requested(topic, instance) == []
    judge(topic, instance, passed=False)
    (request,) = requested(topic, instance)
    assert request.asset_selection == state_keys(topic.declaration)
    assert materialize(topic, instance, request).success
    assert requested(topic, instance) == []
    # Somebody makes the state again by the command, which does not evaluate Dagster's checks.
    judge(topic, instance, passed=False)
    (again,) = requested(topic, instance)
    assert (again.asset_selection, len(again.asset_check_keys or ())) == ([], 4)


def judge(topic: DecodedTopic, instance: dg.DagsterInstance, *, passed: bool) -> None:
    instance.report_runless_asset_event(
        dg.AssetCheckEvaluation(
            asset_key=state_keys(topic.declaration)[0],
            check_name=checks.EQUALS,
            passed=passed,
            severity=dg.AssetCheckSeverity.ERROR,
        )
    )


def test_columns_may_have_any_name_in_the_code_for_fresh_rows(topic: DecodedTopic) -> None:
    columns = ["id", "place", 'a"b', "a`b"]
    texts = fresh_view(state_of(topic), columns, "' OR 1=1 --", None)
    assert "AS place_ FROM" in texts["duckdb"]
    assert "AS place_ FROM" in texts["spark"]
    assert "`a``b`" in texts["spark"]
    assert '`a"b`' in texts["spark"]
    assert all("OR 1=1" not in text for text in texts.values())


@pytest.mark.parametrize("applied", ["first windows", "any windows", "all windows"])
@pytest.mark.parametrize(
    ("keep", "deletes", "version"),
    [
        ("last", "tombstone", POSITION),
        ("last", "debezium", POSITION),
        ("last", "none", "amount"),
        ("first", "none", POSITION),
        ("first", "none", "amount"),
    ],
)
def test_fresh_rows_are_those_of_a_dictionary(
    tmp_path: Path,
    rng: random.Random,
    keep: Literal["last", "first"],
    deletes: Deletes,
    version: str,
    applied: str,
) -> None:
    """Random changes, of which some windows are in the state already, also windows after one that is not. Then more are
    folded, and the code that was printed before stays right."""
    declared = StateDeclaration(("id", "part"), version, deletes, keep)
    names = (
        "id",
        "part",
        "amount",
        "generation",
        "window",
        "kafka_partition",
        "kafka_offset",
        "kafka_timestamp",
        "deleted",
    )
    changes: list[tuple[Any, ...]] = []
    for window in range(6):
        for offset, n in enumerate(rng.sample(range(12), 7)):
            deleted = deletes != "none" and rng.random() < 0.4
            amount = None if deleted else rng.randrange(99)
            key = (n // 2, "ab"[n % 2])
            place = (1, f"2026-01-0{window + 1}", n % 3, 10 * window + offset, window)
            changes.append((*key, amount, *place, deleted))
        if deletes == "debezium" and rng.random() < 0.3:
            changes.append((None, None, None, 1, f"2026-01-0{window + 1}", 3, 10 * window + 9, window, True))

    def folded(windows: Collection[str]) -> list[dict[str, Any]]:
        best: dict[Any, tuple[Any, ...]] = {}
        by_version = version != POSITION
        for change in sorted(changes, key=lambda c: (c[2] if by_version else 0, *c[3:7]), reverse=keep == "first"):
            if change[4] in windows:
                best = {} if change[0] is None else best
                best[change[:2]] = change
        return [dict(zip(names, each, strict=True)) for each in best.values()]

    windows = sorted({change[4] for change in changes})
    in_state = {"first windows": windows[:2], "any windows": rng.sample(windows, 3), "all windows": windows}[applied]
    pending = tuple(window for window in windows if window not in in_state)
    since, is_folded = changes_from(Pending(pending, 0, max(in_state), 0, 0))
    in_state = [*in_state, *rng.sample(pending, len(pending) // 2)]
    types = [
        pa.int64(),
        pa.string(),
        pa.int64(),
        pa.int32(),
        pa.string(),
        pa.int32(),
        pa.int64(),
        pa.int64(),
        pa.bool_(),
    ]
    schema = pa.schema(list(zip(names, types, strict=True)))
    live = [name for name in names if name != "deleted"]
    for table, columns, rows in (
        ("live", live, [row for row in folded(in_state) if not row["deleted"]]),
        ("changes", list(names), [dict(zip(names, change, strict=True)) for change in changes]),
    ):
        write_deltalake(tmp_path / table, pa.Table.from_pylist(rows, schema).select(columns))
    places = {f"{table}_folder": Folder.at(tmp_path / table) for table in ("live", "changes")}
    state = cast("TopicState", SimpleNamespace(declared=declared, **places))
    texts = fresh_view(state, live, since, None, is_folded=is_folded)
    expected = sorted((row["id"], row["part"], row["amount"]) for row in folded(windows) if not row["deleted"])
    for reader in ("polars", "duckdb"):
        found: dict[str, Any] = {}
        exec(texts[reader], found)
        rows = found["fresh"].collect() if reader == "polars" else found["fresh"].pl()
        assert sorted(rows.select("id", "part", "amount").rows()) == expected, reader
        assert rows.columns == live


def test_times_after_the_year_9999_are_compared() -> None:
    far = pa.array([1_700_000_000_000_000_000, None], pa.timestamp("us", "UTC"))
    nested = pa.array([{"at": 1}, None], pa.struct([("at", pa.timestamp("us"))]))
    block = pa.RecordBatch.from_pydict({"at": far, "nested": nested, "days": pa.array([3_000_000, 1], pa.date32())})
    assert checks._with_numbers(block).to_pylist() == [
        {"at": 1_700_000_000_000_000_000, "nested": {"at": 1}, "days": 3_000_000},
        {"at": None, "nested": None, "days": 1},
    ]


def test_a_struct_that_got_a_field_has_the_same_values() -> None:
    assert repr(checks._known([{"a": 1, "b": None}])) == repr(checks._known([{"a": 1}]))
    assert repr(checks._known({"a": None})) != repr(checks._known(None))
