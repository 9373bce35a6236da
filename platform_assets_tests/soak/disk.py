"""A small disk for one test. It can be filled and emptied. It is a tmpfs, if this process is allowed to mount a tmpfs."""

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
    """A separate file system mounted at `path`."""

    path: Path

    @contextmanager
    def full(self) -> Iterator[None]:
        """Fill the disk to the last byte while the block runs. Free the space again after the block."""
        ballast = self.path / _BALLAST
        with ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"\0" * (1 << 16))
            except OSError:
                pass  # expected
        try:
            yield
        finally:
            ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Disk | None]:
    """Mount a disk of the given size at `path` while the block runs. If this process is not allowed to mount a disk,
    yield None."""
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
