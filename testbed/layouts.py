"""New tables in either layout: flat, or partitioned by window. Releases before flat tables created partitioned
tables."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal
from unittest.mock import patch

from deltalake import Schema

from platform_assets.lake import new_tables
from platform_assets.lake.location import Folder

Layout = Literal["flat", "partitioned"]
_STATISTICS: Final = "delta.dataSkippingStatsColumns"


@contextmanager
def new_tables_are(layout: Layout) -> Iterator[None]:
    """Make this process create tables of windows in `layout`. Other processes, such as commands, still create flat
    tables."""
    with patch.object(new_tables, "create", _CREATE[layout]):
        yield


def _create_partitioned(path: Folder, columns: Schema, *, name: str, description: str) -> None:
    properties = {**new_tables.PROPERTIES, _STATISTICS: "kafka_partition,kafka_offset,kafka_timestamp"}
    path.create_delta(columns, partition_by="window", name=name, description=description, configuration=properties)


_CREATE: Final = {"flat": new_tables.create, "partitioned": _create_partitioned}
