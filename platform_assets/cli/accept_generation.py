"""`platform-assets accept-generation`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.cli.deciding import print_decision

JSON_VERSION = 1


@click.command("accept-generation")
@click.argument("topic")
@options.reason("Why the new log is accepted; kept in the ledger.")
@options.by
@options.dry_run("Report what would be decided, and change nothing.")
@options.as_json("Print JSON: version, topic, accepted, change, from, to, lost. Implies `--yes`.")
@options.yes
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
