"""The extent of a damaged batch: the offsets for which a broker can send nothing but this batch.

When a broker gets a fetch request for an offset, it finds the batch that contains the offset, and sends the log from
that batch on. Positions in the log ascend with offsets. So if the broker sends the same damaged batch for two offsets,
it also sends that batch for all offsets between the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from platform_assets.errors import DamagedBatchError
from platform_assets.kafka.batches.fetching import Brokers, FetchedPartition
from platform_assets.kafka.batches.record_batches import HEADER, Batches
from platform_assets.kafka.batches.unpacking import Damage

_PROBE_BYTES: Final = 1 << 14
_REFUSED: Final = b""
"""Stands for a damaged batch of which the broker sends no bytes, because it detected the damage itself."""


@dataclass(frozen=True, slots=True)
class _Front:
    """First batch that a fetch returns: a damaged batch is identified by its first bytes, an intact batch by its first
    offset."""

    damaged: bytes | None = None
    base: int | None = None


def damaged_until(brokers: Brokers, partition: int, start: int, end: int) -> int | None:
    """Return the first offset after `start` for which the broker does not send the damaged batch at `start`; return
    `end` if there is no such offset before `end`.

    Return None if the batch at `start` is intact. Offsets between the damaged batch and the next intact batch count as
    part of the damage, because nothing shows that they held no records. Raises whatever `Brokers.persist` raises.
    """
    first = _front(brokers, partition, start)
    if first.damaged is None:
        return None
    same, step, found = start, 1, first
    # Two refusals prove nothing about the offsets between them, so those are fetched one by one.
    while (at := min(same + step, end)) < end and (found := _front(brokers, partition, at)).damaged == first.damaged:
        same, step = at, 1 if first.damaged == _REFUSED else 2 * step
    other = at
    while other - same > 1:
        middle = (same + other) // 2
        front = _front(brokers, partition, middle)
        if front.damaged == first.damaged:
            same = middle
        else:
            other, found = middle, front
    return other if found.base is None or found.damaged is not None else min(max(other, found.base), end)


def _front(brokers: Brokers, partition: int, offset: int) -> _Front:
    def attempt() -> FetchedPartition:
        asked = brokers.ask(partition, offset, _PROBE_BYTES)
        return brokers.receive(asked, partition, offset, bytearray(2 * _PROBE_BYTES))

    doing = (
        f"looking for the end of a damaged batch of topic {brokers.topic!r} partition {partition} at offset {offset}"
    )
    try:
        answer = brokers.persist(doing, attempt)
    except DamagedBatchError:
        return _Front(damaged=_REFUSED)
    if answer.error or not len(answer.records):
        return _Front()
    try:
        intact, _ = Batches.scan(answer.records, limits=brokers.limits).intact()
    except Damage:
        return _damaged(answer)
    return _Front(base=int(intact.base_offsets[0])) if len(intact) else _damaged(answer)


def _damaged(answer: FetchedPartition) -> _Front:
    return _Front(damaged=bytes(answer.records[: HEADER.itemsize]))
