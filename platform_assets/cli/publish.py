"""`platform-assets publish`, and the audit of a published topic."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from platform_assets.cli import options
from platform_assets.terminal import console, echo, echo_json

if TYPE_CHECKING:
    from platform_assets.windows.publish.keyed import KeyedPublisher
    from platform_assets.windows.publish.publishing import Publisher

JSON_VERSION = 1


@click.command()
@click.argument("topic")
@options.dry_run("Only report what would be published.")
@options.as_json("Print JSON: version, topic, table, dry_run, and what was published or would be.")
def publish(topic: str, dry_run: bool, as_json: bool) -> None:
    """Publish rows of a table that are not yet on TOPIC, exactly once.

    TOPIC is a topic of a PublishedTopic in YAML; published/<topic> is also accepted. The topic must exist. The command
    creates a compacted topic, TOPIC.published, which records what was sent. If the command is interrupted, run it again
    to continue: no record is sent twice. It takes over from another publisher of the same topic, such as a run.
    """
    from platform_assets.cli.audit_table import progress
    from platform_assets.lake.new_tables import making
    from platform_assets.model.tables import TableRef
    from platform_assets.windows.publish.keyed import KeyedPublisher
    from platform_assets.windows.publish.progress import Published

    with progress(console(stderr=True)) as show:
        each = _publisher(topic, lambda part, sent: show(f"{sent:,} records, up to {part}"))
        found = each.plan() if dry_run else each.run()
    d = each.declaration
    if as_json:
        echo_json(
            {"version": JSON_VERSION, "topic": d.topic, "table": d.table.name, "dry_run": dry_run, **asdict(found)}
        )
        return
    if not isinstance(d.table, TableRef):  # It has no windows.
        if isinstance(each, KeyedPublisher) and each.version() is None:
            text = f"{d.name}: {d.table} was not made yet, so there is nothing to publish: run `{making(d.table)}`"
        elif isinstance(found, Published):
            text = f"{d.name}: published {found.records:,} changed rows in {found.transactions:,} transactions"
        elif found.behind:
            text = f"{d.name}: would compare {found.rows:,} rows with the topic, and publish those that differ"
        else:
            text = f"{d.name}: everything is published"
    elif isinstance(found, Published):
        text = (
            f"{d.name}: published {found.records:,} records of {found.windows:,} windows in {found.transactions:,} "
            f"transactions, {found.corrections:,} of them corrections"
        )
    else:
        text = (
            f"{d.name}: would publish {found.behind:,} windows with {found.rows:,} rows: {len(found.begun):,} begun, "
            f"{len(found.new):,} new, {len(found.again):,} loaded again; {found.published:,} are published"
        )
    echo(text)
    if found.held:
        echo(f"{d.name}: corrections of {len(found.held):,} windows are held (`corrections: hold`)")
    if isinstance(found, Published) and found.removed:
        echo(
            f"{d.name}: rows of {len(found.removed):,} windows were erased or expired before they were published or compared"
        )
    if found.waiting is not None:
        echo(f"{d.name}: window {found.waiting} is not loaded yet, and later windows wait for it")


def audit_published(topic: str, *, as_json: bool) -> int:
    """Hold the topic against its table, print the outcome, and return the exit code: 0 proved, 1 anomalies, 2 neither."""
    from platform_assets.checks.published import CHECK, gather
    from platform_assets.checks.published_keys import gather as gather_keys
    from platform_assets.checks.published_records import hanging
    from platform_assets.cli.audit_table import progress
    from platform_assets.windows.publish.keyed import KeyedPublisher

    with progress(console(stderr=True)) as show:
        each = _publisher(topic)
        found = gather_keys(each, show) if isinstance(each, KeyedPublisher) else gather(each, show)
        stuck = hanging(each)
    reasons = [*found.not_read, *([] if stuck is None else [stuck])]
    outcome = "anomalies" if not found.passed else "undecided" if reasons else "proved"
    d = each.declaration
    if as_json:
        echo_json(
            {
                "version": JSON_VERSION,
                "table": d.name,
                "source": d.table.name,
                "outcome": outcome,
                "records": found.records,
                "windows": found.windows,
                "behind": found.plan.behind,
                "blocked": len(found.plan.blocked),
                "problems": found.problems,
                "problem_count": found.wrong,
                "reasons": reasons,
                "notes": found.notes,
            }
        )
    else:
        echo(f"{d.name}: {outcome}")
        echo(f"  {CHECK}: {found.headline}")
        if found.plan.behind:
            echo(f"  {found.plan.behind:,} windows with {found.plan.rows:,} rows are not published yet")
        if stuck is not None:
            echo(f"  {stuck}")
    return {"proved": 0, "anomalies": 1, "undecided": 2}[outcome]


def _publisher(topic: str, on_progress: object = None) -> Publisher | KeyedPublisher:
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import published
    from platform_assets.errors import ConfigurationError
    from platform_assets.orchestration.published import publisher_of

    known = published()
    name = topic.removeprefix("published/")
    if name not in known:
        names = ", ".join(known) or "none"
        raise ConfigurationError(
            f"{topic!r} is not a published topic of this project; its published topics are: {names}"
        )
    environment = Environment.of_process()
    given = {} if on_progress is None else {"on_progress": on_progress}
    return publisher_of(known[name], environment.ledger(), environment.cluster(), **given)
