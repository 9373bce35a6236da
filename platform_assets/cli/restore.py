"""`platform-assets restore`."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from platform_assets.cli import options
from platform_assets.model.logs import logger
from platform_assets.terminal import console, echo, echo_json

_log = logger(__name__)

if TYPE_CHECKING:
    from platform_assets.backup.restoring import Restored
    from platform_assets.cli.environment import Environment
    from platform_assets.lake.location import Lake
    from platform_assets.ledger.decisions import Decision
    from platform_assets.model.declaration import TopicDeclaration

JSON_VERSION = 1


@click.command()
@click.argument("source", type=click.Path(path_type=Path, file_okay=False, exists=True))
@click.option(
    "--only",
    "only",
    multiple=True,
    metavar="PART",
    help="Restore only this part: ledger, dagster or a table. May be repeated.",
)
@click.option("--force", is_flag=True, help="Replace existing data.")
@options.dry_run("Only verify the backup's files, and restore nothing.")
@options.as_json()
def restore(source: Path, only: tuple[str, ...], force: bool, dry_run: bool, as_json: bool) -> None:
    """Restore the backup SOURCE, or the newest backup in the folder SOURCE, to LAKE_ROOT and DAGSTER_HOME.

    Stop Dagster first. All files are compared with what was backed up before anything is replaced. Existing data is
    replaced only with --force. If you restore a single table, it is then older than the ledger. Windows that were
    loaded after the backup are therefore removed from the ledger, and the sensor loads them again. Records that were
    erased since the backup are erased again, if the existing ledger lists them. At the end, the command prints any
    steps that remain to be done.
    """

    from platform_assets.backup import restoring
    from platform_assets.checks.findings import counted
    from platform_assets.cli.audit_table import progress
    from platform_assets.cli.environment import Environment

    environment = Environment.of_process()
    lake, home = environment.ledger().lake, Path(environment.variables["DAGSTER_HOME"])
    found = restoring.find(source.absolute())
    erased = None
    if not dry_run:
        _check_stopped(environment)
        erased = _decided(lake)
    with progress(console(stderr=True)) as on_progress:
        done = restoring.restore(found, lake, home, only, force=force, dry_run=dry_run, progress=on_progress)
    then = [] if dry_run else [*_erased_again(lake, erased), *_then(done, lake)]
    if as_json:
        fields = {
            "version": JSON_VERSION,
            "backup": str(found.folder),
            "at": found.manifest.at.isoformat(timespec="seconds"),
            "dry_run": dry_run,
            "parts": list(done.parts),
            "files": done.files,
            "bytes": done.bytes,
            "to_be_loaded_again": {table: list(keys) for table, keys in done.forgotten.items()},
            "then": then,
        }
        echo_json(fields)
        return
    what = "verified and undamaged; nothing was restored" if dry_run else "restored"
    echo(
        f"{found.folder} from {found.manifest.at:%Y-%m-%d %H:%M:%S}Z: {', '.join(done.parts)}: "
        f"{counted(done.files, 'file')}, {done.bytes:,} bytes, {what}"
    )
    for line in then:
        echo(line)


def _check_stopped(environment: Environment) -> None:
    """Raise ConfigurationError if Dagster is running here, because it would write to the restored data."""
    from platform_assets.errors import ConfigurationError
    from platform_assets.services import platform
    from platform_assets.services.dagster_services import DAEMON, WEBSERVER

    up = [
        state.service
        for state in platform.running_state(environ=environment.variables)
        if state.service in (DAEMON, WEBSERVER) and state.status in ("running", "starting")
    ]
    if up:
        stop = " ".join(f"--service {name}" for name in up)
        raise ConfigurationError(
            f"{' and '.join(up)} would write to the restored data: run `platform-assets down {stop}` before the restore, and "
            "`platform-assets up` after it"
        )


def _decided(lake: Lake) -> Sequence[Decision] | None:
    """Return the erasures in the lake's ledger before the restore; None if the ledger is damaged, which the restore may
    fix.
    """
    from platform_assets.errors import PlatformError
    from platform_assets.windows.erase import reapplying

    try:
        return reapplying.remember(lake, reapplying.decided(lake))
    except PlatformError as e:
        _log.warning("%s", e)
        return None


def _erased_again(lake: Lake, before: Sequence[Decision] | None) -> Iterator[str]:
    """Erase again the records that were erased since the backup; return sentences that describe the result."""
    from platform_assets.ledger.decisions import Author
    from platform_assets.windows.erase import reapplying

    author = Author("platform-assets restore", "erased before, but brought back by a restore")
    for done in reapplying.reapply(lake, before or (), author, _declaration_of):
        for table, rows in done.rows.items():
            if rows:
                what = "1 previously erased row was" if rows == 1 else f"{rows:,} previously erased rows were"
                yield f"{table}: {what} restored and then erased again"
        if done.unfinished:
            yield done.unfinished
    if before is None:
        yield (
            "it is not known which erasures followed the backup, because the existing ledger could not be read: run "
            '`platform-assets erase TOPIC --key-file FILE --reason "…"` again for each of them'
        )


@functools.cache
def _declared() -> Mapping[str, TopicDeclaration]:
    from platform_assets.components.declared import declarations

    return declarations()


def _declaration_of(topic: str) -> TopicDeclaration:
    """Return the project's declaration of a topic. If the topic is no longer declared but still has tables, return a
    minimal declaration."""
    from platform_assets.model.declaration import TopicDeclaration

    return _declared().get(topic) or TopicDeclaration(topic, "0 * * * *", datetime(1970, 1, 1, tzinfo=UTC))


def _then(done: Restored, lake: Lake) -> Iterator[str]:
    """Yield a sentence for each step that remains to be done."""
    from platform_assets.backup.manifest import DAGSTER
    from platform_assets.backup.restoring import newer_tables
    from platform_assets.checks.findings import counted

    if newer := newer_tables(done, lake):
        yield (
            f"the ledger is older than {', '.join(newer)}: run `platform-assets rebuild-ledger` before you start "
            f"Dagster, to add the missing entries from the tables' commits"
        )
    for table, keys in done.forgotten.items():
        yield (
            f"{table}: {counted(len(keys), 'window')} loaded since the backup will be loaded again by the sensor, "
            f"beginning with {keys[0]}"
        )
    if topics := [part.partition("/")[2] for part in done.parts if part.startswith("changes/")]:
        names = ", ".join(f"state/{topic}" for topic in topics[:3]) + (" …" if len(topics) > 3 else "")
        yield (
            f"backups have no states: for {names}, the sensor requests folds of the restored changes, or run "
            f"`platform-assets fold {topics[0]}`"
        )
    if done.parts == (DAGSTER,):
        yield (
            "windows loaded since the backup are in their tables, but Dagster has no record of them: run "
            "`platform-assets report-loads` to report them"
        )
