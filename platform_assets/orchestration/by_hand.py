"""Loads that a person asks for in a shell: the same loader, events and checks as in a run, without a run.

A run names its windows by partitions of today's schedule. A window that an earlier schedule sealed is none of them, and
can be loaded here by its key in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import dagster as dg

from platform_assets.checks.evaluation import Evaluation
from platform_assets.checks.facts import Orchestration
from platform_assets.checks.findings import Verdict
from platform_assets.checks.registry import CHECKS
from platform_assets.checks.report import rendering
from platform_assets.checks.report.rendering import as_event
from platform_assets.errors import PlatformError, UnknownOutcome
from platform_assets.orchestration import decode_runs, decoded_checks, metadata, runs
from platform_assets.orchestration.attempts import Attempt, load_each
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.orchestration.publishing import Publisher
from platform_assets.orchestration.sensors import sealed_event
from platform_assets.windows.decoding import DecodedWindow, WindowDecoder
from platform_assets.windows.loading import Loader
from platform_assets.windows.replacing import Loaded


@dataclass(frozen=True, slots=True)
class DecodeAttempt:
    """What became of one window that was to be decoded: either `decoded` or `error` is there."""

    window: str
    decoded: DecodedWindow | None
    error: PlatformError | None


def load(
    loader: Loader,
    keys: Sequence[str],
    instance: dg.DagsterInstance | None,
    forget_session: Callable[[], None],
    say: Callable[[Attempt], None],
) -> list[Attempt]:
    """Load each window of `keys`, in this order, and report it to `instance`. One that fails does not hold up the others.

    `forget_session` is called where the connection to Spark broke, so that the next window gets a new one.
    """
    attempts: list[Attempt] = []
    for attempt in load_each(loader, keys, forget_session):
        if attempt.loaded is not None and instance is not None:
            _report(loader, attempt.window, attempt.loaded, instance)
        attempts.append(attempt)
        say(attempt)
    Publisher(loader.declaration, loader.ledger, loader.cluster).now()
    return attempts


def check(loader: Loader, instance: dg.DagsterInstance | None) -> Iterator[Verdict]:
    """Evaluate the checks of each load, and report them to `instance`. Raises PlatformError where one cannot be decided."""
    table = loader.declaration.raw_table
    evaluation = Evaluation(
        loader.declaration,
        loader.ledger,
        Orchestration() if instance is None else runs.orchestration(instance, table),
        settings=lambda: loader.cluster.settings,
        cluster=lambda: loader.cluster,
        engine=loader.engine,
        counting=CHECKS.values(),
    )
    for each in CHECKS.values():
        verdict = each.evaluate(evaluation)
        if instance is not None:
            result = rendering.result(table_key(table), verdict, evaluation.facts())
            instance.report_runless_asset_event(
                dg.AssetCheckEvaluation(
                    asset_key=table_key(table),
                    check_name=each.name,
                    passed=result.passed,
                    severity=result.severity,
                    description=result.description,
                    metadata=result.metadata or {},
                )
            )
        yield verdict


def decode(
    decoder: WindowDecoder,
    keys: Sequence[str],
    instance: dg.DagsterInstance | None,
    forget_session: Callable[[], None],
    say: Callable[[DecodeAttempt], None],
) -> list[DecodeAttempt]:
    """Decode each window of `keys`, in this order, and report it to `instance`. One that fails does not hold up the others."""
    attempts: list[DecodeAttempt] = []
    for key in keys:
        try:
            attempt = DecodeAttempt(key, decoder.decode(key), None)
        except PlatformError as e:
            if isinstance(e, UnknownOutcome):
                forget_session()
            attempt = DecodeAttempt(key, None, e)
        if attempt.decoded is not None and instance is not None:
            for event in decode_runs.events(decoder.declaration, {key: attempt.decoded}, decoder.ledger.lake):
                instance.report_runless_asset_event(event)
        attempts.append(attempt)
        say(attempt)
    return attempts


def check_decoded(
    decoder: WindowDecoder, keys: Sequence[str], instance: dg.DagsterInstance | None
) -> list[dg.AssetCheckEvaluation]:
    """Evaluate the checks of the decoded windows `keys`, and report them to `instance`."""
    found = decoded_checks.results(decoder.declaration, decoder.declared, decoder.ledger, instance, keys)
    evaluations = [as_event(each) for each in found]
    if instance is not None:
        for evaluation in evaluations:
            instance.report_runless_asset_event(evaluation)
    return evaluations


def _report(loader: Loader, key: str, loaded: Loaded, instance: dg.DagsterInstance) -> None:
    declaration = loader.declaration
    source = topic_key(declaration.topic)
    sealed = loader.ledger.window(declaration.topic, key)
    if sealed is not None and not runs.reported_partitions(instance, source, [key]):
        instance.report_runless_asset_event(sealed_event(sealed))
    instance.report_runless_asset_event(
        dg.AssetMaterialization(
            table_key(declaration.raw_table),
            description="loaded from a shell, without a run",
            partition=key,
            metadata=metadata.of_receipt(loaded.receipt, loaded.outcome, str(loader.table)),
            tags={"dagster/data_version": metadata.data_version(loaded.receipt)},
        )
    )
