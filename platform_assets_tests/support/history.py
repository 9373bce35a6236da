"""Checker of histories: compares all sends with a table's rows in the loaded offset ranges.

The idea comes from Jepsen's workload for Kafka: every value is unique, every send ends as acknowledged, failed or
unknown, and one pure function returns the anomalies. The function does not depend on the platform, Kafka or Delta. One
fault can cause several anomalies:

* `lost-write`: an acknowledged send whose offset is in a covered range, but whose value is nowhere in the table.
* `duplicate`: one value in several rows, or several rows at one (partition, offset).
* `aborted-read`: a row whose value was sent, but the send failed (an aborted transaction, a record refused by the
  client).
* `inconsistent-offset`: a row that is not at the acknowledged offset, or not in the partition to which its value was
  sent; or two values at one (partition, offset), in rows or in acknowledgements.
* `unseen`: a row or a send without a counterpart: a row with a value that was never sent; a row at an offset that no range
  covers; an acknowledged send that no range covers. An acknowledged send without a range is not a fault while the
  history continues, so cover the last send with a range before you check the history.

A send with an unknown outcome can have one row or no row. Two rows are a duplicate. If the broker returned an offset
for the send, the row must exist. A send without a row in a covered range is an anomaly only if it was acknowledged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from platform_assets.model.offsets import OffsetRange, TopicRanges, merge

Outcome = Literal["ok", "failed", "unknown"]
Name = Literal["lost-write", "duplicate", "aborted-read", "inconsistent-offset", "unseen"]
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Send:
    """One value, sent once to `partition`. `offset` is the offset that the broker returned. The broker can return an
    offset whatever the outcome is."""

    value: bytes
    partition: int
    offset: int | None
    outcome: Outcome

    def __post_init__(self) -> None:
        if self.outcome == "ok" and self.offset is None:
            raise ValueError(f"{self.value!r} was acknowledged without an offset")


@dataclass(frozen=True, slots=True, order=True)
class Row:
    """One row of a table."""

    partition: int
    offset: int
    value: bytes


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """A violation that concerns `value` at `offset` of `partition`. `offset` is None if the offset is unknown."""

    name: Name
    value: bytes
    partition: int
    offset: int | None
    detail: str


def check_history(sends: Iterable[Send], rows: Iterable[Row], ranges: Iterable[TopicRanges]) -> list[Anomaly]:
    """Return the anomalies in a table with these `rows`, given the `sends` and the half-open `ranges` that were loaded.
    Pure.

    Raises ValueError if a value was sent twice, because such a history cannot be checked.
    """
    history = _History(sends, rows, ranges)
    return sorted({*history.acknowledged(), *history.in_table(), *history.places()}, key=_order)


class _History:
    """Sends and rows, indexed by value, and by partition and offset."""

    def __init__(self, sends: Iterable[Send], rows: Iterable[Row], ranges: Iterable[TopicRanges]) -> None:
        self._sends: dict[bytes, Send] = {}
        for send in sends:
            if send.value in self._sends:
                raise ValueError(f"{send.value!r} was sent twice; a history needs unique values")
            self._sends[send.value] = send
        self._places: dict[bytes, list[Place]] = defaultdict(list)
        self._values: dict[Place, list[bytes]] = defaultdict(list)
        for row in rows:
            self._places[row.value].append((row.partition, row.offset))
            self._values[row.partition, row.offset].append(row.value)
        self._covered = _merged(ranges)

    def acknowledged(self) -> Iterator[Anomaly]:
        """Yield the anomalies that concern acknowledged sends."""
        for send in self._sends.values():
            if send.outcome != "ok" or send.offset is None:
                continue
            if not self._covers((send.partition, send.offset)):
                yield Anomaly("unseen", send.value, send.partition, send.offset, "acknowledged, and in no range")
            elif send.value not in self._places:
                yield Anomaly("lost-write", send.value, send.partition, send.offset, "acknowledged, and in no row")

    def in_table(self) -> Iterator[Anomaly]:
        """Yield the anomalies in the rows of each value."""
        for value, places in self._places.items():
            (partition, offset), send = places[0], self._sends.get(value)
            if len(places) > 1:
                yield Anomaly("duplicate", value, partition, offset, f"{len(places)} rows: {sorted(places)}")
            if send is None:
                yield Anomaly("unseen", value, partition, offset, "nobody sent it")
                continue
            if send.outcome == "failed":
                yield Anomaly("aborted-read", value, partition, offset, "its send failed")
            for place in set(places):
                if place[0] != send.partition or send.offset not in (None, place[1]):
                    told = f"sent to partition {send.partition}, offset {send.offset}"
                    yield Anomaly("inconsistent-offset", value, *place, told)
                if not self._covers(place) and send.outcome != "ok":
                    yield Anomaly("unseen", value, *place, "in the table, and in no range")

    def places(self) -> Iterator[Anomaly]:
        """Yield the anomalies that concern the values at each partition and offset."""
        acknowledged: dict[Place, set[bytes]] = defaultdict(set)
        for send in self._sends.values():
            if send.outcome == "ok" and send.offset is not None:
                acknowledged[send.partition, send.offset].add(send.value)
        for place in self._values.keys() | acknowledged.keys():
            held = self._values.get(place, [])
            values = sorted(acknowledged[place].union(held))
            if len(values) > 1:
                yield Anomaly("inconsistent-offset", values[0], *place, f"{len(values)} values there: {values}")
            if len(set(held)) > 1:
                yield Anomaly("duplicate", min(held), *place, f"{len(held)} rows there: {sorted(held)}")

    def _covers(self, place: Place) -> bool:
        return any(place[1] in r for r in self._covered.get(place[0], ()))


def _merged(ranges: Iterable[TopicRanges]) -> Mapping[int, tuple[OffsetRange, ...]]:
    by_partition: dict[int, list[OffsetRange]] = defaultdict(list)
    for part in ranges:
        for partition, r in part.items():
            by_partition[partition].append(r)
    return {partition: merge(parts) for partition, parts in by_partition.items()}


def _order(anomaly: Anomaly) -> tuple[str, int, int, bytes, str]:
    offset = -1 if anomaly.offset is None else anomaly.offset
    return anomaly.name, anomaly.partition, offset, anomaly.value, anomaly.detail
