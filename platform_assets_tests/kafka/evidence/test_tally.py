"""Offsets counted in handmade batches, compared with the records from which they were built."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import numpy as np
import pytest
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from platform_assets.kafka.batches import record_batches
from platform_assets.kafka.batches.record_batches import Batches
from platform_assets.kafka.batches.unpacking import Damage
from platform_assets.kafka.evidence.partition import OffsetKind, OffsetListing, PartitionEvidence
from platform_assets.kafka.evidence.tally import PartitionTally
from platform_assets.model.digest import Digest, offsets_digest
from platform_assets.model.offsets import OffsetRange
from platform_assets_tests.support.evidence import by_kind, ranged
from platform_assets_tests.support.record_batches import CODECS, batch, marker, scanned


def tally(start: int, end: int, *, compacted: bool = False, listed: int = 1000, partition: int = 3) -> PartitionTally:
    return PartitionTally(partition, OffsetRange(start, end), compacted=compacted, listed=listed)


# --- kinds -------------------------------------------------------------------------------------------------------------


def test_dense_batches_need_no_record_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches.Batch, "_walk", lambda _: pytest.fail("a record was opened"))
    t = tally(5, 27)
    t.take(scanned(batch(0, list(range(10)), codec="zstd"), batch(10, list(range(10))), batch(20, list(range(10)))))
    found = t.evidence()
    assert by_kind(found) == {"records": [(5, 27)]}
    assert found.complete
    assert found.digest == offsets_digest(3, np.arange(5, 27))


def test_gap_between_batches_is_unexplained_or_claimed_by_policy() -> None:
    for compacted, kind in ((False, "unexplained"), (True, "compacted_away")):
        t = tally(0, 30, compacted=compacted)
        t.take(scanned(batch(5, [0, 1]), batch(10, [0])))
        assert by_kind(t.evidence()) == {"records": [(5, 7), (10, 11)], kind: [(0, 5), (7, 10)]}
        t.missing(99)
        assert by_kind(t.evidence())[kind] == [(0, 5), (7, 10), (11, 30)]


def test_gap_before_the_log_start_is_below_it() -> None:
    t = tally(0, 30)
    t.observe(7)
    t.missing(7)
    t.take(scanned(batch(9, [0, 1])))
    assert by_kind(t.evidence()) == {"records": [(9, 11)], "below_log_start": [(0, 7)], "unexplained": [(7, 9)]}


def test_log_start_inside_a_batch_hides_its_first_records() -> None:
    t = tally(0, 10)
    t.observe(4)
    t.missing(4)
    t.take(scanned(batch(0, list(range(10)))))
    assert by_kind(t.evidence()) == {"records": [(4, 10)], "below_log_start": [(0, 4)]}


def test_empty_batch_that_compaction_left_is_a_hole() -> None:
    for codec in CODECS:
        t = tally(2, 20, compacted=True)
        t.take(scanned(batch(0, [], span=8, codec=codec, producer=5), batch(8, [0])))
        assert by_kind(t.evidence()) == {"records": [(8, 9)], "compacted_away": [(2, 8)]}


def test_empty_control_batch_is_a_hole_and_ends_no_abort() -> None:
    t = tally(0, 5, compacted=True)
    empty = batch(2, [], span=1, producer=5, control=0)
    after = batch(3, [0], producer=5, transactional=True)
    t.take(
        scanned(batch(0, [0, 1], producer=5, transactional=True), empty, after, marker(4, 5, commit=False)), [(5, 0)]
    )
    assert by_kind(t.evidence()) == {
        "aborted_records": [(0, 2), (3, 4)],
        "abort_markers": [(4, 5)],
        "compacted_away": [(2, 3)],
    }


def test_thinned_batch_across_both_bounds() -> None:
    t = tally(103, 110, compacted=True)
    t.take(scanned(batch(100, [0, 3, 4, 9, 11], span=12)))
    assert by_kind(t.evidence()) == {"records": [(103, 105), (109, 110)], "compacted_away": [(105, 109)]}


def test_thinned_batch_that_keeps_nothing_of_the_range() -> None:
    t = tally(105, 108, compacted=True)
    t.take(scanned(batch(100, [0, 9], span=12)))
    assert by_kind(t.evidence()) == {"compacted_away": [(105, 108)]}


def test_markers_and_interleaved_producers() -> None:
    one, two = 1, 2
    log = [
        batch(0, [0, 1], producer=one, transactional=True),
        batch(2, [0], producer=two, transactional=True),
        batch(3, [0]),
        marker(4, two, commit=False),
        batch(5, [0], producer=two, transactional=True),
        marker(6, one, commit=True),
        marker(7, two, commit=True),
    ]
    t = tally(0, 8)
    t.take(scanned(*log), [(two, 2)])
    assert by_kind(t.evidence()) == {
        "records": [(0, 2), (3, 4), (5, 6)],
        "aborted_records": [(2, 3)],
        "abort_markers": [(4, 5)],
        "commit_markers": [(6, 8)],
    }


def test_idempotent_records_of_an_aborting_producer_id_are_no_part_of_the_transaction() -> None:
    t = tally(0, 3)
    log = [batch(0, [0], producer=7), batch(1, [0], producer=7, transactional=True), marker(2, 7, commit=False)]
    t.take(scanned(*log), [(7, 0)])
    assert by_kind(t.evidence()) == {"records": [(0, 1)], "aborted_records": [(1, 2)], "abort_markers": [(2, 3)]}


def test_abort_begun_before_the_range_and_before_the_fetch() -> None:
    t = tally(50, 53)
    log = [batch(49, [0, 1], producer=7, transactional=True), batch(51, [0]), marker(52, 7, commit=False)]
    t.take(scanned(*log), [(7, 10)])
    assert by_kind(t.evidence()) == {"aborted_records": [(50, 51)], "records": [(51, 52)], "abort_markers": [(52, 53)]}


def test_unknown_control_record_is_unexplained() -> None:
    t = tally(0, 2)
    t.take(scanned(batch(0, [0], producer=1, control=2), batch(1, [0])))
    assert by_kind(t.evidence()) == {"records": [(1, 2)], "unexplained": [(0, 1)]}


def test_listing_is_cut_and_counted() -> None:
    t = tally(0, 40, compacted=True, listed=3)
    t.take(scanned(*[batch(4 * n, [0, 1]) for n in range(10)]))
    t.missing(40)
    found = t.evidence()
    assert by_kind(found)["records"] == [(0, 2), (4, 6), (8, 10)]
    assert (found.records.pieces, found.records.offsets, found.records.whole) == (10, 20, False)
    assert str(found.records) == "[0, 2), [4, 6), [8, 10) and 7 more ranges"
    offsets = np.arange(40).reshape(10, 4)[:, :2].ravel()
    assert found.digest == offsets_digest(3, offsets)


def test_listing_at_its_limit_still_joins_its_last_range() -> None:
    t = tally(0, 10, listed=1)
    t.take(scanned(batch(0, [0, 1])))
    t.take(scanned(batch(2, [0, 1])))
    t.take(scanned(batch(6, [0, 1])))
    t.take(scanned(batch(8, [0, 1])))
    assert by_kind(t.evidence()) == {"records": [(0, 4)], "unexplained": [(4, 6)]}
    assert (t.evidence().records.pieces, t.evidence().records.offsets) == (2, 8)


def test_digest_of_a_long_dense_range_is_that_of_its_offsets() -> None:
    t = tally(17, 100_000)
    t.take(scanned(batch(0, list(range(60_000)))))
    t.take(scanned(batch(60_000, list(range(60_000)))))
    assert t.evidence().digest == offsets_digest(3, np.arange(17, 100_000))


def test_evidence_that_does_not_add_up_is_refused() -> None:
    one = OffsetListing((OffsetRange(0, 1),), 1, 1, 1)
    with pytest.raises(ValueError, match="do not add up"):
        PartitionEvidence(OffsetRange(0, 5), 2, records=one, digest=Digest(1, 1))
    with pytest.raises(ValueError, match="lies outside"):
        PartitionEvidence(OffsetRange(0, 5), 6)
    with pytest.raises(ValueError, match="digest"):
        PartitionEvidence(OffsetRange(0, 5), 1, records=one)
    with pytest.raises(ValueError, match="contradict"):
        OffsetListing((OffsetRange(0, 1),), 1, 2, 1)


# --- any log ----------------------------------------------------------------------------------------------------------


@dataclass
class Log:
    """A random log, and the kind of each of its offsets."""

    compacted: bool
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """`(base, last, bytes)`; `last` is inclusive."""
    truth: dict[int, OffsetKind] = field(default_factory=dict)
    aborted: list[tuple[int, int, int]] = field(default_factory=list)
    """`(producer, first offset, offset of the abort marker)`."""
    end: int = 0

    def fetch(self, offset: int, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Return `count` batches, starting with the batch that contains or follows `offset`, and the aborted
        transactions that overlap these batches."""
        sent = [b for b in self.batches if b[1] >= offset][:count]
        upper = sent[-1][1] + 1 if sent else offset
        return b"".join(b[2] for b in sent), [(p, f) for p, f, last in self.aborted if last >= offset and f < upper]


