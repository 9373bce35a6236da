"""A target whose cases fail in each way that the runner must notice."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from platform_assets_tests.fuzzing.target import Case, Target

WAYS: Final = ("none", "raise", "crash", "hang", "memory")


def way(rng: random.Random) -> str:
    """Return the way in which a case fails."""
    return rng.choice(WAYS)


def _case(rng: random.Random) -> None:
    chosen = way(rng)
    if chosen == "raise":
        raise ValueError("wrong")
    if chosen == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    while chosen == "hang":
        pass
    if chosen == "memory":
        bytearray(1 << 30)


@contextmanager
def _opened(_: Path) -> Iterator[Case]:
    yield _case


TARGET: Final = Target(_opened, cpu_seconds=0.3, megabytes=200)
