"""The newest evaluations of checks, as Dagster has them on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dagster as dg
from dagster._core.storage.asset_check_execution_record import (
    AssetCheckExecutionRecord,
    AssetCheckExecutionRecordStatus,
)

_OVER = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}


def newest(
    instance: dg.DagsterInstance, keys: Sequence[dg.AssetCheckKey]
) -> Mapping[dg.AssetCheckKey, tuple[AssetCheckExecutionRecord, dg.AssetCheckEvaluation]]:
    """The newest evaluation of each of `keys` that has one, with its record.

    What a check found holds until it has found something else: a run that is about to evaluate it again changes nothing yet, and
    neither does one that ended before it came to that.
    """
    storage = instance.event_log_storage
    found = {}
    for key, record in storage.get_latest_asset_check_execution_by_key(list(keys)).items():
        records = (
            [record] if record.status in _OVER else storage.get_asset_check_execution_history(key, 1, status=_OVER)
        )
        for one in records:
            evaluation = one.event.asset_check_evaluation if one.event is not None else None
            if evaluation is not None:
                found[key] = (one, evaluation)
    return found
