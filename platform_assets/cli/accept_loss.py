"""`platform-assets accept-loss`."""

from __future__ import annotations

import click


@click.command("accept-loss")
@click.argument("table")
@click.argument("window")
@click.option("--reason", help="Why the loss is accepted; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger as claimed, with your uid. Your account by default.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided, and change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_loss(table: str, window: str, reason: str | None, by: str | None, dry_run: bool, yes: bool) -> None:
    """Accept that offsets of WINDOW of TABLE will never be loaded, after showing which and why.

    TABLE is raw/<topic>, or the topic's name alone. Only offsets that really cannot be loaded are taken, and none that the
    table has: those below the log start or of a log that the topic had before; if there are none, records whose timestamp Spark
    cannot represent, damaged batches and batches beyond the limits of KAFKA_BATCH_MAX_*, which reads the whole window once; and
    offsets of a loaded window that the brokers have no record of, and no reason for. The next load of the window goes on
    without them, and the ledger keeps the fact.

    A window that is loaded and damaged is loaded again first, which heals it where that is possible. Where its rows are lost
    for good, what is left of them in Kafka and in data files becomes the window.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.ledger.decisions import Author

    author = None if dry_run else Author.of(by, reason)
    deciding(table, author, ask=not yes).loss(window)
