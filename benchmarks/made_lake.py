"""Lakes with very many windows, made by a script. Their ledgers and logs are real, but old data files do not exist.
Scenarios that use these lakes read only ledgers and logs. Ledgers and logs look as they would after a year of loads:
the old part is folded into few files or a checkpoint, and the newest windows have separate commits."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import dagster as dg
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from platform_assets.engines.measuring import measure_of
from platform_assets.kafka.cluster import Cluster
from platform_assets.lake import contents, holdings, load_log, raw_table
from platform_assets.lake.delta_log import DataFile
from platform_assets.lake.load_log import LoadMetadata
from platform_assets.lake.location import Folder, Lake, shared_folder
from platform_assets.lake.measuring import measured
from platform_assets.ledger.entries import COMMIT_COLUMNS, CUT_COLUMNS, SealedWindow, arrow_type
from platform_assets.ledger.folding import FOLDED
from platform_assets.ledger.store import Ledger
from platform_assets.model.digest import Digest, offset_hashes
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import events
from platform_assets.orchestration.events import sealed_event
from platform_assets.orchestration.names import table_key
from platform_assets.windows.load import clocks
from platform_assets.windows.load.clocks import OtherClock
from testbed.layouts import new_tables_are
from testbed.samples import START, TOPIC_ID, edge, hourly, receipt, rows, sealed

_ADDS_A_COMMIT: Final = 5_000
_FILE_BYTES: Final = 2_000
_CHECKPOINT_EVERY: Final = 100

_INT = npt.NDArray[np.int64]


def make(
    root: Path,
    topic: str,
    windows: int,
    partitions: int,
    topic_id: str = TOPIC_ID,
    one_by_one: int = 30,
    *,
    a_file: int | None = None,
) -> None:
    """Make `raw/<topic>` under the lake root `root`, with hourly windows from START on, and with one record per window
    and partition.

    Window `n` has offset `n` of each partition, in one file, which does not exist. The newest `one_by_one` windows have
    separate commits. If `a_file` is given, the table is flat, and upkeep has merged the older windows into files with
    `a_file` windows each. These merged files exist, and their contents are recorded. The log of such a table has only
    the commits that a clean-up would keep.
    """
    ledger = Ledger(Lake.at(root))
    ledger.create()
    table = root / "raw" / topic
    with new_tables_are("partitioned" if a_file is None else "flat"):
        raw_table.create(Folder.at(table), topic)
    old = max(windows - one_by_one, 0)
    numbers = np.arange(old, dtype=np.int64)
    keys = _keys(numbers)
    record_cuts(root, topic, topic_id, old, partitions)
    contents_of: list[int] | None = None
    if a_file is not None:
        contents_of = [
            total for at in range(0, old, a_file) for total in _merged(table, topic_id, keys, at, a_file, partitions)
        ]
    for at in range(0, old if a_file is None else 0, _ADDS_A_COMMIT):
        some = range(at, min(at + _ADDS_A_COMMIT, old))
        _commit(table, [_add(keys[n], n, partitions) for n in some], None)
    if old:
        DeltaTable(table).create_checkpoint()
        _record_receipts(root, topic, topic_id, keys, partitions, contents_of)
    for cut in hourly(topic, [dict.fromkeys(range(partitions), n) for n in range(windows + 1)])[old + 1 :]:
        ledger.record_cuts([replace(cut, topic_id=topic_id)], ledger.newest_edges([topic])[topic])
    for number, window in enumerate(ledger.windows(topic, start=edge(old)), old):
        _commit(table, [_add(window.key, number, partitions, flat=a_file is not None)], window)
        found = next(iter(load_log.load_commits(Folder.at(table), 1)))
        files = (load_log.added_files(found) or (holdings.NO_FILES, []))[0]
        ledger.record_receipts(
            [
                receipt(
                    window, version=found.version, load_id=found.metadata.load_id, files_digest=files.digest,
                    bytes=files.bytes, holes={}, proved_by="load digest", proved_at=edge(0),
                )
            ]
        )  # fmt: skip


def make_readable(root: Path, topic: str, windows: int, partitions: int, *, in_log: int) -> None:
    """Make the table with real data files and without a ledger. Only the newest `in_log` windows have load commits. The
    log entries of earlier windows have expired, so these windows are only in a checkpoint."""
    table = root / "raw" / topic
    with new_tables_are("partitioned"):
        raw_table.create(Folder.at(table), topic)
    old, keys = max(windows - in_log, 0), _keys(np.arange(windows, dtype=np.int64))
    for at in range(0, old, _ADDS_A_COMMIT):
        some = range(at, min(at + _ADDS_A_COMMIT, old))
        _commit(table, [_written(table, keys[n], n, partitions) for n in some], None)
    for number in range(old, windows):
        ranges = {f"p{p}": (number, number + 1) for p in range(partitions)}
        _commit(table, [_written(table, keys[number], number, partitions)], sealed(topic, keys[number], 1, **ranges))
        if number % _CHECKPOINT_EVERY == 0:
            DeltaTable(table).create_checkpoint()
    DeltaTable(table).create_checkpoint()


def report(ledger: Ledger, topic: str, instance: dg.DagsterInstance, since: datetime) -> None:
    """Report the windows from `since` on to Dagster, as if a sensor had sealed them and runs had loaded them."""
    table = TableRef.raw(topic)
    at = str(ledger.lake.table(table))
    windows = ledger.windows(topic, start=since)
    receipts = ledger.receipts(table, [w.key for w in windows])
    for window in windows:
        instance.report_runless_asset_event(sealed_event(window))
        values = events.of_receipt(receipts[window.key], "loaded", at)
        instance.report_runless_asset_event(
            dg.AssetMaterialization(table_key(table), partition=window.key, metadata=values)
        )


def clock(cluster: Cluster, lake: Lake, now: datetime) -> OtherClock:
    """Return a second clock for ticks in such a lake, whose windows can be in the future. The clock is queried as
    usual, but its time is set to `now`."""
    return replace(clocks.other_clock(cluster, lake, datetime.now(UTC)), now=now)


def record_cuts(root: Path, topic: str, topic_id: str, windows: int, partitions: int, each: int = 1) -> None:
    """Record the cuts of edges 0 to `windows` in a single commit, which carries the transaction id that belongs to the
    last edge.

    Each window has `each` offsets per partition.
    """
    count = (windows + 1) * partitions
    edges = np.repeat(np.arange(windows + 1, dtype=np.int64), partitions)
    values = {
        "topic": pa.repeat(topic, count),
        "topic_id": pa.repeat(topic_id, count),
        "generation": pa.repeat(pa.scalar(1, pa.int32()), count),
        "edge": _times(edges),
        "partition": pa.array(np.tile(np.arange(partitions, dtype=np.int32), windows + 1)),
        "offset": pa.array(edges * each),
        "leader_epoch": pa.nulls(count, pa.int32()),
        "taken": pa.repeat("timestamp", count),
        "recorded_at": _times(edges),
    }
    at = Transaction(f"cuts/{topic}", round(edge(windows).timestamp()))
    _append(root / "_ledger" / "cuts", values, CUT_COLUMNS, CommitProperties(app_transactions=[at]))


def make_log(root: Path, topic: str, windows: int, a_day: int, partitions: int) -> Path:
    """Make the log of a flat table with `windows` loads, in the state after upkeep has merged the files of each day.
    Return the folder of the log.

    The log has the commits that a clean-up keeps, and a checkpoint at every hundredth commit.
    """
    table, keys = root / "raw" / topic, _keys(np.arange(windows, dtype=np.int64))
    raw_table.create(Folder.at(table), topic)
    for number, key in enumerate(keys):
        ranges = {f"p{p}": (number, number + 1) for p in range(partitions)}
        _commit(table, [_add(key, number, partitions, flat=True)], sealed(topic, key, 1, **ranges))
        if number % a_day == a_day - 1:
            day = range(number - a_day + 1, number + 1)
            gone = [_add(keys[n], n, partitions, flat=True) for n in day]
            path = f"{shared_folder(keys[day[0]], key, number, 'made')}/part-made.parquet"
            merged = {**_add(key, number, partitions, flat=True), "path": path, "dataChange": False}
            _commit(
                table,
                [merged],
                None,
                [{"path": f["path"], "deletionTimestamp": now(), "dataChange": False} for f in gone],
            )
        if number % _CHECKPOINT_EVERY == _CHECKPOINT_EVERY - 1:
            DeltaTable(table).create_checkpoint()
    return table / "_delta_log"


def _merged(table: Path, topic_id: str, keys: Sequence[str], first: int, a_file: int, partitions: int) -> list[int]:
    """Write and commit a merged file that contains up to `a_file` windows from number `first` on, as upkeep would.
    Return the content sums of these windows."""
    numbers = np.arange(first, min(first + a_file, len(keys)), dtype=np.int64)
    count, offsets = len(numbers) * partitions, np.repeat(numbers, partitions)
    schema = pa.schema(DeltaTable(table).schema().to_arrow())
    values = {
        "topic_id": pa.repeat(topic_id, count),
        "kafka_partition": pa.array(np.tile(np.arange(partitions, dtype=np.int32), len(numbers))),
        "kafka_offset": pa.array(offsets),
        "kafka_timestamp": _times(offsets),
        "kafka_timestamp_type": pa.repeat(pa.scalar(0, pa.int32()), count),
        "value": pa.repeat(b"value", count),
        "window": pa.array(np.repeat(np.array(keys[first : first + a_file], dtype=object), partitions), pa.string()),
    }
    rows_of = pa.table({f.name: values.get(f.name, pa.nulls(count, f.type)) for f in schema}).cast(schema)
    path = f"{shared_folder(keys[first], keys[first + len(numbers) - 1], 0, 'made')}/part-made.parquet"
    (table / path).parent.mkdir(parents=True)
    pq.write_table(rows_of, table / path, row_group_size=1 << 16)
    entry = {**_add(keys[first], first, partitions, flat=True), "path": path, "size": (table / path).stat().st_size}
    statistics = json.loads(str(entry["stats"]))
    statistics["numRecords"] = count
    statistics["maxValues"] |= {"kafka_offset": int(numbers[-1]), "window": keys[first + len(numbers) - 1]}
    _commit(table, [{**entry, "stats": json.dumps(statistics, separators=(",", ":"))}], None)
    folder, size = Folder.at(table), (table / path).stat().st_size
    held = measured(folder, DataFile(path, {}, size, None), schema, measure_of("raw"))
    contents.record(folder, str(DeltaTable(table).metadata().id), path, size, held)
    return [held[key, topic_id].content.total for key in keys[first : first + a_file]]


def _record_receipts(
    root: Path, topic: str, topic_id: str, keys: Sequence[str], partitions: int, contents_of: Sequence[int] | None
) -> None:
    """Record receipts. If `contents_of` is given, it has the content sums of the windows in merged files, and the
    windows' own files no longer exist."""
    windows = len(keys)
    count = windows * partitions
    numbers = np.repeat(np.arange(windows, dtype=np.int64), partitions)
    digests = [str(d) for d in _digests(windows, partitions)]
    if contents_of is None:
        files = holdings.window_files(holdings.actions(Folder.at(root / "raw" / topic)))
        files_digests = [files[k].digest for k in keys]
    else:
        files_digests = [f"{n:032x}" for n in range(windows)]
    values = {
        "table": pa.repeat(f"raw/{topic}", count),
        "window": _repeated(keys, partitions),
        "window_start": _times(numbers),
        "window_end": _times(numbers + 1),
        "topic": pa.repeat(topic, count),
        "topic_id": pa.repeat(topic_id, count),
        "generation": pa.repeat(pa.scalar(1, pa.int32()), count),
        # Not "load": no commit of the log belongs to only one of them.
        "kind": pa.repeat("rebuilt", count),
        "partition": pa.array(np.tile(np.arange(partitions, dtype=np.int32), windows)),
        "start": pa.array(numbers),
        "end": pa.array(numbers + 1),
        "rows": pa.repeat(pa.scalar(1, pa.int64()), count),
        "first_offset": pa.array(numbers),
        "last_offset": pa.array(numbers),
        "holes": pa.repeat("{}", count),
        "proved_by": pa.repeat("load digest", count),
        "proved_at": _times(numbers),
        "offsets_digest": _repeated(digests, partitions),
        "content_digest": _repeated(digests if contents_of is None else [str(t) for t in contents_of], partitions),
        "duplicates": pa.repeat(pa.scalar(0, pa.int64()), count),
        "bytes": pa.repeat(pa.scalar(_FILE_BYTES, pa.int64()), count),
        "table_version": pa.repeat(pa.scalar(1, pa.int64()), count),
        "files_digest": _repeated(files_digests, partitions),
        "load_id": _repeated(keys, partitions),
        "run_id": pa.repeat("run", count),
        "seconds": pa.repeat(1.0, count),
        "recorded_at": _times(numbers),
        "made_from": pa.nulls(count, pa.string()),
        "engine": pa.repeat("columnar", count),
        "confirmed_by": pa.nulls(count, pa.string()),
    }
    _append(root / "_ledger" / "commits", values, COMMIT_COLUMNS, None)


