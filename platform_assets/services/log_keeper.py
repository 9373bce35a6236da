"""Write standard input to a log file, and start a new log file when the current one grows too large. Each service has
such a process.

The process reads until every process that holds the other end of the pipe has ended, so nothing has to stop it. It
imports no code of the project, because each such process costs memory. A service may log text from records, brokers and
registries, for example in a traceback. Control characters are therefore written as escapes, and colors are removed.
"""

from __future__ import annotations

import codecs
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

LOG_VARIABLE, BYTES_VARIABLE = "LOG_KEEPER_FILE", "LOG_KEEPER_BYTES"
LOGS_KEPT = 3
"""Number of rotated files to keep in addition to the current file."""
MOST_BYTES = 64 << 20
_PIECE = 1 << 16
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COLOUR_CUT_OFF = re.compile(r"\x1b(?:\[[0-9;]{0,32})?\Z")
_UNUSUAL = re.compile(r"[^\x20-\x7e\n\t]")


class Printable:
    """Converter of text to printable form. It works piece by piece: a piece can end in the middle of a character or a
    color sequence."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._kept = ""

    def add(self, piece: bytes, *, final: bool = False) -> bytes:
        """Return the text that can be written after reading `piece`. If `final` is true, no text is held back."""
        text = self._kept + self._decoder.decode(piece, final)
        cut_off = None if final else _COLOUR_CUT_OFF.search(text)
        self._kept = cut_off[0] if cut_off else ""
        text = text[: len(text) - len(self._kept)]
        return _UNUSUAL.sub(_shown, _COLOUR.sub("", text)).encode()


def _shown(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode()


def rotate(log: Path) -> None:
    """Rename the last log, and delete all but a few of the earlier logs. If a service died, its last log contains the
    reason."""
    for number in range(LOGS_KEPT, 0, -1):
        older = log if number == 1 else log.with_name(f"{log.name}.{number - 1}")
        if older.exists():
            os.replace(older, log.with_name(f"{log.name}.{number}"))


def created(log: Path) -> int:
    """Create a file that only its owner can read, and open it for writing."""
    return os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)


def _pieces(source: int) -> Iterator[bytes]:
    printable = Printable()
    while read := os.read(source, _PIECE):
        yield printable.add(read)
    yield printable.add(b"", final=True)


def keep(source: int, log: Path, most_bytes: int) -> None:
    """Copy `source` to `log` in printable form until `source` ends. If the disk is full, text is dropped, so no writer
    has to wait."""
    target, size = created(log), 0
    for piece in _pieces(source):
        try:
            if piece and size and size + len(piece) > most_bytes:
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
