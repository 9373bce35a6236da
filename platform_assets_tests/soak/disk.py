"""A small disk of a test's own that can be filled and emptied: a tmpfs, where this process may mount one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_BALLAST: Final = "ballast"


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system of its own at `path`."""

    path: Path

    @contextmanager
    def full(self) -> Iterator[None]:
        """Not a byte of it free while the block lasts, and as before after it."""
        ballast = self.path / _BALLAST
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * (1 << 16))
            except OSError:
                pass  # that is what was wanted
        try:
            yield
        finally:
            ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Disk | None]:
    """A disk of that size at `path` while the block lasts; None where this process may not mount one."""
    path.mkdir(parents=True, exist_ok=True)
    mounted = (
        os.geteuid() == 0
        and not subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)], check=False, capture_output=True
        ).returncode
    )
    try:
        yield Disk(path) if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", str(path)], check=True)
