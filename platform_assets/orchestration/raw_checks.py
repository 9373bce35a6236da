"""The checks of raw tables in Dagster, listed by `checks_of`: in runs, and in ticks that report windows without
offsets.

Dagster counts a check as evaluated only if its evaluation is not older than the newest materialization. The report of
an empty window would therefore hide the results of all checks. So a tick evaluates the rules again from the ledger, the
tables' logs and, within the tick's budget, the brokers' evidence. If data files must be read, the tick requests a run
of the checks instead.
"""

# No postponed annotations here: Dagster reads those of the functions below.
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, NoReturn

import dagster as dg

from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.findings import CheckResult
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report import rendering
from platform_assets.checks.rules import deep_audit
from platform_assets.engines.choice import choose_engine
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import load_log
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import markdown, to_lines
from platform_assets.orchestration import aging_checks, dagster_records, retention_check
from platform_assets.orchestration.aging_checks import AgingCheck, Subject
from platform_assets.orchestration.dagster_records import DagsterRecords, RunLog, reported_loads
from platform_assets.orchestration.names import assets_job, checks_op, deep_audit_op, table_key
from platform_assets.orchestration.resources import (
    KafkaResource,
    LakeResource,
    Log,
    RunServices,
    Services,
    SparkResource,
)

_log = logger(__name__)

_CHECK_BUDGET_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class EvaluatedCheck:
    """The result of one check, and whether it blocks derived tables. `check_result` is set for checks of a raw table."""

    event: dg.AssetCheckEvaluation
    blocks: bool
    check_result: CheckResult | None = None


AGING: Final[tuple[AgingCheck, ...]] = (retention_check.CHECK,)
"""The aging checks, in the order of evaluation."""


def checks_of(declaration: TopicDeclaration) -> tuple[Check | AgingCheck, ...]:
    """Return all checks of a topic's raw table, rules first and then aging checks. The deep audit is not included,
    because it has a separate schedule."""
    return (*CHECKS.values(), *aging_of(declaration))


def aging_of(declaration: TopicDeclaration) -> tuple[AgingCheck, ...]:
    """Return the aging checks of a topic's raw table."""
    return tuple(check for check in AGING if check.applies_to(declaration))


