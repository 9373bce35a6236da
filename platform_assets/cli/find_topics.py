"""`platform-assets find-topics`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.terminal import echo


@click.command(name="find-topics")
@options.dry_run("Only report what would be added.")
def find_topics(dry_run: bool) -> None:
    """Find topics that match a declared `pattern`, and add them to found-topics.txt next to its defs.yaml.

    If `platform-assets up` started a UI, it reloads its definitions. Topics that are already declared are not added.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.components import declared, found_topics, new_topics

    names = Environment.of_process().cluster().topics()
    known = set(declared.declarations())
    added = False
    for folder, table in declared.patterns():
        new = [name for name in table.wanted(names) if name not in known]
        echo(
            f"{folder / found_topics.FILE}: pattern {table.pattern} matches {len(new)} new topic{'' if len(new) == 1 else 's'}"
        )
        for name in new:
            echo(f"  {name}")
        if new and not dry_run:
            found_topics.add(folder, new)
            added = True
        # If two patterns match, the first one gets the topic.
        known.update(new)
    if added:
        echo(new_topics.reload())
