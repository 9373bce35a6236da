"""`platform-assets park` and `platform-assets unpark`."""

from __future__ import annotations

import click

from platform_assets.cli import options


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@options.reason("Why the windows are set aside; kept in the ledger.", required=True)
@options.by
def park(table: str, windows: tuple[str, ...], reason: str, by: str | None) -> None:
    """Set each WINDOW of TABLE aside: the sensor stops requesting it, and `status` shows it as parked, not failed.

    If TABLE is raw/<topic>, or just the topic's name, the records of a parked window are in no table. If TABLE is
    decoded/<topic>, they are only in the raw table. The checks keep reporting a parked window. `platform-assets load`
    still loads it; `unpark` brings it back.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.components.declared import table_of
    from platform_assets.ledger.decisions import Author

    _, target = table_of(table)
    deciding(target.topic, Author.of(by, reason)).park(windows, target)


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@options.reason("Reason; kept in the ledger.", default="resumed", show_default=True)
@options.by
def unpark(table: str, windows: tuple[str, ...], reason: str, by: str | None) -> None:
    """Bring each parked WINDOW of TABLE back: the sensor requests it at its next tick.

    TABLE is raw/<topic> (or just the topic's name) or decoded/<topic>.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.components.declared import table_of
    from platform_assets.ledger.decisions import Author

    _, target = table_of(table)
    deciding(target.topic, Author.of(by, reason)).unpark(windows, target)
