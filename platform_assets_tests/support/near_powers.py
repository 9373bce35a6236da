"""Numbers near powers of two and ten, at which accumulators of a fixed width wrap around, as strings and as values."""

from __future__ import annotations

import random
from collections.abc import Iterator

_MOST_BITS, _MOST_DIGITS = 132, 42


def wholes(rng: random.Random, count: int) -> list[int]:
    """Return numbers near powers: the numbers around the first five multiples of 2^64 and around some other powers, at
    which accumulators can wrap around, and `count` random numbers near any power."""
    found = [times * (1 << 64) + near for times in range(1, 6) for near in (-1, 0, 1)]
    found += [
        sign * (1 << bits) + near for bits in (31, 32, 53, 63, 64, 127) for sign in (-1, 1) for near in (-1, 0, 1)
    ]
    found += [10**digits + near for digits in (9, 17, 18, 19, 20, 22, 23, 38) for near in (-1, 0, 1)]
    powers = [1 << bits for bits in range(_MOST_BITS)] + [10**digits for digits in range(_MOST_DIGITS)]
    found += [rng.choice((-1, 1)) * (rng.choice(powers) * rng.randint(1, 9) + rng.randint(-3, 3)) for _ in range(count)]
    return found


def texts(rng: random.Random, whole: int) -> Iterator[str]:
    """Yield different forms of a number with the digits of `whole`: with a decimal point at any position, with
    additional zeros, with an exponent."""
    sign, digits = ("-" if whole < 0 else ""), str(abs(whole))
    yield sign + digits
    place = rng.randint(1, len(digits))
    zeros = "0" * rng.choice((1, 6, 30))
    yield f"{sign}{digits}.{zeros}"
    yield f"{sign}{digits[:place]}.{digits[place:] or '0'}"
    yield f"{sign}{digits[:place]}.{digits[place:]}{zeros}"
    yield f"{sign}0.{zeros}{digits}"
    yield f"{sign}{digits}e{rng.randint(-45, 25)}"
    yield f"{sign}{digits[:place]}.{digits[place:] or '0'}E{rng.choice(('', '+', '-'))}{rng.randint(0, 25)}"
