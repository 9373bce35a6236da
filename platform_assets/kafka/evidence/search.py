"""Searching a partition by the timestamps in its batch headers, while skipping transaction markers.

A search reads a handful of batches, never a whole range. It assumes that timestamps mostly ascend. If they do not, the
search finds a nearby offset, which is also a valid cut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from platform_assets.errors import BrokerUnreachableError, DamagedBatchError
from platform_assets.kafka.batches.fetching import Brokers
from platform_assets.kafka.batches.reading import FetchedBatches, PresentFetch
from platform_assets.kafka.batches.record_batches import Batch, Batches
from platform_assets.kafka.batches.unpacking import Damage, TooLarge
from platform_assets.kafka.batches.wire import Stopped
from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState

_FETCH_BYTES: Final = 1 << 14
"""Fetch size. It is small, because only one batch is needed, and brokers send the first batch completely, however long
it is (KIP-74)."""

T = TypeVar("T")


class BatchSearch:
    """Searches one topic. Every call ends at the deadline of `cluster`; after the deadline, it raises
    BrokerUnreachableError."""

    def __init__(self, cluster: Cluster, state: TopicState) -> None:
        deadline = time.monotonic() + cluster.timeout if cluster.deadline is None else cluster.deadline
        self._topic, self._timeout = state.name, cluster.timeout
        self._buffer = bytearray(4 * _FETCH_BYTES)
        self._log_starts: dict[int, int] = {}
        self._brokers = Brokers(
            cluster.settings,
            state.name,
            state.topic_id,
            patience=cluster.timeout,
            stopped=lambda: time.monotonic() >= deadline,
        )

    def close(self) -> None:
        """Close the connections."""
        self._brokers.close()

    def is_marker(self, partition: int, offset: int) -> bool:
        """Return True if the record at `offset`, which must be stable, is a control record.

        Raises BrokerUnreachableError, EmptyAnswersError and DamagedBatchError.
        """
        for batch in self._fetched(partition, offset, offset + 1):
            if batch.last_offset >= offset:
                return batch.control and batch.base_offset <= offset
        return False

    def first_record_at(self, partition: int, moment: int, start: int, end: int) -> FoundOffset | None:
        """Return the first record in offsets `[start, end)` whose timestamp is at or after `moment` (ms), ignoring
        markers. The search advances from `start` in growing steps, so that nearby records are found cheaply, and then
        bisects. It reads about `2 * log2(n)` batches, where `n` is the number of batches between `start` and the
        result. Raises BrokerUnreachableError, EmptyAnswersError and DamagedBatchError."""
        low, high, step, ahead = max(start, self._log_start(partition)), end, 0, True
        found: Batch | None = None
        # Data below `low` is older than `moment`; `found` is the first data at or after `high`, or None.
        while low < high:
            at = min(low + step, high - 1) if ahead else (low + high) // 2
            batch = self._data_batch(partition, at, high)
            if batch is not None and batch.max_timestamp < moment:
                low = batch.last_offset + 1
                step = 2 * step + (batch.last_offset - batch.base_offset + 1)
                continue
            ahead = False
            found = batch or found
            high = at if batch is None else min(at, batch.base_offset)
        return None if found is None else self._first_in(found, partition, moment, low)

    def _first_in(self, batch: Batch, partition: int, moment: int, start: int) -> FoundOffset:
        try:
            for offset, timestamp in batch.timestamps():
                if offset >= start and timestamp >= moment:
                    return FoundOffset(offset, batch.leader_epoch, timestamp)
        except TooLarge:
            pass  # a batch that is not opened is found by its header
        except Damage as damage:
            raise DamagedBatchError(self._topic, partition, damage.offset, damage.reason) from None
        # Compaction has removed the record to which the header's timestamp belongs.
        return FoundOffset(max(start, batch.base_offset), batch.leader_epoch, batch.max_timestamp)

    def _log_start(self, partition: int) -> int:
        if partition not in self._log_starts:
            self._log_starts[partition] = self._bounded(partition, 0, lambda: self._brokers.log_start(partition))
        return self._log_starts[partition]

    def _data_batch(self, partition: int, offset: int, end: int) -> Batch | None:
        """Return the first data batch that ends at `offset` or later and begins before `end`; None if there is no such
        batch."""
        while offset < end:
            batches = self._fetched(partition, offset, end)
            for batch in batches:
                if batch.base_offset >= end:
                    return None
                if batch.last_offset >= offset and not batch.control:
                    return batch
            if not batches:
                return None
            offset = batches[-1].last_offset + 1
        return None

    def _fetched(self, partition: int, offset: int, end: int) -> list[Batch]:
        """Return batches that end at `offset` or later and begin before `end`; an empty list if the log has no such
        batches."""
        fetch = PresentFetch(self._brokers, partition)

        def attempt() -> FetchedBatches:
            return fetch.attempt(offset, end, _FETCH_BYTES, self._buffer)

        try:
            found = self._bounded(
                partition, offset, lambda: self._brokers.persist(self._doing(partition, offset), attempt)
            )
            if found.answer.error:
                return self._after_log_start(partition, offset, end)
            # A copy, since the buffer is used again by the next fetch.
            batches = Batches.scan(memoryview(bytes(found.answer.records)), end, self._brokers.limits)
            batches.verify()
            return list(batches)
        except Damage as damage:
            raise DamagedBatchError(self._topic, partition, damage.offset, damage.reason) from None

    def _after_log_start(self, partition: int, offset: int, end: int) -> list[Batch]:
        """Fetch like `_fetched`, but from the log start on, because the log has lost `offset` since the search began."""
        self._log_starts.pop(partition, None)
        start = self._log_start(partition)
        if start <= offset:
            reason = f"the offset is out of range, although the log starts at {start}"
            raise BrokerUnreachableError(self._doing(partition, offset), self._timeout, reason)
        return self._fetched(partition, start, end) if start < end else []

    def _bounded(self, partition: int, offset: int, call: Callable[[], T]) -> T:
        """Run `call`. If it fails because the deadline for all look-ups has passed, the error says so."""
        try:
            return call()
        except Stopped:
            reason = "the time limit for all lookups was reached"
            raise BrokerUnreachableError(self._doing(partition, offset), self._timeout, reason) from None

    def _doing(self, partition: int, offset: int) -> str:
        return f"reading the batch at offset {offset} of topic {self._topic!r} partition {partition}"
