"""Metadata of windows for Dagster, in types that its UI shows as tables, plots and links."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.windows.replacing import Outcome

SUMMARY: Final = "summary"
SOURCE: Final = "source"
TARGET: Final = "loaded_into"
OFFSET_RANGES: Final = "offset_ranges"
OFFSETS: Final = "offsets"
ROWS: Final = "rows"
WITHOUT_ROW: Final = "offsets_without_row"
TABLE_VERSION: Final = "table_version"
OUTCOME: Final = "outcome"
LOAD_ID: Final = "load_id"
ENGINE: Final = "engine"
CONFIRMED_BY: Final = "confirmed_by"
DECLARATION: Final = "declaration"
RAW_LOAD: Final = "raw_load_id"
RAW_VERSION: Final = "raw_table_version"

_RANGE_COLUMNS = [
    dg.TableColumn("partition", "int", description="Kafka partition"),
    dg.TableColumn("start", "int", description="first offset"),
    dg.TableColumn("end", "int", description="first offset after the range"),
    dg.TableColumn("offsets", "int", description="end - start"),
]
_RECEIPT_COLUMNS = [
    *_RANGE_COLUMNS[:-1],
    dg.TableColumn("rows", "int", description="rows in the table"),
    dg.TableColumn("without_row", "int", description="offsets without a row: markers, aborted or compacted records"),
    _RANGE_COLUMNS[-1],
    dg.TableColumn("first", "int", description="lowest offset that has a row; -1 without rows"),
    dg.TableColumn("last", "int", description="highest offset that has a row; -1 without rows"),
]


def of_sealed(window: SealedWindow) -> dict[str, Any]:
    """Metadata of a sealed window on its topic asset: the immutable offset ranges, and how its end was cut."""
    records = [
        dg.TableRecord(
            {
                "partition": p,
                "start": r.start,
                "end": r.end,
                "offsets": r.size,
                "cut_at": window.taken.get(p, "carried"),
            }
        )
        for p, r in window.ranges.items()
    ]
    schema = dg.TableSchema([*_RANGE_COLUMNS, dg.TableColumn("cut_at", "string", description="how the end was found")])
    return {
        SUMMARY: f"{_offsets(window.ranges)} belong to this window for good, from `start` up to, not including, `end`.",
        OFFSETS: window.ranges.size,
        OFFSET_RANGES: dg.MetadataValue.table(records, schema),
        "window_start": dg.MetadataValue.timestamp(window.window.start),
        "window_end": dg.MetadataValue.timestamp(window.window.end),
        TARGET: dg.MetadataValue.asset(table_key(TableRef.raw(window.topic))),
        "topic_id": window.topic_id,
        "generation": window.generation,
    }


def of_receipt(receipt: Receipt, outcome: Outcome, table_path: str) -> dict[str, Any]:
    """Metadata of a loaded window on its raw table asset: the receipt, with the offset ranges that were committed."""
    records = [
        dg.TableRecord(
            {
                "partition": p,
                "start": part.range.start,
                "end": part.range.end,
                "offsets": part.range.size,
                "rows": part.rows,
                "without_row": part.range.size - part.rows,
                "first": -1 if part.first_offset is None else part.first_offset,
                "last": -1 if part.last_offset is None else part.last_offset,
            }
        )
        for p, part in receipt.partitions.items()
    ]
    values: dict[str, Any] = {
        SUMMARY: _summary(receipt, outcome),
        OUTCOME: outcome,
        ROWS: receipt.rows,
        "dagster/partition_row_count": receipt.rows,
        OFFSETS: receipt.ranges.size,
        WITHOUT_ROW: receipt.missing,
        OFFSET_RANGES: dg.MetadataValue.table(records, dg.TableSchema(_RECEIPT_COLUMNS)),
        "bytes": receipt.bytes,
        "seconds": receipt.seconds,
        SOURCE: dg.MetadataValue.asset(topic_key(receipt.topic)),
        "table": dg.MetadataValue.path(table_path),
        "window_start": dg.MetadataValue.timestamp(receipt.window.start),
        "window_end": dg.MetadataValue.timestamp(receipt.window.end),
        "topic_id": receipt.topic_id,
        "generation": receipt.generation,
        "offsets_digest": f"{receipt.offsets_digest:x}",
        "content_digest": f"{receipt.content_digest:x}",
        LOAD_ID: receipt.load_id,
    }
    if receipt.table_version is not None:
        values[TABLE_VERSION] = receipt.table_version
    if receipt.engine is not None:
        values[ENGINE] = receipt.engine
    if receipt.confirmed_by is not None:
        values[CONFIRMED_BY] = receipt.confirmed_by
    return values


def of_decoded(receipt: Receipt, outcome: Outcome, table_path: str) -> dict[str, Any]:
    """Metadata of a window of a table that is made from the raw one: the receipt, and which load and declaration it is of."""
    made = receipt.made_from
    holes = ", ".join(f"{number:,} {kind}" for kind, number in (receipt.holes or {}).items())
    values = of_receipt(receipt, outcome, table_path)
    values |= {
        SUMMARY: f"{_OUTCOMES[outcome]}: {receipt.rows:,} rows for {_offsets(receipt.ranges)}"
        + (f"; the others: {holes}." if holes else "."),
        SOURCE: dg.MetadataValue.asset(table_key(TableRef.raw(receipt.topic))),
    }
    if made is not None:
        values |= {DECLARATION: made.declaration, RAW_LOAD: made.load_id, RAW_VERSION: made.version}
    return values


def tags_of(receipt: Receipt, declaration: TopicDeclaration) -> dict[str, str]:
    """Tags of a materialisation that no step yields: the version of the data and, of what is decoded, of what made it."""
    tags = {"dagster/data_version": data_version(receipt)}
    if receipt.table == declaration.raw_table:
        return tags
    declared, made_from = declaration.decode, receipt.made_from
    made_by = None if declared is None else declared.digest
    # One with repairs of its own is of what is declared now, too.
    if made_from is not None and (declared is None or made_from.declaration != declared.digest_of(receipt.window.key)):
        made_by = made_from.declaration
    return tags if made_by is None else {**tags, "dagster/code_version": made_by}


_OUTCOMES: Final[Mapping[Outcome, str]] = {
    "loaded": "Loaded for the first time",
    "empty": "Nothing to load",
    "unchanged": "Read again and proved equal, so nothing was written",
    "kept": "Kafka no longer has these records, and the table still holds them: proved by their digests, nothing was written",
    "healed": "Its rows in the table were no longer those of the load: read again, proved equal to the first load, and written again",
    "replaced": "Decoded by another declaration than before, so its rows were replaced",
    "restored": "Kafka no longer has these records: restored from a past version of the table, and proved equal",
}


def _summary(receipt: Receipt, outcome: Outcome) -> str:
    text = f"{_OUTCOMES[outcome]}: {receipt.rows:,} rows for {_offsets(receipt.ranges)}"
    if not receipt.missing:
        return f"{text}." if not receipt.rows else f"{text}, one for each."
    if receipt.holes is None:
        return f"{text}; the check every_offset_accounted_for says what became of the other {receipt.missing:,}."
    return f"{text}; the others: " + ", ".join(f"{n:,} {kind}" for kind, n in receipt.holes.items()) + "."


def _offsets(ranges: TopicRanges) -> str:
    partitions = len(ranges.by_partition)
    return f"{ranges.size:,} offsets in {partitions:,} Kafka partition" + ("" if partitions == 1 else "s")


def data_version(receipt: Receipt) -> str:
    """A version that is the same for the same rows: window, ranges and content."""
    identity = f"{receipt.topic_id} {receipt.ranges.triples()} {receipt.rows} {receipt.content_digest}"
    return sha256(identity.encode()).hexdigest()[:32]


def sealed_version(window: SealedWindow) -> str:
    """A version that is the same for the same cut: topic id and ranges."""
    return sha256(f"{window.topic_id} {window.ranges.triples()}".encode()).hexdigest()[:32]
