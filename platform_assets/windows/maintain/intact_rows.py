"""Comparing the rows of a window with its receipt without Spark, in this process."""

from __future__ import annotations

from deltalake import DeltaTable

from platform_assets.engines.measuring import measure_of
from platform_assets.engines.protocol import NO_ROWS
from platform_assets.errors import FilesLostError
from platform_assets.lake import rows
from platform_assets.lake.holdings import WindowFiles
from platform_assets.lake.location import Lake
from platform_assets.ledger.entries import Receipt
from platform_assets.model.logs import logger
from platform_assets.windows.load.replacing import same

_log = logger(__name__)


def is_intact(lake: Lake, handle: DeltaTable, receipt: Receipt, files: WindowFiles) -> bool:
    """Return True if the files that the version of `handle` has for a window hold the rows of the receipt; read them if neither
    log nor ledger shows it."""
    if files.match(receipt.files_digest, receipt.rows):
        return True
    key, folder = receipt.window.key, lake.table(receipt.table)
    try:
        # Imported here because it loads compiled code, which a code location does not need.
        from platform_assets.engines.decoding.rows import in_order

        measure, held = measure_of(receipt.table.kind), NO_ROWS
        for batch in rows.batches_of(folder, key, handle.version()):
            held += measure(in_order(batch)) if batch.num_rows else NO_ROWS
        return same(held, receipt) and rows.Opened(folder, {key: files}).topic_ids_of(key) <= {receipt.topic_id}
    except FilesLostError as e:
        _log.warning("%s", e)
        return False
