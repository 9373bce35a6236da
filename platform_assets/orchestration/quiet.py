"""The checks of a quiet topic, evaluated by the sensor's tick: a window without offsets is reported without a run.

Dagster counts a check as evaluated only where its evaluation is not older than the newest materialisation, so such a
report would hide those of every check. The rules are run again on ledger, logs and, within the tick's budget, the
brokers' evidence. What needs data files to be read is left to a run of the checks, which is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

import dagster as dg

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.checks.report import rendering
from platform_assets.checks.rules import deep_audit
from platform_assets.engines.choice import choose_engine
from platform_assets.errors import PlatformError
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import load_log
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import markdown
from platform_assets.orchestration import runs
from platform_assets.orchestration.names import assets_job, table_key


@dataclass(frozen=True, slots=True)
class QuietReport:
    """What a tick has to say of the checks: `events`, for behind the materialisations, and a run to ask for."""

    events: Sequence[dg.AssetCheckEvaluation] = ()
    run: dg.RunRequest | None = None


NOTHING: Final = QuietReport()


def evaluated(
    declaration: TopicDeclaration,
    cluster: Cluster,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    reporting: Mapping[str, str],
    budget: float,
) -> QuietReport:
    """Evaluate every check of the raw table, in at most `budget` seconds of what the brokers are asked.

    `reporting` are the windows that this tick is about to report as loaded, with the ids of their loads. A table that
    nothing was ever loaded into has nothing to check. The deep audit is judged by what the audits found and whether the
    files are still those, and not at all before the first audit.
    """
    table = declaration.raw_table
    if not load_log.exists(ledger.lake.table(table)):
        return NOTHING
    e = Evaluation(
        declaration,
        ledger,
        _about_to_report(runs.orchestration(instance, table), reporting),
        lambda: cluster.settings,
        lambda: cluster,
        choose_engine(ledger.lake, lambda: cluster.settings, _no_spark),
        max(budget, 0.0),
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
    return QuietReport(found, run)


def _about_to_report(known: Orchestration, reporting: Mapping[str, str]) -> Orchestration:
    """What the orchestrator knows once this tick's materialisations, which come before its evaluations, are on record."""

    def reported(keys: Sequence[str] | None) -> Mapping[str, str | None] | None:
        found = known.reported(keys)
        return None if found is None else {**found, **reporting}

    return replace(known, reported=reported)


def _no_spark() -> NoReturn:
    raise RuntimeError("an evaluation that reads no data files asked for Spark")


def _run_of_checks(declaration: TopicDeclaration, instance: dg.DagsterInstance, newest: str) -> dg.RunRequest | None:
    """A run of the checks alone, unless one is queued or under way."""
    keys = [dg.AssetCheckKey(table_key(declaration.raw_table), name) for name in CHECKS]
    if runs.checks_in_flight(instance, keys):
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
