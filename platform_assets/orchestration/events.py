"""Events that the platform reports to Dagster: sealed and loaded windows, with metadata that the UI shows as tables and
plots.

The ledger is the source of truth. Events that Dagster never received, because a run ended too early or Dagster's
store was lost, are reported again from the ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any, Final

import dagster as dg

from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt, SealedWindow
from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.offsets import TopicRanges
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration import dagster_records
from platform_assets.orchestration.dagster_records import RunLog
from platform_assets.orchestration.names import LOAD_ID, OUTCOME, table_key, topic_key
from platform_assets.orchestration.planning import RunWindows
from platform_assets.windows.decode.decoding import DecodedWindow
from platform_assets.windows.load.replacing import Outcome

LOOKED_BACK: Final = timedelta(days=7)
"""Maximum age of the failed runs to check, because the daemon may have been down for that long."""
_reported_runs: dict[str, frozenset[str]] = {}
"""Failed runs, by table, whose loaded windows are all known to Dagster, so no tick checks these runs again."""

SUMMARY: Final = "summary"
SOURCE: Final = "source"
TARGET: Final = "loaded_into"
OFFSET_RANGES: Final = "offset_ranges"
OFFSETS: Final = "offsets"
ROWS: Final = "rows"
WITHOUT_ROW: Final = "offsets_without_row"
TABLE_VERSION: Final = "table_version"
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
    dg.TableColumn("first", "int", description="lowest offset that has a row; -1 if there are no rows"),
    dg.TableColumn("last", "int", description="highest offset that has a row; -1 if there are no rows"),
]


def of_sealed(window: SealedWindow) -> dict[str, Any]:
    """Return the metadata of a sealed window for its topic asset: the immutable offset ranges, and how the cut at the
    window's end was made."""
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
    schema = dg.TableSchema(
        [*_RANGE_COLUMNS, dg.TableColumn("cut_at", "string", description="method by which the end was found")]
    )
    return {
        SUMMARY: f"{_offsets(window.ranges)} belong to this window permanently, from `start` up to, but not including, `end`.",
        OFFSETS: window.ranges.size,
        OFFSET_RANGES: dg.MetadataValue.table(records, schema),
        "window_start": dg.MetadataValue.timestamp(window.window.start),
        "window_end": dg.MetadataValue.timestamp(window.window.end),
        TARGET: dg.MetadataValue.asset(table_key(TableRef.raw(window.topic))),
        "topic_id": window.topic_id,
        "generation": window.generation,
    }


def of_receipt(receipt: Receipt, outcome: Outcome, table_path: str) -> dict[str, Any]:
    """Return the metadata of a loaded window for its raw table asset: the receipt, and the committed offset ranges."""
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
    """Return the metadata of a window in a derived table: the receipt, and the load and the declaration from which the
    window was made."""
    made = receipt.made_from
    holes = ", ".join(f"{number:,} {kind}" for kind, number in (receipt.holes or {}).items())
    values = of_receipt(receipt, outcome, table_path)
    values |= {
        SUMMARY: f"{_OUTCOMES[outcome]}: {receipt.rows:,} rows for {_offsets(receipt.ranges)}"
        + (f"; the other offsets: {holes}." if holes else "."),
        SOURCE: dg.MetadataValue.asset(table_key(_source_of(receipt))),
    }
    if made is not None:
        values |= {DECLARATION: made.declaration, RAW_LOAD: made.load_id, RAW_VERSION: made.version}
    return values


def _source_of(receipt: Receipt) -> TableRef:
    return TableRef("decoded" if receipt.table.kind == "changes" else "raw", receipt.topic)


def metadata_of(receipt: Receipt, outcome: Outcome, table_path: str) -> dict[str, Any]:
    """Return the metadata of a loaded window in any table."""
    of_table = of_receipt if receipt.table.kind == "raw" else of_decoded
    return of_table(receipt, outcome, table_path)


