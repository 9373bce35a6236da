"""However the offsets are divided among tasks, each offset is read once, in order, and all tasks have about the same
amount to read."""

from __future__ import annotations

import random

import pytest

from platform_assets.engines.columnar.work import Piece, shares
from platform_assets.model.offsets import OffsetRange


def ranges(**bounds: list[tuple[int, int]]) -> dict[int, list[OffsetRange]]:
    return {int(name[1:]): [OffsetRange(*b) for b in some] for name, some in bounds.items()}


def plain(found: tuple[tuple[Piece, ...], ...]) -> list[list[tuple[int, int, int]]]:
    return [[(p.partition, p.wanted.start, p.wanted.end) for p in share] for share in found]


def test_shares_of_small_and_large_windows() -> None:
    small = ranges(p0=[(5, 9)], p1=[(0, 3)], p2=[(7, 7)])
    assert plain(shares(small, 100, 8)) == [[(0, 5, 9), (1, 0, 3)]]
    one = ranges(p3=[(1000, 2000)])
    assert plain(shares(one, 100, 2)) == [[(3, 1000, 1500)], [(3, 1500, 2000)]]
    two = ranges(p1=[(0, 100)], p0=[(0, 300)])
    assert plain(shares(two, 100, 2)) == [[(0, 0, 200)], [(0, 200, 300), (1, 0, 100)]]
    holed = ranges(p0=[(0, 10), (20, 30)])
    assert plain(shares(holed, 5, 2)) == [[(0, 0, 10)], [(0, 20, 30)]]
    assert shares(ranges(p0=[(4, 4)]), 1, 8) == ()
    assert shares({}, 1, 8) == ()
    for smallest, most in ((0, 1), (1, 0)):
        with pytest.raises(ValueError, match=f"cannot make at most {most} shares of at least {smallest} offsets each"):
            shares(small, smallest, most)


def test_random_ranges_are_shared_out_exactly(rng: random.Random) -> None:
    for _ in range(500):
        given: dict[int, list[OffsetRange]] = {}
        for partition in rng.sample(range(50), rng.randint(1, 6)):
            at, some = rng.randrange(2**40), []
            for _ in range(rng.randint(0, 4)):
                size = rng.choice([0, 1, 2, 100, rng.randrange(10_000)])
                some.append(OffsetRange(at, at + size))
                at += size + rng.randint(1, 9)
            given[partition] = some
        smallest, most = rng.choice([1, 3, 1000]), rng.randint(1, 9)
        found = shares(given, smallest, most)
        pieces = [p for share in found for p in share]
        assert pieces == sorted(pieces)
        assert all(p.wanted.size for p in pieces)
        for partition, some in given.items():
            joined = [o for p in pieces if p.partition == partition for o in (p.wanted.start, p.wanted.end)]
            # A range that ends at the next one's start was cut there.
            kept = [o for i, o in enumerate(joined) if o not in (joined[i - 1 : i] + joined[i + 1 : i + 2])]
            assert kept == [o for r in some if r.size for o in (r.start, r.end)]
        sizes = [sum(p.wanted.size for p in share) for share in found]
        total = sum(r.size for some in given.values() for r in some)
        assert sum(sizes) == total
        assert len(sizes) == min(most, -(-total // smallest))
        if sizes:
            assert max(sizes) - min(sizes) <= 1
