"""`platform-assets rebuild-ledger`."""

from __future__ import annotations

import sys

import click

from platform_assets.terminal import console, echo, echo_error


@click.command("rebuild-ledger")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def rebuild_ledger(tables: tuple[str, ...]) -> None:
    """Restore a lost or older ledger from the commits of TABLE (all declared tables by default).

    TABLE is raw/<topic>, or the topic's name alone. Stop the sensors first. Only what the ledger lacks is written, so
    running it again is safe.

    Exits 1 where files of a window are lost, so that its entry is still lacking.
    """

    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of, declarations
    from platform_assets.windows.rebuild import rebuild
    from platform_assets.windows.rebuild_decoded import rebuild_decoded

    environment = Environment.of_process()
    ledger = environment.ledger()
    chosen = [declaration_of(t) for t in tables] or list(declarations().values())
    complete = True
    for declaration in chosen:
        with progress(console(stderr=True)) as tell:
            done = rebuild(declaration, ledger, environment.engine(declaration.engine), progress=tell)
            engine = environment.engine(declaration.engine)
            decoded = 0 if declaration.decode is None else rebuild_decoded(declaration, ledger, engine, progress=tell)
        complete &= not done.unread
        for error in done.unread:
            echo_error(error)
        echo(f"{declaration.raw_table}: {done.cuts} cuts and {done.receipts} receipts restored")
        if declaration.decode is not None:
            echo(f"{declaration.decoded_table}: receipts of {counted(decoded, 'window')} restored")
        for key in done.merged:
            echo(
                f"{declaration.raw_table}: window {key} now also covers the windows after it that were sealed and "
                "never loaded; load it to bring their records"
            )
    sys.exit(0 if complete else 1)