def random_log(rng: random.Random) -> Log:
    log = Log(compacted=rng.random() < 0.5)
    missing: OffsetKind = "compacted_away" if log.compacted else "unexplained"
    open_: dict[int, list[int]] = {}
    first: dict[int, int] = {}

    def add(raw: bytes, span: int) -> None:
        log.batches.append((log.end, log.end + span - 1, raw))
        log.end += span

    for _ in range(rng.randint(1, 40)):
        producer = rng.randint(1, 3)
        act = rng.random()
        if act < 0.15:
            size = rng.randint(1, 5)
            log.truth.update(dict.fromkeys(range(log.end, log.end + size), missing))
            log.end += size
        elif act < 0.4 and producer in open_:
            commit = rng.random() < 0.5
            for offset in open_.pop(producer):
                log.truth[offset] = "records" if commit else "aborted_records"
            log.truth[log.end] = "commit_markers" if commit else "abort_markers"
            if not commit:
                log.aborted.append((producer, first[producer], log.end))
            add(marker(log.end, producer, commit=commit), 1)
        else:
            span = rng.randint(1, 6)
            deltas = list(range(span))
            if rng.random() < 0.4:
                deltas = sorted(rng.sample(deltas, rng.randint(0, span)))
            transactional = rng.random() < 0.6
            offsets = [log.end + d for d in deltas]
            log.truth.update(dict.fromkeys(range(log.end, log.end + span), missing))
            log.truth.update(dict.fromkeys(offsets, "records"))
            if transactional:
                if producer not in open_:
                    first[producer] = log.end
                open_.setdefault(producer, []).extend(offsets)
            add(
                batch(
                    log.end,
                    deltas,
                    span=span,
                    producer=producer if transactional else -1,
                    transactional=transactional,
                    codec=rng.choice(list(CODECS)),
                ),
                span,
            )
    for producer, offsets in open_.items():
        log.truth.update(dict.fromkeys(offsets, "records"))
        log.truth[log.end] = "commit_markers"
        add(marker(log.end, producer, commit=True), 1)
    return log


