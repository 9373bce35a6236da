"""`platform-assets backup`."""

from __future__ import annotations

from pathlib import Path

import click

from platform_assets.cli import options
from platform_assets.terminal import console, echo, echo_json

JSON_VERSION = 1


@click.command()
@click.argument("given", metavar="DESTINATION", type=click.Path(file_okay=False))
@options.as_json()
def backup(given: str, as_json: bool) -> None:
    """Copy the lake and Dagster's home to a new folder in DESTINATION, while loads continue.

    Each table is copied at one version. The tables are copied in an order that makes the restored lake consistent.
    Dagster's databases are copied with SQLite's own backup. Files that the previous backup also has are hard-linked, so
    a backup takes only the space of new files. You can restore or delete each backup independently. A backup gets its
    final name once it is completely on disk.

    Replays and files that do not belong to the platform are left out, and listed.
    """
    from datetime import UTC, datetime

    from platform_assets.backup.taking import take
    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment
    from platform_assets.errors import ConfigurationError

    if "://" in str(given):
        raise ConfigurationError(
            f"{given!r} is a URL, but backups are written only to folders on this machine; nothing was backed up. Give a "
            "folder, then copy the backup to the object store with that store's tools."
        )
    destination = Path(given)
    environment = Environment.of_process()
    lake, home = environment.ledger().lake, Path(environment.variables["DAGSTER_HOME"])
    with progress(console(stderr=True)) as on_progress:
        done = take(lake, home, destination.absolute(), datetime.now(UTC), progress=on_progress)
    size = sum(file.bytes for file in done.manifest.files)
    if as_json:
        found = {
            "version": JSON_VERSION,
            "backup": str(done.folder),
            "at": done.manifest.at.isoformat(timespec="seconds"),
            "parts": list(done.manifest.parts),
            "tables": dict(done.manifest.tables),
            "files": len(done.manifest.files),
            "bytes": size,
            "files_copied": done.copied,
            "bytes_copied": done.copied_bytes,
            "left_out": list(done.manifest.left_out),
        }
        echo_json(found)
        return
    echo(
        f"{done.folder}: {', '.join(done.manifest.parts)}: {counted(len(done.manifest.files), 'file')}, {size:,} "
        f"bytes; {counted(done.copied, 'file')} ({done.copied_bytes:,} bytes) copied, the others hard-linked to "
        "the previous backup"
    )
    if done.manifest.left_out:
        echo(f"not backed up: {', '.join(done.manifest.left_out)}")
