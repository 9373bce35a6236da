"""What the process of a run does. It imports nothing of the project, so that a run has all code as it is on disk."""

from __future__ import annotations


def execute(arguments: str) -> None:
    """Execute the run that these serialised arguments name, as `dagster api execute_run` in a new process would."""
    from dagster._cli.api import execute_run_command

    execute_run_command.main([arguments], prog_name="dagster api execute_run", standalone_mode=False)
