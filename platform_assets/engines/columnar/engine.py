"""The columnar engine: Spark's Python workers read record batches and write Arrow columns; over Spark Connect."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from platform_assets.engines.columnar.job import parallelism, reports_of
from platform_assets.engines.columnar.pieces import shares
from platform_assets.engines.columnar.work import Share, Work
from platform_assets.engines.columnar.written import WrittenFile
from platform_assets.engines.protocol import NO_ROWS, Records, Written
from platform_assets.engines.spark import measure
from platform_assets.engines.spark.failures import to_platform_error
from platform_assets.engines.spark.session import without_token
from platform_assets.errors import (
    PlatformError,
    Terminal,
    TimestampOverflowError,
    UnreadableTimestampError,
    WorkerLostError,
)
from platform_assets.kafka.settings import ClientSettings
from platform_assets.kafka.timestamps import unreadable_records
from platform_assets.lake.commits import NewFile
from platform_assets.lake.load_folders import load_folder
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logging.getLogger(__name__)

PATIENCE: Final = 30.0
"""Seconds that a broker may take to answer a worker, retries included."""
FETCH_BYTES: Final = 8 << 20
"""Bytes asked for at a time; a worker holds two answers of that size."""
LARGEST_SHARE: Final = 5_000_000
"""Offsets that one task reads at most: what is lost with a task that dies, and what others can take over."""
_WORKER_ENDED: Final = ("Python worker exited unexpectedly", "Python worker process terminated", "ExecutorLostFailure")


@dataclass(frozen=True)
class ColumnarEngine:
    """Loads into `lake`. `settings` and `session` are called when they are first needed."""

    lake: Lake
    settings: Callable[[], ClientSettings]
    session: Callable[[], SparkSession]
    name: str = "columnar"

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> Written:
        """As LoadEngine has it; also raises UnfitError where only the connector's engine can load them, and
        WorkerLostError."""
        below = load_folder(records.window, load_id)
        if not records.pieces:
            return Written(below, (), NO_ROWS, self.name)
        folder = self.lake.table(table)
        work = self._work(records, table, load_id, records_per_file)
        try:
            files = self._done(work, records, table)
        except BaseException:
            (folder / below).delete()
            raise
        new = tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in files)
        return Written(below, new, sum((f.measured for f in files), NO_ROWS), self.name)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """As LoadEngine has it. Spark reads the files: what this engine wrote is measured by another one."""
        return measure.measure_each(self.session, self.lake, table, list(keys), version)

    def _work(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> Work:
        ranges: dict[int, list[OffsetRange]] = {}
        for part in records.pieces:
            for partition, left in part.items():
                ranges.setdefault(partition, []).append(left)
        settings, total = self.settings(), records.ranges.size
        most = 1  # a small window is one file, and asking Spark for its cores would take as long as loading it
        if total > records_per_file:
            cores = parallelism(self.session())
            most = cores * -(-total // (cores * LARGEST_SHARE))
        below = load_folder(records.window, load_id)
        return Work(
            bootstrap=settings.bootstrap_servers,
            options=tuple(sorted(settings.options)),
            topic=records.topic,
            topic_id=records.topic_id,
            table=str(self.lake.table(table)),
            shares=tuple(Share(records.window, below, pieces) for pieces in shares(ranges, records_per_file, most)),
            rows_apart=records_per_file,
            patience=PATIENCE,
            fetch_bytes=FETCH_BYTES,
        )

    def _done(self, work: Work, records: Records, table: TableRef) -> list[WrittenFile]:
        """The files of all shares. Raises the error of one where there are some: one that lasts before one that passes."""
        from grpc import RpcError
        from pyspark.errors import PySparkException

        try:
            reports = list(reports_of(self.session(), work))
        except (PySparkException, RpcError) as e:
            raise self._named(e, work, records, table) from e
        failures = [r.error for r in reports if r.error is not None]
        for error in sorted(failures, key=lambda e: not isinstance(e, Terminal)):
            raise self._with_records(error, records, table)
        _log.debug("window %s of %s: %s", records.window, table, [r.seconds for r in reports if r.seconds is not None])
        return [r.file for r in reports if r.file is not None]

    def _with_records(self, error: PlatformError, records: Records, table: TableRef) -> PlatformError:
        """`error`, or where a task met a timestamp that is out of range, one that names all records that have such."""
        if not isinstance(error, TimestampOverflowError):
            return error
        unreadable = unreadable_records(self.settings(), records.topic, records.ranges)
        return UnreadableTimestampError(table.name, records.window, unreadable) if unreadable else error

    def _named(self, error: Exception, work: Work, records: Records, table: TableRef) -> PlatformError:
        """The platform's error for a job that ended without its tasks' own reports."""
        text = without_token(str(error))
        if any(sign in text for sign in _WORKER_ENDED):
            found = re.search(r"Task (\d+) in stage", text)
            lost = work.shares if found is None else [work.shares[int(found[1])]]
            pieces = [(p.partition, p.wanted.start, p.wanted.end) for share in lost for p in share.pieces]
            reason = next(sign for sign in _WORKER_ENDED if sign in text)
            return WorkerLostError(records.topic, records.window, pieces, reason)
        return to_platform_error(error, table, records.window, str(self.lake))
