"""Transactions of published records: what each has, and making one while another is sent."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from platform_assets.kafka.publisher import Placed, Record
from platform_assets.model.publishing import HEADER, POSITION
from platform_assets.windows.publish.progress import Change, Kind, Position, Progress

_T = TypeVar("_T")


@dataclass(frozen=True)
class Records:
    """The records that publish a load of a window. `make` returns some of those in an ordinal range, at least one and
    about as many as the given number of bytes allows, their number and their bytes. `at` returns the position of a row."""

    make: Callable[[int, int, int], tuple[Iterable[Record] | Placed, int, int]]
    total: int
    silent: int = 0
    at: Callable[[int], Position | None] = lambda ordinal: None


@dataclass
class Count:
    """Numbers of what a publisher has sent, and the windows whose rows were removed."""

    windows: int = 0
    records: int = 0
    corrections: int = 0
    unannounced: int = 0
    transactions: int = 0
    removed: list[str] = field(default_factory=list)


@dataclass
class Transaction:
    """Records of one transaction, each batch with its window and its first ordinal, and what they bring the progress of
    each window to. `number` and `size` are the numbers of records and bytes, `corrections` is the number of records that
    are corrections, and `lacking` that of deleted rows that no record announces."""

    batches: list[tuple[str, int, Iterable[Record] | Placed]] = field(default_factory=list)
    states: dict[str, Progress] = field(default_factory=dict)
    number: int = 0
    size: int = 0
    corrections: int = 0
    lacking: int = 0

    def progress(self, known: Mapping[str, Progress]) -> dict[str, Progress]:
        """Return the states, with the spans of records that were sent now and before."""
        found: dict[str, Progress] = {}
        for key, state in self.states.items():
            mine = [(first, each) for name, first, each in self.batches if name == key and isinstance(each, Placed)]
            first = mine[0][0] if mine else 0
            found[key] = state.with_spans(known.get(key), [each for _, each in mine], first)
        return found


def ahead(items: Iterator[_T]) -> Generator[_T, None, None]:
    """Yield items, each of which is made in another thread while the caller uses the one before it."""
    with ThreadPoolExecutor(1, "publish") as pool:
        coming = pool.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = pool.submit(next, items, None)
            yield item


def changes_as_records(changes: Sequence[Change], first: int, prefix: str, load_id: str) -> Iterator[Record]:
    """Yield the records of differences, the first of which has the ordinal `first`."""
    for ordinal, (kind, (partition, offset), key, value, declared) in enumerate(changes, first):
        identity = f"{prefix}{ordinal} {kind} {partition} {offset} {load_id}".encode()
        yield key, value, [*declared, (HEADER, identity)]


def identities(prefix: str, load_id: str, first: int, rows: pa.Table, kind: Kind = "row") -> list[bytes]:
    """Return the identity of each row of a load, the first of which has the ordinal `first`."""
    ordinals = pa.array(range(first, first + rows.num_rows), pa.int64()).cast(pa.string())
    partition, offset = (rows[name].cast(pa.string()) for name in POSITION)
    texts = pc.binary_join_element_wise(prefix, ordinals, f" {kind} ", partition, " ", offset, f" {load_id}", "")
    found: list[bytes] = texts.cast(pa.binary()).to_pylist()
    return found
