"""`platform-assets park` and `platform-assets unpark`."""

from __future__ import annotations

import click


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@click.option("--reason", required=True, help="Why they are set aside; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger as claimed, with your uid. Your account by default.")
def park(table: str, windows: tuple[str, ...], reason: str, by: str | None) -> None:
    """Set each WINDOW of TABLE aside: the sensor asks for it no more, and `status` shows it as parked, not as failed.

    TABLE is raw/<topic>, or the topic's name alone, and the records of a parked window are in no table then; or decoded/<topic>, where
    they are in the raw table alone. The checks go on saying so. `platform-assets load` loads it all the same; `unpark` brings it back.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.components.declared import table_of
    from platform_assets.ledger.decisions import Author

    _, target = table_of(table)
    deciding(target.topic, Author.of(by, reason)).park(windows, target)


@click.command()
@click.argument("table")
@click.argument("windows", nargs=-1, required=True, metavar="WINDOW...")
@click.option("--reason", default="taken up again", show_default=True, help="Why; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger as claimed, with your uid. Your account by default.")
def unpark(table: str, windows: tuple[str, ...], reason: str, by: str | None) -> None:
    """Bring each parked WINDOW of TABLE back: the sensor asks for it again at its next tick.

    TABLE is raw/<topic>, or the topic's name alone; or decoded/<topic>.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.components.declared import table_of
    from platform_assets.ledger.decisions import Author

    _, target = table_of(table)
    deciding(target.topic, Author.of(by, reason)).unpark(windows, target)
