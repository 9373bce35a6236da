"""Text of an alert about a failed run: failed checks and step errors, with windows, offsets and remedies.

The event that Dagster passes to a run failure sensor contains only the names of the failed steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import dagster as dg
from dagster import DagsterEventType

from platform_assets.checks.report.description import plain
from platform_assets.model.untrusted import cut, line

_MOST: Final = 10
"""Maximum number of checks and maximum number of steps in one alert."""
_LONGEST: Final = 1_500
_BY_CHECKS: Final = frozenset({"DagsterAssetCheckFailedError"})
"""Error of a step that failed because of its checks; the failed checks have separate lines."""


def failure_text(context: dg.RunFailureSensorContext) -> str:
    """Return one line that names the run, then one line for each failed check and each failed step.

    Control characters are escaped. The result is plain text, so escape it as the receiver of the alerts requires.
    """
    run = context.dagster_run
    found = [*_checks(context.instance, run.run_id), *_steps(context)]
    left = len(found) - _MOST
    more = [f"and {left} more, listed on the run's page"] if left > 0 else []
    return "\n".join([line(f"{run.job_name}: run {run.run_id} failed"), *found[:_MOST], *more])


def _checks(instance: dg.DagsterInstance, run_id: str) -> Iterator[str]:
    records = instance.get_records_for_run(run_id, of_type=DagsterEventType.ASSET_CHECK_EVALUATION).records
    for record in records:
        event = record.event_log_entry.dagster_event
        evaluation = None if event is None else event.asset_check_evaluation_data
        if evaluation is None or evaluation.passed or evaluation.severity != dg.AssetCheckSeverity.ERROR:
            continue
        table = evaluation.asset_key.to_user_string()
        yield cut(line(f"{table}: {evaluation.check_name}: {plain(evaluation.description or '')}"), _LONGEST)


def _steps(context: dg.RunFailureSensorContext) -> Iterator[str]:
    for event in context.get_step_failure_events():
        data = event.step_failure_data
        if data.user_failure_data is not None and data.user_failure_data.description:
            text = data.user_failure_data.description
        elif data.error is None or data.error.cls_name in _BY_CHECKS:
            continue
        else:
            text = (data.error.cause or data.error).message
        yield cut(line(f"{event.step_key}: {text.strip()}"), _LONGEST)
