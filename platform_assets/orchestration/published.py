"""The Dagster definitions of a published topic: asset, check, job and sensor."""

# No postponed annotations here: Dagster reads those of the functions below.
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from types import MappingProxyType
from typing import Any, Final

import dagster as dg

from platform_assets.checks import published as evidence_of
from platform_assets.checks import published_keys, published_records
from platform_assets.checks.published import Evidence
from platform_assets.errors import PlatformError, PublishingBlockedError
from platform_assets.kafka.cluster import Cluster
from platform_assets.ledger import decisions
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.derived import DerivedDeclaration, DerivedRef
from platform_assets.model.names import identifier
from platform_assets.model.publishing import PublishDeclaration
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.model.untrusted import line, markdown
from platform_assets.orchestration import dagster_records, derived_status, names
from platform_assets.orchestration.names import key_prefix
from platform_assets.orchestration.resources import KafkaResource, LakeResource
from platform_assets.windows.publish.keyed import KeyedPublisher
from platform_assets.windows.publish.progress import Published
from platform_assets.windows.publish.publishing import Publisher, fingerprint

KIND: Final = "published"
AGAIN_AFTER: Final = timedelta(minutes=2)
"""Time after a failed run until the sensor requests another one. It doubles with each failure in a row."""
LATEST_AGAIN: Final = timedelta(hours=1)
_COUNTED: Final = 8
LATE_AFTER: Final = timedelta(minutes=15)
"""Time after a window's end until `status` reports that it is not published."""
_CHECKS_TAG: Final = "platform_assets/blocking_checks"
"""Tag of a run that the sensor requests: the names of the table's blocking checks, as JSON. Loads of runs that have not evaluated
these checks wait in such a run. In a run that somebody launched, they do not."""
_TAG: Final = "platform_assets/published"
"""Tag of the runs of a topic's job: the topic's asset key, which has the prefix of the code location. Another location may have a
job with the same name."""
_UNDER_WAY: Final = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
)


def published_key(topic: str) -> dg.AssetKey:
    """Return the key of the asset. Raises ConfigurationError."""
    return dg.AssetKey([*key_prefix(), KIND, topic])


def check_key(declaration: PublishDeclaration) -> dg.AssetCheckKey:
    """Return the key of the check that holds the topic against the table."""
    return dg.AssetCheckKey(published_key(declaration.topic), evidence_of.CHECK)


def publisher_of(
    declaration: PublishDeclaration, ledger: Ledger, cluster: Cluster, **given: Any
) -> Publisher | KeyedPublisher:
    """Return the publisher for a table. It does not wait for parked windows."""
    if not isinstance(declaration.table, TableRef):
        return KeyedPublisher(declaration, ledger, cluster, **given)
    parked = frozenset(decisions.parking(ledger.lake, declaration.table).parked)
    return Publisher(declaration, ledger, cluster, parked=parked, **given)


def target_of(declaration: PublishDeclaration, cluster: Cluster) -> str:
    """Return a string that changes with the declaration, and if the topic is created again."""
    text = f"{cluster.topic(declaration.topic).topic_id} {declaration!r}"
    return sha256(text.encode()).hexdigest()[:16]


def state_of(
    declaration: PublishDeclaration, ledger: Ledger, unfinished_runs: Callable[[], Collection[str]] = tuple
) -> str:
    """Return a string that changes if the table may have something to publish. Loads of unfinished runs are ignored; as
    for `fingerprint`, these are determined after the loads."""
    if not isinstance(declaration.table, TableRef):
        return KeyedPublisher.version_of(declaration, ledger) or ""
    parked = decisions.parking(ledger.lake, declaration.table).parked
    return "/".join([fingerprint(declaration, ledger, unfinished_runs=unfinished_runs), *sorted(parked)])


def pause_after(failures: int) -> timedelta:
    """Return the time after a failed run until the next one, after this number of failures in a row."""
    return min(AGAIN_AFTER * (1 << (max(failures, 1) - 1)), LATEST_AGAIN)


