"""`platform-assets load`."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from platform_assets.orchestration.attempts import Attempt
    from platform_assets.orchestration.by_hand import DecodeAttempt

JSON_VERSION = 1


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: version, table, windows, decoded, checks, reported.")
def load(table: str, windows: tuple[str, ...], as_json: bool) -> None:
    """Load each WINDOW of TABLE now, as a run of Dagster would, and evaluate the table's checks.

    TABLE is raw/<topic>, or the topic's name alone: what is loaded is decoded too, where that is declared. With
    decoded/<topic> or dead_letters/<topic>, windows that the raw table has are decoded alone. WINDOW is the key of a
    window, such as 2026-01-31-14:00: that window is loaded and no other, also one that an earlier schedule sealed. A
    window that is loaded already is proved equal, healed, or refused. Each
    is reported to Dagster where DAGSTER_HOME has an instance; no run is started.

    Exits 0 if every window is loaded and every check passes, 1 if not, 3 if trying again may succeed.
    """
    from dagster import AssetCheckSeverity

    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import table_of
    from platform_assets.engines.choice import decode_engine
    from platform_assets.errors import Retryable, UnknownOutcome
    from platform_assets.orchestration import by_hand
    from platform_assets.orchestration.resources import SparkResource
    from platform_assets.windows.decoding import WindowDecoder
    from platform_assets.windows.loading import Loader

    declaration, target = table_of(table)
    environment = Environment.of_process()
    spark = SparkResource(remote=environment.spark_remote())
    loader = Loader(
        declaration, environment.cluster(), environment.ledger(), environment.engine(declaration.engine, spark)
    )
    instance = environment.instance()
    attempts, to_decode = [], list(dict.fromkeys(windows))
    if target.kind == "raw":
        attempts = by_hand.load(loader, windows, instance, spark.forget, (lambda _: None) if as_json else _say)
        to_decode = [a.window for a in attempts if a.loaded] if declaration.decode is not None else []
    decoder = WindowDecoder(declaration, loader.ledger, decode_engine(loader.ledger.lake, spark.session, spark.remote))
    decodings = by_hand.decode(
        decoder, to_decode, instance, spark.forget, (lambda _: None) if as_json else _say_decoded
    )
    verdicts = []
    if any(a.loaded for a in attempts):
        for verdict in by_hand.check(loader, instance):
            verdicts.append(verdict)
            if not as_json:
                click.echo(f"{verdict.check}: {'passed' if verdict.passed else 'FAILED'}: {verdict.headline}")
    evaluations = []
    if any(a.decoded for a in decodings):
        evaluations = by_hand.check_decoded(decoder, [a.window for a in decodings if a.decoded], instance)
        for evaluation in evaluations if not as_json else ():
            result = _result(evaluation.passed, evaluation.severity == AssetCheckSeverity.ERROR)
            click.echo(f"{evaluation.check_name}: {result}: {evaluation.description}")
    if as_json:
        found: dict[str, Any] = {
            "version": JSON_VERSION,
            "table": target.name,
            "windows": [_as_json(a) for a in attempts],
            "decoded": [_decoded_as_json(a) for a in decodings],
            "checks": [
                *({"name": v.check, "passed": v.passed, "headline": v.headline} for v in verdicts),
                *({"name": e.check_name, "passed": e.passed, "headline": e.description} for e in evaluations),
            ],
            "reported": instance is not None,
        }
        click.echo(json.dumps(found, indent=2))
    elif instance is None:
        click.echo("DAGSTER_HOME has no instance, so nothing was reported to Dagster")
    errors = [error for error in (*(a.error for a in attempts), *(a.error for a in decodings)) if error is not None]
    if not errors:
        failed = any(not e.passed and e.severity == AssetCheckSeverity.ERROR for e in evaluations)
        sys.exit(0 if all(v.passed for v in verdicts) and not failed else 1)
    sys.exit(3 if all(isinstance(e, Retryable | UnknownOutcome) for e in errors) else 1)


def _say(attempt: Attempt) -> None:
    if attempt.loaded is None:
        click.echo(f"{attempt.window}: failed: {attempt.error}", err=True)
        return
    r = attempt.loaded.receipt
    click.echo(
        f"{attempt.window}: {attempt.loaded.outcome}, {r.rows:,} rows of {r.ranges.size:,} offsets, "
        f"table version {r.table_version}, {r.seconds:.1f} s"
    )


def _result(passed: bool, is_error: bool) -> str:
    return "passed" if passed else "FAILED" if is_error else "warning"


def _say_decoded(attempt: DecodeAttempt) -> None:
    if attempt.decoded is None:
        click.echo(f"{attempt.window}: not decoded: {attempt.error}", err=True)
        return
    w = attempt.decoded
    click.echo(f"{attempt.window}: decoded: {w.outcome}, {w.decoded.rows:,} rows, {w.dead_letters.rows:,} dead letters")


def _decoded_as_json(attempt: DecodeAttempt) -> dict[str, Any]:
    if attempt.decoded is None:
        return {"window": attempt.window, "outcome": "failed", "error": str(attempt.error)}
    w = attempt.decoded
    return {
        "window": attempt.window,
        "outcome": w.outcome,
        "rows": w.decoded.rows,
        "dead_letters": w.dead_letters.rows,
        "table_versions": {"decoded": w.decoded.table_version, "dead_letters": w.dead_letters.table_version},
    }


def _as_json(attempt: Attempt) -> dict[str, Any]:
    if attempt.loaded is None:
        return {"window": attempt.window, "outcome": "failed", "error": str(attempt.error)}
    r = attempt.loaded.receipt
    return {
        "window": attempt.window,
        "outcome": attempt.loaded.outcome,
        "rows": r.rows,
        "offsets": r.ranges.size,
        "table_version": r.table_version,
    }
