"""The steps of Dagster runs that load windows: steps that materialize partitions, and steps of runs whose config lists
windows. They call `Execution`, write the run's log, and raise failures as Dagster expects them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import dagster as dg

from platform_assets.errors import PlatformError, Terminal
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.logs import logger
from platform_assets.model.tables import TableRef
from platform_assets.model.untrusted import line
from platform_assets.orchestration import dagster_records, events
from platform_assets.orchestration.execution import Attempt, Done, Execution, Windows
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.raw_checks import EvaluatedCheck
from platform_assets.orchestration.resources import Services
from platform_assets.windows.decode.decoding import DecodedWindow
from platform_assets.windows.load.replacing import Loaded

_log = logger(__name__)

RunContext = dg.AssetExecutionContext | dg.OpExecutionContext
"""Context of a step, of an asset or of an op."""

SHOWN_AHEAD: Final = 500
"""Number of windows, counted for each table, up to which a run that lists windows shows them in the UI before they are
loaded. Each of them costs an event in Dagster's store, some 8 ms."""
_RETRIES: Final = 2
"""Maximum number of retries of a step that loads windows."""
_RETRY_AFTER_SECONDS = 5


def of_run(context: RunContext, declarations: Iterable[TopicDeclaration], services: Services) -> Execution:
    """Return the execution for one attempt of a step. Raises dg.Failure for a throwaway instance."""
    declared = {d.topic: d for d in declarations}
    run_id = context.run.run_id
    try:
        for d in declared.values():
            dagster_records.check_is_kept(context.instance, d.raw_table)
    except PlatformError as e:
        raise dg.Failure(line(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
    before: dict[TableRef, Mapping[str, str]] = {}
    if context.retry_number:
        reported = dagster_records.reported_by(context.instance, run_id)
        before = {t: reported.get(table_key(t), {}) for d in declared.values() for t in (d.raw_table, d.decoded_table)}
    return Execution(declared, services, context.instance, run_id, before=before, log=context.log)


def log_attempt(context: RunContext, attempt: Attempt[Loaded] | Attempt[DecodedWindow], number: int, of: int) -> None:
    """Write a line about the attempt to the run's log, with the window's number and the total number of windows."""
    done, where = attempt.done, f"{attempt.table}: window {attempt.window}"
    if done is None:
        context.log.error(line(f"{where} failed: {attempt.error}"))
    elif isinstance(done, Loaded):
        r = done.receipt
        text = f"{r.rows:,} rows from {r.ranges.size:,} offsets, table version {r.table_version}, {r.seconds:.1f} s"
        context.log.info(line(f"{where} ({number} of {of}): {done.outcome}, {text}"))
    else:
        text = (
            f"{done.decoded.rows:,} decoded rows, {done.dead_letters.rows:,} dead letters, {done.decoded.seconds:.1f} s"
        )
        context.log.info(line(f"{where} ({number} of {of}): {done.outcome}, {text}"))


def raise_failures(context: RunContext, execution: Execution, windows: int) -> None:
    """Raise dg.RetryRequested or dg.Failure if one of the `windows` failed, and record the reasons for the sensor."""
    if not execution.errors:
        return
    failures = execution.failures()
    dagster_records.record_failures(context.instance, context.run.run_id, failures)
    single = len(execution.declared) == 1 and len(execution.errors) == 1
    flat = {
        (key if single else f"{key} of {table}"): error
        for table, errors in execution.errors.items()
        for key, error in errors.items()
    }
    raw, decoded, changed = execution.loaded, execution.decoded, execution.changed
    done = {(topic, key) for topic, keys in (raw or decoded or changed).items() for key in keys}
    done -= {(table.topic, key) for table, errors in execution.errors.items() for key in errors}
    text = failure_text(flat, windows, len(done))
    raise as_dagster(flat, text, context.retry_number) from next(iter(flat.values()))


def failure_text(errors: Mapping[str, PlatformError], windows: int, loaded: int) -> str:
    """Return the error text for a run of `windows` windows. `errors` has the windows that failed; `loaded` is the
    number of windows that were loaded."""
    if windows == 1:
        return str(next(iter(errors.values())))
    text = f"{len(errors)} of {windows} windows failed, {loaded} were loaded"
    not_tried = windows - len(errors) - loaded
    text += f", {not_tried} were not tried because a service was not available. " if not_tried else ". "
    # Often one cause makes many windows fail, and each error names its window.
    return text + " ".join(f"Window {key}: {error}" for key, error in errors.items())


def as_dagster(errors: Mapping[str, PlatformError], text: str, retries: int) -> Exception:
    """Return an exception with this text. It requests a retry of the step, up to `_RETRIES` times, if a retry can help.

    After that, the topic's sensor requests the windows again when `planning` says so.
    """
    if retries >= _RETRIES or all(isinstance(e, Terminal) for e in errors.values()):
        kinds = ", ".join(sorted({type(e).__name__ for e in errors.values()}))
        return dg.Failure(line(text), metadata={"error": kinds, "windows": sorted(errors)}, allow_retries=False)
    return dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER_SECONDS)


def load_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, Loaded]:
    """Load windows in a step that materializes them. Raises whatever `raise_failures` raises; loaded windows are
    reported before that."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.load({topic: keys}), len(keys))
    execution.report_sealed(topic, list(execution.loaded[topic]))
    if execution.errors:
        # A failed step loses its own events.
        before = execution.before.get(declaration.raw_table, {})
        for key, loaded in execution.loaded[topic].items():
            if key not in before:
                context.log_event(execution.event(loaded))
        raise_failures(context, execution, len(keys))
    return execution.loaded[topic]


def decode_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, DecodedWindow]:
    """Decode windows in a step that materializes them. In all other respects, this is like `load_partitions`."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.decode(topic, keys), len(keys))
    if execution.errors:
        before = execution.before.get(declaration.decoded_table, {})
        for key, window in execution.decoded[topic].items():
            for event in () if key in before else events.decoded_events(window, declaration, services.ledger.lake):
                context.log_event(event)
        raise_failures(context, execution, len(keys))
    return execution.decoded[topic]


