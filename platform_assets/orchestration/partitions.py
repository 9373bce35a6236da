"""The partitions that a run is for."""

from __future__ import annotations

from datetime import datetime

import dagster as dg
from dagster._core.storage.tags import ASSET_PARTITION_RANGE_START_TAG, PARTITION_NAME_TAG
from dagster_shared.check import CheckError

from platform_assets.errors import ConfigurationError
from platform_assets.model.tables import TableRef
from platform_assets.model.windows import key_of


def partition_keys(context: dg.AssetExecutionContext, table: TableRef, first_edge: datetime) -> list[str]:
    """The keys of the windows of `table` that the run is for; `first_edge` is where its partitions begin.

    Raises ConfigurationError if they are no partitions any more, since the declaration was changed after the run was asked for.
    """
    try:
        return list(context.partition_keys)
    except (CheckError, dg.DagsterError) as e:
        tags = context.run.tags
        first, begins = tags.get(ASSET_PARTITION_RANGE_START_TAG, tags.get(PARTITION_NAME_TAG, "")), key_of(first_edge)
        raise ConfigurationError(
            f"the run is for windows of {table} from {first} on, which is no partition any more: partitions begin at {begins}, "
            "since `start` or `window` in the topic's defs.yaml was changed after the run was asked for. No window was loaded. "
            f"Cancel the backfill and launch it again from {begins} on; windows before that are loaded by `platform-assets load "
            f"{table} {first}`, each by its key"
        ) from e
