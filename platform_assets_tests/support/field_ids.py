"""The field ids in a data file, read with pyarrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_FIELD_ID = b"PARQUET:field_id"


def field_ids_in(path: Path | str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the path and the id of each field that has an id, at every depth."""
    yield from _visited(pq.read_schema(path), ())


def _visited(fields: pa.Schema | list[pa.Field], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    for field in fields:
        path, kind = (*above, field.name), field.type
        number = int((field.metadata or {}).get(_FIELD_ID, b"-1"))
        if number >= 0:
            yield path, number
        if pa.types.is_struct(kind):
            yield from _visited(list(kind), path)
        elif pa.types.is_map(kind):
            yield from _visited([kind.key_field, kind.item_field], path)
        elif pa.types.is_list(kind):
            yield from _visited([kind.value_field], path)
