"""`platform-assets forget-schemas`."""

from __future__ import annotations

import click

from platform_assets.cli import options
from platform_assets.terminal import echo


@click.command(name="forget-schemas")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@options.dry_run("Only list what would be forgotten.")
def forget_schemas(ids: tuple[str, ...], dry_run: bool) -> None:
    """Forget the stored schemas of registry ids, and use the schemas that the registry now returns for these ids.

    The lake keeps each schema that values were decoded with, and refuses a registry that returns a different schema for
    the same id. Forget an id only if no record that may be decoded again was written with the previous schema. Decoded
    rows stay as they are.
    """
    from platform_assets.cli.environment import Environment
    from platform_assets.decoding.registry import cache
    from platform_assets.decoding.registry.wire import key_of
    from platform_assets.lake.files import files_below

    keys = [key_of(each) for each in ids]
    folder = Environment.of_process().ledger().lake.schemas
    lines = cache.forget(files_below(str(folder)), keys, dry_run)
    for line in lines:
        echo(f"{'would forget' if dry_run else 'forgot'} {line}")
    if not lines:
        echo("Nothing to forget: the lake has no stored schema for these ids.")
    elif not dry_run:
        echo("Next, load the windows that are waiting for these schemas: platform-assets load TABLE WINDOW")
