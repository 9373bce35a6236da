"""The command `platform-assets`. Heavy imports are inside the commands, so that `--help` is instant."""

from __future__ import annotations

import functools
import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from platform_assets.errors import ConfigurationError, PlatformError, Retryable, UnknownOutcome

if TYPE_CHECKING:
    import dagster as dg

    from platform_assets.engines.protocol import LoadEngine
    from platform_assets.kafka.settings import ClientSettings
    from platform_assets.ledger.store import Ledger

EXIT_FAILED = 1
EXIT_TRY_AGAIN = 3


class _Commands(click.Group):
    """Turns the platform's errors into one line on stderr and an exit code, and nothing else into anything."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PlatformError as e:
            _fail(e)


def _fail(error: PlatformError) -> NoReturn:
    click.echo(f"platform-assets: {error}", err=True)
    sys.exit(EXIT_TRY_AGAIN if isinstance(error, Retryable | UnknownOutcome) else EXIT_FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="platform-assets")
def main() -> None:
    """Kafka topics to Delta tables as Dagster assets: exactly once by offset range, and provably so.

    Exit codes: 0 done; 1 failed, act as the message says; 2 wrong usage; 3 failed, and trying again may succeed.
    """


@main.command()
@click.option("--service", "services", multiple=True, help="Start just this one (may be repeated).")
def up(services: tuple[str, ...]) -> None:
    """Start the broker, Spark, and Dagster's webserver and daemon, except what the environment gives."""
    from infra import platform
    from infra.platform import UpOptions

    _check_services(services)
    options = UpOptions(services=tuple(s for s in platform.SERVICES if not services or s in services))
    states = platform.up(options=options, report=click.echo)
    for state in states:
        click.echo(f"{state.service:<18} {state.status:<8} {state.address or ''}")


@main.command()
@click.option("--service", "services", multiple=True, help="End just this one (may be repeated).")
def down(services: tuple[str, ...]) -> None:
    """End what `up` started, Dagster first and the broker last."""
    from infra import platform

    _check_services(services)
    platform.down(services=tuple(s for s in platform.SERVICES if not services or s in services), report=click.echo)


@main.command()
@click.option("--once", is_flag=True, help="End everything when done instead of leaving the UI open until Ctrl-C.")
def demo(once: bool) -> None:
    """Stream every flight of New York City 2013 through Kafka into the lake, and print the proof."""
    from infra.home import Home
    from platform_assets.demo.run import run_demo

    sys.exit(run_demo(Home.from_environment(), once=once))


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its fields are documented in the README and stay.")
def status(as_json: bool) -> None:
    """Show each table: windows, records, offsets, lag, and the last check results. Spark need not run.

    Exits 1 if a table has failed windows or a failing check.
    """
    import dagster as dg

    from platform_assets.checks.registry import CHECKS
    from platform_assets.cli.status_table import print_status
    from platform_assets.components.declared import declarations
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.orchestration import status as status_of

    environment = _environment()
    settings = _settings(environment) if environment.get("KAFKA_BOOTSTRAP_SERVERS") else None
    instance = _instance(dg, environment)
    found = status_of.collect(
        declarations().values(),
        _ledger(environment),
        None if settings is None else Cluster.connect(settings, timeout=3.0),
        instance,
        CHECKS,
        datetime.now(UTC),
    )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_status(found)
    sys.exit(0 if found.healthy else EXIT_FAILED)


@main.command()
@click.argument("table")
@click.option("--deep", is_flag=True, help="Read the table's files again with Spark and recompute their digests.")
@click.option("--windows", metavar="A..B", help="Only the windows from A to B, both inclusive; A.., ..B and A do too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; its fields are documented in the README and stay.")
def audit(table: str, deep: bool, windows: str | None, as_json: bool) -> None:
    """Prove that TABLE holds every committed record once, or say which offsets are amiss and what to do.

    Brokers and Spark are asked only where ledger and table leave something open, or with --deep. What is proved is
    written into the ledger and stays proved until the window's files change.

    Exits 0 if all was proved, 1 if anomalies were found, 2 if it could not be told, and says why.
    """
    from platform_assets.checks.audit import EXIT_CODES

    try:
        sys.exit(_audit(table, deep, windows, as_json))
    except (PlatformError, KeyboardInterrupt) as e:
        click.echo(f"platform-assets: could not tell: {str(e) or 'interrupted'}", err=True)
        sys.exit(EXIT_CODES["undecided"])


@main.command("rebuild-ledger")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def rebuild_ledger(tables: tuple[str, ...]) -> None:
    """Restore a lost or older ledger from the commits of TABLE (all declared tables by default).

    Stop the sensors first. Only what the ledger lacks is written, so running it again is safe.

    Exits 1 where files of a window are lost, so that its entry is still lacking.
    """
    from rich.console import Console

    from platform_assets.cli.audit_table import progress
    from platform_assets.components.declared import declaration_of, declarations
    from platform_assets.windows.rebuild import rebuild

    environment = _environment()
    ledger = _ledger(environment)
    chosen = [declaration_of(t) for t in tables] or list(declarations().values())
    complete = True
    for declaration in chosen:
        with progress(Console(stderr=True)) as tell:
            done = rebuild(declaration, ledger, _engine(environment), progress=tell)
        complete &= not done.unread
        for error in done.unread:
            click.echo(f"platform-assets: {error}", err=True)
        click.echo(f"{declaration.raw_table}: {done.cuts} cuts and {done.receipts} receipts restored")
        for key in done.merged:
            click.echo(
                f"{declaration.raw_table}: window {key} now also covers the windows after it that were sealed and "
                "never loaded; load it to bring their records"
            )
    sys.exit(0 if complete else EXIT_FAILED)


