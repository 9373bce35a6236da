"""The interface of a load engine. A load engine writes a window's records to data files, reports what it wrote, and
reads windows again.

An engine never commits. Its files are compared with the receipt, and then `lake.commits` commits the files, or the
files are deleted.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from platform_assets.errors import PlatformError
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef

NO_ROWS = Measured.of_nothing()


@dataclass(frozen=True, slots=True)
class Records:
    """The committed records of one window. The records are in `ranges` of the topic with the id `topic_id`. `without`
    contains, for each partition, the offsets to omit from the ranges.

    `window_column` is true if the window's files get a window column, because the table is flat. In that case,
    `field_ids` are the ids of the table's columns.
    """

    topic: str
    topic_id: str
    window: str
    ranges: TopicRanges
    without: Mapping[int, tuple[OffsetRange, ...]] = field(default_factory=dict)
    window_column: bool = False
    field_ids: FieldIds = NO_IDS

    @property
    def pieces(self) -> tuple[TopicRanges, ...]:
        """Return the offsets that remain after `without`, divided into reads. Each read has at most one range for each
        partition, and no range is empty."""
        pieces = {p: r.minus(self.without.get(p, ())) for p, r in self.ranges.items() if r.size}
        rounds = max((len(left) for left in pieces.values()), default=0)
        return tuple(TopicRanges({p: left[i] for p, left in pieces.items() if i < len(left)}) for i in range(rounds))


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """Data files in the table's folder that no commit refers to yet, and the digests of their rows.

    `folder`, relative to the table's folder, contains these files and nothing else. `engine` is the engine that read
    the rows from Kafka, or None if that is not known.
    """

    folder: str
    files: tuple[NewFile, ...]
    measured: Measured
    engine: str | None


@dataclass(frozen=True, slots=True)
class Order:
    """An order to write the records of one window to new files of `table`. `load_id` identifies the load."""

    records: Records
    load_id: str
    table: TableRef


class TableReader(Protocol):
    """One way to read windows of a table again."""

    @property
    def name(self) -> str:
        """Name of the engine in logs and receipts."""

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """Yield the digests of each window of `table` at `version`, or an error, in the order of `keys`."""


class LoadEngine(TableReader, Protocol):
    """One way to write Kafka's records to data files, and to read them again."""

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        """Write the records of one window to new files of `table`, one file for each partition or for each
        `records_per_file` records.

        After a failure, the new files are deleted as far as possible; no commit refers to any of these files. Raises
        the platform's errors, among them OffsetsVanishedError, UnreadableTimestampError, and UnknownOutcome if the
        connection to the engine broke.
        """

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        """For each of `orders`, yield the result of `write` or the error that it raises. Results follow the sequence of
        the orders, and each result is yielded as soon as it is known.

        The orders can belong to several topics. An error concerns only its own window and does not block the others.
        The caller commits or deletes the files that were yielded. When the iterator is closed, files of other orders
        are deleted.
        """
