"""The code of a run's process. The process uses the project's and the platform's code in the version that is on disk
when the run begins."""

from __future__ import annotations

import io
import sys
from multiprocessing.connection import Connection
from typing import Final

from platform_assets.services.log_keeper import Printable

TAGGED: Final = b"tagged"
"""The message that the launcher sends once it has tagged the run with the identity of the run's process."""


class PrintableStream(io.TextIOWrapper):
    """Text stream that writes to a file descriptor of this process. Control characters are written as escapes, and
    colors are removed.

    Dagster stores the output of a run in a separate file. The output may include tracebacks with text from records.
    """

    def __init__(self, descriptor: int) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True)

    def write(self, text: str) -> int:
        super().write(Printable().add(text.encode(errors="backslashreplace"), final=True).decode())
        return len(text)


def execute(arguments: str, launcher: Connection) -> None:
    """Execute the run that these serialized arguments identify, as `dagster api execute_run` would in a new process.

    The run starts after `launcher` has sent TAGGED. If the launcher ends before that, the run does not start.
    """
    from dagster._cli.api import execute_run_command

    sys.stdout, sys.stderr = PrintableStream(1), PrintableStream(2)
    # Not imported here: if the fork server did not load it, there is nothing to release.
    if preloaded := sys.modules.get("platform_assets.services.preloaded"):
        preloaded.forget_if_changed()
    with launcher:
        try:
            launcher.recv_bytes()
        except EOFError:
            sys.exit(
                "the launcher ended, or could not record this process on the run. The run will be requested again."
            )
    execute_run_command.main([arguments], prog_name="dagster api execute_run", standalone_mode=False)
