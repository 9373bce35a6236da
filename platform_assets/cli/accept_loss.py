"""`platform-assets accept-loss`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from platform_assets.cli.environment import Environment
    from platform_assets.ledger.decisions import Author
    from platform_assets.ledger.entries import SealedWindow
    from platform_assets.model.declaration import TopicDeclaration


@click.command("accept-loss")
@click.argument("table")
@click.argument("window")
@click.option("--reason", required=True, help="Why the loss is accepted; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger. The user of this shell by default.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(table: str, window: str, reason: str, by: str | None, yes: bool) -> None:
    """Accept that offsets of WINDOW of TABLE will never be loaded, after showing which and why.

    TABLE is raw/<topic>, or the topic's name alone. Only offsets that really cannot be loaded are taken, and none that the
    table has: those below the log start or of a log that the topic had before, and records whose timestamp Spark cannot
    represent. The next load of the window goes on without them, and the ledger keeps the fact.

    A window that is loaded and damaged is loaded again first, which heals it where that is possible. Where its rows are lost
    for good, what is left of them in Kafka and in data files becomes the window.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.errors import UnknownWindowError, ranges_text
    from platform_assets.ledger.decisions import Author
    from platform_assets.windows import acceptance

    declaration, author = declaration_of(table), Author.of(by, reason)
    environment = Environment.of_process()
    ledger, settings = environment.ledger(), environment.settings()
    try:
        sealed = ledger.window(declaration.topic, window)
    except ValueError as e:
        raise UnknownWindowError(declaration.topic, window, "a key has the form YYYY-MM-DD-HH:MM, in UTC") from e
    if sealed is None:
        raise UnknownWindowError(declaration.topic, window, "the ledger has no sealed window of that key")
    losses = acceptance.find_losses(sealed, ledger, environment.cluster(), settings)
    if not losses:
        receipt = ledger.receipts(declaration.raw_table, [window]).get(window)
        if receipt is not None and receipt.rows:
            _accept_remains(declaration, sealed, environment, author, yes)
        else:
            click.echo(f"{declaration.raw_table} {window}: nothing keeps it from being loaded; nothing was accepted")
        return
    for loss in losses:
        named = ranges_text((p, r.start, r.end) for p, parts in loss.ranges.items() for r in parts)
        click.echo(f"{declaration.raw_table} {window}: {loss.offsets:,} offsets, {loss.cause}: {named}")
    if not yes:
        click.confirm("Accept that these are never loaded?", abort=True)
    acceptance.accept(sealed, losses, author, ledger)
    click.echo(
        f"accepted; now run `platform-assets load {declaration.raw_table} {window}`, or let the topic's sensor do it"
    )


def _accept_remains(
    declaration: TopicDeclaration, sealed: SealedWindow, environment: Environment, author: Author, yes: bool
) -> None:
    """Have what is left of a loaded window that is lost for good be the window."""
    from platform_assets.errors import ranges_text
    from platform_assets.windows import salvage
    from platform_assets.windows.loading import Loader

    name = f"{declaration.raw_table} {sealed.key}"
    loader = Loader(declaration, environment.cluster(), environment.ledger(), environment.engine(declaration.engine))
    left = salvage.find(loader, sealed)
    if left is None:
        click.echo(f"{name}: its rows are in the table and proved; nothing was accepted")
        return
    with left.discarded_if_refused():
        named = ranges_text((p, r.start, r.end) for p, parts in left.gone.items() for r in parts)
        click.echo(f"{name}: {left.rows_gone:,} of {left.receipt.rows:,} rows are nowhere any more, among {named}")
        click.echo(
            f"{left.from_kafka:,} rows were read from Kafka again, {left.from_files:,} are as data files of the table have them"
        )
        if not yes:
            click.confirm("Accept that the others are lost, and have the window hold these?", abort=True)
    receipt = left.accept(author)
    click.echo(f"accepted; the window holds {receipt.rows:,} rows, table version {receipt.table_version}")
