"""A table in order and one in ruins, for tests of what people are shown; without broker and Spark."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from deltalake import DeltaTable

from platform_assets import metadata
from platform_assets.declaration import TopicDeclaration
from platform_assets.ledger import Ledger
from platform_assets.ledger_entries import SealedWindow
from platform_assets.names import raw_key, topic_key
from platform_assets.sensors import sealed_event
from platform_assets.windows import key_of
from platform_assets_tests import samples

SOUND, TORN = "orders", "payments.eu_west"
WINDOWS, WAITING, PARTITIONS, OFFSETS = 30, 2, 3, 100
"""Each window has as many offsets in each partition; the newest ones wait for their load."""
LOST_WINDOW, LOST_ROWS, DOUBLED = 20, 12, 5
"""Numbers of windows of the ruined table: without rows, without rows [1240, 1260) of partition 1, with rows twice."""


def key(number: int) -> str:
    """Key of the window with this number."""
    return key_of(samples.edge(number))


def declaration(topic: str) -> TopicDeclaration:
    """Hourly windows from the first one of the samples on."""
    return TopicDeclaration(topic, "0 * * * *", samples.START)


def sound(lake_root: Path, topic: str = SOUND) -> list[SealedWindow]:
    """A table in order: every seventh window holds transaction markers, the tenth an aborted record besides."""
    windows = samples.recorded(
        lake_root, topic, [dict.fromkeys(range(PARTITIONS), n * OFFSETS) for n in range(WINDOWS + 1)]
    )
    for number, window in enumerate(windows[: WINDOWS - WAITING]):
        offsets = {p: list(range(r.start, r.end)) for p, r in window.ranges.items()}
        holes = {}
        if number % 7 == 3:
            holes = {"commit markers": len([offsets[p].pop() for p in (0, 1)])}
        if number == 10:
            holes["aborted records"] = len([offsets[0].pop()])
        samples.loaded(lake_root, window, offsets, holes=holes)
    return windows


def torn(lake_root: Path, topic: str = TORN) -> list[SealedWindow]:
    """The same table after somebody was at it: rows deleted in two windows, and rows of another appended again."""
    windows = sound(lake_root, topic)
    table = DeltaTable(lake_root / "raw" / topic)
    table.delete(f"window = '{windows[LOST_WINDOW].key}'")
    table.delete(
        f"window = '{windows[LOST_ROWS].key}' and kafka_partition = 1 and kafka_offset >= 1240 and kafka_offset < 1260"
    )
    samples.append(lake_root, topic, samples.rows(windows[DOUBLED].key, {0: range(510, 520)}))
    return windows


def reported(instance: dg.DagsterInstance, lake_root: Path, topic: str, windows: list[SealedWindow]) -> None:
    """Tell Dagster of the windows what sensor and runs would have told."""
    receipts = Ledger(lake_root).receipts(f"raw/{topic}")
    for window in windows:
        instance.report_runless_asset_event(sealed_event(window))
        if window.key in receipts:
            told = metadata.of_receipt(receipts[window.key], "loaded", str(lake_root / "raw" / topic))
            instance.report_runless_asset_event(
                dg.AssetMaterialization(raw_key(topic), partition=window.key, metadata=told)
            )
    assert instance.get_latest_materialization_event(topic_key(topic)) is not None