def _digests(windows: int, partitions: int) -> list[int]:
    offsets = np.arange(windows, dtype=np.int64)
    hashes = [offset_hashes(p, offsets) for p in range(partitions)]
    high = sum((h >> np.uint64(32)).astype(np.int64) for h in hashes)
    low = sum((h & np.uint64(0xFFFFFFFF)).astype(np.int64) for h in hashes)
    pairs = zip(np.asarray(high).tolist(), np.asarray(low).tolist(), strict=True)
    return [Digest.from_halves(partitions, a, b).total for a, b in pairs]


def _append(path: Path, values: dict[str, Any], columns: dict[str, tuple[str, str]], properties: Any) -> None:
    count = len(values["topic"])
    # A column that was added later is empty, as in rows that were recorded before it was added.
    columns_of = {name: values.get(name, pa.nulls(count)) for name in columns}
    table = pa.table({name: pa.array(columns_of[name]).cast(arrow_type(kind)) for name, (kind, _) in columns.items()})
    write_deltalake(DeltaTable(path), table, mode="append", commit_properties=properties, writer_properties=FOLDED)


def _times(numbers: _INT) -> pa.Array:
    micros = numbers * 3_600_000_000 + round(START.timestamp() * 1_000_000)
    return pa.array(micros).cast(pa.timestamp("us", "UTC"))