def tags_of(receipt: Receipt, declaration: TopicDeclaration) -> dict[str, str]:
    """Return the tags of a materialization outside a step: the data version and, for decoded data, the versions of its
    inputs."""
    tags = {"dagster/data_version": data_version(receipt)}
    if receipt.table == declaration.raw_table:
        return tags
    declared, made_from = declaration.decode, receipt.made_from
    if receipt.table == declaration.changes_table:
        return tags if made_from is None else {**tags, "dagster/code_version": made_from.declaration}
    made_by = None if declared is None else declared.digest
    # A window with its own repairs also depends on the current declaration.
    if made_from is not None and (declared is None or made_from.declaration != declared.digest_of(receipt.window.key)):
        made_by = made_from.declaration
    return tags if made_by is None else {**tags, "dagster/code_version": made_by}


_OUTCOMES: Final[Mapping[Outcome, str]] = {
    "loaded": "Loaded for the first time",
    "empty": "Nothing to load",
    "unchanged": "Read again and proved equal to the recorded load, so nothing was written",
    "kept": "Kafka no longer has these records, but digests prove that the table still has all of them; nothing was written",
    "healed": "The table's rows differed from the recorded load, so the window was read again, proved equal to "
    "that load, and written again",
    "replaced": "Decoded with a different declaration than before, so the window's rows were replaced",
    "restored": "Kafka no longer has all of these records: restored with rows from earlier versions of "
    "the table, and proved equal to the recorded load",
}


def _summary(receipt: Receipt, outcome: Outcome) -> str:
    text = f"{_OUTCOMES[outcome]}: {receipt.rows:,} rows for {_offsets(receipt.ranges)}"
    if not receipt.missing:
        return f"{text}." if not receipt.rows else f"{text}, one row per offset."
    if receipt.holes is None:
        return f"{text}; the check every_offset_accounted_for accounts for the other {receipt.missing:,} offsets."
    return f"{text}; the other offsets: " + ", ".join(f"{n:,} {kind}" for kind, n in receipt.holes.items()) + "."


def _offsets(ranges: TopicRanges) -> str:
    partitions = len(ranges.by_partition)
    return f"{ranges.size:,} offsets in {partitions:,} Kafka partition" + ("" if partitions == 1 else "s")


def data_version(receipt: Receipt) -> str:
    """Return a version that is equal for equal rows. It depends on window, ranges and content."""
    identity = f"{receipt.topic_id} {receipt.ranges.triples()} {receipt.rows} {receipt.content_digest}"
    return sha256(identity.encode()).hexdigest()[:32]


def sealed_version(window: SealedWindow) -> str:
    """Return a version that is equal for equal cuts. It depends on topic id and ranges."""
    return sha256(f"{window.topic_id} {window.ranges.triples()}".encode()).hexdigest()[:32]


# --- events -----------------------------------------------------------------------------------------------------


def sealed_event(window: SealedWindow) -> dg.AssetMaterialization:
    """Return the materialization of a sealed window on its topic asset."""
    return dg.AssetMaterialization(
        topic_key(window.topic),
        description=f"sealed: {window.ranges.size:,} offsets",
        partition=window.key,
        metadata=of_sealed(window),
        tags={"dagster/data_version": sealed_version(window)},
    )


def window_event(
    receipt: Receipt, outcome: Outcome, declaration: TopicDeclaration, lake: Lake, description: str | None = None
) -> dg.AssetMaterialization:
    """Return the materialization of a window in the table that its receipt belongs to."""
    return dg.AssetMaterialization(
        table_key(receipt.table),
        description=description,
        partition=receipt.window.key,
        metadata=metadata_of(receipt, outcome, str(lake.table(receipt.table))),
        tags=tags_of(receipt, declaration),
    )


def decoded_events(
    window: DecodedWindow, declaration: TopicDeclaration, lake: Lake, description: str | None = None
) -> list[dg.AssetMaterialization]:
    """Return the materializations of a decoded window in both of its tables."""
    receipts = (window.decoded, window.dead_letters)
    return [window_event(receipt, window.outcome, declaration, lake, description) for receipt in receipts]


