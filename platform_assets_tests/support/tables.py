"""A sound table, a damaged table, and a table that disagrees with the ledger and with Dagster, for tests of reports.
These tables need neither a broker nor Spark."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import dagster as dg
from deltalake import DeltaTable

from platform_assets.checks.facts import Facts, Recorded
from platform_assets.checks.findings import Finding, FindingKind
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of
from platform_assets.orchestration import events
from platform_assets.orchestration.events import sealed_event
from platform_assets.orchestration.names import table_key, topic_key
from testbed import samples

SOUND, TORN, AT_ODDS = "orders", "payments.eu_west", "refunds"
WINDOWS, WAITING, PARTITIONS, OFFSETS = 30, 2, 3, 100
"""Numbers of windows, of newest windows that are not loaded, of partitions, and of offsets per window and partition."""
LOST_WINDOW, LOST_ROWS, DOUBLED = 20, 12, 5
"""Numbers of three damaged windows: LOST_WINDOW has no rows; LOST_ROWS lacks the rows [1240, 1260) of partition 1;
DOUBLED has duplicate rows."""
BEHIND, AHEAD, UNBALANCED, UNREPORTED, MISREPORTED = 6, 13, 17, 22, 24
"""Numbers of five inconsistent windows: BEHIND has no receipt; AHEAD has the receipt of a load that never existed;
UNBALANCED has too many holes in its receipt; UNREPORTED is unknown to Dagster; MISREPORTED was reported to Dagster with
another load."""


def key(number: int) -> str:
    """Return the key of the window with this number."""
    return key_of(samples.edge(number))


def declaration(topic: str) -> TopicDeclaration:
    """Return a declaration with hourly windows, beginning with the first window of the samples."""
    return TopicDeclaration(topic, "0 * * * *", samples.START)


def sound(lake_root: Path, topic: str = SOUND) -> list[SealedWindow]:
    """Make a sound table. Every seventh window contains transaction markers, and window 10 also contains an aborted
    record."""
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
        samples.loaded(lake_root, window, offsets, load_id=f"{number:08}-of-{topic}", holes=holes)
    return windows


def torn(lake_root: Path, topic: str = TORN) -> list[SealedWindow]:
    """Make the sound table, delete rows in two windows, and append the rows of another window a second time."""
    windows = sound(lake_root, topic)
    table = DeltaTable(lake_root / "raw" / topic)
    table.delete(f"window = '{windows[LOST_WINDOW].key}'")
    table.delete(
        f"window = '{windows[LOST_ROWS].key}' and kafka_partition = 1 and kafka_offset >= 1240 and kafka_offset < 1260"
    )
    samples.append(lake_root, topic, samples.rows(windows[DOUBLED].key, {0: range(510, 520)}))
    return windows


def at_odds(lake_root: Path, topic: str = AT_ODDS) -> list[SealedWindow]:
    """Make the sound table with wrong entries in the ledger."""
    windows = sound(lake_root, topic)
    ledger = Ledger(Lake.at(lake_root))
    receipts = ledger.receipts(TableRef.raw(topic))
    behind = f"\"table\" = 'raw/{topic}' and \"window\" = '{windows[BEHIND].key}'"
    DeltaTable(lake_root / "_ledger" / "commits").delete(behind)
    ahead, unbalanced = receipts[windows[AHEAD].key], receipts[windows[UNBALANCED].key]
    ledger.record_receipts(
        [
            replace(ahead, load_id="f" * 36, table_version=DeltaTable(lake_root / "raw" / topic).version() + 7),
            replace(unbalanced, holes={"commit markers": 5}),
        ]
    )
    return windows


def reported(
    instance: dg.DagsterInstance,
    lake_root: Path,
    topic: str,
    windows: list[SealedWindow],
    *,
    but: Iterable[int] = (),
    otherwise: Iterable[int] = (),
) -> None:
    """Report windows to Dagster in the same way as the sensor and runs, but omit some windows, and report some windows
    with another load."""
    receipts = Ledger(Lake.at(lake_root)).receipts(TableRef.raw(topic))
    for number, window in enumerate(windows):
        instance.report_runless_asset_event(sealed_event(window))
        if window.key in receipts and number not in but:
            receipt = receipts[window.key]
            if number in otherwise:
                receipt = replace(receipt, load_id="e" * 36)
            told = events.of_receipt(receipt, "loaded", str(lake_root / "raw" / topic))
            instance.report_runless_asset_event(
                dg.AssetMaterialization(table_key(TableRef.raw(topic)), partition=window.key, metadata=told)
            )
    assert instance.get_latest_materialization_event(topic_key(topic)) is not None


def facts(
    windows: int,
    partitions: int = 1,
    *,
    holes: Mapping[tuple[int, int], Mapping[str, int] | None] | None = None,
    waiting: Collection[int] = (),
    unasked: Collection[int] = (),
) -> Facts:
    """Return facts about the topic `orders`, with 10 offsets per window and partition. All windows are loaded except
    `waiting` and `unasked`. `holes` contains holes, keyed by window number and partition; None stands for holes without
    an explanation."""
    keys = [key(n) for n in range(windows)]
    ranges = {
        k: TopicRanges({p: OffsetRange(n * 10, n * 10 + 10) for p in range(partitions)}) for n, k in enumerate(keys)
    }
    held: dict[str, Recorded] = {}
    for n, k in enumerate(keys):
        if n in waiting or n in unasked:
            continue
        told = {p: found for (window, p), found in (holes or {}).items() if window == n}
        rows = {
            p: 10 - (1 if told.get(p, {}) is None else sum((told.get(p) or {}).values())) for p in range(partitions)
        }
        kinds: dict[str, int] = {}
        for found in told.values():
            for kind, number in (found or {}).items():
                kinds[kind] = kinds.get(kind, 0) + number
        held[k] = Recorded(k, ranges[k], rows, {}, 0, "", 1, "run", 0, None if None in told.values() else kinds, None)
    return Facts(
        TableRef.raw(SOUND), ranges, held, {}, frozenset(keys[n] for n in waiting),
        frozenset(keys[n] for n in unasked), {},
    )  # fmt: skip


def finding(
    kind: FindingKind, window: int, partition: int | None = 0, *ranges: tuple[int, int], remedy: str = ""
) -> Finding:
    """Return a finding in the window with this number."""
    return Finding(
        kind, SOUND, key(window), partition, tuple(OffsetRange(*r) for r in ranges), f"detail of {kind}",
        remedy or f"Materialize partition {key(window)} of raw/{SOUND}.",
    )  # fmt: skip
