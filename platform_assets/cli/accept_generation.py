"""`platform-assets accept-generation`."""

from __future__ import annotations

import click

from platform_assets.cli.deciding import print_decision

JSON_VERSION = 1


@click.command("accept-generation")
@click.argument("topic")
@click.option("--reason", help="Why the new log is accepted; kept in the ledger.")
@click.option(
    "--by",
    help="Your name; recorded in the ledger without verification, together with your uid. Default: your account.",
)
@click.option("--dry-run", is_flag=True, help="Report what would be decided, and change nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: version, topic, accepted, change, from, to, lost. Implies `--yes`.",
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def accept_generation(topic: str, reason: str | None, by: str | None, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Continue with the current log of TOPIC after it was re-created or permanently truncated.

    TOPIC is the topic's name, or raw/<topic>. Rows loaded from the previous log stay. Sealed offsets that were not
    loaded and no longer exist are listed, and become an accepted loss. From the next boundary on, windows are sealed
    from the new log. The first of them starts at the log start if the topic was re-created, or at the point of
    truncation if the log was truncated.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.ledger.decisions import Author

    author = None if dry_run else Author.of(by, reason)
    decided = deciding(topic, author, quiet=as_json, ask=not (yes or as_json))
    found = decided.generation()
    if as_json:
        print_decision(JSON_VERSION, decided, None if found is None else found.details())
