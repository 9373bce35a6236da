"""Past files after a migration: an erasure finds those with rows of its windows whose folders do not name the window,
and no other files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction, RemoveAction

from platform_assets.ledger.entries import SealedWindow
from platform_assets.model.offsets import OffsetRange
from platform_assets.windows.erase.erasing import WindowEraser
from platform_assets.windows.maintain.migrating import Migration
from platform_assets_tests.support import partitioned_lake
from platform_assets_tests.support.erasures import AUTHOR, MadeTopic, found_in, proved

NEEDLE = b"v-2-0-4"


def moved(topic: MadeTopic, window: SealedWindow, to: str) -> Path:
    """Move a window's file to where Spark puts it with `delta.randomizeFilePrefixes`; return the new path."""
    where = topic.root / "raw" / topic.topic
    table = DeltaTable(where)
    found = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    (old,) = (row for row in found if row["partition.window"] == window.key)
    source, target = where / unquote(old["path"]), where / to / "part-1.snappy.parquet"
    target.parent.mkdir()
    source.rename(target)
    partition: dict[str, str | None] = {"window": window.key}
    statistics = json.dumps({"numRecords": old["num_records"]})
    add = AddAction(f"{to}/part-1.snappy.parquet", old["size_bytes"], partition, 1, False, statistics)
    remove = RemoveAction(source.relative_to(where).as_posix(), False, 1, old["size_bytes"], partition)
    table.create_write_transaction([add, remove], "append", table.schema(), partition_by=["window"])
    return target


@pytest.mark.parametrize("is_finished", [False, True])
def test_erased_bytes_leave_past_files_in_other_folders(tmp_path: Path, is_finished: bool) -> None:
    topic = partitioned_lake.unpacked(tmp_path)
    windows = topic.ledger.windows(topic.topic)
    own, other = moved(topic, windows[2], "aB"), moved(topic, windows[4], "cD")
    kept = own.read_bytes()
    Migration(topic.declaration.raw_table, topic.ledger, 1).run()
    offset = windows[2].ranges.by_partition[0].start + 4
    erasure = topic.erasure
    erasure.record(erasure.at_offsets({0: (OffsetRange(offset, offset + 1),)}), AUTHOR)
    if is_finished:
        # The newest version has no such row any more, only the file that somebody puts back.
        erasure.run(AUTHOR)
        own.parent.mkdir(exist_ok=True)
        own.write_bytes(kept)
        named = {windows[2].key: {0: (OffsetRange(offset, offset + 1),)}}
        eraser = WindowEraser(topic.declaration, topic.ledger)
        list(eraser.erase(topic.declaration.raw_table, named, {windows[2].key: windows[2].window}))
    else:
        erasure.run(AUTHOR)
    assert found_in(topic.root / "raw", NEEDLE) == []
    assert other.exists()
    proved(topic)
