"""A published topic in Dagster: when its sensor requests runs, and what `status` says about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dagster as dg
import pyarrow as pa
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned

from platform_assets.checks.decoded import SHARE
from platform_assets.errors import PublishingBlockedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.ledger.store import Ledger
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.names import identifier
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import StateRef
from platform_assets.orchestration import names, published
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.windows.derive.checking import EQUALS_REBUILD
from platform_assets.windows.publish.keyed import KeyedPublisher
from platform_assets.windows.state.folding import TopicState
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from platform_assets_tests.support.derived_lake import Flights
from platform_assets_tests.support.streams import create_again
from testbed.clients import client_settings

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = pytest.mark.broker

SECOND = timedelta(seconds=1)


class Clock(datetime):
    """The time that the sensor sees: the current time, and what a test adds to it."""

    later = timedelta(0)

    @classmethod
    def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
        return datetime.now(UTC) + cls.later


def ticked(
    declared: PublishDeclaration, bootstrap: str, root: Path, instance: dg.DagsterInstance, cursor: str | None
) -> tuple[str, str | None]:
    """Return what one tick of the sensor says, empty if it requests a run, and the cursor after it."""
    made = published.build_definitions(declared, group="g", description=None, owners=(), sensor_running=False)
    (sensor,) = made.sensors or ()
    assert isinstance(sensor, dg.SensorDefinition)
    resources = {"kafka": KafkaResource(bootstrap_servers=bootstrap), "lake": LakeResource(root=str(root))}
    with dg.build_sensor_context(instance, cursor=cursor, resources=resources) as context:
        found = sensor(context)
    if isinstance(found, dg.SkipReason):
        return found.skip_message or "", cursor
    assert isinstance(found, dg.SensorResult)
    assert len(found.run_requests or ()) == 1
    return "", found.cursor


def test_the_sensor_waits_longer_after_each_failure_but_not_for_what_is_new(
    broker: Broker, topic: TopicMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(0)], [order(1)])
    made.decode(made.windows[0].key)
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    monkeypatch.setattr(published, "datetime", Clock)
    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None, changed: PublishDeclaration = declared) -> tuple[str, str | None]:
            return ticked(changed, broker.bootstrap, made.root, instance, cursor)

        def ended(status: dg.DagsterRunStatus) -> None:
            instance.add_run(dg.DagsterRun(job_name=f"{identifier(target)}_publish_job", status=status))

        said, cursor = tick(None)
        assert said == ""
        ended(dg.DagsterRunStatus.SUCCESS)
        assert tick(cursor) == ("Every window is published.", cursor)
        # Something new in the table, another declaration.
        made.decode(made.windows[1].key)
        said, newer = tick(cursor)
        assert (said, newer == cursor) == ("", False)
        assert tick(newer) == ("Every window is published.", newer)
        wider = replace(declared, transaction_rows=7)
        assert tick(newer, wider)[0] == ""
        # Failures in a row.
        for failures, minutes in ((1, 2), (2, 4), (3, 8)):
            ended(dg.DagsterRunStatus.FAILURE)
            words = "The last run failed." if failures == 1 else f"The last {failures} runs failed."
            Clock.later = timedelta(minutes=minutes - 1)
            said, kept = tick(newer)
            assert said.startswith(f"{words} The next one is requested after ")
            assert kept == newer
            Clock.later = timedelta(minutes=minutes)
            assert tick(newer) == ("", newer)
        Clock.later = timedelta(0)
        assert tick(newer, wider)[0] == ""
        create_again(broker, target)
        assert tick(newer)[0] == ""
        ended(dg.DagsterRunStatus.STARTED)
        assert tick(newer) == ("The last run has not finished yet.", newer)


def test_a_run_of_another_code_location_is_not_taken_for_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = PublishDeclaration("t", DecodedTopic(tmp_path, "orders").declaration.decoded_table)
    monkeypatch.setattr(published, "target_of", lambda *_: "target")
    monkeypatch.setattr(published, "state_of", lambda *_: "state")

    def tick(cursor: str | None) -> tuple[str, str | None]:
        return ticked(declared, "nowhere:1", tmp_path, instance, cursor)

    def ended(status: dg.DagsterRunStatus, location: str | None) -> None:
        tags = {} if location is None else {"platform_assets/published": f"{location}/published/t"}
        instance.add_run(dg.DagsterRun(job_name="t_publish_job", status=status, tags=tags))

    monkeypatch.setenv("PLATFORM_ASSET_PREFIX", "north")
    with dg.DagsterInstance.ephemeral() as instance:
        _, cursor = tick(None)
        ended(dg.DagsterRunStatus.STARTED, "south")
        assert tick(cursor)[0] == ""
        # A run of an earlier release.
        ended(dg.DagsterRunStatus.SUCCESS, None)
        assert tick(cursor)[0] == "Every window is published."
        ended(dg.DagsterRunStatus.FAILURE, "north")
        ended(dg.DagsterRunStatus.SUCCESS, "south")
        assert tick(cursor)[0].startswith("The last run failed.")
        made = published.build_definitions(declared, group="g", description=None, owners=(), sensor_running=False)
        (job,) = made.jobs or ()
        assert job.tags == {"platform_assets/published": "north/published/t"}


def test_a_tick_without_the_topic_says_so_and_keeps_the_cursor(broker: Broker, tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    declared = PublishDeclaration("no-such-topic", made.declaration.decoded_table)
    with dg.DagsterInstance.ephemeral() as instance:
        said, cursor = ticked(declared, broker.bootstrap, made.root, instance, "before")
    assert said.startswith("topic 'no-such-topic' does not exist on the broker")
    assert cursor == "before"


def test_the_sensor_waits_for_a_table_without_windows(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    declared = PublishDeclaration(topic(), DerivedRef("counts"), key=Part("text", ("id",)))
    with dg.DagsterInstance.ephemeral() as instance:
        assert ticked(declared, broker.bootstrap, tmp_path, instance, None) == (
            "derived/counts does not exist yet.",
            None,
        )


def test_the_pause_after_failures_doubles_up_to_an_hour() -> None:
    found = [published.pause_after(n) / timedelta(minutes=1) for n in range(1, 9)]
    assert found == [2, 4, 8, 16, 32, 60, 60, 60]


def test_a_failing_check_of_the_table_blocks_what_cannot_be_taken_back(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(0)])
    made.decode()
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    cluster, key = Cluster.connect(client_settings(broker.bootstrap)), table_key(made.declaration.decoded_table)
    spec = dg.AssetCheckSpec(SHARE, asset=key, blocking=True)

    @dg.multi_asset_check(specs=[spec], name="decoded")
    def decoded() -> Iterator[dg.AssetCheckResult]:
        raise AssertionError

    made_of = published.build_definitions(declared, group="g", description=None, owners=(), sensor_running=False)
    services = {"kafka": KafkaResource(bootstrap_servers=broker.bootstrap), "lake": LakeResource(root=str(made.root))}
    whole = dg.Definitions.merge(made_of, dg.Definitions(asset_checks=[decoded], resources=services))
    with dg.DagsterInstance.ephemeral() as instance:

        def tick() -> Any:
            repository = whole.get_repository_def()
            (sensor,) = repository.sensor_defs
            with dg.build_sensor_context(instance, repository_def=repository, resources=services) as context:
                return sensor(context)

        def said() -> list[str]:
            topics = {made.topic: made.declaration}
            return published.problems([declared], made.ledger, cluster, datetime.now(UTC), instance, topics)

        assert isinstance(tick(), dg.SensorResult)
        assert "because a check" not in " ".join(said())
        for severity, blocks in ((dg.AssetCheckSeverity.ERROR, True), (dg.AssetCheckSeverity.WARN, False)):
            evaluation = dg.AssetCheckEvaluation(key, spec.name, passed=False, metadata={}, severity=severity)
            instance.report_runless_asset_event(evaluation)
            assert isinstance(tick(), dg.SkipReason) is blocks
            (text,) = said()
            assert (f"because a check of decoded/orders fails: {SHARE}. Follow" in text) is blocks
            assert ("are not published yet" in text) is not blocks
        assert published.publisher_of(declared, made.ledger, cluster).run().records == 1


def test_loads_of_a_run_that_has_not_finished_wait_for_its_checks(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(0)], [order(1), order(2)], [order(3)], [order(4)])
    first, second, third, fourth = made.windows
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    key = table_key(made.declaration.decoded_table)
    spec = dg.AssetCheckSpec(SHARE, asset=key, blocking=True)

    @dg.multi_asset_check(specs=[spec], name="decoded")
    def decoded() -> Iterator[dg.AssetCheckResult]:
        raise AssertionError

    made_of = published.build_definitions(declared, group="g", description=None, owners=(), sensor_running=False)
    services = {"kafka": KafkaResource(bootstrap_servers=broker.bootstrap), "lake": LakeResource(root=str(made.root))}
    whole = dg.Definitions.merge(made_of, dg.Definitions(asset_checks=[decoded], resources=services))
    repository = whole.get_repository_def()
    (sensor,) = repository.sensor_defs
    cluster = Cluster.connect(client_settings(broker.bootstrap))

    with dg.DagsterInstance.ephemeral() as instance:

        def tick(cursor: str | None) -> Any:
            with dg.build_sensor_context(
                instance, cursor=cursor, repository_def=repository, resources=services
            ) as context:
                return sensor(context)

        def run(**tags: str) -> dg.ExecuteInProcessResult:
            job = repository.get_job(f"{identifier(target)}_publish_job")
            return job.execute_in_process(instance=instance, tags=tags, raise_on_error=False)

        def counts(result: dg.ExecuteInProcessResult) -> tuple[object, object]:
            assert result.success
            (event,) = result.get_asset_materialization_events()
            metadata = event.materialization.metadata
            return metadata["windows"].value, metadata["windows of unfinished runs"].value

        made.decode(first.key)
        asked = tick(None)
        by_sensor = asked.run_requests[0].tags
        assert counts(run(**by_sensor)) == (1, 0)
        # A run decodes the second window and has not evaluated the checks; somebody decodes the third one meanwhile.
        loading = dg.DagsterRun(job_name="loads", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(loading)
        replace(made.decoder, run_id=loading.run_id).decode(second.key)
        assert tick(asked.cursor).skip_message == "Every window is published."
        made.decode(third.key)
        again = tick(asked.cursor)
        assert again.cursor != asked.cursor
        assert counts(run(**by_sensor)) == (0, 1), "the third window has to follow the second one"
        publisher = published.publisher_of(declared, made.ledger, cluster, unfinished_runs=lambda: [loading.run_id])
        assert (publisher.plan().unchecked, publisher.plan().blocked) == ((second.key,), (third.key,))

        # The check fails after the sensor requested a run.
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(key, spec.name, passed=False, metadata={}, severity=dg.AssetCheckSeverity.ERROR)
        )
        failed = run(**by_sensor)
        assert not failed.success
        (step,) = failed.get_step_failure_events()
        assert f"a check of decoded/orders fails: decoded/orders {SHARE}. Follow" in str(step.step_failure_data.error)
        # The run ends well.
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(key, spec.name, passed=True, metadata={}))
        instance.report_dagster_event(dg.DagsterEvent("PIPELINE_SUCCESS", loading.job_name), loading.run_id)
        assert tick(again.cursor).skip_message.startswith("The last run failed.")
        assert counts(run(**by_sensor)) == (2, 0)
        after = tick(again.cursor)
        assert after.cursor != again.cursor
        assert tick(after.cursor).skip_message == "Every window is published."

        # Somebody who publishes does so whatever the checks say.
        reload = dg.DagsterRun(job_name="loads", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(reload)
        replace(made.decoder, run_id=reload.run_id).decode(fourth.key)
        assert counts(run(**by_sensor)) == (0, 1)
        assert counts(run()) == (1, 0)


def test_a_version_of_a_table_without_windows_waits_for_the_checks_of_its_run(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    lake, target = Flights(tmp_path), topic()
    derived = DerivedDeclaration(DerivedRef("counts"), {"id": "id"}, "SELECT id FROM decoded.flights GROUP BY ALL")
    declared = PublishDeclaration(target, derived.table, key=Part("text", ("id",)))
    check = dg.AssetCheckKey(dg.AssetKey(["derived", "counts"]), EQUALS_REBUILD)

    @dg.multi_asset_check(specs=[dg.AssetCheckSpec(check.name, asset=check.asset_key, blocking=True)], name="counts")
    def counts() -> Iterator[dg.AssetCheckResult]:
        raise AssertionError

    made_of = published.build_definitions(declared, group="g", description=None, owners=(), sensor_running=False)
    services = {"kafka": KafkaResource(bootstrap_servers=broker.bootstrap), "lake": LakeResource(root=str(tmp_path))}
    repository = dg.Definitions.merge(
        made_of, dg.Definitions(asset_checks=[counts], resources=services)
    ).get_repository_def()
    (sensor,) = repository.sensor_defs
    ledger, cluster = Ledger(lake.lake), Cluster.connect(client_settings(broker.bootstrap))
    later = datetime.now(UTC) + timedelta(hours=1)
    with dg.DagsterInstance.ephemeral() as instance:

        def begun(*ids: int) -> str:
            run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTING)
            instance.add_run(run)
            instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", "job"), run.run_id)
            if ids:
                lake.derive(derived, pa.table({"id": ids}), run.run_id)
            return run.run_id

        def ended(run_id: str, how: str) -> None:
            instance.report_dagster_event(dg.DagsterEvent(how, "job"), run_id)

        def tick(cursor: str | None = None) -> Any:
            with dg.build_sensor_context(
                instance, cursor=cursor, repository_def=repository, resources=services
            ) as context:
                return sensor(context)

        def run(**tags: str) -> tuple[object, object]:
            job = repository.get_job(f"{identifier(target)}_publish_job")
            done = job.execute_in_process(instance=instance, tags=tags)
            (event,) = done.get_asset_materialization_events()
            metadata = event.materialization.metadata
            return metadata["records"].value, metadata["windows of unfinished runs"].value

        def said() -> str:
            (text,) = published.problems([declared], ledger, cluster, later, instance, {}, {derived.table: derived})
            return text

        good = begun(1)
        assert tick().skip_message == f"The newest version of derived/counts waits for the checks of run {good}."
        assert f"because run {good}, which made it, has not finished" in said()
        evaluated(instance, good, check)
        ended(good, "PIPELINE_SUCCESS")
        asked = tick()
        by_sensor = asked.run_requests[0].tags
        died = begun(1, 2)
        assert run(**by_sensor) == (0, 1), "made after the sensor requested the run"
        assert died in tick(asked.cursor).skip_message
        ended(died, "PIPELINE_FAILURE")
        # Nothing evaluates the checks of a run that died.
        assert died in tick(asked.cursor).skip_message
        assert run(**by_sensor) == (0, 1)
        assert "to do so now, materialize the table; or, to publish without them" in said()
        assert "not published yet" not in said()
        # A run that finds nothing new evaluates them.
        again = begun()
        evaluated(instance, again, check)
        ended(again, "PIPELINE_SUCCESS")
        newer = tick(asked.cursor)
        assert newer.cursor != asked.cursor
        assert "not published yet" in said()
        assert run(**by_sensor) == (2, 0)
        assert tick(newer.cursor).skip_message == "The newest version is published."
        # Somebody who publishes does so whatever the checks say.
        begun(1, 2, 3)
        assert run(**by_sensor) == (0, 1)
        assert run() == (1, 0)
        failure = dg.AssetCheckEvaluation(
            check.asset_key, check.name, passed=False, metadata={}, severity=dg.AssetCheckSeverity.ERROR
        )
        instance.report_runless_asset_event(failure)
        lake.derive(derived, pa.table({"id": [1]}))
        assert tick(newer.cursor).skip_message.startswith("A failing check blocks it")
        assert f"because a check of derived/counts fails: {EQUALS_REBUILD}. Follow" in said()
        with pytest.raises(PublishingBlockedError, match="a check of derived/counts fails"):
            run(**by_sensor)


@pytest.mark.parametrize("end", ["PIPELINE_FAILURE", "PIPELINE_CANCELED"])
def test_a_state_names_the_run_whose_checks_are_waited_for(tmp_path: Path, end: str) -> None:
    made, state = DecodedTopic(tmp_path / "lake", "orders"), StateDeclaration(("id",), deletes="none")
    made.state = state
    made.load([order(1)])
    made.decode()
    made.changer.make(made.windows[0].key)
    declared = PublishDeclaration("target", StateRef("state", "orders"), key=Part("text", ("id",)))
    checks = names.state_check_keys(made.declaration)
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(run)
        TopicState("orders", state, made.lake, run.run_id).fold()
        version = published.state_of(declared, made.ledger)
        maker = KeyedPublisher.maker_of(declared, made.ledger, version)
        assert maker == run.run_id
        assert published._waits_for(instance, maker, checks) == run.run_id
        instance.report_dagster_event(dg.DagsterEvent(end, "job"), run.run_id)
        assert published._waits_for(instance, maker, checks) == run.run_id
        assert published._waits_for(instance, maker, ()) is None, "a table without checks waits for none"
        assert published._waits_for(instance, "", checks) is None, "no run made the rows"
        later = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTED)
        instance.add_run(later)
        for key in checks[:2]:
            planned(instance, later.run_id, key)
        evaluated(instance, later.run_id, checks[0])
        instance.report_dagster_event(dg.DagsterEvent("PIPELINE_FAILURE", "job"), later.run_id)
        assert published._waits_for(instance, maker, checks) == run.run_id, (
            "the later run did not evaluate all of its checks"
        )
        evaluated(instance, run.run_id, checks[0])
        assert published._waits_for(instance, maker, checks) is None


def planned(instance: dg.DagsterInstance, run_id: str, key: dg.AssetCheckKey) -> None:
    """Report that a run is to evaluate a check."""
    data = AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name)
    event = dg.DagsterEvent("ASSET_CHECK_EVALUATION_PLANNED", "job", event_specific_data=data)
    instance.report_dagster_event(event, run_id)


def evaluated(instance: dg.DagsterInstance, run_id: str, key: dg.AssetCheckKey) -> None:
    """Report that a run evaluated a check, which passed."""
    data = dg.AssetCheckEvaluation(key.asset_key, key.name, passed=True, metadata={})
    event = dg.DagsterEvent("ASSET_CHECK_EVALUATION", "job", event_specific_data=data)
    instance.report_dagster_event(event, run_id)


@pytest.mark.parametrize("end", ["PIPELINE_FAILURE", "PIPELINE_CANCELED"])
def test_loads_of_a_run_that_died_before_its_checks_wait_for_them(tmp_path: Path, end: str) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(0)], [order(1)], [order(2)], [order(3)])
    first, second, third, fourth = made.windows
    declared = PublishDeclaration("target", made.declaration.decoded_table)
    check = dg.AssetCheckKey(table_key(made.declaration.decoded_table), SHARE)
    with dg.DagsterInstance.ephemeral() as instance:

        def begun(window: str | None = None) -> str:
            run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.STARTING)
            instance.add_run(run)
            instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", "job"), run.run_id)
            if window is not None:
                replace(made.decoder, run_id=run.run_id).decode(window)
            return run.run_id

        def ended(run_id: str, how: str = end) -> None:
            instance.report_dagster_event(dg.DagsterEvent(how, "job"), run_id)

        def waiting(*checks: dg.AssetCheckKey) -> list[str]:
            return published._not_checked(instance, declared, made.ledger, checks)

        good = begun(first.key)
        evaluated(instance, good, check)
        ended(good, "PIPELINE_SUCCESS")
        died, other, early = begun(second.key), begun(), begun()
        ended(died)
        ended(other)
        evaluated(instance, early, check)
        ended(early, "PIPELINE_SUCCESS")
        assert waiting(check) == [died], "the other run began before"
        # Ticks repeat results.
        instance.report_runless_asset_event(dg.AssetCheckEvaluation(check.asset_key, SHARE, passed=True, metadata={}))
        assert waiting(check) == [died]
        unchecked = published.state_of(declared, made.ledger, lambda: waiting(check))
        assert waiting() == [], "a table without checks waits for none"
        late = begun(third.key)
        evaluated(instance, late, check)
        ended(late)
        assert waiting(check) == []
        assert published.state_of(declared, made.ledger, lambda: waiting(check)) != unchecked
        # Somebody deletes a run.
        again = begun(fourth.key)
        ended(again)
        assert waiting(check) == [again]
        instance.delete_run(again)
        assert waiting(check) == []


def test_a_load_of_a_run_that_begins_meanwhile_is_not_taken_as_checked(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(0)], [order(1)])
    made.decode(made.windows[0].key)
    declared = PublishDeclaration("target", made.declaration.decoded_table)

    def state(second: bool) -> str:
        def unfinished() -> list[str]:
            if second:
                made.decode(made.windows[1].key)
            return []

        return published.state_of(declared, made.ledger, unfinished)

    # Otherwise, nothing would change when that run has finished, and no run would publish the window.
    assert state(False) == state(True) != state(False)


def test_status_names_windows_that_wait_for_checks(broker: Broker, topic: TopicMaker, tmp_path: Path) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(0)])
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    cluster = Cluster.connect(client_settings(broker.bootstrap))
    with dg.DagsterInstance.ephemeral() as instance:
        run = dg.DagsterRun(job_name="job", status=dg.DagsterRunStatus.FAILURE)
        instance.add_run(run)
        replace(made.decoder, run_id=run.run_id).decode(made.windows[0].key)
        topics = {made.topic: made.declaration}
        (said,) = published.problems([declared], made.ledger, cluster, datetime.now(UTC), instance, topics)
    assert f"1 windows are not published, because run {run.run_id} failed after it had loaded them" in said


def test_status_names_windows_that_are_late_and_those_that_wait_for_another(
    broker: Broker, topic: TopicMaker, tmp_path: Path
) -> None:
    made, target = DecodedTopic(tmp_path / "lake", "orders"), topic()
    made.load([order(0), order(1)], [order(2)], [order(3), order(4), order(5)])
    first, second, third = made.windows
    made.decode(first.key, third.key)
    declared = PublishDeclaration(target, made.declaration.decoded_table, key=Part("text", ("id",)))
    cluster = Cluster.connect(client_settings(broker.bootstrap))

    def said(now: datetime) -> list[str]:
        return published.problems([declared], made.ledger, cluster, now)

    waits = (
        f"published/{target}: 1 windows with 3 rows wait for window {second.key}, which is not loaded yet. "
        "Load it, or park it"
    )
    late = (
        f"published/{target}: 1 windows with 2 rows are not published yet. The sensor requests a run; "
        f"`platform-assets publish {target}` publishes them now"
    )
    assert said(first.window.end + published.LATE_AFTER) == []
    assert said(first.window.end + published.LATE_AFTER + SECOND) == [late]
    assert said(third.window.end + published.LATE_AFTER + SECOND) == [waits, late]
    published.publisher_of(declared, made.ledger, cluster).run()
    assert said(third.window.end + published.LATE_AFTER + SECOND) == [waits]
    made.decode(second.key)
    published.publisher_of(declared, made.ledger, cluster).run()
    assert said(third.window.end + published.LATE_AFTER + SECOND) == []


def test_status_says_what_it_cannot_determine(tmp_path: Path) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    declared = PublishDeclaration("target", made.declaration.decoded_table)
    cluster = Cluster.connect(ClientSettings("127.0.0.1:1"), timeout=0.5)
    (text,) = published.problems([declared], made.ledger, cluster, datetime.now(UTC))
    assert text.startswith("published/target: its state is unknown: ")