def _keys(numbers: _INT) -> list[str]:
    instants = np.datetime64(START.astimezone(UTC).replace(tzinfo=None), "m") + numbers * np.timedelta64(60, "m")
    return [text.replace("T", "-") for text in np.datetime_as_string(instants, unit="m").tolist()]


def _repeated(values: Sequence[str], times: int) -> pa.Array:
    return pa.array(np.repeat(np.array(values, dtype=object), times), pa.string())


def _commit(
    table: Path,
    adds: Sequence[dict[str, object]],
    window: SealedWindow | None,
    removes: Sequence[dict[str, object]] = (),
) -> None:
    """Write the next commit of the table's log, as a load of `window` would."""
    version = load_log.version(Folder.at(table)) + 1
    info: dict[str, object] = {"timestamp": now(), "operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}
    if window is not None:
        info["userMetadata"] = LoadMetadata(
            window.topic, window.topic_id, window.generation, window.window, window.ranges, load_id=window.key, run_id="run"
        ).to_json()  # fmt: skip
    lines = [
        json.dumps(entry)
        for entry in ({"commitInfo": info}, *({"add": a} for a in adds), *({"remove": r} for r in removes))
    ]
    (table / "_delta_log" / f"{version:020}.json").write_text("\n".join(lines) + "\n")


def _written(table: Path, key: str, number: int, partitions: int) -> dict[str, object]:
    """Write a data file with one record per partition; return the file's log entry."""
    entry = _add(key, number, partitions)
    file = table / unquote(str(entry["path"]))
    file.parent.mkdir(parents=True)
    pq.write_table(rows(key, {p: range(number, number + 1) for p in range(partitions)}).drop_columns("window"), file)
    return {**entry, "size": file.stat().st_size}


def _add(key: str, number: int, partitions: int, *, flat: bool = False) -> dict[str, object]:
    at = datetime.strptime(key, "%Y-%m-%d-%H:%M").strftime("%Y-%m-%dT%H:%M:%S.000Z")
    statistics = {
        "numRecords": partitions,
        "minValues": {"kafka_partition": 0, "kafka_offset": number, "kafka_timestamp": at},
        "maxValues": {"kafka_partition": partitions - 1, "kafka_offset": number, "kafka_timestamp": at},
        "nullCount": {"kafka_partition": 0, "kafka_offset": 0, "kafka_timestamp": 0},
    }
    if flat:
        for name, value in (("minValues", key), ("maxValues", key), ("nullCount", 0)):
            statistics[name] = {**cast("dict[str, Any]", statistics[name]), holdings.WINDOW: value}
    return {
        "path": f"window={quote(quote(key))}/part-{key.replace(':', '')}.parquet",
        "partitionValues": {} if flat else {"window": key},
        "size": _FILE_BYTES,
        "modificationTime": now(),
        "dataChange": True,
        "stats": json.dumps(statistics, separators=(",", ":")),
    }


def now() -> int:
    """Return the present time in ms, as the log records it."""
    return round(time.time() * 1000)
