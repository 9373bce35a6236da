"""Functions that damage a table, and functions that inspect the damage."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from platform_assets.lake.location import window_folder
from testbed.loads import TopicLake


def delete_rows(lk: TopicLake, key: str) -> None:
    """Delete the rows at offsets 3 and 5 of the window, as any Delta client can do."""
    DeltaTable(lk.table).delete(f"window = '{key}' AND kafka_offset IN (3, 5)")


def data_files(lk: TopicLake, key: str) -> list[Path]:
    """Return the files of a window in the table's folder, whether they are committed or not."""
    return list((lk.table / window_folder(key)).rglob("*.parquet"))
