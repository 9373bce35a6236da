"""What the process of a run does: it has the project's code, and the platform's, as they are on disk when it begins."""

from __future__ import annotations

import sys


def execute(arguments: str) -> None:
    """Execute the run that these serialised arguments name, as `dagster api execute_run` in a new process would."""
    from dagster._cli.api import execute_run_command

    # Not imported: where the fork server did not load it, there is nothing to let go.
    if preloaded := sys.modules.get("infra.preloaded"):
        preloaded.forget_if_changed()
    execute_run_command.main([arguments], prog_name="dagster api execute_run", standalone_mode=False)