def read(log: Log, start: int, end: int, rng: random.Random) -> PartitionEvidence:
    """Count the offsets in `[start, end)`, fetched in answers of random size."""
    t = tally(start, end, compacted=log.compacted)
    while not t.done:
        before = t.position
        raw, aborted = log.fetch(t.position, rng.randint(1, 5))
        if raw:
            t.take(Batches.scan(memoryview(raw)), aborted)
        else:
            t.missing(end)
        assert t.position > before
        assert t.evidence().reached == t.position
    return t.evidence()


@pytest.mark.parametrize("seed", range(150))
def test_any_log_in_any_pieces_gives_each_offset_its_kind(seed: int) -> None:
    rng = random.Random(seed)
    log = random_log(rng)
    for _ in range(6):
        start, end = sorted((rng.randint(0, log.end), rng.randint(0, log.end)))
        found = read(log, start, end, rng)
        assert by_kind(found) == ranged({o: log.truth[o] for o in range(start, end)})
        offsets = np.array([o for o in range(start, end) if log.truth[o] == "records"], dtype=np.int64)
        assert found.digest == offsets_digest(3, offsets)
        assert sum(found.holes.values()) + found.records.offsets == end - start


# --- old message sets ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_old_message_sets_give_their_offsets(magic: int, codec: int) -> None:
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=codec, batch_size=1 << 20)
    for offset in range(3):
        builder.append(offset, timestamp=1, key=None, value=b"value" * 20)
    data = bytearray(builder.build())
    if codec:  # the broker gives the outer message its last record's offset; inner offsets of magic 1 are relative
        struct.pack_into(">q", data, 0, 2 if magic == 0 else 42)
    t = tally(0, 50)
    t.take(scanned(bytes(data)))
    first = 40 if codec and magic else 0
    assert by_kind(t.evidence())["records"] == [(first, first + 3)]
    data[-1] ^= 1
    with pytest.raises(Damage, match="CRC"):
        tally(0, 50).take(scanned(bytes(data)))


def test_old_messages_before_a_batch_are_counted_with_it() -> None:
    builder = LegacyRecordBatchBuilder(magic=1, compression_type=0, batch_size=1 << 20)
    for offset in (0, 1):
        builder.append(offset, timestamp=1, key=b"k", value=b"v")
    found = scanned(bytes(builder.build()), batch(2, [0, 1, 2]))
    assert found.next_offset == 5
    t = tally(0, 5)
    t.take(found)
    assert by_kind(t.evidence()) == {"records": [(0, 5)]}
