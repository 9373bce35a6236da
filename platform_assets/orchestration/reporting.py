"""What Dagster has no record of, although ledger and tables do: as after its database was lost, or restored from a backup.

What Dagster shows is a view, so it is made again from what counts, and no window is loaded for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import dagster as dg

from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.orchestration import metadata, runs
from platform_assets.orchestration.names import table_key, topic_key
from platform_assets.orchestration.sensors import sealed_event
from platform_assets.windows.replacing import Outcome


def unreported(
    declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    """A materialisation for each window that is sealed, or in a table of the topic, and that Dagster has not as it is.

    The topic's come first, then the raw table's. Windows that a run will bring are left to it.
    """
    reported = instance.get_materialized_partitions(topic_key(declaration.topic))
    for window in ledger.windows(declaration.topic):
        if window.key not in reported:
            yield sealed_event(window)
    for table in declaration.tables:
        yield from _of_table(table, declaration, ledger, instance)


def _of_table(
    table: TableRef, declaration: TopicDeclaration, ledger: Ledger, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    receipts, key = ledger.receipts(table), table_key(table)
    known = runs.reported_loads(instance, key, None)
    new = [
        window
        for window, receipt in receipts.items()
        if window not in known
        or (receipt.kind == "load" and known[window] is not None and known[window] != receipt.load_id)
    ]
    path = str(ledger.lake.table(table))
    for window in sorted(set(new) - runs.windows_in_flight(instance, key, new)):
        receipt = receipts[window]
        outcome: Outcome = "empty" if receipt.kind == "empty" else "loaded"
        of_receipt = metadata.of_receipt if table == declaration.raw_table else metadata.of_decoded
        yield dg.AssetMaterialization(
            key,
            description="reported from the ledger, without a load",
            partition=window,
            metadata=of_receipt(receipt, outcome, path),
            tags=metadata.tags_of(receipt, declaration),
        )
