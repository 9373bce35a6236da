"""The engine of decoded tables: one Spark job per window, whose tasks read the raw window's files and write files of two tables."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.engines.columnar.job import JobLost, parallelism, texts_of
from platform_assets.engines.columnar.reports import UnsupportedError, WrittenFile
from platform_assets.engines.decoding.work import Piece, Report, Target, Work, shares_of
from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.engines.spark import measure
from platform_assets.engines.spark.failures import to_platform_error
from platform_assets.engines.spark.session import SharedSession, is_ended
from platform_assets.errors import (
    DecodingUnsupportedError,
    LoadError,
    PlatformError,
    Terminal,
    UnknownOutcome,
    WorkerLostError,
)
from platform_assets.lake import load_log, rows
from platform_assets.lake.commits import NewFile
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.decoding import DecodeDeclaration
from platform_assets.model.digest import Measured
from platform_assets.model.expectations import Figures, FiguresByDigest, added
from platform_assets.model.logs import logger
from platform_assets.model.offsets import TopicRanges
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_log = logger(__name__)

_TASK: Final = "platform_assets.engines.decoding.task"
_TOPIC_ID: Final = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """A window of a topic's raw table at `version`, to be decoded by the load with this id.

    `layout` and `dead_layout` are the columns of the two output tables, including their partition column.
    """

    topic: str
    window: str
    version: int
    ranges: TopicRanges
    declaration: DecodeDeclaration
    layout: pa.Schema
    dead_layout: pa.Schema
    load_id: str
    records_per_file: int


@dataclass(frozen=True, slots=True)
class DecodedFiles:
    """Files of the two tables that are in no commit yet, and the expectation figures of the decoded rows."""

    decoded: StagedFiles
    dead_letters: StagedFiles
    figures: FiguresByDigest = field(default_factory=dict)


@dataclass(frozen=True)
class DecodeEngine:
    """Decodes windows of `lake`. `session` is called when it is first needed.

    Jobs are sent to the `shared` session, if there is one; tables are read in `session`. `environ` has the settings of a schema
    registry.
    """

    lake: Lake
    session: Callable[[], SparkSession]
    shared: SharedSession | None = None
    name: str = "decoding"
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def decode(self, order: DecodeOrder) -> DecodedFiles:
        """Write the rows of a window to new files of both tables. After a failure, delete the files, as far as possible.

        Raises FilesLostError for files of the raw table, DecodingUnsupportedError, WorkerLostError, what decoders raise, and others.
        """
        pieces = self._pieces(order)
        if not pieces:
            return self._written(order, [])
        try:
            try:
                reports = self._reports(order, pieces)
            except JobLost as lost:
                if self.shared is None or not is_ended(lost.text):
                    raise
                _log.info("the shared Spark session has ended and is started again: %s", lost.text)
                self.shared.forget()
                reports = self._reports(order, pieces)
        except JobLost as lost:
            self.delete(order)
            error = self._blamed(lost, order)
            if self.shared is not None and isinstance(error, UnknownOutcome):
                self.shared.forget()
            raise error from lost
        except BaseException:
            self.delete(order)
            raise
        errors = [report.error for report in reports if report.error is not None]
        if errors:
            self.delete(order)
            error = min(errors, key=lambda e: not isinstance(e, Terminal))
            if isinstance(error, UnsupportedError):
                raise DecodingUnsupportedError(f"decoded/{order.topic}", order.window, error.reason)
            raise error
        try:
            return self._written(order, reports)
        except BaseException:
            self.delete(order)
            raise

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """As in TableReader. Spark reads the files, so another engine measures what the workers wrote."""
        return measure.measure_each(self.session, self.lake, table, list(keys), version)

    def delete(self, order: DecodeOrder) -> None:
        """Delete the files written for `order`."""
        for table in (TableRef("decoded", order.topic), TableRef("dead_letters", order.topic)):
            (self.lake.table(table) / load_folder(order.window, order.load_id)).delete()

    def _pieces(self, order: DecodeOrder) -> list[Piece]:
        folder = self.lake.table(TableRef.raw(order.topic))
        found: list[Piece] = []
        for path in load_log.files_of(folder, order.window, order.version).paths:
            # Paths in a log are percent-encoded.
            name = unquote(path)
            with rows.reading_files(folder, order.window), folder.open(name) as opened:
                footer = pq.ParquetFile(opened).metadata
            groups = (footer.row_group(number) for number in range(footer.num_row_groups))
            found += [Piece(name, n, g.num_rows, g.total_byte_size) for n, g in enumerate(groups) if g.num_rows]
        return found

    def _reports(self, order: DecodeOrder, pieces: Sequence[Piece]) -> list[Report]:
        from grpc import RpcError
        from pyspark.errors import PySparkException

        spark = self.session() if self.shared is None else self.shared.session()
        try:
            work = self._work(order, pieces, parallelism(spark))
            tasks = len(work.shares)
            with closing(texts_of(spark, work, tasks, _TASK)) as texts:
                reports = [Report.from_json(text) for text in texts]
        except (PySparkException, RpcError) as e:
            raise JobLost(e) from e
        ended = {report.share for report in reports if report.file is None}
        if len(ended) < tasks:
            raise JobLost(LoadError(f"Spark's job ended without all reports of window {order.window}"))
        return reports

    def _work(self, order: DecodeOrder, pieces: Sequence[Piece], tasks: int) -> Work:
        # Imported here because it loads the decoders, which a code location does not need.
        from platform_assets.decoding.registry.settings import address

        topic = order.topic
        return Work(
            topic=topic,
            window=order.window,
            raw=str(self.lake.table(TableRef.raw(topic))),
            decoded=str(self.lake.table(TableRef("decoded", topic))),
            dead_letters=str(self.lake.table(TableRef("dead_letters", topic))),
            schemas=str(self.lake.schemas),
            registry=address(self.environ) if order.declaration.by_registry else "",
            below=load_folder(order.window, order.load_id),
            declaration=order.declaration,
            layout=files_layout(order.layout),
            dead_layout=files_layout(order.dead_layout),
            shares=shares_of(pieces, tasks),
            rows_apart=order.records_per_file,
        )

    def _written(self, order: DecodeOrder, reports: Sequence[Report]) -> DecodedFiles:
        def of(target: Target) -> StagedFiles:
            files: list[WrittenFile] = [r.file for r in reports if r.file is not None and r.target == target]
            new = tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in files)
            below = load_folder(order.window, order.load_id)
            return StagedFiles(below, new, sum((f.measured for f in files), NO_ROWS), None)

        rows = of("decoded")
        return DecodedFiles(rows, of("dead_letters"), self._figures(order, rows, reports))

    def _figures(self, order: DecodeOrder, rows: StagedFiles, reports: Sequence[Report]) -> FiguresByDigest:
        found = added(report.figures for report in reports if report.figures is not None)
        unique = [e for e in order.declaration.expect if e.kind == "unique"]
        if unique:
            # Imported here because it loads compiled code, which few drivers need.
            from platform_assets.engines.decoding import uniqueness

            folder = self.lake.table(TableRef("decoded", order.topic))
            found |= {e.digest: uniqueness.measure(e, folder, order.window, rows) for e in unique}
        return {e.digest: found.get(e.digest, Figures()) for e in order.declaration.expect}

    def _blamed(self, lost: JobLost, order: DecodeOrder) -> PlatformError:
        table = TableRef("decoded", order.topic)
        if lost.no_python is not None:
            return DecodingUnsupportedError(
                table.name, order.window, f"they have no Python that can run it: {lost.no_python.strip()}"
            )
        if lost.worker is not None:
            return WorkerLostError(order.topic, order.window, order.ranges.triples(), lost.worker)
        if isinstance(lost.cause, PlatformError):
            return lost.cause
        return to_platform_error(lost.cause, table, order.window, str(self.lake))


def files_layout(layout: pa.Schema) -> pa.Schema:
    """Return the columns of a table's files as made by tasks: all except the partition column, without comments."""
    fields = [field.remove_metadata() for field in layout if field.name != "window"]
    return pa.schema([f.with_type(_TOPIC_ID) if f.name == "topic_id" else f for f in fields])
