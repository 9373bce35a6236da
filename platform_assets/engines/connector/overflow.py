"""Search for the records of a window whose timestamp Spark cannot represent, after a load has found one."""

from __future__ import annotations

from typing import Final

from platform_assets.engines.protocol import Records
from platform_assets.errors import UnreadableTimestampError
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.tables import TableRef

_NAMED: Final = 21
"""One more than the number that an error lists."""


def named_timestamps(settings: ClientSettings, records: Records, table: TableRef) -> UnreadableTimestampError | None:
    """Return the error that names the first of these records; None if there are none. Raises what `find_refused`
    raises."""
    # Imported here because compiled kernels are slow to load, and a process that only sends work does not need them.
    from platform_assets.engines.columnar.refused import find_refused

    found = find_refused(settings, records.topic, records.topic_id, records.pieces, most=_NAMED).records
    return UnreadableTimestampError(table.name, records.window, found) if found else None