def build_definitions(
    declaration: PublishDeclaration,
    *,
    group: str,
    description: str | None,
    owners: Sequence[str],
    sensor_running: bool,
) -> dg.Definitions:
    """Build all Dagster definitions of one published topic."""
    is_windowed = isinstance(declaration.table, TableRef)
    what = "row" if is_windowed else "change"
    source = dg.AssetKey([*key_prefix(), *declaration.table.parts])
    key, name = published_key(declaration.topic), f"{identifier(declaration.topic)}_publish"
    spec = dg.AssetSpec(
        key,
        deps=[source],
        group_name=group,
        kinds={"kafka"},
        owners=list(owners),
        description=(description or markdown(f"Kafka topic {declaration.topic}."))
        + markdown(f" It has each {what} of {declaration.table} once."),
    )
    check = dg.AssetCheckSpec(
        evidence_of.CHECK,
        asset=key,
        description="Holds the topic against the table: each row once, none missing, none foreign, in order.",
    )

    @dg.multi_asset(specs=[spec], check_specs=[check], name=name)
    def _publish(context: dg.AssetExecutionContext, kafka: KafkaResource, lake: LakeResource) -> Iterator[Any]:
        given: dict[str, Any] = {}
        ledger = Ledger(lake.lake())
        if (listed := context.run.tags.get(_CHECKS_TAG)) is not None:
            checks = [dg.AssetCheckKey(source, check) for check in json.loads(listed)]
            if is_windowed:
                given["unfinished_runs"] = lambda: _unfinished_runs(context.instance, declaration, ledger, checks)
            else:
                given["is_checked"] = lambda run: _is_checked(context.instance, declaration, run, checks)
        publisher = publisher_of(
            declaration,
            ledger,
            kafka.cluster(),
            on_progress=lambda window, sent: context.log.info(
                line(f"{declaration.name}: {sent:,} records, up to {window}")
            ),
            **given,
        )
        done, gather = _published(publisher)
        metadata: Mapping[str, Any] = {
            "windows": done.windows,
            "records": done.records,
            "corrections": done.corrections,
            "rows deleted without a record": done.unannounced,
            "transactions": done.transactions,
            "windows held": len(done.held),
            "windows of unfinished runs": len(done.unchecked),
            "windows with removed rows": len(done.removed),
        }
        yield dg.MaterializeResult(asset_key=key, metadata=metadata)
        evidence = gather()
        yield dg.AssetCheckResult(
            passed=evidence.passed,
            check_name=evidence_of.CHECK,
            asset_key=key,
            description=markdown(evidence.headline),
            metadata={"records": evidence.records, "windows": evidence.windows},
        )

    tag = {_TAG: "/".join(key.path)}
    job = dg.define_asset_job(f"{name}_job", selection=dg.AssetSelection.assets(key), tags=tag)

    @dg.sensor(
        name="__".join((*key_prefix(), f"{name}_sensor")),
        job=job,
        minimum_interval_seconds=max(round(declaration.sensor_interval.total_seconds()) - 1, 1),
        default_status=dg.DefaultSensorStatus.RUNNING if sensor_running else dg.DefaultSensorStatus.STOPPED,
        description=markdown(
            f"Publishes {'new windows' if is_windowed else 'changes'} of {declaration.table} to topic {declaration.topic}."
        ),
    )
    def _evaluate(context: dg.SensorEvaluationContext, kafka: KafkaResource, lake: LakeResource) -> Any:
        runs = _newest_runs(context.instance, job.name, tag)
        newest = runs[0] if runs else None
        if newest is not None and newest.dagster_run.status in _UNDER_WAY:
            return dg.SkipReason("The last run has not finished yet.")
        try:
            target = target_of(declaration, kafka.cluster())
        except PlatformError as e:
            return dg.SkipReason(line(str(e)))
        checks, ledger = dagster_records.blocking_checks(context, [source]), Ledger(lake.lake())
        state = state_of(declaration, ledger, lambda: _not_checked(context.instance, declaration, ledger, checks))
        if not (is_windowed or state):
            return dg.SkipReason(line(f"{declaration.table} does not exist yet."))
        now = f"{target}/{state}"
        ended = newest is not None and newest.dagster_run.status == dg.DagsterRunStatus.SUCCESS
        if now == context.cursor and ended:
            return dg.SkipReason("Every window is published." if is_windowed else "The newest version is published.")
        # What is on a topic cannot be taken back.
        if blocked := dagster_records.failing(context.instance, checks):
            return dg.SkipReason(line(f"A failing check blocks it: {', '.join(blocked)}."))
        if not is_windowed:
            maker = KeyedPublisher.maker_of(declaration, ledger, state)
            if (run := _waits_for(context.instance, maker, checks)) is not None:
                return dg.SkipReason(
                    line(f"The newest version of {declaration.table} waits for the checks of run {run}.")
                )
        # A declaration or topic that was changed is tried at once.
        if newest is not None and not ended and (context.cursor or "").startswith(f"{target}/"):
            statuses = [run.dagster_run.status for run in runs]
            failures = next((n for n, each in enumerate(statuses) if each == dg.DagsterRunStatus.SUCCESS), len(runs))
            again = newest.update_timestamp + pause_after(failures)
            if again > datetime.now(UTC):
                failed = "The last run failed." if failures == 1 else f"The last {failures} runs failed."
                return dg.SkipReason(line(f"{failed} The next one is requested after {again:%H:%M} UTC."))
        tags = {_CHECKS_TAG: json.dumps([check.name for check in checks])}
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)], cursor=now)

    return dg.Definitions(assets=[_publish], jobs=[job], sensors=[_evaluate])


