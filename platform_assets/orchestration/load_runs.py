"""What every run that loads windows does, however Dagster names its windows: load each, report, and fail with a reason."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import cast

import dagster as dg

from platform_assets.checks.check import Check
from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report import rendering
from platform_assets.engines.choice import choose_engine
from platform_assets.errors import PlatformError, Terminal
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.untrusted import line, to_lines
from platform_assets.orchestration import metadata, runs
from platform_assets.orchestration.attempts import decided_on, failure_text, is_of_a_service, load_each
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.resources import KafkaResource, LakeResource, SparkResource
from platform_assets.orchestration.retries import Failures
from platform_assets.orchestration.run_log import RunLog
from platform_assets.orchestration.sensors import sealed_event
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded, Outcome

RunContext = dg.AssetExecutionContext | dg.OpExecutionContext
"""Of a step that loads windows."""

_CHECK_BUDGET_SECONDS = 120.0
_RETRIES = 2
_RETRY_AFTER_SECONDS = 5


def load(
    context: RunContext,
    declaration: TopicDeclaration,
    keys: Sequence[str],
    kafka: KafkaResource,
    lake: LakeResource,
    spark: SparkResource,
) -> dict[str, Loaded]:
    """Load each window of `keys` into the raw table, go on past one that fails, and report the windows on the topic asset.

    Those that are loaded are reported as materialised by the caller; where one failed, by this call, since it raises
    then: dg.RetryRequested or dg.Failure, with the reasons on record for the sensor.
    """
    try:
        runs.check_is_kept(context.instance, declaration.raw_table)
    except PlatformError as e:
        raise dg.Failure(line(e), metadata={"error": type(e).__name__}, allow_retries=False) from e
    root = lake.lake()
    loader = Loader(
        declaration,
        kafka.cluster(),
        Ledger(root),
        choose_engine(root, kafka.settings, spark.session, declaration.engine, spark.remote),
        run_id=context.run.run_id,
    )
    decided = decided_on(loader.ledger, {declaration.raw_table: keys})
    done = _loaded_before(context, loader) if context.retry_number else {}
    now_done: dict[str, Loaded] = {}
    errors: dict[str, PlatformError] = {}
    publisher = Publisher(declaration, loader.ledger, loader.cluster, to_lines(context.log.warning))
    for attempt in load_each(loader, [k for k in keys if k not in done], spark.forget):
        if attempt.loaded is not None:
            now_done[attempt.window] = attempt.loaded
            _say(context, attempt.loaded, len(done) + len(now_done), len(keys))
            publisher.after_commit()
        elif attempt.error is not None:
            errors[attempt.window] = attempt.error
            context.log.error(line(f"window {attempt.window} failed: {attempt.error}"))
            if is_of_a_service(attempt.error):
                break
    done |= now_done
    if now_done:
        publisher.now()
    if errors:
        # The step's own events are lost with it.
        report(context, declaration, root.table(declaration.raw_table).uri, now_done)
        runs.record_failures(
            context.instance,
            context.run.run_id,
            declaration.raw_table,
            Failures.of(errors, decided=decided[declaration.raw_table]),
        )
        text = failure_text(errors, len(keys), len(done))
        raise as_dagster(errors, text, context.retry_number) from next(iter(errors.values()))
    report_sealed(context, loader, keys)
    return done


def report(context: RunContext, declaration: TopicDeclaration, table_path: str, done: Mapping[str, Loaded]) -> None:
    """Report windows as materialised, each by its key."""
    for key, loaded in done.items():
        context.log_event(
            dg.AssetMaterialization(
                table_key(declaration.raw_table),
                partition=key,
                metadata=metadata.of_receipt(loaded.receipt, loaded.outcome, table_path),
                tags={"dagster/data_version": metadata.data_version(loaded.receipt)},
            )
        )


def evaluation(
    context: dg.AssetCheckExecutionContext | dg.OpExecutionContext,
    declaration: TopicDeclaration,
    kafka: KafkaResource,
    lake: LakeResource,
    spark: SparkResource,
    *,
    budget: float = _CHECK_BUDGET_SECONDS,
    windows: frozenset[str] | None = None,
    counting: Collection[Check] = (),
    log: RunLog | None = None,
) -> Evaluation:
    """What the checks of a run are evaluated with."""
    return Evaluation(
        declaration,
        Ledger(lake.lake()),
        runs.orchestration(context.instance, declaration.raw_table, context.run.run_id, log),
        kafka.settings,
        kafka.cluster,
        choose_engine(lake.lake(), kafka.settings, spark.session, declaration.engine),
        budget,
        windows,
        counting=counting,
        witness=lambda name: choose_engine(lake.lake(), kafka.settings, spark.session, name),
        progress=to_lines(context.log.info),
    )


def judged(found: Evaluation) -> Iterator[tuple[dg.AssetCheckEvaluation, bool]]:
    """What each check of a raw table says, as an event, and whether it holds back what is downstream."""
    for check in CHECKS.values():
        verdict = check.evaluate(found)
        yield (
            rendering.evaluation(table_key(found.facts().table), verdict, found.facts()),
            check.blocking and verdict.alarming,
        )


def _say(context: RunContext, loaded: Loaded, number: int, of: int) -> None:
    r = loaded.receipt
    context.log.info(
        line(
            f"window {r.window} ({number} of {of}): {loaded.outcome}, {r.rows:,} rows of {r.ranges.size:,} offsets, "
            f"table version {r.table_version}, {r.seconds:.1f} s"
        )
    )


def _loaded_before(context: RunContext, loader: Loader) -> dict[str, Loaded]:
    """What an earlier try of this run has loaded and reported."""
    table = loader.declaration.raw_table
    outcomes = runs.reported_by(context.instance, context.run.run_id, table_key(table))
    receipts = loader.ledger.receipts(table, sorted(outcomes)) if outcomes else {}
    return {key: Loaded(receipt, cast(Outcome, outcomes[key])) for key, receipt in receipts.items()}


def report_sealed(context: RunContext, loader: Loader, keys: Sequence[str]) -> None:
    """Report windows on the topic asset that no sensor has reported: the run may have sealed them itself."""
    topic = loader.declaration.topic
    known = runs.reported_partitions(context.instance, topic_key(topic), keys)
    for window in _windows(loader, [k for k in keys if k not in known]):
        context.instance.report_runless_asset_event(sealed_event(window))


def _windows(loader: Loader, keys: Sequence[str]) -> Iterator[SealedWindow]:
    for key in keys:
        window = loader.ledger.window(loader.declaration.topic, key)
        if window is not None:
            yield window


def as_dagster(errors: Mapping[str, PlatformError], text: str, retries: int) -> Exception:
    """A failure that says what the errors say; tried again by itself, at most `_RETRIES` times, where that can help.

    After that, the topic's sensor asks for the windows again: `retries` says when.
    """
    if retries >= _RETRIES or all(isinstance(e, Terminal) for e in errors.values()):
        kinds = ", ".join(sorted({type(e).__name__ for e in errors.values()}))
        return dg.Failure(line(text), metadata={"error": kinds, "windows": sorted(errors)}, allow_retries=False)
    return dg.RetryRequested(max_retries=_RETRIES, seconds_to_wait=_RETRY_AFTER_SECONDS)
