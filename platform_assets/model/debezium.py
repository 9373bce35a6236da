"""Names that the format `debezium` gives to facts about a change, and the codes of operations. Pure.

A decoded table has one column for each of these facts. The option `envelope` can give a column another name, because
the table in the database may already have a column with the default name.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from platform_assets.model.decoding import FormatSpec

FORMAT: Final = "debezium"
ENVELOPE: Final = "envelope"
"""Option that gives other names to the columns of `DEFAULT_NAMES`."""
OPERATION: Final = "operation"
LSN: Final = "lsn"
SEQUENCE: Final = "sequence"
TX_ID: Final = "tx_id"
TIMESTAMP: Final = "timestamp"
SNAPSHOT: Final = "snapshot"
DEFAULT_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        OPERATION: "change_operation",
        LSN: "change_lsn",
        SEQUENCE: "change_sequence",
        TX_ID: "change_tx_id",
        TIMESTAMP: "change_timestamp",
        SNAPSHOT: "change_snapshot",
    }
)
"""Default column name of each fact. `operation` is one of the codes below. `lsn` and `sequence` are positions in the
database's log, `tx_id` is the id of the transaction, `timestamp` is the time of the change in the database, and
`snapshot` says whether the record is part of a snapshot."""

CREATE: Final = "c"
READ: Final = "r"
UPDATE: Final = "u"
DELETE: Final = "d"
TRUNCATE: Final = "t"
OPERATIONS: Final = (CREATE, READ, UPDATE, DELETE, TRUNCATE)
"""Codes of operations, as in the connector's records. `r` is a row of a snapshot. A truncate has no row, so all columns
of the row are null."""
SNAPSHOT_ENDS: Final = ("last", "last_in_data_collection")
"""Values of the fact `snapshot` in the last row of a table in a snapshot."""
SNAPSHOT_ROWS: Final = ("true", "first", "first_in_data_collection", *SNAPSHOT_ENDS)
"""Values of the fact `snapshot` in rows of a snapshot of whole tables. Incremental snapshots have another one."""


def column_of(spec: FormatSpec, fact: str) -> str:
    """Return the column that contains a fact of `DEFAULT_NAMES`, in rows decoded with `spec`."""
    names = spec.options.get(ENVELOPE) or {}
    return str(names.get(fact, DEFAULT_NAMES[fact]))
