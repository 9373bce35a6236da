"""The columnar engine, which uses Spark Connect: Spark's Python workers read record batches and write Arrow columns."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from platform_assets.engines.columnar.work import Share, Source, Work, shares
from platform_assets.engines.connector import measure
from platform_assets.engines.connector.overflow import named_timestamps
from platform_assets.engines.protocol import NO_ROWS, Order, Records, StagedFiles
from platform_assets.engines.shared.failures import to_platform_error
from platform_assets.engines.shared.job import JobLost, parallelism, shares_of, texts_of
from platform_assets.engines.shared.reports import Report, UnsupportedError, WrittenFile
from platform_assets.engines.shared.session import SharedSession, is_ended
from platform_assets.errors import (
    LoadError,
    PlatformError,
    SparkUnreachableError,
    Terminal,
    TimestampOverflowError,
    UnknownOutcome,
    WorkerLostError,
)
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.data_files import NewFile
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.digest import Measured
from platform_assets.model.logs import logger
from platform_assets.model.offsets import OffsetRange
from platform_assets.model.tables import TableRef

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession


LARGEST_SHARE: Final = 5_000_000
"""Maximum number of offsets per task. It limits how much work is lost when a task fails, and how much work then moves
to another task."""
_SHARES_A_TASK: Final = 8
"""Number of small windows per task. The overhead of a task is about the cost of writing one small window."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The shares of all `orders`, in the sequence of the orders. Share `i` belongs to `orders[owners[i]]`. An order
    without offsets has no shares."""

    orders: tuple[Order, ...]
    shares: tuple[Share, ...]
    owners: tuple[int, ...]
    tasks: int

    @classmethod
    def of(
        cls,
        orders: Sequence[Order],
        records_per_file: int,
        parallelism: Callable[[], int],
        folder: Callable[[TableRef], str],
        *,
        apart: bool,
    ) -> Plan:
        """Divide each large window into several shares. Small windows share a task, unless `apart` is true.

        `folder` returns the path of a table on the workers.

        `parallelism` returns the number of tasks that Spark runs in parallel. It is called only for large windows,
        because the call takes as long as loading a small window.
        """
        found: list[Share] = []
        owners: list[int] = []
        total = 0
        for index, order in enumerate(orders):
            ranges: dict[int, list[OffsetRange]] = {}
            for part in order.records.pieces:
                for partition, left in part.items():
                    ranges.setdefault(partition, []).append(left)
            size = order.records.ranges.size
            cores = parallelism() if size > records_per_file else 1
            most = cores * -(-size // (cores * LARGEST_SHARE)) if size > records_per_file else 1
            below = load_folder(order.records.window, order.load_id)
            source = Source(order.records.topic, order.records.topic_id, folder(order.table))
            pieces = shares(ranges, records_per_file, most)
            flat, ids = order.records.window_column, order.records.field_ids
            own = [Share(order.records.window, below, some, source, flat, ids) for some in pieces]
            found += own
            owners += [index] * len(own)
            total += size
        count = len(found)
        together = max(-(-count // _SHARES_A_TASK), min(count, -(-total // records_per_file)))
        return cls(tuple(orders), tuple(found), tuple(owners), count if apart else together)

    def is_last(self, share: int) -> bool:
        """Return True if no later share belongs to the same order."""
        return share + 1 == len(self.owners) or self.owners[share + 1] != self.owners[share]

    def of_task(self, task: int) -> dict[int, tuple[Share, ...]]:
        """Return the shares of a task, grouped by the index of the order that they belong to."""
        done: dict[int, tuple[Share, ...]] = {}
        for number in shares_of(task, len(self.shares), self.tasks):
            done[self.owners[number]] = (*done.get(self.owners[number], ()), self.shares[number])
        return done

    def of_order(self, index: int) -> tuple[Share, ...]:
        """Return all shares of an order."""
        return tuple(share for share, owner in zip(self.shares, self.owners, strict=True) if owner == index)


_log = logger(__name__)

PATIENCE: Final = 30.0
"""Time limit in seconds for a broker to answer a worker, including retries."""
FETCH_BYTES: Final = 8 << 20
"""Bytes per fetch request. A worker holds two responses of this size."""


@dataclass(frozen=True)
class ColumnarEngine:
    """Loads windows into `lake`. `settings` and `session` are called when their results are first needed.

    Jobs are sent to the `shared` session unless it is None. Tables are read in the session that `session` returns.
    """

    lake: Lake
    settings: Callable[[], ClientSettings]
    session: Callable[[], SparkSession]
    shared: SharedSession | None = None
    name: str = "columnar"

    def write(self, records: Records, table: TableRef, load_id: str, records_per_file: int) -> StagedFiles:
        """See `LoadEngine`. Also raises WorkerLostError, and UnsupportedError if only the connector engine can load the
        records."""
        (outcome,) = self.write_many([Order(records, load_id, table)], records_per_file)
        if isinstance(outcome, PlatformError):
            raise outcome
        return outcome

    def write_many(
        self, orders: Sequence[Order], records_per_file: int
    ) -> Generator[StagedFiles | PlatformError, None, None]:
        """See `LoadEngine`. Uses one Spark job, in which small windows share a task.

        If a job dies, another job loads the windows that had not yet been yielded. In that job, windows do not share
        tasks, so if a task dies again, it is clear which window caused this. The load of that window then fails.
        """
        left, failed, apart = deque(orders), dict[str, PlatformError](), len(orders) == 1
        renewed = False
        try:
            while left:
                if left[0].load_id in failed:
                    yield failed[left.popleft().load_id]
                    continue
                todo = [order for order in left if order.load_id not in failed]
                try:
                    plan = Plan.of(todo, records_per_file, self._cores_for(orders[0]), self._folder, apart=apart)
                    with closing(self._outcomes(plan, records_per_file)) as outcomes:
                        for order, outcome in outcomes:
                            while left[0] is not order:
                                yield failed[left.popleft().load_id]
                            left.popleft()
                            yield outcome
                except JobLost as lost:
                    for order in left:
                        self._delete(order)
                    if self.shared is not None and is_ended(lost.text) and not renewed:
                        _log.info("the shared Spark session has ended and is being restarted: %s", lost.text)
                        self.shared.forget()
                        renewed = True
                        continue
                    if lost.no_python is not None:
                        reason = f"Spark's workers have no Python that can run the platform's code ({lost.no_python.strip()})"
                        failed[todo[0].load_id] = UnsupportedError(reason)
                        continue
                    index, error = self._blamed(lost, plan, [o for o in left if o.load_id not in failed])
                    alone = lost.task is not None and len(plan.of_task(lost.task)) == 1
                    if apart or alone or isinstance(error, SparkUnreachableError | UnknownOutcome):
                        failed[plan.orders[index].load_id] = error
                    _log.warning(
                        "a Spark job that was loading %d windows of %s failed: %s", len(todo), _tables_of(todo), error
                    )
                    apart = True
                    if self.shared is not None and isinstance(error, UnknownOutcome):
                        self.shared.forget()
                except PlatformError as error:
                    # No job was started, because Spark or the client settings are not available.
                    failed[todo[0].load_id] = error
        finally:
            for order in left:
                self._delete(order)

    def measure(
        self, table: TableRef, keys: Sequence[str], version: int
    ) -> Iterator[tuple[str, Measured | PlatformError]]:
        """See `LoadEngine`. Spark reads the files, so the files are not measured by the engine that wrote them."""
        return measure.measure_each(self.session, self.lake, table, list(keys), version)

    def _outcomes(
        self, plan: Plan, records_per_file: int
    ) -> Generator[tuple[Order, StagedFiles | PlatformError], None, None]:
        """Yield each order of `plan` with its outcome, in the order of the plan. Raises JobLost."""
        files, errors = list[WrittenFile](), list[PlatformError]()
        given = 0
        with closing(self._reports(plan, records_per_file)) as reports:
            for report in reports:
                owner = plan.owners[report.share]
                for order in plan.orders[given:owner]:
                    yield order, self._written(order, [])
                given = owner
                if report.file is not None:
                    files.append(report.file)
                    continue
                errors += [] if report.error is None else [report.error]
                if plan.is_last(report.share):
                    order, given = plan.orders[owner], owner + 1
                    yield order, self._error(errors, order) if errors else self._written(order, files)
                    files, errors = [], []
        for index in range(given, len(plan.orders)):
            if plan.of_order(index):
                raise JobLost(
                    LoadError(f"Spark's job ended without a report on window {plan.orders[index].records.window}")
                )
            yield plan.orders[index], self._written(plan.orders[index], [])

    def _workers(self) -> SparkSession:
        return self.session() if self.shared is None else self.shared.session()

    def _cores_for(self, order: Order) -> Callable[[], int]:
        def cores() -> int:
            from grpc import RpcError
            from pyspark.errors import PySparkException

            try:
                return parallelism(self._workers())
            except (PySparkException, RpcError) as e:
                raise to_platform_error(e, order.table, order.records.window, str(self.lake)) from e

        return cores

    def _folder(self, table: TableRef) -> str:
        return str(self.lake.table(table))

    def _reports(self, plan: Plan, records_per_file: int) -> Generator[Report, None, None]:
        from grpc import RpcError
        from pyspark.errors import PySparkException

        if not plan.shares:
            return
        work = self._work(plan, records_per_file)
        spark = self._workers()
        try:
            with closing(reports_of(spark, work, plan.tasks)) as reports:
                yield from reports
        except (PySparkException, RpcError) as e:
            raise JobLost(e) from e

    def _work(self, plan: Plan, records_per_file: int) -> Work:
        settings = self.settings()
        return Work(
            bootstrap=settings.bootstrap_servers,
            options=tuple(sorted(settings.options)),
            shares=plan.shares,
            rows_apart=records_per_file,
            patience=PATIENCE,
            fetch_bytes=FETCH_BYTES,
            limits=settings.limits,
        )

    def _written(self, order: Order, files: Sequence[WrittenFile]) -> StagedFiles:
        new = tuple(NewFile(f.path, f.bytes, f.rows, f.statistics) for f in files)
        below = load_folder(order.records.window, order.load_id)
        return StagedFiles(below, new, sum((f.measured for f in files), NO_ROWS), self.name)

    def _error(self, errors: Sequence[PlatformError], order: Order) -> PlatformError:
        """Delete the window's files. Return one of the errors from its shares, preferably a terminal error."""
        self._delete(order)
        error = min(errors, key=lambda e: not isinstance(e, Terminal))
        if not isinstance(error, TimestampOverflowError):
            return error
        try:
            return named_timestamps(self.settings(), order.records, order.table) or error
        except PlatformError as e:
            return e

    def _blamed(self, lost: JobLost, plan: Plan, left: Sequence[Order]) -> tuple[int, PlatformError]:
        """Choose the order in `left` to blame for a lost job. Return the order's index in `plan.orders`, and the
        error."""
        waiting = {order.load_id for order in left}
        done = plan.of_task(lost.task) if lost.task is not None else {}
        index = next(
            (i for i in (*done, *range(len(plan.orders))) if plan.orders[i].load_id in waiting), len(plan.orders) - 1
        )
        records = plan.orders[index].records
        if lost.worker is not None:
            own: tuple[Share, ...] = done.get(index) or plan.of_order(index)
            pieces = [(p.partition, p.wanted.start, p.wanted.end) for share in own for p in share.pieces]
            return index, WorkerLostError(records.topic, records.window, pieces, lost.worker)
        if isinstance(lost.cause, PlatformError):
            return index, lost.cause
        return index, to_platform_error(lost.cause, plan.orders[index].table, records.window, str(self.lake))

    def _delete(self, order: Order) -> None:
        (self.lake.table(order.table) / load_folder(order.records.window, order.load_id)).delete()


def _tables_of(orders: Sequence[Order]) -> str:
    names = list(dict.fromkeys(order.table.name for order in orders))
    return names[0] if len(names) == 1 else f"{len(names)} tables, such as {names[0]}"


def reports_of(spark: SparkSession, work: Work, tasks: int) -> Generator[Report, None, None]:
    """Run all shares in Spark with this many tasks, and yield their reports in the sequence of the shares.

    Raises the errors that Spark raises. Reports yielded before an error stay valid. Closing the generator early ends
    the job.
    """
    with closing(texts_of(spark, work, tasks, "platform_assets.engines.columnar.task")) as texts:
        yield from map(Report.from_json, texts)
