"""Write what comes in to a log file, and begin a new file when it has grown too large: a program of its own, one for each service.

It reads its standard input until all that hold the other end have ended, so it needs no request to end. It imports nothing of the
project: a service's memory is dear.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

LOG_VARIABLE, BYTES_VARIABLE = "LOG_KEEPER_FILE", "LOG_KEEPER_BYTES"
LOGS_KEPT = 3
"""How many former files there are beside the one that is written."""
MOST_BYTES = 64 << 20
_PIECE = 1 << 16


def rotate(log: Path) -> None:
    """Keep a few former logs: why a service died is in the last one's."""
    for number in range(LOGS_KEPT, 0, -1):
        older = log if number == 1 else log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number}"))


def created(log: Path) -> int:
    """A new file that its owner alone can read, open for writing."""
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)


def keep(source: int, log: Path, most_bytes: int) -> None:
    """Copy what is read from `source` to `log` until it ends. What a full disk does not take is dropped, so that no writer waits."""
    target, size = created(log), 0
    while piece := os.read(source, _PIECE):
        try:
            if size and size + len(piece) > most_bytes:
                rotate(log)
                former, target, size = target, created(log), 0
                os.close(former)
            size += os.write(target, piece)
        except OSError:
            continue


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep(sys.stdin.fileno(), Path(os.environ[LOG_VARIABLE]), int(os.environ[BYTES_VARIABLE]))
