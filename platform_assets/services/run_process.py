"""The code of a run's process, which has the project's and the platform's code as on disk when it begins."""

from __future__ import annotations

import io
import sys
from multiprocessing.connection import Connection
from typing import Final

from platform_assets.services.log_keeper import Printable

TAGGED: Final = b"tagged"
"""The launcher's message after it has tagged the run with its process."""


class PrintableStream(io.TextIOWrapper):
    """Text to a file descriptor of this process, with control characters as escapes and without colours.

    Dagster keeps what a run prints in a file of its own, tracebacks with text from records among it.
    """

    def __init__(self, descriptor: int) -> None:
        raw = io.FileIO(descriptor, "w", closefd=False)
        super().__init__(io.BufferedWriter(raw), encoding="utf-8", line_buffering=True)

    def write(self, text: str) -> int:
        super().write(Printable().add(text.encode(errors="backslashreplace"), final=True).decode())
        return len(text)


def execute(arguments: str, launcher: Connection) -> None:
    """Execute the run that these serialised arguments name, as `dagster api execute_run` in a new process would.

    It does so once `launcher` has said TAGGED, and not at all where that has ended before.
    """
    from dagster._cli.api import execute_run_command

    sys.stdout, sys.stderr = PrintableStream(1), PrintableStream(2)
    # Not imported: where the fork server did not load it, there is nothing to let go.
    if preloaded := sys.modules.get("platform_assets.services.preloaded"):
        preloaded.forget_if_changed()
    with launcher:
        try:
            launcher.recv_bytes()
        except EOFError:
            sys.exit(
                "the launcher ended, or could not write on the run which process it has: the run is asked for again"
            )
    execute_run_command.main([arguments], prog_name="dagster api execute_run", standalone_mode=False)
