"""What the process of a run does: it has the project's code, and the platform's, as they are on disk when it begins."""

from __future__ import annotations

import sys
from multiprocessing.connection import Connection
from typing import Final

TAGGED: Final = b"tagged"
"""What the launcher says once the run names its process."""


def execute(arguments: str, launcher: Connection) -> None:
    """Execute the run that these serialised arguments name, as `dagster api execute_run` in a new process would.

    It does so once `launcher` has said TAGGED, and not at all where that has ended before.
    """
    from dagster._cli.api import execute_run_command

    # Not imported: where the fork server did not load it, there is nothing to let go.
    if preloaded := sys.modules.get("infra.preloaded"):
        preloaded.forget_if_changed()
    with launcher:
        try:
            launcher.recv_bytes()
        except EOFError:
            sys.exit(
                "the launcher ended, or could not write on the run which process it has: the run is asked for again"
            )
    execute_run_command.main([arguments], prog_name="dagster api execute_run", standalone_mode=False)
