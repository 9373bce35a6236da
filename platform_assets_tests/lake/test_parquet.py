"""Every command that reads data files reads the same rows, whichever program wrote the files. No Kafka, no Spark."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from platform_assets.lake import data_files, holdings, load_log, parquet
from platform_assets.lake.location import Folder
from platform_assets.model.tables import TableKind
from platform_assets.windows.recover.rebuild import rebuild
from platform_assets.windows.recover.rebuild_decoded import rebuild_decoded
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, proved
from platform_assets_tests.support.made_kafka import MadeCluster, loader_of

Writer = Callable[[pa.Table, Path], None]


def as_spark(found: pa.Table, path: Path) -> None:
    """Write times as INT96 without unit or time zone, as Spark's OPTIMIZE does. engines/connector/test_optimized.py has
    a file that Spark wrote."""
    pq.write_table(found, path, use_deprecated_int96_timestamps=True)


def as_polars(found: pa.Table, path: Path) -> None:
    """Write as polars does, with large types in the Arrow schema that is stored next to Parquet's own schema."""
    pl.DataFrame(found).write_parquet(path)


def as_duckdb(found: pa.Table, path: Path) -> None:
    """Write with DuckDB's SQL."""
    with duckdb.connect() as connection:
        connection.register("found", found)
        connection.sql("SET TimeZone = 'Asia/Tokyo'")
        connection.sql("SELECT * FROM found").write_parquet(str(path))


def as_views(found: pa.Table, path: Path) -> None:
    """Write files that declare view types, as an update by delta-rs does."""
    views = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}
    pq.write_table(found.cast(pa.schema([f.with_type(views.get(f.type, f.type)) for f in found.schema])), path)


def in_nanoseconds(found: pa.Table, path: Path) -> None:
    """Write times in nanoseconds, as pandas does."""
    kind = {pa.timestamp("us", "UTC"): pa.timestamp("ns", "+00:00"), pa.int32(): pa.int64()}
    pq.write_table(found.cast(pa.schema([f.with_type(kind.get(f.type, f.type)) for f in found.schema])), path)


def in_milliseconds(found: pa.Table, path: Path) -> None:
    """Write times in milliseconds, which is Kafka's precision, and strings as dictionaries."""
    kind = {
        pa.timestamp("us", "UTC"): pa.timestamp("ms", "Europe/Berlin"),
        pa.string(): pa.dictionary(pa.int16(), pa.string()),
    }
    pq.write_table(found.cast(pa.schema([f.with_type(kind.get(f.type, f.type)) for f in found.schema])), path)


WRITERS = [as_spark, as_polars, as_duckdb, as_views, in_nanoseconds, in_milliseconds]
KINDS: tuple[TableKind, ...] = ("raw", "decoded", "dead_letters")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set another time zone for this machine, which must not be applied to times that have no zone."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.fixture
def topic(tmp_path: Path) -> MadeTopic:
    """Return a topic with two windows, loaded and decoded, that have rows and dead letters."""
    made = MadeTopic(tmp_path)
    made.fill(
        made.seal(
            [
                {p: [(b"k%d" % i, b"\xff" if i == 3 else b"%d/%d/%d" % (w, p, i)) for i in range(6)] for p in (0, 1)}
                for w in range(2)
            ]
        )
    )
    return made