def _newest_runs(instance: dg.DagsterInstance, job: str, tag: Mapping[str, str]) -> Sequence[dg.RunRecord]:
    """Return the newest runs of a topic's job, newest first."""
    own = instance.get_run_records(dg.RunsFilter(job_name=job, tags=dict(tag)), limit=_COUNTED)
    if own:
        return own
    # Runs of earlier releases do not have the tag.
    found = instance.get_run_records(dg.RunsFilter(job_name=job), limit=_COUNTED)
    return [record for record in found if _TAG not in record.dagster_run.tags]


def _unfinished_runs(
    instance: dg.DagsterInstance,
    declaration: PublishDeclaration,
    ledger: Ledger,
    checks: Sequence[dg.AssetCheckKey],
) -> list[str]:
    """Return the runs whose loads may not be checked yet. Raises PublishingBlockedError if one of the table's `checks` has
    failed since the sensor requested the run."""
    # First the runs: a check that is evaluated in between counts.
    found = _not_checked(instance, declaration, ledger, checks)
    if blocked := dagster_records.failing(instance, checks):
        raise PublishingBlockedError(declaration.topic, declaration.table.name, blocked)
    return found


def _is_checked(
    instance: dg.DagsterInstance, declaration: PublishDeclaration, maker: str, checks: Sequence[dg.AssetCheckKey]
) -> bool:
    """Return False if rows that the run `maker` made wait for its checks. Raises PublishingBlockedError like
    `_unfinished_runs`."""
    found = _waits_for(instance, maker, checks)
    if blocked := dagster_records.failing(instance, checks):
        raise PublishingBlockedError(declaration.topic, declaration.table.name, blocked)
    return found is None


def _waits_for(instance: dg.DagsterInstance, maker: str, checks: Sequence[dg.AssetCheckKey]) -> str | None:
    """Return the run whose id begins with `maker` if it has not finished, or if it failed or was canceled before it had
    evaluated the blocking `checks` of the table that it made, and no later run has evaluated all that it was to. None
    otherwise, and if Dagster does not know it."""
    if not maker:
        return None
    unfinished = [run.run_id for run in dagster_records.under_way(instance)]
    ended = []
    if checks:
        since = dagster_records.newest_begin(instance, checks, without_run=False, all_planned=True)
        ended = dagster_records.failed_after(instance, since)
    found = next((run for run in (*unfinished, *ended) if run.startswith(maker)), None)
    if found is None or (found not in unfinished and dagster_records.has_evaluated(instance, found, checks)):
        return None
    return found


