"""Change events as Debezium's PostgreSQL connector writes them."""

from __future__ import annotations

import json
from typing import Any

from testbed.samples import Keyed

SOURCE = {
    "version": "3.6.1.Final", "connector": "postgresql", "ts_ms": 1700000000123, "snapshot": "false", "db": "shop",
    "sequence": '["24","25"]', "ts_us": 1700000000123456, "schema": "public", "table": "orders", "txId": 7, "lsn": 25,
}  # fmt: skip


def event(operation: Any, before: Any = None, after: Any = None, *, wrapped: bool = False, **others: Any) -> bytes:
    """Return an event as Connect's JSON converter writes it, with its schema if `wrapped`."""
    value = {"before": before, "after": after, "source": SOURCE, "transaction": None, "op": operation, "ts_ms": 1}
    value |= others
    written = {"schema": {"type": "struct"}, "payload": value} if wrapped else value
    return json.dumps(written, separators=(",", ":"), ensure_ascii=False).encode()


def read_by(lsn: int, id: int, kind: str = "true") -> Keyed:
    """Return the record of a row in the snapshot with this position in the database's log."""
    after = {"id": id, "name": f"{lsn}", "tags": None}
    source = {**SOURCE, "lsn": lsn, "snapshot": kind}
    return Keyed(json.dumps({"id": id}).encode(), event("r", after=after, source=source))
