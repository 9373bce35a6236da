"""Interface for fuzz targets, and byte strings that are likely to cause failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

Case = Callable[[random.Random], object]
"""Function that runs one case. Any exception is a finding."""

_NUMBERS: Final = (0, 1, -1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, -0x8000, 0x7FFF_FFFF, -0x8000_0000, (1 << 63) - 1, -(1 << 63))
LONGEST_MESSAGE: Final = 20_000
"""Maximum length of an error message. A message may quote untrusted text, but must not fill a log."""


class Wrong(Exception):
    """A violation that raises no exception in the code under test, such as a wrong value or a write outside the target."""


@dataclass(frozen=True, slots=True)
class Target:
    """One kind of input. `open` prepares the target in a separate folder and returns a function that runs a case.

    A case may use `cpu_seconds` of processor time, `wall_seconds` in total, and `megabytes` more memory than the
    idle target.
    """

    open: Callable[[Path], AbstractContextManager[Case]]
    cpu_seconds: float = 20.0
    wall_seconds: float = 120.0
    megabytes: int = 1_500


def case_rng(name: str, seed: int, number: int) -> random.Random:
    """Return the random generator for one case. The same arguments always give the same random numbers."""
    return random.Random(f"{name}:{seed}:{number}")


def check_message(error: BaseException) -> None:
    """Raise Wrong if the message of a platform error quotes untrusted text without a limit."""
    if len(str(error)) > LONGEST_MESSAGE:
        raise Wrong(f"{type(error).__name__} has a message of {len(str(error)):,} characters: {str(error)[:200]!r}")


def damaged(rng: random.Random, content: bytes, others: Sequence[bytes] = (), most: int = 6) -> bytes:
    """Return the bytes with one to `most` changes: flipped bits, odd numbers, and pieces that are omitted, duplicated
    or taken from `others`."""
    found = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, rng.randint(1, most)))):
        _damage(rng, found, others)
    return bytes(found)


def _damage(rng: random.Random, found: bytearray, others: Sequence[bytes]) -> None:
    at = rng.randrange(len(found) + 1)
    size = min(rng.choice((1, 1, 2, 4, 8, rng.randint(1, 64))), len(found) - at)
    kind = rng.randrange(9)
    if kind == 0 and at < len(found):
        found[at] ^= 1 << rng.randrange(8)
    elif kind == 1 and at < len(found):
        found[at] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))
    elif kind == 2:
        width = rng.choice((1, 2, 4, 8))
        number = (rng.choice(_NUMBERS) + rng.choice((0, 0, 1, -1))) % (1 << 8 * width)
        found[at : at + width] = number.to_bytes(width, rng.choice(("big", "little")))
    elif kind == 3:
        del found[at : at + size]
    elif kind == 4:
        found[at:at] = found[at : at + size] * rng.choice((1, 1, 3, rng.randint(1, 200)))
    elif kind == 5:
        found[at:at] = rng.randbytes(rng.randint(1, 16))
    elif kind == 6:
        del found[at:]
    elif kind == 7:
        found[at : at + size] = rng.choice(
            (b"\xff" * 10, b"\x80" * 10, b"\xff" * 9 + b"\x01", b"\0" * size, b"\x80" * 4 + b"\x08")
        )
    elif others:
        other = rng.choice(others)
        begin = rng.randrange(len(other) + 1)
        found[at : at + size] = other[begin : begin + rng.randint(0, 200)]
