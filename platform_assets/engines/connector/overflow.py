"""Search for the records of a window whose timestamps Spark cannot represent. The search runs after a load has found
such a record."""

from __future__ import annotations

from typing import Final

from platform_assets.engines.protocol import Records
from platform_assets.errors import UnreadableTimestampError
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.tables import TableRef

_NAMED: Final = 21
"""One more than the number of records that an error lists."""


def named_timestamps(settings: ClientSettings, records: Records, table: TableRef) -> UnreadableTimestampError | None:
    """Return an error that lists the first records with unreadable timestamps, or None if there are no such records.
    Raises the same errors as `find_refused`."""
    # Imported here because compiled kernels are slow to load, and a process that only sends work does not need them.
    from platform_assets.engines.columnar.refused import find_refused

    found = find_refused(settings, records.topic, records.topic_id, records.pieces, most=_NAMED).records
    return UnreadableTimestampError(table.name, records.window, found) if found else None