@main.command("accept-loss")
@click.argument("table")
@click.argument("window")
@click.option("--reason", required=True, help="Why the loss is accepted; kept in the ledger.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(table: str, window: str, reason: str, yes: bool) -> None:
    """Accept that offsets of WINDOW of TABLE will never be loaded, after showing which and why.

    Only offsets that really cannot be loaded are taken: those below the log start, and records whose timestamp Spark
    cannot represent. The next load of the window goes on without them, and the ledger keeps the fact.
    """
    from platform_assets.components.declared import declaration_of
    from platform_assets.errors import UnknownWindowError, ranges_text
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.windows import acceptance

    declaration = declaration_of(table)
    environment = _environment()
    ledger, settings = _ledger(environment), _settings(environment)
    try:
        sealed = ledger.window(declaration.topic, window)
    except ValueError as e:
        raise UnknownWindowError(declaration.topic, window, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
    if sealed is None:
        raise UnknownWindowError(declaration.topic, window, "the ledger has no sealed window of that key")
    losses = acceptance.find_losses(sealed, ledger, Cluster.connect(settings), settings)
    if not losses:
        click.echo(f"{table} {window}: nothing keeps it from being loaded; nothing was accepted")
        return
    for loss in losses:
        named = ranges_text((p, r.start, r.end) for p, parts in loss.ranges.items() for r in parts)
        click.echo(f"{table} {window}: {loss.offsets:,} offsets, {loss.cause}: {named}")
    if not yes:
        click.confirm("Accept that these are never loaded?", abort=True)
    acceptance.accept(sealed, losses, reason, ledger)
    click.echo(f"accepted; now materialise partition {window} of {table}")


def _audit(table: str, deep: bool, windows: str | None, as_json: bool) -> int:
    import dagster as dg
    from rich.console import Console

    from platform_assets.checks.audit import audit as audit_of
    from platform_assets.checks.evaluation import Evaluation
    from platform_assets.checks.facts import Orchestration
    from platform_assets.cli.audit_table import print_audit, progress
    from platform_assets.components.declared import declaration_of
    from platform_assets.kafka.cluster import Cluster
    from platform_assets.model.windows import Span
    from platform_assets.orchestration import runs

    try:
        span = None if windows is None else Span.parse(windows)
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--windows") from e
    declaration = declaration_of(table)
    environment = _environment()
    ledger = _ledger(environment)
    instance = _instance(dg, environment)
    with progress(Console(stderr=True)) as tell:
        found = audit_of(
            Evaluation(
                declaration,
                ledger,
                Orchestration() if instance is None else runs.orchestration(instance, declaration.raw_table),
                settings=lambda: _settings(environment),
                cluster=lambda: Cluster.connect(_settings(environment)),
                engine=_engine(environment),
                budget=float("inf"),
                windows=None
                if span is None
                else frozenset(w.key for w in ledger.windows(declaration.topic) if w.key in span),
                span=span,
                progress=tell,
            ),
            datetime.now(UTC),
            deep=deep,
        )
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_audit(found)
    return found.exit_code


def _check_services(services: tuple[str, ...]) -> None:
    from infra import platform

    unknown = sorted(set(services) - set(platform.SERVICES))
    if unknown:
        raise click.BadParameter(f"{unknown[0]!r} is none of {', '.join(platform.SERVICES)}", param_hint="--service")


def _environment() -> dict[str, str]:
    """The environment, completed by what the embedded platform runs."""
    from infra import platform

    return {**platform.environment(), **os.environ}


def _settings(environment: dict[str, str]) -> ClientSettings:
    from platform_assets.kafka.settings import ClientSettings

    return ClientSettings.from_environment(environment)


def _ledger(environment: dict[str, str]) -> Ledger:
    from platform_assets.lake.location import Lake
    from platform_assets.ledger.store import Ledger

    return Ledger(Lake.at(environment["LAKE_ROOT"]))


def _engine(environment: dict[str, str]) -> LoadEngine:
    from platform_assets.engines.choice import choose_engine
    from platform_assets.engines.spark.session import connect

    return choose_engine(
        _ledger(environment).lake,
        lambda: _settings(environment),
        functools.cache(lambda: connect(_spark_remote(environment))),
    )


def _spark_remote(environment: dict[str, str]) -> str:
    remote = environment.get("SPARK_REMOTE")
    if not remote:
        raise ConfigurationError("no Spark Connect server: run `platform-assets up` or set SPARK_REMOTE")
    return remote


def _instance(dagster: object, environment: dict[str, str]) -> dg.DagsterInstance | None:
    import dagster as dg

    home = environment.get("DAGSTER_HOME", "")
    if not (Path(home) / "dagster.yaml").is_file():
        return None
    os.environ["DAGSTER_HOME"] = home
    return dg.DagsterInstance.get()
