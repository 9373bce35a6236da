"""`platform-assets rebuild-ledger`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from platform_assets.terminal import console, echo, echo_error

if TYPE_CHECKING:
    from platform_assets.model.tables import TableRef
    from platform_assets.windows.recover.rebuild import Rebuilt


@click.command("rebuild-ledger")
@click.argument("tables", nargs=-1, metavar="[TABLE]...")
def rebuild_ledger(tables: tuple[str, ...]) -> None:
    """Restore a lost or older ledger from the commits of TABLE (all declared tables by default).

    TABLE is raw/<topic>, or the topic's name alone. Stop the sensors first. Only what the ledger lacks is written, so
    it is safe to run the command again.

    If a table's log no longer has the load of a window, the rows in the oldest version that can be read count as
    loaded. The command lists these windows, because rows that were deleted before that version may be missing. Load
    these windows again to compare them with Kafka.

    Exits 1 if files of a window are lost, so that the window still has no entry in the ledger. Then load that window.
    """

    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.components.declared import declaration_of, declarations
    from platform_assets.windows.recover.rebuild import rebuild
    from platform_assets.windows.recover.rebuild_decoded import rebuild_changes, rebuild_decoded

    environment = Environment.of_process()
    ledger = environment.ledger()
    chosen = [declaration_of(t) for t in tables] or list(declarations().values())
    complete = True
    for declaration in chosen:
        with progress(console(stderr=True)) as on_progress:
            done = rebuild(declaration, ledger, environment.engine(declaration.engine), progress=on_progress)
            engine = environment.engine(declaration.engine)
            decoded = (
                0 if declaration.decode is None else rebuild_decoded(declaration, ledger, engine, progress=on_progress)
            )
        complete &= not done.unread
        for error in done.unread:
            echo_error(error)
        for line in lines(declaration.raw_table, done):
            echo(line)
        if declaration.state is not None:
            changes = rebuild_changes(declaration, ledger, progress=lambda text: None)
            echo(f"{declaration.changes_table}: receipts of {counted(changes, 'window')} restored")
        if declaration.decode is not None:
            echo(f"{declaration.decoded_table}: receipts of {counted(decoded, 'window')} restored")
    sys.exit(0 if complete else 1)


def lines(table: TableRef, done: Rebuilt) -> list[str]:
    """Return the output of the command for a raw table."""
    from platform_assets.checks.findings import counted

    found = [f"{table}: {done.cuts} cuts and {done.receipts} receipts restored"]
    if done.found:
        found.append(
            f"{table}: the table's log no longer contains the loads of {counted(len(done.found), 'window')} "
            f"({done.found[0]} to {done.found[-1]}), so their ledger entries describe the rows that are in the table now. "
            "Rows that were deleted or erased earlier may be missing. Load these windows again: each load compares its "
            "window with Kafka, and lists records that the table lacks"
        )
    if done.first:
        places = ", ".join(f"partition {p} offset {offset}" for p, offset in done.first.items())
        found.append(
            f"{table}: the table's log no longer says where the first window began, so that window now begins at the first "
            f"row of each partition: {places}. Earlier records are not in any window"
        )
    found += [
        f"{table}: window {key} now also covers the windows after it that were sealed and never loaded. Load this window to "
        "load the records of those windows too"
        for key in done.merged
    ]
    return found