def rewritten(topic: MadeTopic, write: Writer) -> None:
    """Rewrite each window of each table into one file with `write`, as OPTIMIZE does; delete the old files, as VACUUM
    does."""
    for kind in KINDS:
        folder = topic.root / kind / topic.topic
        held = holdings.window_files(holdings.actions(Folder.at(folder)))
        actions = list[dict[str, Any]]()
        for key, files in held.items():
            old = [folder / unquote(path) for path in files.paths]
            found = pa.concat_tables([pq.ParquetFile(path).read() for path in old])
            new = f"window={key.replace(':', '%3A')}/part-rewritten.parquet"
            write(found, folder / new)
            actions += [{"remove": {"path": p, "dataChange": False, "deletionTimestamp": 1}} for p in files.paths]
            add = {
                "path": new.replace("%", "%25"),
                "partitionValues": {"window": key},
                "size": (folder / new).stat().st_size,
            }
            statistics = json.dumps({"numRecords": found.num_rows})
            actions.append({"add": {**add, "modificationTime": 1, "dataChange": False, "stats": statistics}})
            for path in old:
                path.unlink()
        version = load_log.version(Folder.at(folder)) + 1
        lines = "\n".join(json.dumps(action) for action in actions)
        (folder / "_delta_log" / f"{version:020}.json").write_text(lines)


@pytest.mark.parametrize("write", WRITERS)
def test_files_of_any_writer_are_the_same_rows_for_every_command(topic: MadeTopic, write: Writer) -> None:
    values, receipts = topic.values(), {kind: contents(topic, kind) for kind in KINDS}
    rewritten(topic, write)
    windows = topic.ledger.windows(topic.topic)
    kafka = MadeCluster(topic)
    # Load a window that Kafka still has, and one that Kafka no longer has.
    kafka.expire(0, 6)
    kafka.expire(1, 6)
    assert loader_of(topic, kafka).load(windows[0].key).outcome == "kept"
    assert loader_of(topic, kafka).load(windows[1].key).outcome == "unchanged"
    # Decode, which reads raw files in the workers and compares both tables.
    for window in windows:
        assert topic.decoder().decode(window.key).outcome == "unchanged"
    # Run the checks and the audit.
    proved(topic)
    # Rebuild a lost ledger.
    shutil.rmtree(topic.root / "_ledger")
    assert rebuild(topic.declaration, topic.ledger, topic.engine).receipts == len(windows)
    assert rebuild_decoded(topic.declaration, topic.ledger, topic.decoder().engine) == len(windows)
    assert {kind: contents(topic, kind) for kind in KINDS} == receipts
    # Erase, using only the files.
    erasure = topic.erasure
    selected = erasure.of_keys([b"k3"])
    erasure.record(selected, AUTHOR)
    assert erasure.run(AUTHOR).rows == {"raw/people": 4, "dead_letters/people": 4}
    assert topic.values() == [value for value in values if value != b"\xff"]
    proved(topic)


def contents(topic: MadeTopic, kind: TableKind) -> dict[str, Any]:
    return {key: (r.offsets, r.content) for key, r in topic.receipts(kind).items()}


def test_far_times_of_int96_are_those_that_were_written(tmp_path: Path) -> None:
    """In nanoseconds, the year 9999 would silently become 1816. The test also covers times inside structs and lists."""
    times = pa.array([0, 253_402_300_799_000_000, -62_135_596_800_000_000, None], pa.timestamp("us", "UTC"))
    inner = pa.StructArray.from_arrays([times], ["at"])
    found = pa.table({"at": times, "inner": inner, "list": pa.ListArray.from_arrays([0, 2, 2, 3, 4], times)})
    pq.write_table(found, tmp_path / "file.parquet", use_deprecated_int96_timestamps=True)
    file = parquet.opened(tmp_path / "file.parquet")
    assert pa.Table.from_batches(parquet.blocks(file, 10)).equals(found)


def test_a_restored_file_of_another_unit_has_no_statistics_of_its_times(topic: MadeTopic) -> None:
    """Readers use the statistics of a column of times to skip files."""
    rewritten(topic, in_milliseconds)
    folder, key = topic.lake.table(topic.declaration.raw_table), topic.ledger.windows(topic.topic)[0].key
    below = f"window={key.replace(':', '%3A')}/copied"
    (file,) = data_files.past_files(folder, key, load_log.version(folder), below, flat=True)
    assert set(file.statistics["minValues"]) == {"kafka_partition", "kafka_offset", "window"}
