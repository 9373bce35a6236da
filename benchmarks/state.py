"""A topic's state: folding windows of changes into it, reading it, and the memory of a fold.

`python -m benchmarks.state LAKE` is the process of a fold. It folds the pending changes of the topic in the lake, and
prints the number of live keys and the peak memory in bytes.
"""

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable, Schema, write_deltalake
from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

from benchmarks.bulk import as_shipped
from benchmarks.memory import most_held
from benchmarks.rounds import alternate, middle, ratio
from benchmarks.scenario import Bench, Goal, Measured, at_least, at_most
from platform_assets.cli.state_snippets import can_broadcast, changes_from, fresh_view
from platform_assets.engines.measuring import measure_of
from platform_assets.engines.shared.session import connect
from platform_assets.lake import data_files, new_tables
from platform_assets.lake.commits import WindowCommit
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Lake, load_folder
from platform_assets.model.declaration import DEFAULT_FILE_SIZE
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.state import StateDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import Window, key_of
from platform_assets.services.home import CHECKOUT
from platform_assets.windows.state.folding import TopicState
from testbed.samples import TOPIC_ID, edge

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

TOPIC: Final = "orders"
STATE: Final = StateDeclaration(("id",))
COLUMNS: Final = pa.schema(
    [
        ("topic_id", pa.string()),
        ("kafka_partition", pa.int32()),
        ("kafka_offset", pa.int64()),
        ("kafka_timestamp", pa.timestamp("us", "UTC")),
        ("generation", pa.int32()),
        ("deleted", pa.bool_()),
        ("id", pa.int64()),
        ("status", pa.string()),
        ("amount", pa.int64()),
        ("window", pa.string()),
    ]
)
NAME_BYTES: Final = 16
_AT_ONCE: Final = 1_000_000
_DELETED_OF: Final = 20
"""One in so many changes deletes its key."""
READERS: Final = ("DuckDB", "polars", "Spark")
_MERGE: Final = """
MERGE INTO delta.`{table}` AS old USING changed AS new ON old.id = new.id
WHEN MATCHED AND new.deleted THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND NOT new.deleted THEN INSERT *
"""


@dataclass
class Changes:
    """The table of changes of a topic with `keys` keys. The first windows have a change of each key."""

    lake: Lake
    keys: int
    windows: int = 0

    def __post_init__(self) -> None:
        self.table = TableRef("changes", TOPIC)
        new_tables.create(self.lake.table(self.table), Schema.from_arrow(COLUMNS), name="changes", description="")
        for at in range(0, self.keys, _AT_ONCE):
            ids = np.arange(at, min(at + _AT_ONCE, self.keys))
            self.load(self.rows(np.random.default_rng(at).permutation(ids)))

    @property
    def state(self) -> TopicState:
        """The topic's state."""
        return TopicState(TOPIC, STATE, self.lake)

    def rows(self, ids: np.ndarray[Any, np.dtype[np.int64]], *, deletes: bool = False) -> pa.Table:
        """Return a change of each of these keys in the next window."""
        rng, count = np.random.default_rng([self.keys, self.windows]), len(ids)
        letters = rng.integers(97, 123, count * NAME_BYTES, dtype=np.uint8)
        ends = np.arange(count + 1, dtype=np.int32) * NAME_BYTES
        status = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(ends), pa.py_buffer(letters)])
        deleted = pa.array(rng.integers(0, _DELETED_OF, count) == 0) if deletes else pa.repeat(False, count)
        null = pa.scalar(None, pa.int64())
        values = {
            "topic_id": pa.repeat(TOPIC_ID, count),
            "kafka_partition": pa.repeat(pa.scalar(0, pa.int32()), count),
            "kafka_offset": pa.array(self.windows * _AT_ONCE + np.arange(count)),
            "kafka_timestamp": pa.repeat(pa.scalar(edge(self.windows), pa.timestamp("us", "UTC")), count),
            "generation": pa.repeat(pa.scalar(1, pa.int32()), count),
            "deleted": deleted,
            "id": pa.array(ids),
            "status": status,
            "amount": pa.array(rng.integers(0, 1 << 20, count)),
            "window": pa.repeat(key_of(edge(self.windows)), count),
        }
        found = pa.table([values[name] for name in COLUMNS.names], schema=COLUMNS)
        for name in ("status", "amount"):
            kept = pa.compute.if_else(found["deleted"], null.cast(COLUMNS.field(name).type), found[name])
            found = found.set_column(COLUMNS.get_field_index(name), COLUMNS.field(name), kept)
        return found

    def changed(self, count: int) -> pa.Table:
        """Return changes of `count` random keys in the next window."""
        rng = np.random.default_rng([self.windows, 1])
        return self.rows(rng.choice(self.keys, count, replace=False), deletes=True)

    def load(self, rows: pa.Table) -> None:
        """Write and commit the changes of the next window."""
        start, load_id = edge(self.windows), uuid.uuid4().hex
        folder, window = self.lake.table(self.table), Window(start, start + timedelta(hours=1))
        ranges = TopicRanges({0: OffsetRange(self.windows * _AT_ONCE, (self.windows + 1) * _AT_ONCE)})
        path = f"{load_folder(window.key, load_id)}/part-0.parquet"
        data_files.write_rows(folder, path, rows, window.key)
        WindowCommit(self.lake, self.table, measure_of("decoded")).replace(
            LoadMetadata(TOPIC, TOPIC_ID, 1, window, ranges, load_id, "run"), (data_files.described(folder, path),)
        )
        self.windows += 1