def _not_checked(
    instance: dg.DagsterInstance,
    declaration: PublishDeclaration,
    ledger: Ledger,
    checks: Sequence[dg.AssetCheckKey],
) -> list[str]:
    """Return the runs that have not finished, and those that ended before their checks."""
    # First the runs that have not finished: one that fails in between is then in both lists.
    unfinished = [run.run_id for run in dagster_records.under_way(instance)]
    return [*unfinished, *_ended_before_checks(instance, declaration, ledger, checks)]


def _ended_before_checks(
    instance: dg.DagsterInstance,
    declaration: PublishDeclaration,
    ledger: Ledger,
    checks: Sequence[dg.AssetCheckKey],
) -> list[str]:
    """Return runs that loaded windows of the table, failed or were canceled before they had evaluated its blocking
    `checks`, and ended after the begin of the newest run that evaluated one. At most the newest 500 failed runs are
    considered.

    Runs that Dagster does not know, and tables without such checks, are not waited for.
    """
    if not checks:
        return []
    # Without a run, a tick evaluates all checks of a raw table, but repeats the results of most checks of other tables.
    is_raw = declaration.windowed.kind == "raw"
    since = dagster_records.newest_begin(instance, checks, without_run=is_raw)
    failed = dagster_records.failed_after(instance, since)
    if not failed:
        return []
    loading = set(ledger.commit_rows(declaration.windowed, columns=["run_id"])["run_id"].to_pylist())
    return [run for run in failed if run in loading and not dagster_records.has_evaluated(instance, run, checks)]


def _published(publisher: Publisher | KeyedPublisher) -> tuple[Published, Callable[[], Evidence]]:
    """Publish, and return what was sent, and a function that reads it again."""
    if isinstance(publisher, KeyedPublisher):
        return publisher.run(), lambda: published_keys.gather(publisher)
    topic = publisher.cluster.topic(publisher.declaration.topic)
    # Offsets first: what another publisher sends in between is then read, and not required.
    since = {p: found.offset for p, found in publisher.cluster.last_stable_offsets(topic).items()}
    before = publisher.known(topic.topic_id)
    # What earlier runs sent was compared then: `audit` reads the whole topic.
    done = publisher.run()
    # A check of the table that fails now changes nothing about what was sent.
    return done, lambda: evidence_of.gather(replace(publisher, unfinished_runs=tuple), since=since, before=before)


