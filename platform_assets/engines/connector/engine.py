"""The connector engine, which uses Spark Connect: Spark reads Kafka with Spark's own connector and writes the files."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from platform_assets.engines.connector import measure, raw
from platform_assets.engines.connector.overflow import named_timestamps
from platform_assets.engines.protocol import NO_ROWS, Order, Records, StagedFiles
from platform_assets.engines.shared.failures import to_platform_error, worker_ended
from platform_assets.engines.shared.session import configure_codegen
from platform_assets.errors import (
    PlatformError,
    TimestampOverflowError,
    TimestampShiftedError,
    WorkerLostError,
)
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.data_files import oldest_moment, written_files
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_CALENDAR_CHANGE_MS: Final = -12_219_292_800_000
"""1582-10-15. Spark's connector converts each timestamp to `java.sql.Timestamp`, which uses the Julian calendar for
dates before this day. Older timestamps therefore differ from Kafka's timestamps, and some distinct times become equal.
"""


@dataclass(frozen=True)
class SparkEngine:
    """Loads windows into `lake`. `settings` and `session` are called when their results are first needed."""

    lake: Lake
    settings: Callable[[], ClientSettings]
    session: Callable[[], SparkSession]
    name: str = "connector"

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        """See `LoadEngine`. A small window is written to one file. For a large window, each file holds one
        partition."""
        from grpc import RpcError
        from pyspark.errors import PySparkException

        below = load_folder(records.window, load_id)
        if not records.pieces:
            return StagedFiles(below, (), NO_ROWS, self.name)
        folder = self.lake.table(table)
        try:
            spark = self.session()
            configure_codegen(spark, records.ranges.size)
            frame = raw.kafka_frame(
                spark, self.settings().java(), records.topic, records.topic_id, records.window, records.pieces,
                ids=records.field_ids,
            )  # fmt: skip
            if not records.window_column:
                frame = frame.drop("window")
            files = -(-records.ranges.size // records_per_file)
            # Few files for small windows; a large one has a file for each Kafka partition, which makes the file
            # statistics complete.
            if files < len(records.ranges.non_empty().by_partition):
                frame = frame.coalesce(files)
            measured = raw.write_files(frame, (folder / below).spark_path)
        except (PySparkException, RpcError) as e:
            (folder / below).delete()
            raise self._named(e, records, table) from e
        oldest = oldest_moment(folder, below)
        if oldest is not None and oldest < _CALENDAR_CHANGE_MS:
            (folder / below).delete()
            raise TimestampShiftedError(table.name, records.window, oldest)
        written = written_files(folder, below)
        if not written:
            (folder / below).delete()  # Spark writes a file even without rows
        return StagedFiles(below, written, measured, self.name)

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        """See `LoadEngine`. Windows are written one after the other."""
        for order in orders:
            try:
                yield self.write(order.records, order.table, order.load_id, records_per_file)
            except PlatformError as error:
                yield error

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `LoadEngine`. Many windows are read in one query."""
        return measure.measure_each(self.session, self.lake, table, list(keys), version)

    def _named(self, error: Exception, records: Records, table: TableRef) -> PlatformError:
        # Spark does not report what the dead task was reading.
        if ended := worker_ended(str(error)):
            return WorkerLostError(records.topic, records.window, records.ranges.non_empty().triples(), ended)
        named = to_platform_error(error, table, records.window, str(self.lake))
        if not isinstance(named, TimestampOverflowError):
            return named
        return named_timestamps(self.settings(), records, table) or named