def run(bench: Bench) -> Measured:
    """Measure the seconds to apply windows of changes, to read the state, and the memory of a fold."""
    keys, changed, windows = bench.pick(10_000_000, 500_000), bench.pick(10_000, 2_000), bench.pick(100, 25)
    made = Changes(Lake.at(bench.root / "lake"), keys)
    began = time.perf_counter()
    made.state.fold()
    first = time.perf_counter() - began
    bench.report(f"made a state of {keys:,} keys from all changes in {first:.1f} s")
    ideal = bench.root / "ideal"
    _write_ideal(made, ideal)
    seconds: dict[str, Sequence[float]] = {}
    goals = list[Goal]()
    # Half of the windows are pending while the state is read.
    loads = [_timed(partial(made.load, made.changed(changed))) for _ in range(windows // 2)]
    merged = _merges(bench, made, ideal, changed)
    reads, of_reads = _reads(bench, made, ideal, keys)
    loads += [_timed(partial(made.load, made.changed(changed))) for _ in range(windows - windows // 2)]
    before = _written(made.lake)
    fold = _timed(made.state.fold)
    if not made.state.compare().is_equal:
        raise RuntimeError("the state is not that of all changes: the measurement is invalid")
    window_bytes = (_written(made.lake, "changes") - _written_first(made)) / windows
    bytes_a_window = window_bytes + (_written(made.lake) - before) / windows
    a_window = sum(loads) / windows + fold / windows
    seconds |= {"commit a window's changes": loads, "fold of all windows": [fold], **merged, **reads}
    goals += [
        at_least(f"{name}, relative to a folded one", 10, middle([each / a_window for each in took]))
        for name, took in merged.items()
    ]
    goals.append(Goal("bytes written per window", bytes_a_window / 1e6, 10, True, "MB"))
    goals += of_reads
    held = _memory(bench)
    few, many = held.values()
    goals.append(at_most("memory of a fold of the larger state, relative to the smaller one", 1.1, ratio(many, few)))
    setting = {"keys": keys, "changed keys a window": changed, "windows": windows}
    more = {
        "seconds per window, with its share of the fold": a_window,
        "seconds to make the state from all changes": first,
        "bytes per window": bytes_a_window,
        "most bytes held by a fold's process, by keys": held,
    }
    return Measured("state", seconds, goals, setting=setting, more=more)


def _timed(run_: Callable[[], object]) -> float:
    began = time.perf_counter()
    run_()
    return time.perf_counter() - began


def _written(lake: Lake, *kinds: str) -> int:
    """Return the bytes of all files of these tables, those of past versions included."""
    root = Path(str(lake.root))
    return sum(
        file.stat().st_size
        for kind in kinds or ("state", "state_deleted")
        for file in (root / kind / TOPIC).rglob("*")
        if file.is_file()
    )


def _written_first(made: Changes) -> int:
    """Return the bytes of the files of the first windows, which have all keys."""
    files = pa.table(made.lake.table(made.table).delta().get_add_actions())
    return sum(
        size
        for size, rows in zip(files["size_bytes"].to_pylist(), files["num_records"].to_pylist(), strict=True)
        if rows > 100_000
    )


def _write_ideal(made: Changes, path: Path) -> None:
    """Write the rows of the state, sorted by key, as a single Delta writer would."""
    rows = pl.scan_delta(str(made.state.live_folder)).sort("id").collect().to_arrow()
    write_deltalake(path, rows, target_file_size=DEFAULT_FILE_SIZE)


def _merges(bench: Bench, made: Changes, ideal: Path, changed: int) -> dict[str, list[float]]:
    """Return the seconds that delta-rs and Spark as shipped each take to merge windows of as many changes into a copy of the
    state."""
    rows, found = list[pa.Table](), dict[str, list[float]]()
    for _ in range(4):
        rows.append(made.changed(changed).drop_columns(["topic_id"]))
        # The next rows are others. The table of changes never has windows with these hours.
        made.windows += 1
    session = cache(partial(as_shipped, bench.remote))
    contenders: Mapping[str, Callable[[Path, pa.Table], None]] = {
        "delta-rs merge": _merge,
        "Spark's MERGE INTO": partial(_spark_merge, session),
    }
    for name, merge in contenders.items():
        copy, took = bench.root / f"merged-{len(found)}", list[float]()
        write_deltalake(copy, DeltaTable(ideal).to_pyarrow_table(), target_file_size=DEFAULT_FILE_SIZE)
        for number, each in enumerate(rows):
            took.append(_timed(partial(merge, copy, each)))
            bench.report(f"{name} {number}{'' if number else ' (warm-up)'}: {took[-1]:.1f} s")
        found[f"{name} of a window"] = took[1:]
    tables = [pl.scan_delta(str(bench.root / f"merged-{number}")).sort("id").collect() for number in range(2)]
    if not tables[0].equals(tables[1].select(tables[0].columns)):
        raise RuntimeError("the merged tables differ: the measurement is invalid")
    return found


def _spark_merge(session: Callable[[], SparkSession], path: Path, rows: pa.Table) -> None:
    spark = session()
    spark.createDataFrame(rows).createOrReplaceTempView("changed")
    spark.sql(_MERGE.format(table=path))


def _merge(path: Path, rows: pa.Table) -> None:
    (
        DeltaTable(path)
        .merge(rows, "old.id = new.id", source_alias="new", target_alias="old")
        .when_matched_delete("new.deleted")
        .when_matched_update({name: f"new.{name}" for name in COLUMNS.names if name not in ("topic_id", "deleted")})
        .when_not_matched_insert(
            {n: f"new.{n}" for n in COLUMNS.names if n not in ("topic_id", "deleted")}, "NOT new.deleted"
        )
        .execute()
    )


def _reads(bench: Bench, made: Changes, ideal: Path, keys: int) -> tuple[Mapping[str, Sequence[float]], list[Goal]]:
    """Return the seconds of each read, and the goals: the state and the fresh view next to the ideal table."""
    state, pending = made.state, made.state.pending()
    session = cache(partial(connect, bench.remote))
    since, is_folded = changes_from(pending)
    codes = fresh_view(
        state,
        state.opened().live.columns.names,
        since,
        bench.remote,
        is_folded=is_folded,
        broadcasts=can_broadcast(pending),
    )
    tables: Mapping[str, Callable[[str], Any]] = {
        "ideal": partial(_opened, session, ideal),
        "state": partial(_opened, session, Path(str(state.live_folder))),
        "fresh view": partial(_fresh, session, codes),
    }
    seconds: dict[str, Sequence[float]] = {}
    goals = list[Goal]()
    reads: Mapping[str, Callable[[str, Any], object]] = {
        "a sum": partial(_sum, where="true"),
        "whole": _whole,
        "one key": partial(_sum, where=f"id = {keys // 3}"),
    }
    for what, read in reads.items():
        contenders = {
            f"{reader}, {what}, {name}": partial(_read, reader, opened, read)
            for reader in READERS
            for name, opened in tables.items()
        }
        found = alternate(contenders, bench.pick(5, 3), bench.report, warm_up=1)
        seconds |= found
        for reader in READERS:
            for name, bound in {"state": 1.2, "fresh view": 2.0}.items():
                over = ratio(found[f"{reader}, {what}, {name}"], found[f"{reader}, {what}, ideal"])
                goals.append(at_most(f"{reader}, {what}, {name}, relative to the ideal table", bound, over))
    return seconds, goals


def _opened(session: Callable[[], SparkSession], path: Path, reader: str) -> Any:
    if reader == "polars":
        return pl.scan_delta(str(path))
    if reader == "DuckDB":
        files = SubTreeFileSystem(str(path), LocalFileSystem())
        return duckdb.from_arrow(DeltaTable(path).to_pyarrow_dataset(filesystem=files))
    return session().read.format("delta").load(str(path))


def _fresh(session: Callable[[], SparkSession], codes: Mapping[Any, str], reader: str) -> Any:
    """Execute the code that `read` prints, without its last line, which prints rows."""
    names: dict[str, Any] = {}
    lines = codes[reader.lower()].splitlines()[:-1]
    exec("\n".join(lines), names)
    return names["fresh"]


def _read(reader: str, opened: Callable[[str], Any], read: Callable[[str, Any], object]) -> object:
    return read(reader, opened(reader))


def _sum(reader: str, rows: Any, *, where: str) -> object:
    if reader == "polars":
        return rows.filter(pl.sql_expr(where)).select(pl.len(), pl.col("amount").sum()).collect().row(0)
    if reader == "DuckDB":
        return rows.filter(where).aggregate("count(*), sum(amount)").fetchall()
    return rows.filter(where).selectExpr("count(*)", "sum(amount)").collect()


def _whole(reader: str, rows: Any) -> None:
    """Read all columns of all rows, into an Arrow table in this process or, with Spark, into the sink that drops them: a Spark
    Connect server ends for want of memory if it has to send 10 million rows to a client."""
    if reader == "polars":
        rows.collect().to_arrow()
    elif reader == "DuckDB":
        rows.to_arrow_table()
    else:
        rows.write.format("noop").mode("overwrite").save()


def _memory(bench: Bench) -> dict[str, list[int]]:
    """Return the peak memory of folds by the number of keys. A tenth of the keys have pending changes."""
    held = dict[str, list[int]]()
    for keys in (bench.pick(1_000_000, 1_000_000), bench.pick(50_000_000, 4_000_000)):
        made = Changes(Lake.at(bench.root / f"memory-{keys}"), keys)
        made.state.fold()
        peaks = held.setdefault(f"{keys:,}", [])
        for _ in range(3):
            for _ in range(10):
                made.load(made.changed(keys // 100))
            done = subprocess.run(
                [sys.executable, "-m", __name__, str(made.lake)],
                cwd=CHECKOUT,
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            rows, peak = map(int, done.stdout.split()[-2:])
            bench.report(f"fold into {keys:,} keys: {peak / 1e6:,.0f} MB, {rows:,} live keys after it")
            peaks.append(peak)
    return held


def main(lake: str) -> None:
    """Fold the pending changes; print the number of live keys and the memory."""
    print(TopicState(TOPIC, STATE, Lake.at(Path(lake))).fold().rows, most_held())


if __name__ == "__main__":
    main(*sys.argv[1:])
