"""Loading windows from a shell, saying what becomes of each: what `load` and `replay` have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from platform_assets.terminal import echo

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.model.declaration import TopicDeclaration
    from platform_assets.model.tables import TableRef
    from platform_assets.orchestration.attempts import Attempt
    from platform_assets.orchestration.by_hand import DecodeAttempt


@dataclass(frozen=True, slots=True)
class Loads:
    """Results of windows that were to be loaded; `fields` are their JSON."""

    fields: dict[str, Any]
    exit_code: int


def load_windows(
    declaration: TopicDeclaration,
    target: TableRef,
    windows: Sequence[str],
    environment: Environment,
    *,
    as_json: bool,
    tell: Callable[[str], None] = lambda _: None,
) -> Loads:
    """Load the windows, decode them where that is declared, and evaluate the checks of the tables; all but as JSON it is said.

    Where `target` is not the raw table, they are decoded alone. `tell` is called with how far it has come.

    Exit codes: 0 if every window is loaded and every check passes, 1 if not, 3 if trying again may succeed.
    """
    from dagster import AssetCheckSeverity

    from platform_assets.checks.findings import counted
    from platform_assets.checks.report.description import plain
    from platform_assets.engines.choice import decode_engine
    from platform_assets.errors import Retryable, UnknownOutcome
    from platform_assets.orchestration import by_hand
    from platform_assets.orchestration.resources import SparkResource
    from platform_assets.windows.decoding import WindowDecoder
    from platform_assets.windows.loading import Loader

    spark = SparkResource(remote=environment.spark_remote())
    loader = Loader(
        declaration, environment.cluster(), environment.ledger(), environment.engine(declaration.engine, spark)
    )
    instance = environment.instance()
    attempts: list[Attempt] = []
    to_decode, done = list(dict.fromkeys(windows)), list[str]()
    number = len(to_decode)

    def said(attempt: Attempt) -> None:
        done.append(attempt.window)
        tell(f"{len(done):,} of {counted(number, 'window')} loaded or refused")
        if not as_json:
            _say(attempt)

    if target.kind == "raw":
        attempts = by_hand.load(loader, windows, instance, spark.forget, said)
        to_decode = [a.window for a in attempts if a.loaded] if declaration.decode is not None else []
    decoding = decode_engine(loader.ledger.lake, spark.session, spark.remote, environment.variables)
    decoder = WindowDecoder(declaration, loader.ledger, decoding)
    decodings = by_hand.decode(
        decoder, to_decode, instance, spark.forget, (lambda _: None) if as_json else _say_decoded
    )
    verdicts = []
    if any(a.loaded for a in attempts):
        for verdict in by_hand.check(loader, instance):
            verdicts.append(verdict)
            if not as_json:
                echo(f"{verdict.check}: {'passed' if verdict.passed else 'FAILED'}: {verdict.headline}")
    evaluations = []
    if any(a.decoded for a in decodings):
        evaluations = by_hand.check_decoded(decoder, [a.window for a in decodings if a.decoded], instance)
        for evaluation in evaluations if not as_json else ():
            result = _result(evaluation.passed, evaluation.severity == AssetCheckSeverity.ERROR)
            echo(f"{evaluation.check_name}: {result}: {plain(evaluation.description or '')}")
    if instance is None and not as_json:
        echo("DAGSTER_HOME has no instance, so nothing was reported to Dagster")
    fields = {
        "windows": [_as_json(a) for a in attempts],
        "decoded": [_decoded_as_json(a) for a in decodings],
        "checks": [
            *({"name": v.check, "passed": v.passed, "headline": v.headline} for v in verdicts),
            *({"name": e.check_name, "passed": e.passed, "headline": plain(e.description or "")} for e in evaluations),
        ],
        "reported": instance is not None,
    }
    errors = [error for error in (*(a.error for a in attempts), *(a.error for a in decodings)) if error is not None]
    if errors:
        return Loads(fields, 3 if all(isinstance(e, Retryable | UnknownOutcome) for e in errors) else 1)
    failed = any(not e.passed and e.severity == AssetCheckSeverity.ERROR for e in evaluations)
    return Loads(fields, 0 if all(v.passed for v in verdicts) and not failed else 1)


def _say(attempt: Attempt) -> None:
    if attempt.loaded is None:
        echo(f"{attempt.window}: failed: {attempt.error}", err=True)
        return
    r = attempt.loaded.receipt
    echo(
        f"{attempt.window}: {attempt.loaded.outcome}, {r.rows:,} rows of {r.ranges.size:,} offsets, "
        f"table version {r.table_version}, {r.seconds:.1f} s"
    )


def _result(passed: bool, is_error: bool) -> str:
    return "passed" if passed else "FAILED" if is_error else "warning"


def _say_decoded(attempt: DecodeAttempt) -> None:
    if attempt.decoded is None:
        echo(f"{attempt.window}: not decoded: {attempt.error}", err=True)
        return
    w = attempt.decoded
    echo(f"{attempt.window}: decoded: {w.outcome}, {w.decoded.rows:,} rows, {w.dead_letters.rows:,} dead letters")


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
