"""Sending work to Spark's workers, and receiving the workers' reports."""

from __future__ import annotations

import json
import pickle
import re
import uuid
from collections.abc import Callable, Generator, Iterator, Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa

from platform_assets.engines.shared.failures import worker_ended
from platform_assets.engines.shared.session import without_token
from platform_assets.engines.shared.worker import CODE

if TYPE_CHECKING:
    from pyspark.sql.connect.dataframe import DataFrame
    from pyspark.sql.connect.session import SparkSession


_NO_PYTHON: Final = ("Cannot run program", "PYTHON_VERSION_MISMATCH", "Error from python worker", "ModuleNotFoundError",
                     "PACKAGE_NOT_INSTALLED", "UNSUPPORTED_PACKAGE_VERSION")  # fmt: skip
"""Parts of Spark's messages for a job that never started to run the platform's code."""


class JobLost(Exception):
    """Raised if a job ended before all of its shares were reported. `task` is the task in which a worker died, if that
    task is known."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause
        self.text = without_token(str(cause))
        self.worker = worker_ended(self.text)
        found = re.search(r"Task (\d+) in stage", self.text)
        self.no_python = next(
            (line for line in self.text.splitlines() if any(sign in line for sign in _NO_PYTHON)), None
        )
        self.task = int(found[1]) if found is not None and self.worker is not None else None
        super().__init__(self.text)


class Shared(Protocol):
    """Work of any kind that can be pickled. Its shares are distributed among tasks."""

    @property
    def shares(self) -> Sized:
        """The units of work, which are distributed among tasks."""


_parallelism: dict[str, int] = {}


def texts_of(spark: SparkSession, work: Shared, tasks: int, task: str) -> Generator[str, None, None]:
    """Run all shares in Spark with this many tasks. Each task calls the function `reports` of the module `task`. Yield
    the reports as JSON, in the sequence of the shares.

    Raises the errors that Spark raises. Reports yielded before an error stay valid. Closing the generator early ends
    the job.
    """
    from pyspark.sql.types import StringType, StructField, StructType

    # A type object, because the server would have to parse a string.
    schema = StructType([StructField("report", StringType())])
    tag = f"load-{uuid.uuid4()}"
    spark.addTag(tag)
    try:
        numbers = _numbers(spark, len(work.shares), tasks)
        for row in numbers.mapInArrow(_mapped(work, task), schema).toLocalIterator():
            yield row["report"]
    except GeneratorExit:
        spark.interruptTag(tag)
        raise
    finally:
        spark.removeTag(tag)


@lru_cache(maxsize=16)
def _numbers(spark: SparkSession, shares: int, tasks: int) -> DataFrame:
    """Return a DataFrame with the numbers of the shares, in `tasks` partitions. The DataFrame is cached, because its
    first use requests the columns from the server."""
    return spark.range(shares, numPartitions=tasks)


def shares_of(task: int, shares: int, tasks: int) -> range:
    """Return the numbers of the shares that a task of `texts_of` runs. Spark divides a range into equal parts."""
    return range(task * shares // tasks, (task + 1) * shares // tasks)


def parallelism(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at once. Spark is queried only once for each session."""
    if spark.session_id not in _parallelism:
        # The functions of `pyspark.sql` assume classic Spark until the process has made its own session.
        from pyspark.sql.connect import functions as F

        tasks = spark.range(1 << 16).select(F.spark_partition_id().alias("task"))
        _parallelism[spark.session_id] = 1 + int(tasks.agg(F.max("task")).first()[0])
    return _parallelism[spark.session_id]


def _mapped(work: Shared, task: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function that Spark maps over the shares' numbers.

    Spark sends the function by value. The function uses no code of this project until it has checked that the worker
    has the same version.
    """
    code, packed = CODE, pickle.dumps(work)

    def fit() -> tuple[Any, str]:
        """Return the worker's function that runs shares. If the worker does not have this function, return None and the
        reason."""
        try:
            from importlib import import_module

            from platform_assets.engines.shared.worker import CODE as own

            reports = import_module(task).reports
        except (ImportError, OSError) as error:  # OSError: a compiled library of a package cannot be loaded
            return None, f"Spark's workers cannot import the platform's code ({error})"
        if own != code:
            return (
                None,
                f"Spark's workers have version {own} of the platform's code, but this process has version {code}",
            )
        from platform_assets.engines.shared.worker import begin_task

        begin_task()
        return reports, ""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reports, unsupported = fit()
        received = None if unsupported else pickle.loads(packed)
        for batch in batches:
            numbers = batch.column(0).to_pylist()
            if unsupported:
                texts = [json.dumps({"share": number, "unsupported": unsupported}) for number in numbers]
                yield pa.RecordBatch.from_pydict({"report": texts})
                continue
            for report in reports(received, numbers):
                yield pa.RecordBatch.from_pydict({"report": [report.to_json()]})

    return run
