"""`platform-assets accept-cluster`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.cli.deciding import print_decision

JSON_VERSION = 1


@click.command("accept-cluster")
@click.argument("topic")
@options.reason("Why each offset stands for the same record on the other cluster; kept in the ledger.")
@options.by
@options.dry_run("Report what would be decided, and change nothing.")
@options.as_json("Print JSON: version, topic, accepted, edge, from, to, moved. Implies `--yes`.")
@options.yes
def accept_cluster(topic: str, reason: str | None, by: str | None, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Continue with TOPIC on another cluster, and confirm that each offset stands for the same record there.

    TOPIC is the topic's name, or raw/<topic>. Use this command after disks were restored, or with a mirror that keeps
    offsets. If offsets differ, use `accept-generation`, which continues with the new log from its start.

    Loaded windows stay. Windows that are not loaded yet are loaded from the new cluster; if the topic has a different
    id there, they are loaded together with the next window. The command refuses a log that has fewer offsets than were
    sealed.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.ledger.decisions import Author

    author = None if dry_run else Author.of(by, reason)
    decided = deciding(topic, author, quiet=as_json, ask=not (yes or as_json))
    found = decided.continuation()
    if as_json:
        print_decision(JSON_VERSION, decided, None if found is None else found.details())