def build_checks(declaration: TopicDeclaration) -> dg.AssetChecksDefinition:
    """Build the checks that are evaluated after each load, in one step, because they judge the same facts."""
    topic = declaration.topic
    specs = [_spec(declaration.raw_table, check) for check in checks_of(declaration)]

    @dg.multi_asset_check(specs=specs, name=checks_op(topic), can_subset=True)
    def _evaluate_all(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        evaluation = _evaluation(context, declaration, RunServices(kafka, lake, spark))
        wanted = {key.name for key in context.selected_asset_check_keys}
        subject = Subject(declaration, evaluation.ledger, kafka.cluster(), datetime.now(UTC))
        for check in checks_of(declaration):
            if check.name not in wanted:
                continue
            if isinstance(check, AgingCheck):
                yield aging_checks.result(check, subject)
            else:
                yield rendering.result(table_key(declaration.raw_table), check.evaluate(evaluation), evaluation.facts())

    return _evaluate_all


def build_deep_audit(declaration: TopicDeclaration, budget: float) -> dg.AssetChecksDefinition:
    topic = declaration.topic

    @dg.multi_asset_check(specs=[_spec(declaration.raw_table, DEEP_AUDIT)], name=deep_audit_op(topic))
    def _evaluate(
        context: dg.AssetCheckExecutionContext, kafka: KafkaResource, lake: LakeResource, spark: SparkResource
    ) -> Iterator[dg.AssetCheckResult]:
        keys = (w.key for w in Ledger(lake.lake()).windows(topic))
        windows = dagster_records.windows_of(context.run, table_key(declaration.raw_table), keys)
        evaluation = _evaluation(
            context, declaration, RunServices(kafka, lake, spark), budget=budget, windows=windows, counting=()
        )
        yield rendering.result(table_key(declaration.raw_table), DEEP_AUDIT.evaluate(evaluation), evaluation.facts())

    return _evaluate


def _spec(table: TableRef, check: Check | AgingCheck) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(check.name, asset=table_key(table), blocking=check.blocking, description=check.description)


def evaluation(
    declaration: TopicDeclaration,
    services: Services,
    instance: dg.DagsterInstance | None,
    run_id: str = "",
    *,
    budget: float = _CHECK_BUDGET_SECONDS,
    windows: frozenset[str] | None = None,
    counting: Collection[Check] = tuple(CHECKS.values()),
    records: RunLog | None = None,
    log: Log = _log,
) -> Evaluation:
    """Build the evaluation of a raw table's checks, with the records in `instance` about runs other than `run_id`."""
    known = Orchestration()
    if instance is not None:
        known = DagsterRecords(instance, declaration.raw_table, run_id or None, records)
    return Evaluation(
        declaration=declaration,
        ledger=services.ledger,
        orchestration=known,
        settings=services.settings,
        cluster=lambda: services.cluster,
        engine=services.check_engine(declaration.engine),
        budget=budget,
        windows=windows,
        counting=counting,
        engine_by_name=services.check_engine,
        progress=to_lines(log.info),
    )


def _evaluation(
    context: dg.AssetCheckExecutionContext, declaration: TopicDeclaration, services: Services, **more: Any
) -> Evaluation:
    return evaluation(declaration, services, context.instance, context.run.run_id, log=context.log, **more)


def judge(found: Evaluation) -> Iterator[EvaluatedCheck]:
    """Evaluate each check of a raw table."""
    for check in CHECKS.values():
        check_result = check.evaluate(found)
        event = rendering.evaluation(table_key(found.facts().table), check_result, found.facts())
        yield EvaluatedCheck(event, check.blocking and check_result.alarming, check_result)


def age(declaration: TopicDeclaration, services: Services) -> Iterator[EvaluatedCheck]:
    """Evaluate each aging check of a raw table now."""
    subject = Subject(declaration, services.ledger, services.cluster, datetime.now(UTC))
    for check in aging_of(declaration):
        yield EvaluatedCheck(rendering.as_event(aging_checks.result(check, subject)), check.blocking)


# --- in a tick, without a run -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EmptyWindowChecks:
    """Evaluations that a tick reports after its materializations, and a run of the checks that the tick requests."""

    events: Sequence[dg.AssetCheckEvaluation] = ()
    run: dg.RunRequest | None = None


NOTHING: Final = EmptyWindowChecks()


def after_empty_windows(
    declaration: TopicDeclaration,
    cluster: Cluster,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    reporting: Mapping[str, str],
    budget: float,
) -> EmptyWindowChecks:
    """Evaluate every check of the raw table, with at most `budget` seconds for queries to the brokers.

    `reporting` has the windows that this tick is about to report as loaded, with their load ids. A table without loads
    has nothing to check. The result of the deep audit follows from the findings of earlier audits and from whether the
    files have changed since; before the first audit, it is skipped.
    """
    table = declaration.raw_table
    if not load_log.exists(ledger.lake.table(table)):
        return NOTHING
    e = Evaluation(
        declaration=declaration,
        ledger=ledger,
        orchestration=_AboutToReport(instance, table, reporting=reporting),
        settings=lambda: cluster.settings,
        cluster=lambda: cluster,
        engine=choose_engine(ledger.lake, lambda: cluster.settings, _no_spark),
        budget=max(budget, 0.0),
        counting=CHECKS.values(),
        reads=False,
    )
    found: list[dg.AssetCheckEvaluation] = []
    run = None
    try:
        if e.facts().unread:
            run = _run_of_checks(declaration, instance, max(reporting))
        else:
            for check in CHECKS.values():
                found.append(rendering.evaluation(table_key(declaration.raw_table), check.evaluate(e), e.facts()))
        audit = deep_audit.evaluate_without_reading(e)
        if audit is not None:
            found.append(rendering.evaluation(table_key(declaration.raw_table), audit, e.facts()))
    except PlatformError as error:
        known = {event.check_name for event in found}
        names = [*CHECKS, DEEP_AUDIT.name] if run is None else [DEEP_AUDIT.name]
        found += [_not_evaluated(declaration, name, error) for name in names if name not in known]
    return EmptyWindowChecks(found, run)


@dataclass(frozen=True, slots=True)
class _AboutToReport(DagsterRecords):
    """Dagster's records as they will be after the materializations of this tick, which precede the tick's evaluations.

    `reporting` has the load ids of these materializations, by window.
    """

    reporting: Mapping[str, str] = field(default_factory=dict)

    def reported(self, keys: Sequence[str] | None) -> Mapping[str, str | None]:
        """See `Orchestration.reported`."""
        return {**reported_loads(self.instance, table_key(self.table), keys), **self.reporting}


def _no_spark() -> NoReturn:
    raise RuntimeError("an evaluation that reads no data files requested Spark")


def _run_of_checks(declaration: TopicDeclaration, instance: dg.DagsterInstance, newest: str) -> dg.RunRequest | None:
    """Return a request for a run of only the checks, unless such a run is queued or running."""
    keys = [dg.AssetCheckKey(table_key(declaration.raw_table), name) for name in CHECKS]
    if dagster_records.checks_in_flight(instance, keys):
        return None
    return dg.RunRequest(
        f"{declaration.raw_table}/checks/{newest}",
        job_name=assets_job(declaration),
        asset_selection=[],
        asset_check_keys=keys,
    )


def _not_evaluated(declaration: TopicDeclaration, check: str, error: PlatformError) -> dg.AssetCheckEvaluation:
    return dg.AssetCheckEvaluation(
        table_key(declaration.raw_table),
        check,
        passed=False,
        severity=dg.AssetCheckSeverity.WARN,
        description=f"**Could not tell**: {markdown(error)}",
    )
