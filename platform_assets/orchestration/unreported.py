"""Loads that the ledger has and Dagster has never heard of, because their run ended between the two; and reporting them.

Nobody would ask for such a window again, since it is loaded. Which they are follows from what is on record of failed runs, so a
tick that is tried again reports the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import dagster as dg

from platform_assets.ledger.store import Ledger
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration import metadata, runs
from platform_assets.orchestration.names import table_key
from platform_assets.orchestration.retries import Named
from platform_assets.orchestration.run_log import RunLog

LOOKED_BACK: Final = timedelta(days=7)
"""How long ago a run may have failed: for as long the daemon may have been away."""

_settled: dict[str, frozenset[str]] = {}
"""By table: failed runs all of whose windows that are loaded Dagster knows, so that a tick asks for none of them again."""


def with_loads(
    result: dg.SensorResult,
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    now: datetime,
    log: RunLog | None = None,
) -> dg.SensorResult:
    """The result of a tick at `now`, with the materialisations that Dagster lacks; `log` as `loads` has it."""
    own = {(e.asset_key, e.partition) for e in result.asset_events if isinstance(e, dg.AssetMaterialization)}
    found = [e for e in loads(declaration, ledger, instance, now, log) if (e.asset_key, e.partition) not in own]
    if not found:
        return result
    return dg.SensorResult(
        run_requests=result.run_requests,
        skip_reason=result.skip_reason,
        cursor=result.cursor,
        asset_events=[*result.asset_events, *found],
    )


def loads(
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
    now: datetime,
    log: RunLog | None = None,
) -> Iterator[dg.AssetMaterialization]:
    """What runs that failed in the last week have loaded and not reported, unless a run under way will do so.

    `log` is there where a tick of many topics has asked Dagster already.
    """
    raw, since = declaration.raw_table, now - LOOKED_BACK
    failed_since = log.failed_since if log else partial(runs.failed_since, instance)
    failed = failed_since(raw, since)
    yield from _of_table(raw, failed, declaration, ledger, instance)
    if declaration.decode is not None:
        # A run that was to load windows and then to decode them counts for both.
        failed = {**failed, **failed_since(declaration.decoded_table, since)}
        for table in (declaration.decoded_table, declaration.dead_letter_table):
            yield from _of_table(table, failed, declaration, ledger, instance)


def _of_table(
    table: TableRef,
    failed: Mapping[str, Named],
    declaration: TopicDeclaration,
    ledger: Ledger,
    instance: dg.DagsterInstance,
) -> Iterator[dg.AssetMaterialization]:
    where = f"{ledger.lake}/{table}"
    new = {run: named for run, named in failed.items() if run not in _settled.get(where, frozenset())}
    if not new:
        return
    edges = sorted(set(ledger.edges(declaration.topic, edge_of(min(named.first for named in new.values())))))
    keys = sorted({key for named in new.values() for key in named.among(edges)})
    receipts = ledger.receipts(table, keys)
    silent = set(receipts) - runs.reported_partitions(instance, table_key(table), sorted(receipts))
    if not silent:
        _settled[where] = frozenset(failed)
        return
    path = str(ledger.lake.table(table))
    for key in sorted(silent - runs.windows_in_flight(instance, table_key(table), silent)):
        yield dg.AssetMaterialization(
            table_key(table),
            description="loaded by a run that ended before it could say so",
            partition=key,
            metadata=metadata.of_receipt(receipts[key], "empty" if receipts[key].kind == "empty" else "loaded", path),
            tags=metadata.tags_of(receipts[key], declaration),
        )
