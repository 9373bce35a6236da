"""What a load engine is: it writes data files of a window's records and says what it wrote, and it reads windows again.

An engine never commits. What it has written is compared with the receipt, and then committed by `lake.commits` or deleted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from platform_assets.errors import PlatformError
from platform_assets.lake.commits import NewFile
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

NO_ROWS = Measured.of_nothing()


@dataclass(frozen=True, slots=True)
class Records:
    """The committed records of one window: those in `ranges` of a topic id, less the offsets `without`, by partition."""

    topic: str
    topic_id: str
    window: str
    ranges: TopicRanges
    without: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)

    @property
    def pieces(self) -> tuple[TopicRanges, ...]:
        """What is left to read, as reads of at most one non-empty range a partition."""
        pieces = {p: r.minus(self.without.get(p, ())) for p, r in self.ranges.items() if r.size}
        rounds = max((len(left) for left in pieces.values()), default=0)
        return tuple(TopicRanges({p: left[i] for p, left in pieces.items() if i < len(left)}) for i in range(rounds))


@dataclass(frozen=True, slots=True)
class Written:
    """Data files in the table's folder that no commit names yet, and the digests of their rows.

    `folder` is where they are, relative to the table's, and holds nothing else. `engine` read their rows from Kafka; None
    where that is not known.
    """

    folder: str
    files: tuple[NewFile, ...]
    measured: Measured
    engine: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """The records of one window that are to be written to new files of `table`, by the load of this id."""

    records: Records
    load_id: str
    table: TableRef


class TableReader(Protocol):
    """One way to read windows of a table again."""

    @property
    def name(self) -> str:
        """As logs and receipts name it."""

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """The digests of what `table` holds of each window at `version`, or why they cannot be had, in order of `keys`."""


class LoadEngine(TableReader, Protocol):
    """One way to bring records of Kafka into data files, and to read them again."""

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> Written:
        """Write the records of one window to new files of `table`, a file a partition or for `records_per_file` records.

        Files of a write that fails are deleted, as far as they can be: none of them is in any commit. Raises the platform's
        errors: OffsetsVanishedError, UnreadableTimestampError, UnknownOutcome where the engine went away, and others.
        """

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[Written | PlatformError, None, None]:
        """What `write` gives or raises for each of `orders`, in their order and as soon as it is known.

        They may be of several topics. An error is of its window alone: it holds up none of the others. What was given is the
        caller's to commit or to delete; files of what was not are deleted when the iterator is closed.
        """
