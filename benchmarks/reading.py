"""A flat table with many small windows, as other readers see it before and after upkeep. It is compared with a table
that has the same rows in files of an ideal size. Also measured are the number of rows that upkeep merges per second,
and the time to replace a window in a merged file."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.transaction import AddAction, RemoveAction

from benchmarks import made_lake
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Goal, Measured, at_least, at_most
from platform_assets.engines.choice import merge_engine
from platform_assets.engines.columnar.columns import SCHEMA
from platform_assets.engines.measuring import measure_of
from platform_assets.engines.shared.files import FileSeries
from platform_assets.engines.shared.session import connect
from platform_assets.lake import checkpoints, data_files, holdings, raw_table
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.data_files import NewFile, delta_statistics
from platform_assets.lake.field_ids import FieldIds, ids_of
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake, load_folder
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import DEFAULT_FILE_SIZE
from platform_assets.model.tables import TableRef
from platform_assets.windows.maintain.upkeep import TableUpkeep
from testbed.samples import TOPIC_ID, edge, receipt

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

PARTITIONS: Final = 4
TOPIC: Final = "readings"
VALUE_BYTES: Final = 96
HOURS: Final = 6
_MICROS_A_WINDOW: Final = 3_600_000_000
_COMMITTED_AT_ONCE: Final = 5_000
READERS: Final = ("DuckDB", "polars", "Spark")
A_WEEK: Final = 7 * 288
"""Number of windows in a week, if a window lasts five minutes. A table's log must list removed files for a week."""


