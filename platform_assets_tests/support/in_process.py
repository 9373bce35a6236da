"""Running the tasks of jobs, and measuring windows, in the test process instead of in Spark.

The work is pickled, divided among tasks, and reported as JSON, as in Spark. Tests of code above the engines use this,
because for a small window Spark takes ten times as much processor time as the tasks themselves.
"""

from __future__ import annotations

import pickle
from collections.abc import Generator, Iterator
from importlib import import_module
from typing import Final

import pytest

from platform_assets.engines.connector import measure
from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.engines.shared.job import Shared, shares_of
from platform_assets.errors import PlatformError
from platform_assets.lake import rows
from platform_assets.lake.location import Lake
from platform_assets.model.digest import Measured
from platform_assets.model.tables import TableRef

TASKS: Final = 2
"""Number of tasks that a session is assumed to run at once."""

_ENGINES: Final = "platform_assets.engines."


def replace_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loads, decoding, upkeep and measuring do without Spark. The connector engine and queries still use it."""
    for name in ("columnar", "decoding", "merging"):
        monkeypatch.setattr(f"{_ENGINES}{name}.engine.texts_of", texts_of)
    for name in ("columnar", "decoding"):
        monkeypatch.setattr(f"{_ENGINES}{name}.engine.parallelism", lambda spark: TASKS)
    monkeypatch.setattr(measure, "measure_each", measure_each)


def is_used() -> bool:
    """Return True if this process does without Spark, so that processes that a test starts can do the same."""
    return measure.measure_each is measure_each


def texts_of(spark: object, work: Shared, tasks: int, task: str) -> Generator[str, None, None]:
    """Run the tasks one after another. Yield the reports of the shares as JSON, in the sequence of the shares.

    Raises what the task raises. `spark` is not used.
    """
    reports = import_module(task).reports
    received = pickle.loads(pickle.dumps(work))
    for number in range(tasks):
        if shares := list(shares_of(number, len(work.shares), tasks)):
            yield from (report.to_json() for report in reports(received, shares))


def measure_each(
    spark: object, lake: Lake, table: TableRef, keys: list[str], version: int
) -> Iterator[tuple[str, Measured | PlatformError]]:
    """Yield the digests of each window of `table` at `version`, or the error of reading the window, in the order of
    `keys`. `spark` is not used."""
    # Imported here because it loads compiled code.
    from platform_assets.engines.decoding.rows import in_order

    digests = measure_of(table.kind)
    for key in keys:
        held = NO_ROWS
        try:
            for batch in rows.batches_of(lake.table(table), key, version):
                held += digests(in_order(batch)) if batch.num_rows else NO_ROWS
        except PlatformError as error:
            yield key, error
        else:
            yield key, held
