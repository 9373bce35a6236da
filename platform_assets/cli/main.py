"""The command `platform-assets`: one module per command, listed below.

Command modules import only cheap modules at the top, so that `--help` is instant, and the others inside the command.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from types import TracebackType
from typing import Final, NoReturn

import click

from platform_assets import secret_files
from platform_assets.cli import (
    accept_cluster,
    accept_generation,
    accept_loss,
    audit,
    backup,
    check,
    compare_postgres,
    dead_letters,
    demo,
    derive,
    down,
    env,
    erase,
    find_topics,
    fold,
    forget_schemas,
    init,
    load,
    migrate_layout,
    park,
    prune_runs,
    publish,
    read,
    rebuild_ledger,
    replay,
    report_loads,
    restore,
    status,
    up,
    upkeep,
    vacuum,
)
from platform_assets.errors import PlatformError, Retryable, UnknownOutcome
from platform_assets.services import project
from platform_assets.terminal import echo_error, echo_lines

EXIT_FAILED: Final = 1
EXIT_TRY_AGAIN: Final = 3

_COMMANDS: Final[tuple[click.Command, ...]] = (
    init.init,
    up.up,
    down.down,
    demo.demo,
    check.check,
    find_topics.find_topics,
    env.env,
    load.load,
    derive.derive,
    fold.fold,
    replay.replay,
    read.read,
    publish.publish,
    status.status,
    audit.audit,
    compare_postgres.compare_postgres,
    dead_letters.dead_letters,
    forget_schemas.forget_schemas,
    upkeep.upkeep,
    vacuum.vacuum,
    migrate_layout.migrate_layout,
    prune_runs.prune_runs,
    backup.backup,
    restore.restore,
    report_loads.report_loads,
    rebuild_ledger.rebuild_ledger,
    accept_loss.accept_loss,
    accept_generation.accept_generation,
    accept_cluster.accept_cluster,
    park.park,
    park.unpark,
    erase.erase,
)


class _Commands(click.Group):
    """Turns the platform's errors into one line on stderr and an exit code; other errors are not handled."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            project.adopt(os.environ, Path.cwd())
            secret_files.take(os.environ, secret_files.STORE)
            return super().invoke(ctx)
        except PlatformError as e:
            _fail(e)


def _fail(error: PlatformError) -> NoReturn:
    echo_error(error)
    sys.exit(EXIT_TRY_AGAIN if isinstance(error, Retryable | UnknownOutcome) else EXIT_FAILED)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="platform-assets")
def main() -> None:
    """Kafka topics to Delta tables as Dagster assets: exactly once by offset range, and provably so.

    Exit codes: 0 success; 1 failure, do what the message says; 2 usage error; 3 failure, but a retry may succeed.
    """


for _command in _COMMANDS:
    main.add_command(_command)


def run() -> None:
    """Run `main` as a separate process. With a lake in an object store, the process skips Python's clean-up at exit.

    Arrow reads a store's files through delta-rs's file system, which is written in Python. One of its threads may still
    need Python at exit, and the process then aborts although all work is done (delta-io/delta-rs#2184). A script would
    treat this as a failure.
    """
    sys.excepthook = _print_traceback
    if not sys.warnoptions:
        # Dagster says this of parts that the platform uses on purpose, in the version that is pinned.
        warnings.filterwarnings("ignore", message=r".* is currently in (beta|preview), and may have breaking changes")
    try:
        main()
    except SystemExit as e:
        if not isinstance(e.code, int) or not _has_read_a_store():
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        logging.shutdown()
        os._exit(e.code)


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    echo_lines("".join(traceback.format_exception(kind, error, trace)).rstrip("\n"), err=True)


def _has_read_a_store() -> bool:
    if "pyarrow.dataset" not in sys.modules:
        return False
    from platform_assets.lake.files import is_in_store

    return is_in_store(os.environ.get("LAKE_ROOT", ""))