def change_partitions(
    context: RunContext, declaration: TopicDeclaration, services: Services, keys: Sequence[str]
) -> dict[str, Loaded]:
    """Make the changes of windows in a step that materializes them. In all other respects, this is like
    `load_partitions`."""
    execution, topic = of_run(context, [declaration], services), declaration.topic
    _log_each(context, execution.change(topic, keys), len(keys))
    if execution.errors:
        for done in execution.changed[topic].values():
            context.log_event(execution.event(done))
        raise_failures(context, execution, len(keys))
    return execution.changed[topic]


def _log_each(context: RunContext, attempts: Iterable[Attempt[Done]], windows: int) -> None:
    number = 0
    for attempt in attempts:
        number += attempt.done is not None
        log_attempt(context, attempt, number, windows)


def run_listed(
    context: dg.OpExecutionContext,
    declarations: Iterable[TopicDeclaration],
    services: Services,
    windows: Windows,
    *,
    decode_only: bool = False,
    changes_only: bool = False,
) -> Iterator[dg.AssetCheckEvaluation]:
    """Execute a run whose config lists its windows. Raises whatever `raise_failures` raises, and dg.Failure if a
    blocking check fails."""
    execution = of_run(context, declarations, services)
    if not context.retry_number:
        targets = execution.targets(windows, decode_only=decode_only, changes_only=changes_only)
        if sum(len(keys) for keys in targets.values()) <= SHOWN_AHEAD:
            try:
                dagster_records.report_planned(context.instance, context.run, str(context.op_handle), targets)
            except dagster_records.store_errors() as e:
                # Not to the run's log, which is in the same storage.
                _log.warning(
                    "run %s: Dagster's storage did not take the windows that the run will load, so the UI does not show "
                    "them as in progress. The run continues: %s",
                    context.run_id,
                    line(str(e)),
                )
    wanted, number = sum(len(set(keys)) for keys in windows.values()), 0
    for step in execution.execute(windows, decode_only=decode_only, changes_only=changes_only):
        if isinstance(step, Attempt):
            number += step.done is not None
            log_attempt(context, step, number, wanted)
        elif isinstance(step, EvaluatedCheck):
            yield step.event
        else:
            context.log_event(step)
    raise_failures(context, execution, wanted)
    if execution.blocking:
        raise dg.Failure(line(f"checks failed: {', '.join(execution.blocking)}"), allow_retries=False)
