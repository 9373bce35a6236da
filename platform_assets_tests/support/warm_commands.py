"""Commands of `platform-assets` that start at once: each is a process of its own, forked from one that has loaded the code.

A command spends most of its processor time on loading code. `python -m platform_assets_tests.support.warm_commands` reads
a line of JSON for each command, and prints the id of the process that runs it.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from platform_assets.services.home import CHECKOUT
from platform_assets.services.run_launcher import LIBRARIES, PLATFORM

_COMMANDS = ("platform_assets.cli.main", "platform_assets.cli.loads", "platform_assets.checks.postgres.comparing")


@dataclass(frozen=True)
class WarmCommand:
    """A command that was started. Its output, of both streams, goes to a file."""

    pid: int
    output: Path

    def outlives(self, seconds: float) -> bool:
        """Wait for the end of the process, and return True if it is still running after so many seconds."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            return not select.select([handle], [], [], seconds)[0]
        finally:
            os.close(handle)

    def kill(self) -> None:
        """Kill the process, so that no handler runs."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def code(self) -> int:
        """Return the exit code of a process that has ended: that of a killed process is -9."""
        written = self.output.with_suffix(".code")
        return int(written.read_text()) if written.exists() else -signal.SIGKILL


class WarmCommands:
    """The process from which commands are forked."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "platform_assets_tests.support.warm_commands"],
            cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def begin(self, arguments: Sequence[str], environ: Mapping[str, str], output: Path) -> WarmCommand:
        """Start `platform-assets` with these arguments in this environment."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps([list(arguments), dict(environ), str(output)]), file=self._process.stdin, flush=True)
        return WarmCommand(int(self._process.stdout.readline()), output)

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


@contextmanager
def warm_commands() -> Iterator[WarmCommands]:
    """Provide the process until the block ends."""
    made = WarmCommands()
    try:
        yield made
    finally:
        made.end()


def _run(arguments: list[str], environ: dict[str, str], output: str) -> None:
    os.environ.clear()
    os.environ.update(environ)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for own, at in ((nothing, 0), (target, 1), (target, 2)):
        os.dup2(own, at)
    from platform_assets.cli.main import main

    code: object = 0
    try:
        main(arguments)
    except SystemExit as e:
        code = e.code or 0
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    Path(output).with_suffix(".code").write_text(str(code))
    os._exit(0)


def _serve() -> None:
    for name in (*LIBRARIES, PLATFORM, *_COMMANDS):
        with suppress(ImportError):
            importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            _run(*json.loads(line))
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
