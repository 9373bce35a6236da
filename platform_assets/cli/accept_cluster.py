"""`platform-assets accept-cluster`."""

from __future__ import annotations

import json

import click

JSON_VERSION = 1


@click.command("accept-cluster")
@click.argument("topic")
@click.option("--reason", help="Why its offsets are the same there; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger. The user of this shell by default.")
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
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.ledger.decisions import Author
    from platform_assets.windows import clusters

    declaration = declaration_of(topic)
    author = None if dry_run else Author.of(by, reason)
    environment = Environment.of_process()
    ledger = environment.ledger()
    found = clusters.find(declaration.topic, ledger, environment.cluster())
    accepting = found is not None and author is not None
    if not as_json and found is None:
        click.echo(f"topic {declaration.topic} is on the cluster that the ledger knows; nothing was accepted")
    if not as_json and found is not None:
        click.echo(
            f"topic {declaration.topic}: from cluster {found.newest.cluster_id} to {found.first.cluster_id}; its generation "
            f"{found.first.generation} would start with"
        )
        for partition, offset in found.first.cut.offsets.items():
            click.echo(f"  partition {partition} at offset {offset}")
        if found.moved:
            click.echo(f"  waiting windows whose offsets come in its first window: {', '.join(found.keys)}")
    if accepting and not (yes or as_json):
        click.confirm("Does each offset stand for the same record there?", abort=True)
    if found is not None and author is not None:
        clusters.accept(found, author, ledger)
    if as_json:
        shown = {} if found is None else found.details()
        click.echo(
            json.dumps({"version": JSON_VERSION, "topic": declaration.topic, "accepted": accepting, **shown}, indent=2)
        )
    elif accepting:
        click.echo("accepted; to see that it is so, load a window that is loaded again: it is compared by its digests")
