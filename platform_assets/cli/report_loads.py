"""`platform-assets report-loads`."""

from __future__ import annotations

import click

from platform_assets.terminal import console, echo


@click.command("report-loads")
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
def report_loads(topics: tuple[str, ...]) -> None:
    """Report the windows of each TOPIC (default: all declared) to Dagster after Dagster's database was lost.

    The command reads the ledger and the tables. Each sealed or loaded window that Dagster does not know, or knows from
    another load, is reported as materialized. Nothing is loaded. If you run the command again, no window is reported
    twice.
    """

    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of, declarations
    from platform_assets.errors import ConfigurationError
    from platform_assets.orchestration.events import missing_events

    environment = Environment.of_process()
    chosen = [declaration_of(t) for t in topics] or list(declarations().values())
    ledger, instance = environment.ledger(), environment.instance()
    if instance is None:
        raise ConfigurationError(
            f"DAGSTER_HOME {environment.variables['DAGSTER_HOME']} has no dagster.yaml, so there is no Dagster "
            "instance to report to: `platform-assets up` creates one"
        )
    for declaration in chosen:
        number = 0
        with progress(console(stderr=True)) as on_progress:
            for number, event in enumerate(missing_events(declaration, ledger, instance), 1):
                instance.report_runless_asset_event(event)
                on_progress(f"{declaration.topic}: {number:,} reported")
        echo(f"{declaration.topic}: {counted(number, 'materialization')} reported")