@dataclass(frozen=True)
class Small:
    """A flat table with hourly windows of `each` rows per partition. There is one file for each window, as after loads."""

    lake: Lake
    windows: int
    each: int

    @property
    def path(self) -> Path:
        """The folder of the table."""
        return Path(str(self.lake.table(TableRef.raw(TOPIC))))

    @property
    def rows(self) -> int:
        """Number of rows in all windows of the table."""
        return self.windows * self.each * PARTITIONS

    def batches(self, number: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a window, by partition. Values are random letters; the same seed gives the same letters."""
        began = round(edge(number).timestamp() * 1_000_000)
        rng = np.random.default_rng([seed, number])
        for partition in range(PARTITIONS):
            offsets = np.arange(number * self.each, (number + 1) * self.each)
            times = began + (offsets - offsets[0]) * (_MICROS_A_WINDOW // self.each)
            letters = rng.integers(97, 123, self.each * VALUE_BYTES, dtype=np.uint8)
            ends = np.arange(self.each + 1, dtype=np.int32) * VALUE_BYTES
            values = {
                "topic_id": pa.repeat(TOPIC_ID, self.each),
                "kafka_partition": pa.repeat(pa.scalar(partition, pa.int32()), self.each),
                "kafka_offset": pa.array(offsets),
                "kafka_timestamp": pa.array(times, pa.timestamp("us", "UTC")),
                "kafka_timestamp_type": pa.repeat(pa.scalar(0, pa.int32()), self.each),
                "value": pa.Array.from_buffers(
                    pa.binary(), self.each, [None, pa.py_buffer(ends), pa.py_buffer(letters)]
                ),
            }
            yield pa.record_batch(
                [values.get(f.name, pa.nulls(self.each, f.type)).cast(f.type) for f in SCHEMA], schema=SCHEMA
            )

    def make(self, ledger: Ledger, report: Callable[[str], None]) -> None:
        """Write and commit the files, and record the windows and their receipts."""
        ledger.create()
        folder = Folder.at(self.path)
        raw_table.create(folder, TOPIC)
        made_lake.record_cuts(Path(str(self.lake)), TOPIC, TOPIC_ID, self.windows, PARTITIONS, self.each)
        windows = ledger.windows(TOPIC)
        contents: dict[str, tuple[int, int]] = {}
        for at in range(0, self.windows, _COMMITTED_AT_ONCE):
            adds: list[AddAction | RemoveAction] = []
            for number, window in enumerate(windows[at : at + _COMMITTED_AT_ONCE], at):
                files, contents[window.key] = self.written(folder, number, window.key)
                adds += [_add(file) for file in files]
            handle = DeltaTable(self.path)
            handle.create_write_transaction(adds, "append", handle.schema(), commit_properties=CommitProperties())
            report(f"made {min(at + _COMMITTED_AT_ONCE, self.windows):,} windows")
        found = holdings.window_files(holdings.actions(folder))
        version = DeltaTable(self.path).version()
        ledger.record_receipts(
            [
                receipt(
                    window, version=version, load_id=_load_id(window.key), files_digest=found[window.key].digest,
                    content_digest=contents[window.key][0], bytes=contents[window.key][1], holes={}, kind="rebuilt",
                )
                for window in windows
            ]
        )  # fmt: skip

    def written(
        self, folder: Folder, number: int, key: str, load_id: str | None = None, seed: int = 0
    ) -> tuple[list[NewFile], tuple[int, int]]:
        """Write the file of a window. Return the file, the digest sum of its content, and its size in bytes."""
        below = load_folder(key, load_id or _load_id(key))
        series = FileSeries(folder.content, below, "00000", 1 << 20, window=key, field_ids=_ids_at(self.path))
        for batch in self.batches(number, seed):
            series.add(batch)
        series.close()
        files = [NewFile(f.path, f.bytes, f.rows, f.statistics) for f in series.written]
        (one,) = series.written
        return files, (one.measured.content.total, one.bytes)


@cache
def _ids_at(path: Path) -> FieldIds:
    return ids_of(pa.schema(DeltaTable(path).schema().to_arrow()))


def run(bench: Bench) -> Measured:
    """Measure the seconds that each reader takes to scan each of the tables, one after another, and the seconds to
    replace a window."""
    windows, each = bench.pick(20_000, 1_000), 250
    rounds = bench.pick(7, 3)
    ledger = Ledger(Lake.at(bench.root / "lake"))
    small = Small(ledger.lake, windows, each)
    began = time.perf_counter()
    small.make(ledger, bench.report)
    bench.report(f"made {small.rows:,} rows in {time.perf_counter() - began:.0f} s")
    session = cache(partial(connect, bench.remote))
    before = {
        f"{reader}, {what}, before upkeep": _timed(partial(read, session, small.path, small))
        for what in ("scan", "six hours")
        for reader, read in _reads(what).items()
    }
    bench.report(f"before upkeep: { {name: round(s, 2) for name, s in before.items()} }")
    ideal, steady = bench.root / "ideal", bench.root / "steady"
    _write_ideal(small, ideal)
    loaded = _newest_files(small.path, A_WEEK)
    upkeep, merged_rows = _upkeep(bench, ledger, small, session)
    _make_steady(small, loaded, steady)
    seconds: dict[str, Sequence[float]] = {}
    goals = [at_least("upkeep", 1.0, middle([merged_rows / upkeep / 1e6]), "million rows/s")]
    for what in ("scan", "six hours"):
        reads = _reads(what)
        tables = {"after upkeep": small.path, "ideal": ideal}
        if what == "six hours":
            tables["after a week"] = steady
        contenders = {
            f"{reader}, {what}, {name}": partial(read, session, path, small)
            for reader, read in reads.items()
            for name, path in tables.items()
        }
        found = alternate(contenders, rounds, bench.report)
        seconds |= found
        for reader in reads:
            for name in (name for name in tables if name != "ideal"):
                over = ratio(found[f"{reader}, {what}, {name}"], found[f"{reader}, {what}, ideal"])
                state = "" if name == "after upkeep" else f" {name}"
                goals.append(at_most(f"{reader}, {what}{state}, relative to the ideal layout", 1.2, over))
    replaced, size = _replace(small, rounds)
    seconds["replace a window in a merged file"] = replaced
    goals.append(at_most(f"replacing a window in a file of {size / 1e6:.0f} MB", 2.0, middle(replaced), "s"))
    goals.append(Goal("files after upkeep", _files(small.path), float(_files(ideal)) * 1.5 + 1, True, "files"))
    setting = {"windows": windows, "rows a window": each * PARTITIONS, "value bytes": VALUE_BYTES}
    more = {"before upkeep": before, "upkeep": {"seconds": upkeep, "rows": merged_rows}, "files": _files(small.path)}
    return Measured("reading", seconds, goals, setting=setting, more=more)


def _upkeep(bench: Bench, ledger: Ledger, small: Small, session: Callable[[], SparkSession]) -> tuple[float, int]:
    """Run upkeep until there is nothing left to merge. Return the seconds that it took and the number of rows that it
    merged."""
    session()
    upkeep = TableUpkeep(TableRef.raw(TOPIC), ledger, merge_engine(ledger.lake, session))
    now, took, rows = edge(small.windows) + timedelta(days=1), 0.0, 0
    while (plan := upkeep.plan(now)) is not None and plan.groups:
        merged = {f.path for group in plan.groups for f in group.files}
        counts = pa.table(DeltaTable(small.path).get_add_actions(flatten=True)).select(["path", "num_records"])
        rows += sum(n for path, n in zip(*(c.to_pylist() for c in counts.columns), strict=True) if path in merged)
        began = time.perf_counter()
        found = upkeep.run(now)
        took += time.perf_counter() - began
        if found is None or found.damaged or not found.merged_files:
            raise RuntimeError(f"upkeep merged nothing: {found}")
        bench.report(f"merged {found.merged_files:,} files into {found.new_files} in {took:.1f} s")
    total, offsets = _expected(small)
    got = pl.scan_delta(str(small.path)).select(pl.len(), pl.col("kafka_offset").sum()).collect().row(0)
    if got != (total, offsets):
        raise RuntimeError(
            f"after upkeep, the number of rows and the sum of offsets are {got} instead of {(total, offsets)}"
        )
    return took, rows


def _expected(small: Small) -> tuple[int, int]:
    last = small.windows * small.each
    return small.rows, PARTITIONS * last * (last - 1) // 2


def _write_ideal(small: Small, path: Path) -> None:
    """Write the rows, sorted by time, as a single Delta writer would, without first writing a file for each window."""
    batches = (batch for number in range(small.windows) for batch in small.batches(number))
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches)
    write_deltalake(path, reader, target_file_size=DEFAULT_FILE_SIZE)


def _newest_files(path: Path, number: int) -> list[tuple[str, int]]:
    """Return the path in the log and the size of the newest files of a table, `number` at most."""
    files = pa.table(DeltaTable(path).get_add_actions(flatten=True)).sort_by([("min.window", "descending")])
    return list(zip(*(files[name].to_pylist()[:number] for name in ("path", "size_bytes")), strict=True))


def _make_steady(small: Small, removed: Sequence[tuple[str, int]], path: Path) -> None:
    """Make a table with the files that upkeep has merged, whose log lists only `removed` as removed files.

    In the table of `small`, upkeep has just merged all windows at once, so its log lists a removed file for each window
    for a week. The log of a table that was kept up all the time lists only the files of the last week.
    """
    folder, merged = Folder.at(path), Folder.at(small.path)
    raw_table.create(folder, TOPIC)
    names = [unquote(name) for name in pa.table(DeltaTable(small.path).get_add_actions())["path"].to_pylist()]
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).hardlink_to(small.path / name)
    adds = [_add(data_files.described(merged, name)) for name in names]
    removes = [RemoveAction(unquote(name), False, made_lake.now(), size, {}) for name, size in removed]
    handle = DeltaTable(path)
    handle.create_write_transaction([*removes, *adds], "append", handle.schema(), commit_properties=CommitProperties())
    checkpoints.write(folder)
    (checkpoint,) = (path / "_delta_log").glob("*.checkpoint.parquet")
    listed = pq.read_table(checkpoint, columns=["remove"])["remove"]
    if len(listed) - listed.null_count != len(removed) or _files(path) != len(names):
        raise RuntimeError(f"{checkpoint} does not list the {len(removed)} removed files")


Read = Callable[[Callable[[], "SparkSession"], Path, Small], object]


def _reads(what: str) -> Mapping[str, Read]:
    from_, until = _middle_hours() if what != "scan" else (None, None)

    def with_duckdb(session: object, path: Path, small: Small) -> object:
        rows_ = duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset())
        if from_ is not None:
            rows_ = rows_.filter(f"kafka_timestamp >= '{from_}' AND kafka_timestamp < '{until}'")
        return rows_.aggregate("count(*), sum(kafka_offset)").fetchall()

    def with_polars(session: object, path: Path, small: Small) -> object:
        rows_ = pl.scan_delta(str(path))
        if from_ is not None:
            rows_ = rows_.filter(pl.col("kafka_timestamp").is_between(_at(from_), _at(until or ""), closed="left"))
        return rows_.select(pl.len(), pl.col("kafka_offset").sum()).collect()

    def with_spark(session: Callable[[], SparkSession], path: Path, small: Small) -> object:
        rows_ = session().read.format("delta").load(str(path))
        if from_ is not None:
            rows_ = rows_.filter(f"kafka_timestamp >= '{from_}' AND kafka_timestamp < '{until}'")
        return rows_.selectExpr("count(*)", "sum(kafka_offset)").collect()

    return dict(zip(READERS, (with_duckdb, with_polars, with_spark), strict=True))


def _middle_hours() -> tuple[str, str]:
    return edge(500).isoformat(), edge(500 + HOURS).isoformat()


def _at(text: str) -> pl.Expr:
    return pl.lit(text).str.to_datetime("%Y-%m-%dT%H:%M:%S%z", time_zone="UTC")


def _timed(run_: Callable[[], object]) -> float:
    began = time.perf_counter()
    run_()
    return time.perf_counter() - began


def _replace(small: Small, rounds: int) -> tuple[list[float], int]:
    """Replace windows in merged files. Return the seconds for each replacement, and the size of the largest of these
    files.

    Each replaced window is in the middle of its file. polars is used to check that the rows of the other windows have
    not changed.
    """
    folder, table = Folder.at(small.path), TableRef.raw(TOPIC)
    took, largest = list[float](), 0
    for number in range(rounds):
        sizes = pa.table(DeltaTable(small.path).get_add_actions(flatten=True)).sort_by([("size_bytes", "descending")])
        path, size = unquote(sizes["path"][0].as_py()), sizes["size_bytes"][0].as_py()
        keys = sorted(pq.read_table(small.path / path, columns=["window"])["window"].unique().to_pylist())
        key = keys[len(keys) // 2]
        window = next(w for w in Ledger(small.lake).windows(TOPIC) if w.key == key)
        before = _others(small.path, keys, key)
        load_id = str(uuid.uuid4())
        at = round((window.window.start - edge(0)).total_seconds() // 3600)
        files, _ = small.written(folder, at, key, load_id, seed=number + 1)
        took.append(_timed(partial(_commit, small.lake, table, window, load_id, files)))
        if _others(small.path, keys, key) != before:
            raise RuntimeError(f"the rows of other windows changed when {key} was replaced")
        largest = max(largest, size)
    return took, largest


def _commit(lake: Lake, table: TableRef, window: SealedWindow, load_id: str, files: Sequence[NewFile]) -> None:
    metadata = LoadMetadata(
        window.topic, window.topic_id, window.generation, window.window, window.ranges, load_id, run_id="bench"
    )  # fmt: skip
    WindowCommit(lake, table, measure_of("raw")).replace(metadata, files)


def _others(path: Path, keys: Sequence[str], key: str) -> tuple[Any, ...]:
    """Return the number of rows in all windows of a file except for `key`, and the sum of the rows' hashes."""
    rows_ = pl.scan_delta(str(path)).filter(
        pl.col("window").is_between(pl.lit(keys[0]), pl.lit(keys[-1])), pl.col("window") != key
    )
    hashes = pl.struct("window", "kafka_partition", "kafka_offset", "value").hash(seed=7)
    return rows_.select(pl.len(), (hashes % (1 << 32)).sum()).collect().row(0)


def _files(path: Path) -> int:
    return int(pa.table(DeltaTable(path).get_add_actions(flatten=True)).num_rows)


def _load_id(key: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, key))


def _add(file: NewFile) -> AddAction:
    return AddAction(file.path, file.bytes, {}, made_lake.now(), True, delta_statistics(file))
