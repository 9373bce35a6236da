"""`platform-assets accept-loss`."""

from __future__ import annotations

import click

from platform_assets.cli import options


@click.command("accept-loss")
@click.argument("table")
@click.argument("window")
@options.reason("Why the loss is accepted; kept in the ledger.")
@options.by
@options.dry_run("Report what would be decided, and change nothing.")
@options.yes
def accept_loss(table: str, window: str, reason: str | None, by: str | None, dry_run: bool, yes: bool) -> None:
    """Accept that some offsets of WINDOW in TABLE will never be loaded.

    TABLE is raw/<topic>, or just the topic's name. The command first shows which offsets cannot be loaded, and why. It
    accepts only offsets that are not in the table and cannot be loaded:

    \b
    * offsets below the log start, or from an earlier log of the topic;
    * if there are no such offsets: records with a timestamp that Spark cannot represent, damaged batches, and batches
      beyond the limits of KAFKA_BATCH_MAX_*. To find them, the command reads the whole window once;
    * offsets of a loaded window for which the brokers have neither a record nor an explanation.

    The next load of the window leaves the accepted offsets out, and the ledger records the decision.

    A damaged window is first loaded again, which repairs it if possible. If rows are permanently lost, the window then
    consists of the rows that Kafka and the data files still have.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.ledger.decisions import Author

    author = None if dry_run else Author.of(by, reason)
    deciding(table, author, ask=not yes).loss(window)