# --- events that Dagster lacks ----------------------------------------------------------------------------------


def missing_events(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    """Yield an event for each sealed or loaded window for which Dagster has no up-to-date event.

    Use this after Dagster's store was lost or restored. The topic's windows come first, then the windows of the raw
    table. Windows that a run in progress will load are left out.
    """
    reported = instance.get_materialized_partitions(topic_key(declaration.topic))
    for window in ledger.windows(declaration.topic):
        if window.key not in reported:
            yield sealed_event(window)
    for table in declaration.tables:
        receipts = ledger.receipts(table)
        known = dagster_records.reported_loads(instance, table_key(table), None)
        new = {
            key
            for key, receipt in receipts.items()
            if key not in known or (receipt.kind == "load" and known[key] is not None and known[key] != receipt.load_id)
        }
        yield from _from_ledger(
            receipts, new, declaration, ledger, instance, "reported from the ledger, without a load"
        )


def missing_loads(
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    now: datetime,
    log: RunLog | None = None,
    besides: Sequence[dg.AssetMaterialization | dg.AssetCheckEvaluation] = (),
) -> Iterator[dg.AssetMaterialization]:
    """Yield an event for each window that a run in the last week loaded but did not report before the run failed.

    No tick requests such a window again, because it is loaded. `log` avoids a query for each topic; events in `besides`
    are not reported twice.
    """
    own = {(e.asset_key, e.partition) for e in besides if isinstance(e, dg.AssetMaterialization)}
    for event in _missing_loads(declaration, ledger, instance, now, log):
        if (event.asset_key, event.partition) not in own:
            yield event


def _missing_loads(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance, now: datetime, log: RunLog | None
) -> Iterator[dg.AssetMaterialization]:
    asked, since = log or RunLog(instance, declaration.tables), now - LOOKED_BACK
    failed = asked.failed_since(declaration.raw_table, since)
    yield from _missing_loads_of(declaration.raw_table, failed, declaration, ledger, instance)
    if declaration.decode is not None:
        # A run that should have loaded and then decoded windows counts for both tables.
        failed = {**failed, **asked.failed_since(declaration.decoded_table, since)}
        for table in (declaration.decoded_table, declaration.dead_letter_table):
            yield from _missing_loads_of(table, failed, declaration, ledger, instance)
    if declaration.state is not None:
        failed = {**failed, **asked.failed_since(declaration.changes_table, since)}
        yield from _missing_loads_of(declaration.changes_table, failed, declaration, ledger, instance)


def _missing_loads_of(
    table: TableRef,
    failed: Mapping[str, RunWindows],
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
) -> Iterator[dg.AssetMaterialization]:
    where = f"{ledger.lake}/{table}"
    new = {run: named for run, named in failed.items() if run not in _reported_runs.get(where, frozenset())}
    if not new:
        return
    edges = sorted(set(ledger.edges(declaration.topic, edge_of(min(named.first for named in new.values())))))
    keys = sorted({key for named in new.values() for key in named.among(edges)})
    receipts = ledger.receipts(table, keys)
    silent = set(receipts) - dagster_records.reported_partitions(instance, table_key(table), sorted(receipts))
    if not silent:
        _reported_runs[where] = frozenset(failed)
        return
    text = "loaded by a run that ended before it could report the window"
    yield from _from_ledger(receipts, silent, declaration, ledger, instance, text)


def _from_ledger(
    receipts: Mapping[str, Receipt],
    keys: Collection[str],
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    description: str,
) -> Iterator[dg.AssetMaterialization]:
    if not keys:
        return
    table = receipts[next(iter(keys))].table
    for key in sorted(set(keys) - dagster_records.windows_in_flight(instance, table_key(table), keys)):
        receipt = receipts[key]
        outcome: Outcome = "empty" if receipt.kind == "empty" else "loaded"
        yield window_event(receipt, outcome, declaration, ledger.lake, description)
