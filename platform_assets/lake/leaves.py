"""The leaves of columns in Parquet files, which readers and writers identify only by their paths."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from platform_assets.errors import ConfigurationError


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield a column's leaves: their paths in Parquet's form, with their types."""
    if pa.types.is_struct(kind):
        for child in kind:
            yield from leaves(f"{path}.{child.name}", child.type)
    elif pa.types.is_list(kind):
        yield from leaves(f"{path}.list.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield from leaves(f"{path}.key_value.key", kind.key_type)
        yield from leaves(f"{path}.key_value.value", kind.item_type)
    else:
        yield path, kind


def check_apart(columns: Iterable[pa.Field]) -> None:
    """Raise ConfigurationError if two leaves have the same path, ignoring case: names may contain dots, like paths."""
    seen: dict[str, str] = {}
    for column in columns:
        for path, _ in leaves(column.name, column.type):
            if path.lower() in seen:
                raise ConfigurationError(
                    f"columns: {path!r} occurs twice, in column {seen[path.lower()]!r} and in column {column.name!r}: to "
                    "Parquet, a dot in a name is the same as a step into a STRUCT. Leave out one of the two; its values "
                    "are then kept in `rescued`"
                )
            seen[path.lower()] = column.name
