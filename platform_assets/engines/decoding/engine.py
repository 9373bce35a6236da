"""The engine for decoded tables. It runs a Spark job for one or more windows, whose tasks read raw files and write
files of two tables."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from platform_assets.engines.connector import measure
from platform_assets.engines.decoding.work import BYTES_APART, Piece, Report, Share, Target, Work, shares_of
from platform_assets.engines.protocol import NO_ROWS, StagedFiles
from platform_assets.engines.shared.failures import to_platform_error
from platform_assets.engines.shared.job import JobLost, parallelism, texts_of
from platform_assets.engines.shared.reports import UnsupportedError, WrittenFile
from platform_assets.engines.shared.session import SharedSession, is_ended
from platform_assets.errors import (
    DecodingUnsupportedError,
    LoadError,
    PlatformError,
    Terminal,
    UnknownOutcome,
    WorkerLostError,
)
from platform_assets.lake import failures, holdings, parquet
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.field_ids import NO_IDS, FieldIds
from platform_assets.lake.holdings import WindowFiles
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
_SHARES_A_TASK: Final = 8
"""Number of small windows per task. The overhead of a task is about the cost of decoding one small window."""


@dataclass(frozen=True, slots=True)
class DecodeOrder:
    """An order to decode a window of a topic's raw table at `version`. `load_id` identifies the load.

    `layout` and `dead_layout` are the columns of the two output tables, including the window column. `window_columns`
    and `field_ids` have one entry for each output table, first for decoded rows and then for dead letters. The entry in
    `window_columns` is true if the table's files also get the window column. The entry in `field_ids` contains the ids
    of the files' columns.
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
    window_columns: tuple[bool, bool] = (False, False)
    field_ids: tuple[FieldIds, FieldIds] = (NO_IDS, NO_IDS)


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of all `orders`, in the sequence of the orders. Share `i` belongs to `orders[owners[i]]`. An order
    without rows has no shares."""

    orders: tuple[DecodeOrder, ...]
    shares: tuple[Share, ...]
    owners: tuple[int, ...]
    tasks: int

    @classmethod
    def of(cls, orders: Sequence[tuple[DecodeOrder, Sequence[Piece]]], parallelism: int) -> Plan:
        """Divide each large window into several shares. Small windows share a task. `parallelism` is the number of
        tasks that run at once."""
        shares: list[Share] = []
        owners: list[int] = []
        for index, (order, pieces) in enumerate(orders):
            below = load_folder(order.window, order.load_id)
            own = [Share(order.window, below, n, some) for n, some in enumerate(shares_of(pieces, parallelism))]
            shares += own
            owners += [index] * len(own)
        total, count = sum(piece.bytes for _, pieces in orders for piece in pieces), len(shares)
        tasks = max(-(-count // _SHARES_A_TASK), min(count, -(-total // BYTES_APART)))
        return cls(tuple(order for order, _ in orders), tuple(shares), tuple(owners), tasks)

    def is_last(self, share: int) -> bool:
        """Return True if no later share belongs to the same order."""
        return share + 1 == len(self.owners) or self.owners[share + 1] != self.owners[share]


@dataclass(frozen=True, slots=True)
class DecodedFiles:
    """Files of the two tables that no commit refers to yet, and the figures for the expectations on the decoded rows."""

    decoded: StagedFiles
    dead_letters: StagedFiles
    figures: FiguresByDigest = field(default_factory=dict)


@dataclass(frozen=True)
class DecodeEngine:
    """Decodes windows of `lake`. `session` is called when its result is first needed.

    Jobs are sent to the `shared` session unless it is None. Tables are read in the session that `session` returns.
    `environ` contains the settings of a schema registry.
    """

    lake: Lake
    session: Callable[[], SparkSession]
    shared: SharedSession | None = None
    name: str = "decoding"
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def decode(self, order: DecodeOrder) -> DecodedFiles:
        """Write the rows of a window to new files of both tables. After a failure, delete the new files as far as
        possible.

        Raises FilesLostError for files of the raw table, DecodingUnsupportedError, WorkerLostError, the errors that
        decoders raise, and other errors.
        """
        raw = self.lake.table(TableRef.raw(order.topic))
        pieces = self._pieces(order, holdings.files_of(raw, order.window, order.version))
        try:
            try:
                outcome = self._only(order, pieces)
            except JobLost as lost:
                if self.shared is None or not is_ended(lost.text):
                    raise
                _log.info("the shared Spark session has ended and is being restarted: %s", lost.text)
                self.shared.forget()
                outcome = self._only(order, pieces)
        except JobLost as lost:
            self.delete(order)
            error = self._blamed(lost, order)
            if self.shared is not None and isinstance(error, UnknownOutcome):
                self.shared.forget()
            raise error from lost
        except BaseException:
            self.delete(order)
            raise
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    def decode_many(self, orders: Sequence[DecodeOrder]) -> Generator[DecodedFiles | PlatformError, None, None]:
        """Decode windows of one topic, with one declaration and in one Spark job. Yield the outcome of each order, in
        the sequence of `orders`.

        The iterator ends early if the job dies or cannot be started. The caller then decodes the remaining orders one
        by one, which reveals the cause. Files of orders that failed or were not yielded are deleted as far as possible.
        """
        left, refused = deque(orders), dict[str, PlatformError]()
        try:
            pieces = self._pieces_of_many(orders, refused)
            plan = Plan.of(pieces, self._parallelism() if pieces else 1)
            with closing(self._outcomes(plan)) as outcomes:
                for order, outcome in outcomes:
                    while left[0] is not order:
                        yield refused[left.popleft().load_id]
                    left.popleft()
                    yield outcome
            while left:
                yield refused[left.popleft().load_id]
        except JobLost as lost:
            blamed = self._blamed(lost, (left or orders)[0])
            # The remaining windows get a new session.
            if self.shared is not None and (is_ended(lost.text) or isinstance(blamed, UnknownOutcome)):
                self.shared.forget()
            if left:
                self._log_end(left, blamed)
        except PlatformError as error:
            self._log_end(left, error)
        finally:
            for order in left:
                self.delete(order)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `TableReader`. Spark reads the files, so the files are not measured by the workers that wrote them."""
        return measure.measure_each(self.session, self.lake, table, list(keys), version)

    def delete(self, order: DecodeOrder) -> None:
        """Delete the files written for `order`."""
        for table in (TableRef("decoded", order.topic), TableRef("dead_letters", order.topic)):
            (self.lake.table(table) / load_folder(order.window, order.load_id)).delete()

    def _pieces(self, order: DecodeOrder, files: WindowFiles) -> list[Piece]:
        folder = self.lake.table(TableRef.raw(order.topic))
        found: list[Piece] = []
        for path in files.paths:
            # Paths in the Delta log are percent-encoded.
            name = unquote(path)
            with failures.reading_files(folder, order.window), folder.open(name) as opened:
                file = pq.ParquetFile(opened)
                numbers = [n for n in range(file.num_row_groups) if parquet.may_have(file, n, order.window)]
            groups = ((number, file.metadata.row_group(number)) for number in numbers)
            found += [Piece(name, n, g.num_rows, g.total_byte_size) for n, g in groups if g.num_rows]
        return found

    def _pieces_of_many(
        self, orders: Sequence[DecodeOrder], refused: dict[str, PlatformError]
    ) -> list[tuple[DecodeOrder, list[Piece]]]:
        """Return the row groups of each order. If the files of an order cannot be read, store the error in `refused`
        under the order's load id."""
        files: dict[int, dict[str, WindowFiles]] = {}
        found: list[tuple[DecodeOrder, list[Piece]]] = []
        for order in orders:
            if order.version not in files:
                folder = self.lake.table(TableRef.raw(order.topic))
                files[order.version] = holdings.window_files(holdings.actions(folder, order.version))
            try:
                found.append((order, self._pieces(order, files[order.version].get(order.window, holdings.NO_FILES))))
            except PlatformError as error:
                refused[order.load_id] = error
        return found

    def _only(self, order: DecodeOrder, pieces: Sequence[Piece]) -> DecodedFiles | PlatformError:
        """Return the outcome of a job for one order. Raises JobLost."""
        plan = Plan.of([(order, pieces)], self._parallelism() if pieces else 1)
        ((_, outcome),) = self._outcomes(plan)
        return outcome

    def _outcomes(self, plan: Plan) -> Generator[tuple[DecodeOrder, DecodedFiles | PlatformError], None, None]:
        """Yield each order of `plan` with its outcome, in the order of the plan. Raises JobLost."""
        own, given = list[Report](), 0
        with closing(self._reports(plan)) as reports:
            for report in reports:
                owner = plan.owners[report.share]
                for order in plan.orders[given:owner]:
                    yield order, self._outcome(order, [])
                given = owner
                own.append(report)
                if report.file is None and plan.is_last(report.share):
                    order, given = plan.orders[owner], owner + 1
                    yield order, self._outcome(order, own)
                    own = []
        for index in range(given, len(plan.orders)):
            order = plan.orders[index]
            if index in plan.owners:
                raise JobLost(LoadError(f"Spark's job ended before it had sent every report on window {order.window}"))
            yield order, self._outcome(order, [])

    def _outcome(self, order: DecodeOrder, reports: Sequence[Report]) -> DecodedFiles | PlatformError:
        """Return the outcome of an order, which is determined from all its reports. If there is an error, delete the
        order's files."""
        errors = [report.error for report in reports if report.error is not None]
        try:
            if not errors:
                return self._written(order, reports)
        except PlatformError as e:
            errors = [e]
        except BaseException:
            self.delete(order)
            raise
        self.delete(order)
        error = min(errors, key=lambda e: not isinstance(e, Terminal))
        if isinstance(error, UnsupportedError):
            return DecodingUnsupportedError(f"decoded/{order.topic}", order.window, error.reason)
        return error

    def _workers(self) -> SparkSession:
        return self.session() if self.shared is None else self.shared.session()

    def _parallelism(self) -> int:
        from grpc import RpcError
        from pyspark.errors import PySparkException

        spark = self._workers()
        try:
            return parallelism(spark)
        except (PySparkException, RpcError) as e:
            raise JobLost(e) from e

    def _reports(self, plan: Plan) -> Generator[Report, None, None]:
        """Run all shares of `plan` in Spark. Yield their reports in the sequence of the shares. Raises JobLost."""
        from grpc import RpcError
        from pyspark.errors import PySparkException

        if not plan.shares:
            return
        spark = self._workers()
        try:
            with closing(texts_of(spark, self._work(plan), plan.tasks, _TASK)) as texts:
                yield from map(Report.from_json, texts)
        except (PySparkException, RpcError) as e:
            raise JobLost(e) from e

    def _work(self, plan: Plan) -> Work:
        # Imported here because it loads the decoders, which a code location does not need.
        from platform_assets.decoding.registry.settings import address

        first = plan.orders[0]
        topic = first.topic
        return Work(
            topic=topic,
            raw=str(self.lake.table(TableRef.raw(topic))),
            decoded=str(self.lake.table(TableRef("decoded", topic))),
            dead_letters=str(self.lake.table(TableRef("dead_letters", topic))),
            schemas=str(self.lake.schemas),
            registry=address(self.environ) if first.declaration.by_registry else "",
            declaration=first.declaration,
            layout=files_layout(first.layout),
            dead_layout=files_layout(first.dead_layout),
            shares=plan.shares,
            rows_apart=first.records_per_file,
            window_columns=first.window_columns,
            field_ids=first.field_ids,
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

    def _log_end(self, left: Sequence[DecodeOrder], error: PlatformError) -> None:
        _log.warning(
            "a Spark job that was decoding windows of %s failed; decoding the remaining %d one by one: %s",
            left[0].topic,
            len(left),
            error,
        )

    def _blamed(self, lost: JobLost, order: DecodeOrder) -> PlatformError:
        table = TableRef("decoded", order.topic)
        if lost.no_python is not None:
            return DecodingUnsupportedError(
                table.name,
                order.window,
                f"they have no Python that can run the platform's code: {lost.no_python.strip()}",
            )
        if lost.worker is not None:
            return WorkerLostError(order.topic, order.window, order.ranges.triples(), lost.worker)
        if isinstance(lost.cause, PlatformError):
            return lost.cause
        return to_platform_error(lost.cause, table, order.window, str(self.lake))


def files_layout(layout: pa.Schema) -> pa.Schema:
    """Return the columns that tasks write to a table's files: all columns except `window`. The returned columns have no
    comments."""
    fields = [field.remove_metadata() for field in layout if field.name != "window"]
    return pa.schema([f.with_type(_TOPIC_ID) if f.name == "topic_id" else f for f in fields])
