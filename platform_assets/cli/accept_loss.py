"""`platform-assets accept-loss`."""

from __future__ import annotations

import click


@click.command("accept-loss")
@click.argument("table")
@click.argument("window")
@click.option("--reason", required=True, help="Why the loss is accepted; kept in the ledger.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(table: str, window: str, reason: str, yes: bool) -> None:
    """Accept that offsets of WINDOW of TABLE will never be loaded, after showing which and why.

    TABLE is raw/<topic>, or the topic's name alone. Only offsets that really cannot be loaded are taken: those below
    the log start, and records whose timestamp Spark cannot represent. The next load of the window goes on without
    them, and the ledger keeps the fact.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.errors import UnknownWindowError, ranges_text
    from platform_assets.windows import acceptance

    declaration = declaration_of(table)
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
        click.echo(f"{declaration.raw_table} {window}: nothing keeps it from being loaded; nothing was accepted")
        return
    for loss in losses:
        named = ranges_text((p, r.start, r.end) for p, parts in loss.ranges.items() for r in parts)
        click.echo(f"{declaration.raw_table} {window}: {loss.offsets:,} offsets, {loss.cause}: {named}")
    if not yes:
        click.confirm("Accept that these are never loaded?", abort=True)
    acceptance.accept(sealed, losses, reason, ledger)
    click.echo(f"accepted; now materialise partition {window} of {declaration.raw_table}")
