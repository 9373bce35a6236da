"""Preparation of the machine that runs the benchmarks, so that its state stays the same throughout."""

from __future__ import annotations

import mmap
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psutil

_LEFT_ALONE: Final = 1 << 30
_PIECE: Final = 256 << 20
_CONTAINER: Final = Path("/sys/fs/cgroup/memory.max")


def touch_memory(report: Callable[[str], None]) -> None:
    """Write once to all available memory except for 1 GiB. On a new virtual machine, the host provides each page when
    the page is first written. This takes ten times as long as the write itself: files were written at 0.4 GB/s the
    first time, and at 5 GB/s later (2026-11-25). Without this preparation, that cost would slow down loads at random
    moments."""
    free = max(min(psutil.virtual_memory().available, _granted()) - _LEFT_ALONE, 0)
    began = time.monotonic()
    ones = bytes([1]) * _PIECE
    with mmap.mmap(-1, max(free, mmap.PAGESIZE)) as memory:
        for at in range(0, free, _PIECE):
            memory[at : at + _PIECE] = ones[: free - at]
    took = time.monotonic() - began
    report(f"wrote once to {free / 1e9:.1f} GB of free memory in {took:.0f} s, {free / took / 1e9:.1f} GB/s")


def _granted() -> int:
    """Return the memory limit of the container."""
    limit = _CONTAINER.read_text().strip() if _CONTAINER.exists() else "max"
    return sys.maxsize if limit == "max" else int(limit)
