"""`platform-assets accept-cluster`."""

from __future__ import annotations

import click

from platform_assets.cli.deciding import print_decision

JSON_VERSION = 1


@click.command("accept-cluster")
@click.argument("topic")
@click.option("--reason", help="Why its offsets are the same there; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger as claimed, with your uid. Your account by default.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided, and change nothing.")
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: version, topic, accepted, edge, from, to, moved. Does not ask."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_cluster(topic: str, reason: str | None, by: str | None, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Go on with TOPIC on the cluster that answers now, stating that each offset stands for the same record there.

    TOPIC is the topic's name, or raw/<topic>. That is so for restored disks and for mirrors that keep offsets; where it is not,
    `accept-generation` goes on with the new log from its start. What was loaded stays. Windows that wait are loaded from the new
    cluster; where the topic has another id there, in one window with what comes next. Refused where the log has less than was
    sealed.
    """
    from platform_assets.cli.deciding import deciding
    from platform_assets.ledger.decisions import Author

    author = None if dry_run else Author.of(by, reason)
    decided = deciding(topic, author, quiet=as_json, ask=not (yes or as_json))
    found = decided.continuation()
    if as_json:
        print_decision(JSON_VERSION, decided, None if found is None else found.details())
