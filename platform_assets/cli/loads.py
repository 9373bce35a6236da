"""Load windows from a shell and print the outcome of each window: the part that `load` and `replay` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, cast

from platform_assets.cli.load_progress import Show, Shown
from platform_assets.terminal import echo

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.engines.decoding.engine import DecodeEngine
    from platform_assets.engines.protocol import LoadEngine
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.kafka.settings import ClientSettings
    from platform_assets.ledger.store import Ledger
    from platform_assets.model.declaration import EngineName, TopicDeclaration
    from platform_assets.model.tables import TableRef
    from platform_assets.orchestration.execution import Attempt
    from platform_assets.orchestration.raw_checks import EvaluatedCheck
    from platform_assets.orchestration.resources import SparkResource
    from platform_assets.windows.decode.decoding import DecodedWindow
    from platform_assets.windows.load.replacing import Loaded


_PLAIN: Final = Shown()


@dataclass(frozen=True, slots=True)
class Loads:
    """Results of the requested windows; `fields` has these results as JSON."""

    fields: dict[str, Any]
    exit_code: int


@dataclass
class ShellServices:
    """The services that a command uses, from the command's environment."""

    environment: Environment
    spark: SparkResource

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, with its lake."""
        return self.environment.ledger()

    @cached_property
    def cluster(self) -> Cluster:
        """The brokers."""
        return self.environment.cluster()

    def settings(self) -> ClientSettings:
        """Settings for clients that connect to the brokers. Raises ConfigurationError."""
        return self.cluster.settings

    def load_engine(self, name: EngineName) -> LoadEngine:
        """An engine that loads windows."""
        return self.environment.engine(name, self.spark)

    def check_engine(self, name: EngineName) -> LoadEngine:
        """An engine that reads windows again for a check."""
        return self.environment.engine(name, self.spark)

    def decode_engine(self) -> DecodeEngine:
        """The engine that decodes."""
        from platform_assets.engines.choice import decode_engine

        return decode_engine(self.ledger.lake, self.spark.session, self.spark.remote, self.environment.variables)

    def forget_session(self) -> None:
        """Drop the connection to Spark, so that the next window gets a new one."""
        self.spark.forget()


@dataclass
class _Outcome:
    """Results that an execution has yielded so far."""

    loads: list[Attempt[Loaded]] = field(default_factory=list)
    decodings: list[Attempt[DecodedWindow]] = field(default_factory=list)
    changes: list[Attempt[Loaded]] = field(default_factory=list)
    checks: list[EvaluatedCheck] = field(default_factory=list)


def load_windows(
    declaration: TopicDeclaration,
    target: TableRef,
    windows: Sequence[str],
    environment: Environment,
    *,
    as_json: bool,
    on_progress: Callable[[str], None] = lambda _: None,
    shown: Shown = _PLAIN,
) -> Loads:
    """Load the windows, decode them if the topic declares it, and evaluate the checks of the tables. Print each step
    unless `as_json`.

    If `target` is a decoded table, the windows are only decoded; if it is the table of changes, only their changes are
    made. `on_progress` receives the progress, and `shown`
    prints the lines.

    Exit codes: 0 if every window is loaded and every check passes, 1 if not, 3 if trying again may succeed.
    """
    from platform_assets.checks.findings import counted
    from platform_assets.errors import Retryable, UnknownOutcome
    from platform_assets.orchestration.execution import Attempt, Execution
    from platform_assets.orchestration.raw_checks import EvaluatedCheck
    from platform_assets.orchestration.resources import SparkResource

    services = ShellServices(environment, SparkResource(remote=environment.spark_remote()))
    instance, topic, keys = environment.instance(), declaration.topic, list(dict.fromkeys(windows))
    execution = Execution(
        {topic: declaration},
        services,
        instance,
        manual=True,
        description="loaded by a command in a shell, not by a Dagster run",
    )
    found = _Outcome()
    only = {"decode_only": target.kind in ("decoded", "dead_letters"), "changes_only": target.kind == "changes"}
    for step in execution.execute({topic: keys}, **only):
        if isinstance(step, Attempt):
            if step.table.kind == "changes":
                found.changes.append(cast("Attempt[Loaded]", step))
            elif step.table.kind == "raw":
                found.loads.append(cast("Attempt[Loaded]", step))
                on_progress(f"{len(found.loads):,} of {counted(len(keys), 'window')} processed")
            else:
                found.decodings.append(cast("Attempt[DecodedWindow]", step))
            shown.advance(step.table.kind)
        elif isinstance(step, EvaluatedCheck):
            found.checks.append(step)
        if not as_json:
            _print(step, shown.show)
        if instance is not None and not isinstance(step, Attempt):
            instance.report_runless_asset_event(step.event if isinstance(step, EvaluatedCheck) else step)
    if instance is None and not as_json:
        echo("DAGSTER_HOME contains no Dagster instance, so nothing was reported to Dagster")
    fields = {
        "windows": [_as_json(a) for a in found.loads],
        "decoded": [_decoded_as_json(a) for a in found.decodings],
        "changes": [_as_json(a) for a in found.changes],
        "checks": [
            {"name": c.event.check_name, "passed": c.event.passed, "headline": _headline(c)} for c in found.checks
        ],
        "reported": instance is not None,
    }
    errors = [a.error for a in (*found.loads, *found.changes) if a.error]
    errors += [a.error for a in found.decodings if a.error]
    if errors:
        return Loads(fields, 3 if all(isinstance(e, Retryable | UnknownOutcome) for e in errors) else 1)
    return Loads(fields, 1 if any(_fails(each) for each in found.checks) else 0)


def _fails(outcome: EvaluatedCheck) -> bool:
    """Return True if the check counts as failed. For the raw table, a warning counts as failed; for decoded tables, it
    does not."""
    from dagster import AssetCheckSeverity

    if outcome.check_result is not None:
        return not outcome.check_result.passed
    return not outcome.event.passed and outcome.event.severity == AssetCheckSeverity.ERROR


def _headline(outcome: EvaluatedCheck) -> str:
    from platform_assets.checks.report.description import plain

    return outcome.check_result.headline if outcome.check_result is not None else plain(outcome.event.description or "")


def _print(step: Any, show: Show) -> None:
    from platform_assets.orchestration.execution import Attempt
    from platform_assets.orchestration.raw_checks import EvaluatedCheck

    if isinstance(step, EvaluatedCheck):
        result = "passed" if step.event.passed else "FAILED" if _fails(step) else "warning"
        show(f"{step.event.check_name}: {result}: {_headline(step)}")
    elif isinstance(step, Attempt) and step.table.kind == "raw":
        _print_load(step, show)
    elif isinstance(step, Attempt) and step.table.kind == "changes":
        _print_changes(step, show)
    elif isinstance(step, Attempt):
        _print_decoding(step, show)


def _print_load(attempt: Attempt[Loaded], show: Show) -> None:
    if attempt.done is None:
        show(f"{attempt.window}: failed: {attempt.error}", err=True)
        return
    r = attempt.done.receipt
    show(
        f"{attempt.window}: {attempt.done.outcome}, {r.rows:,} rows from {r.ranges.size:,} offsets, "
        f"table version {r.table_version}, {r.seconds:.1f} s"
    )


def _print_decoding(attempt: Attempt[DecodedWindow], show: Show) -> None:
    if attempt.done is None:
        show(f"{attempt.window}: not decoded: {attempt.error}", err=True)
        return
    w = attempt.done
    show(f"{attempt.window}: decoded: {w.outcome}, {w.decoded.rows:,} rows, {w.dead_letters.rows:,} dead letters")


def _print_changes(attempt: Attempt[Loaded], show: Show) -> None:
    if attempt.done is None:
        show(f"{attempt.window}: changes not made: {attempt.error}", err=True)
        return
    show(f"{attempt.window}: changes: {attempt.done.outcome}, {attempt.done.receipt.rows:,} rows")


def _decoded_as_json(attempt: Attempt[DecodedWindow]) -> dict[str, Any]:
    if attempt.done is None:
        return {"window": attempt.window, "outcome": "failed", "error": str(attempt.error)}
    w = attempt.done
    return {
        "window": attempt.window,
        "outcome": w.outcome,
        "rows": w.decoded.rows,
        "dead_letters": w.dead_letters.rows,
        "table_versions": {"decoded": w.decoded.table_version, "dead_letters": w.dead_letters.table_version},
    }


def _as_json(attempt: Attempt[Loaded]) -> dict[str, Any]:
    if attempt.done is None:
        return {"window": attempt.window, "outcome": "failed", "error": str(attempt.error)}
    r = attempt.done.receipt
    return {
        "window": attempt.window,
        "outcome": attempt.done.outcome,
        "rows": r.rows,
        "offsets": r.ranges.size,
        "table_version": r.table_version,
    }
