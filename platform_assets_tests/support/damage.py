"""Damage to a table, and what to look at it by."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable

from platform_assets.lake.location import window_folder
from testbed.loads import TopicLake


def delete_rows(lk: TopicLake, key: str) -> None:
    """Delete the rows of the window's offsets 3 and 5, as somebody with a Delta client may."""
    DeltaTable(lk.table).delete(f"window = '{key}' AND kafka_offset IN (3, 5)")


def data_files(lk: TopicLake, key: str) -> list[Path]:
    """Files of a window that lie in the table's folder, committed or not."""
    return list((lk.table / window_folder(key)).rglob("*.parquet"))
