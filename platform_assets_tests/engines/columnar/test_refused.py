"""Records that no load can accept are found, and no other records, whatever the size of a fetch is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from platform_assets.engines.columnar.refused import Refused, find_refused
from platform_assets.kafka.batches.fetching import topic_id_text
from platform_assets.kafka.settings import BatchLimits, ClientSettings
from platform_assets.kafka.timestamps import FIRST_READABLE_MS, LAST_READABLE_MS
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets_tests.support.made_batches import Made, made_batch, made_marker
from platform_assets_tests.support.scripted_broker import TOPIC_ID, Script, Start, scripted_brokers

LIMITS = BatchLimits(bytes=10_000, records=1_000, headers=1_000)
ABORTING = 1
"""Id of the producer whose transactions are aborted."""
LOG = [
    made_batch([Made(n, timestamp=FIRST_READABLE_MS) for n in range(3)]),
    made_batch([Made(n, value=bytes(5_000)) for n in range(3, 8)], codec="zstd"),
    made_batch([Made(8), Made(9, timestamp=LAST_READABLE_MS + 1)], codec="lz4"),
    made_batch([Made(10, timestamp=2**62)], producer=ABORTING, transactional=True),
    made_marker(11, ABORTING, commit=False),
    made_batch([Made(12, timestamp=-(2**62)), Made(13, timestamp=LAST_READABLE_MS)]),
    made_batch([Made(14, headers=((b"", None),) * 1_001)], codec="gzip"),
]
FIRST = [0, 3, 8, 10, 11, 12, 14, 15]


@pytest.fixture
def start() -> Iterator[Start]:
    with scripted_brokers() as started:
        yield started


def script(*, together: bool) -> Script:
    apart = [(first, end - 1, batch) for first, end, batch in zip(FIRST, FIRST[1:], LOG, strict=False)]
    batches = [(0, 14, b"".join(LOG))] if together else apart
    return Script(batches=batches, stable=15, listed_stable=15, high=15, aborted=[(ABORTING, 10)])


def search(start: Start, script: Script, *pieces: tuple[int, int], **options: int) -> Refused:
    settings = ClientSettings("{}:{}".format(*start(script).address), {}, LIMITS)
    wanted = [TopicRanges({0: OffsetRange(*piece)}) for piece in pieces]
    return find_refused(settings, "t", topic_id_text(TOPIC_ID), wanted, **options)


@pytest.mark.parametrize("together", [True, False])
def test_wrong_timestamps_and_batches_beyond_the_limits_are_found(start: Start, together: bool) -> None:
    found = search(start, script(together=together), (0, 15))
    assert found.records == ((0, 9, LAST_READABLE_MS + 1), (0, 12, -(2**62)))
    assert found.ranges == {0: (OffsetRange(9, 10), OffsetRange(12, 13))}
    assert found.batches == {0: (OffsetRange(3, 8), OffsetRange(14, 15))}


def test_only_what_is_asked_for_is_found(start: Start) -> None:
    assert search(start, script(together=False), (0, 3), (8, 9), (10, 12), (13, 14)) == Refused((), {})
    assert search(start, script(together=True), (5, 9)).batches == {0: (OffsetRange(5, 8),)}


def test_the_search_ends_once_it_has_found_enough(start: Start) -> None:
    found = search(start, script(together=False), (0, 8), (8, 15), most=1)
    assert found == Refused((), {0: (OffsetRange(3, 8),)})


def flipped(batch: bytes, at: int = -1) -> bytes:
    changed = bytearray(batch)
    changed[at] ^= 1
    return bytes(changed)


def damaged_at(number: int, at: int = -1, *, together: bool = False) -> Script:
    """Return a script that serves LOG with one bit flipped in one batch. Each answer contains one batch or, if
    `together` is true, that batch and all batches after it."""
    log = [flipped(batch, at) if n == number else batch for n, batch in enumerate(LOG)]
    rest = [b"".join(log[n:]) if together else batch for n, batch in enumerate(log)]
    made = script(together=False)
    made.batches = [(first, end - 1, sent) for first, end, sent in zip(FIRST, FIRST[1:], rest, strict=False)]
    return made


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("at", [8, 11, 16, 23, 60, -1], ids=["size", "size too", "version", "delta", "count", "value"])
def test_a_damaged_batch_is_found_and_the_search_goes_on(start: Start, at: int, together: bool) -> None:
    found = search(start, damaged_at(1, at, together=together), (0, 15))
    assert found.damaged == {0: (OffsetRange(3, 8),)}
    assert found.ranges == {0: (OffsetRange(9, 10), OffsetRange(12, 13))}
    assert found.batches == {0: (OffsetRange(14, 15),)}


def test_damage_outside_of_the_pieces_is_no_matter(start: Start) -> None:
    assert search(start, damaged_at(1, together=True), (0, 3), (8, 9)) == Refused()
    assert search(start, damaged_at(1, together=True), (0, 5), (7, 9)).damaged == {
        0: (OffsetRange(3, 5), OffsetRange(7, 8))
    }


def test_a_batch_whose_bytes_agree_with_their_crc_and_contradict_each_other_is_damaged(start: Start) -> None:
    log = [*LOG[:2], made_batch([Made(8), Made(9)], count=1), *LOG[3:]]
    made = script(together=False)
    made.batches = [(first, end - 1, sent) for first, end, sent in zip(FIRST, FIRST[1:], log, strict=False)]
    assert search(start, made, (0, 15)).damaged == {0: (OffsetRange(8, 10),)}


def test_a_batch_that_the_broker_itself_finds_corrupt_is_searched_to_its_end(start: Start) -> None:
    made = script(together=False)
    made.corrupt = range(3, 9)
    found = search(start, made, (0, 15))
    assert found.damaged == {0: (OffsetRange(3, 9),)}
    assert found.ranges == {0: (OffsetRange(9, 10), OffsetRange(12, 13))}


def test_offsets_that_are_missing_after_a_damaged_batch_count_as_damaged(start: Start) -> None:
    """A damaged header can claim fewer offsets than the batch has."""
    made = damaged_at(1)
    made.batches[1] = (3, 4, made.batches[1][2])
    assert search(start, made, (0, 15)).damaged == {0: (OffsetRange(3, 8),)}
    made = damaged_at(6)
    assert search(start, made, (0, 15)).damaged == {0: (OffsetRange(14, 15),)}
