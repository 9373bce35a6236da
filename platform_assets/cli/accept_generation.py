"""`platform-assets accept-generation`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from platform_assets.windows.generations import NewGeneration

JSON_VERSION = 1


@click.command("accept-generation")
@click.argument("topic")
@click.option("--reason", help="Why the new log is accepted; kept in the ledger.")
@click.option("--by", help="Who decides; kept in the ledger. The user of this shell by default.")
@click.option("--dry-run", is_flag=True, help="Say what would be decided, and change nothing.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print JSON: version, topic, accepted, change, from, to, lost. Does not ask.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
def accept_generation(topic: str, reason: str | None, by: str | None, dry_run: bool, as_json: bool, yes: bool) -> None:
    """Go on with the log that TOPIC has now, after it was re-created or its log was truncated for good.

    TOPIC is the topic's name, or raw/<topic>. What was loaded of the former log stays. What was sealed and not loaded, and is gone,
    is named, and counts as an accepted loss. Windows are sealed from the new log from the next edge on: the first of them starts at
    the log start of a re-created topic, or where a truncated log was cut off.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of
    from platform_assets.ledger.decisions import Author
    from platform_assets.windows import generations

    declaration = declaration_of(topic)
    author = None if dry_run else Author.of(by, reason)
    environment = Environment.of_process()
    ledger = environment.ledger()
    found = generations.find(declaration.topic, ledger, environment.cluster())
    if not as_json:
        _say(declaration.topic, found)
    accepting = found is not None and author is not None
    if accepting and not (yes or as_json):
        click.confirm("Accept the new log, and that these offsets are never loaded?", abort=True)
    if found is not None and author is not None:
        generations.accept(found, author, ledger)
    if as_json:
        shown = {} if found is None else found.details()
        click.echo(
            json.dumps({"version": JSON_VERSION, "topic": declaration.topic, "accepted": accepting, **shown}, indent=2)
        )
    elif accepting:
        click.echo("accepted; the sensor goes on at the next edge, and asks for the windows that are named")


def _say(topic: str, found: NewGeneration | None) -> None:
    from platform_assets.errors import ranges_text

    if found is None:
        click.echo(f"topic {topic} has the log that the ledger knows; nothing was accepted")
        return
    ids = (
        f"id {found.newest.topic_id}, now {found.first.topic_id}"
        if found.kind != "truncated"
        else found.newest.topic_id
    )
    click.echo(f"topic {topic} ({ids}) was {found.kind}; its generation {found.first.generation} would start with")
    for partition, offset in found.first.cut.offsets.items():
        click.echo(
            f"  partition {partition} at offset {offset} (the former one was sealed up to {found.newest.cut.at(partition)})"
        )
    for lost in found.lost:
        named = ranges_text((p, r.start, r.end) for p, parts in lost.ranges.items() for r in parts)
        what = "has no row of them, and nobody knows whether there were records" if lost.loaded else "was never loaded"
        click.echo(f"  window {lost.window.key} {what}: {lost.offsets:,} offsets: {named}")
    click.echo("  records of the former log behind those offsets were in no window; how many is not known")
