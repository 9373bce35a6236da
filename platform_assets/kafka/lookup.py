"""Positions in a topic at a past moment: offsets by timestamp, for window boundaries that were not cut in time.

The brokers' own look-up finds the first record at or after a timestamp, and treats a transaction marker as a record.
Markers carry the time of the broker's clock. If the records in a backlog are older than their transactions, the first
marker is newer than every boundary, so every boundary would be cut at this marker. For this reason, if an answer lies
beyond the window and is a marker, the batch headers after the marker are searched instead (`evidence/search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from platform_assets.kafka.cluster import Cluster, FoundOffset, TopicState
from platform_assets.model.windows import Window, milliseconds

if TYPE_CHECKING:
    from platform_assets.kafka.evidence.search import BatchSearch


class TimestampLookup:
    """Look-ups for window boundaries in ascending order. A look-up queries the brokers only if the last answer no
    longer applies.

    The earliest record at or after `t` is also the earliest record at or after each `t'` in `[t, its timestamp]`. So in
    a backlog with many boundaries, a look-up is needed only for those boundaries that are followed by new records.
    """

    def __init__(self, cluster: Cluster, state: TopicState, partitions: Sequence[int]) -> None:
        self._cluster = cluster
        self._state = state
        self._partitions = partitions
        self._answers: dict[int, FoundOffset | None] = {}
        self._markers: dict[int, FoundOffset] = {}
        self._search: BatchSearch | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._search is not None:
            self._search.close()

    def at(self, window: Window, cut: Mapping[int, int], stable: Mapping[int, FoundOffset]) -> dict[int, FoundOffset]:
        """Map each partition to the first record at or after the end of `window`, or to its entry in `stable` if there
        is no such record. `cut` maps each partition to its cut at the window's start, where a search past markers
        begins. Raises whatever `Cluster.offsets_at` raises, EmptyAnswersError and DamagedBatchError."""
        moment = milliseconds(window.end)
        asked = [p for p in self._partitions if not self._still_holds(p, moment)]
        # For all times up to its own timestamp, the brokers would return the first marker.
        hidden = [p for p in asked if p in self._markers and moment <= self._markers[p].timestamp]
        answers = self._offsets_at(moment, [p for p in asked if p not in hidden])
        for partition in asked:
            self._answers.pop(partition, None)
        for partition, answer in answers.items():
            stable_there = answer is not None and answer.offset < stable[partition].offset
            if answer is not None and stable_there and self._is_misleading_marker(partition, answer, window, cut):
                self._markers[partition] = answer
                hidden.append(partition)
            else:
                self._answers[partition] = answer
        for partition in hidden:
            start = max(cut.get(partition, 0), self._markers[partition].offset)
            end = stable[partition].offset
            self._answers[partition] = self._batches().first_record_at(partition, moment, start, end)
        found: dict[int, FoundOffset] = {}
        for partition, answer in self._answers.items():
            beyond = answer is None or answer.offset >= stable[partition].offset
            found[partition] = stable[partition] if beyond or answer is None else answer
        return found

    def _offsets_at(self, moment: int, partitions: Sequence[int]) -> Mapping[int, FoundOffset | None]:
        if not partitions:
            return {}
        return self._cluster.offsets_at(self._state, dict.fromkeys(partitions, moment))

    def _is_misleading_marker(
        self, partition: int, answer: FoundOffset, window: Window, cut: Mapping[int, int]
    ) -> bool:
        """Return True if the found offset is a marker that hides records of later windows. A marker that is less than
        one window length after the end of `window` does no harm."""
        near = answer.timestamp < milliseconds(window.end + (window.end - window.start))
        if near and answer.offset >= cut.get(partition, 0):
            return False
        return self._batches().is_marker(partition, answer.offset)

    def _batches(self) -> BatchSearch:
        if self._search is None:
            from platform_assets.kafka.evidence.search import BatchSearch  # loads a second Kafka client, seldom needed

            self._search = BatchSearch(self._cluster, self._state)
        return self._search

    def _still_holds(self, partition: int, moment: int) -> bool:
        if partition not in self._answers:
            return False
        answer = self._answers[partition]
        return answer is None or moment <= answer.timestamp