def problems(
    declarations: Sequence[PublishDeclaration],
    ledger: Ledger,
    cluster: Cluster,
    now: datetime,
    instance: dg.DagsterInstance | None = None,
    topics: Mapping[str, TopicDeclaration] = MappingProxyType({}),
    derived: Mapping[DerivedRef, DerivedDeclaration] = MappingProxyType({}),
) -> list[str]:
    """Return a sentence for each hanging transaction, for topics with windows that ended `LATE_AFTER` ago and are not
    published, for held corrections, and for failing checks that keep the sensor from requesting runs. What cannot be
    determined is a sentence too."""
    found: list[str] = []
    for d in declarations:
        try:
            publisher = publisher_of(d, ledger, cluster)
            plan = publisher.plan()
            if (stuck := published_records.hanging(publisher)) is not None:
                found.append(stuck)
        except PlatformError as e:
            found.append(f"{d.name}: its state is unknown: {e}")
            continue
        checks = _blocking(d, topics, derived)
        failing = _failing(instance, checks) if plan.behind else []
        if isinstance(publisher, KeyedPublisher):
            # The age of the newest version alone would be small for as long as the table changes often.
            if plan.behind and publisher.changed_at() < now - LATE_AFTER:
                maker = publisher.maker_of(d, ledger, (*plan.begun, *plan.new)[0])
                run = None if instance is None else _waits_for(instance, maker, checks)
                found.append(_late_version(d, plan.rows, failing, run))
            continue
        if failing:
            found.append(
                f"{d.name}: {plan.behind:,} windows are not published, because a check of {d.table} fails: {', '.join(failing)}. "
                f"Follow that check's remedy; or, to publish them as they are, run `platform-assets publish {d.topic}`"
            )
        if plan.held:
            found.append(
                f"{d.name}: corrections of {len(plan.held):,} windows are held. Declare `corrections: publish` to publish them"
            )
        blocked = ledger.receipts(d.windowed, plan.blocked) if plan.blocked else {}
        if any(receipt.window.end < now - LATE_AFTER for receipt in blocked.values()):
            rows = sum(receipt.rows for receipt in blocked.values())
            found.append(
                f"{d.name}: {len(blocked):,} windows with {rows:,} rows wait for window {plan.waiting}, which is not loaded yet. "
                "Load it, or park it"
            )
        late = ledger.receipts(d.windowed, [*plan.begun, *plan.new, *plan.again]) if plan.behind else {}
        unchecked = set() if instance is None else set(_ended_before_checks(instance, d, ledger, checks))
        waiting = [receipt for receipt in late.values() if receipt.run_id in unchecked]
        if not failing and any(receipt.window.end < now - LATE_AFTER for receipt in waiting):
            found.append(
                f"{d.name}: {len(waiting):,} windows are not published, because run {waiting[0].run_id} failed after it had loaded "
                f"them, and no check of {d.table} was evaluated after that. The next load evaluates the checks; to do so now, execute "
                f"them on the table's page in Dagster; or, to publish without them, run `platform-assets publish {d.topic}`"
            )
        elif not failing and any(receipt.window.end < now - LATE_AFTER for receipt in late.values()):
            found.append(
                f"{d.name}: {plan.behind:,} windows with {plan.rows:,} rows are not published yet. The sensor requests a run; "
                f"`platform-assets publish {d.topic}` publishes them now"
            )
    return found


def _late_version(d: PublishDeclaration, rows: int, failing: Sequence[str], unchecked: str | None) -> str:
    """Describe a version that is not published yet, and the way on. `unchecked` is the run for whose checks it waits."""
    what = f"{d.name}: the newest version of {d.table}, with {rows:,} rows, is not published"
    if failing:
        return (
            f"{what}, because a check of {d.table} fails: {', '.join(failing)}. Follow that check's remedy; or, to publish the rows "
            f"as they are, run `platform-assets publish {d.topic}`"
        )
    if unchecked is not None:
        # Dagster executes no checks of a derived table without materializing it.
        now = (
            "materialize the table"
            if isinstance(d.table, DerivedRef)
            else "execute them on the table's page in Dagster"
        )
        return (
            f"{what}, because run {unchecked}, which made it, has not finished, or failed before its checks. The next run of the "
            f"table evaluates the checks; to do so now, {now}; or, to publish without them, run `platform-assets publish {d.topic}`"
        )
    return f"{what} yet. The sensor requests a run; `platform-assets publish {d.topic}` publishes it now"


def _failing(instance: dg.DagsterInstance | None, checks: Sequence[dg.AssetCheckKey]) -> list[str]:
    """Return the names of those blocking checks of the table that fail."""
    if instance is None:
        return []
    return [key.name for key in checks if dagster_records.blocked_by(instance, [key])]


def _blocking(
    declaration: PublishDeclaration,
    topics: Mapping[str, TopicDeclaration],
    derived: Mapping[DerivedRef, DerivedDeclaration],
) -> list[dg.AssetCheckKey]:
    table = declaration.table
    if isinstance(table, DerivedRef):
        return derived_status.check_keys(derived[table], blocking=True) if table in derived else []
    topic = topics.get(table.topic)
    if topic is None:
        return []
    if isinstance(table, StateRef):
        # Like the sensor, without the check of the history, which is another table.
        return [key for key in names.state_check_keys(topic) if key.asset_key == names.table_key(table)]
    return names.blocking_keys(topic) if table.kind == "raw" else names.blocking_changes(topic)
