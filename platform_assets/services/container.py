"""Run a command and make its output printable: the entry point of containers.

    python -m platform_assets.services.container dagster-daemon run

The output of a container is its log, and a service may log text from records, brokers and registries, for example in a
traceback. This process copies both output streams of the command to its own output streams, with control characters as
escapes. It forwards signals, reaps orphans, and exits with the command's exit code, or with 128 plus the signal number
if a signal ended the command. If nothing reads the output of this process, the command blocks as it would on a full
pipe. After the command has ended, this process gives the reader a few more seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from platform_assets.services.log_keeper import Printable
from platform_assets.services.printable import printable

FORWARDED: Final = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip
_PIECE: Final = 1 << 16
_MOST_LEFT: Final = 64
"""Maximum number of pieces that are read after the command has ended. Together, these pieces hold more than a pipe can.
"""
_STALLED_MS: Final = 3_000
"""Maximum time, in milliseconds, to wait for a stalled reader of the output after the command has ended."""
_KEYS: Final = signal.SIGINT, signal.SIGQUIT
"""Signals that a terminal sends to every process in its foreground group."""
_NOT_STARTED: Final = 127
_SIGNALLED: Final = 128


class _Stream:
    """A pipe to which the command writes, and the file descriptor of this process to which the text is copied."""

    def __init__(self, target: int) -> None:
        self.source, self.end = os.pipe()
        self._target, self._printable = target, Printable()
        self._is_open, self._waiting = True, b""
        os.set_blocking(self.source, False)

    @property
    def next_step(self) -> tuple[int, int] | None:
        """The file descriptor and the event to wait for before calling `step`; None if every writer has closed the pipe
        and everything is copied."""
        if self._waiting:
            return self._target, select.POLLOUT
        return (self.source, select.POLLIN) if self._is_open else None

    def step(self) -> None:
        """Write the waiting text. If no text is waiting, read the next piece. Raises BlockingIOError if there is
        nothing to read."""
        if self._waiting:
            self._write()
            return
        piece = os.read(self.source, _PIECE)
        self._is_open = bool(piece)
        self._waiting = self._printable.add(piece)

    def finish(self) -> None:
        """Copy the remaining text. Do not wait for more text, because processes that outlive the command can still
        write."""
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_LEFT):
                if not self._drain():
                    return
                if not self._is_open:
                    break
                self.step()
        self._waiting = self._printable.add(b"", final=True)
        self._drain()

    def _drain(self) -> bool:
        """Write all waiting text. Return False if the reader of the output has stalled."""
        ready = select.poll()
        ready.register(self._target, select.POLLOUT)
        while self._waiting:
            if not ready.poll(_STALLED_MS):
                return False
            self._write()
        return True

    def _write(self) -> None:
        # A pipe reported as ready takes this many bytes at once, so even a blocking descriptor does not block.
        try:
            written = os.write(self._target, self._waiting[: select.PIPE_BUF])
        except BlockingIOError:
            return
        except OSError:
            # A log that accepts no more text must not stop the service.
            written = len(self._waiting)
        self._waiting = self._waiting[written:]


def run(command: Sequence[str]) -> int:
    """Run `command` until it ends, and return the exit code for this process."""
    streams = _Stream(1), _Stream(2)
    # If this signal were ignored, the kernel would forget how the command ended.
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # A signal between the start of the command and the installation of the handlers stays pending.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        child = _started(command, streams, before)
    except OSError as error:
        name = printable(command[0])
        os.write(2, f"{name} cannot be started: {error.strerror}. Check the container's command.\n".encode())
        return _NOT_STARTED
    with _woken(child) as woken:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for stream in streams:
            os.close(stream.end)
        while (code := _exit_code(child)) is None:
            _wait_and_step(streams, woken)
    for stream in streams:
        stream.finish()
    return code


def _wait_and_step(streams: Sequence[_Stream], woken: int) -> None:
    """Wait until a stream can continue or a signal has arrived. After that, take the next step of each stream that is
    ready."""
    ready = select.poll()
    ready.register(woken, select.POLLIN)
    steps = {step[0]: (stream, step[1]) for stream in streams if (step := stream.next_step) is not None}
    for descriptor, (_, event) in steps.items():
        ready.register(descriptor, event)
    for descriptor, _ in ready.poll():
        if descriptor == woken:
            os.read(woken, _PIECE)
        else:
            steps[descriptor][0].step()


def _started(command: Sequence[str], streams: Sequence[_Stream], mask: Collection[int]) -> int:
    outputs = [(os.POSIX_SPAWN_DUP2, stream.end, descriptor) for descriptor, stream in enumerate(streams, start=1)]
    # Python ignores these signals, and a command would inherit that.
    return os.posix_spawnp(
        command[0], list(command), os.environ, file_actions=outputs, setsigmask=mask, setsigdef=[signal.SIGPIPE, signal.SIGXFSZ]
    )  # fmt: skip


@contextmanager
def _woken(child: int) -> Iterator[int]:
    """Forward signals to `child`, and yield a file descriptor that becomes readable after each signal, including
    SIGCHLD.

    A signal from a key such as Ctrl-C is not forwarded, because the terminal sends it to the command directly. A second
    signal could end the command without its cleanup.
    """
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def forward(number: int, _: object) -> None:
        if number in _KEYS and _is_in_foreground():
            return
        with contextlib.suppress(ProcessLookupError):  # the command has just ended
            os.kill(child, number)

    for number in FORWARDED:
        signal.signal(number, forward)
    try:
        yield reader
    finally:
        # A command that has ended gets no more signals: another process may have its id.
        for number in FORWARDED:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        os.close(reader)
        os.close(writer)


def _is_in_foreground() -> bool:
    """Return True if this process and the command are in a terminal's foreground process group."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)


def _exit_code(child: int) -> int | None:
    """Reap all children that have ended, including orphans. If `child` is among them, return its exit code."""
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else _SIGNALLED - code
        if ended == 0:
            return None


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(
            "No command was given. Add a command, for example: python -m platform_assets.services.container dagster-daemon run"
        )
    sys.exit(run(sys.argv[1:]))
