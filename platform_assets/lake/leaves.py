"""The leaves of columns in Parquet files. Readers and writers know them by their paths alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from platform_assets.errors import ConfigurationError


def leaves(path: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """A column's leaves by their paths, as Parquet names them, with their types."""
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
    """Raises ConfigurationError where two leaves have one path, or two that differ by case: a name may hold dots, as paths do."""
    seen: dict[str, str] = {}
    for column in columns:
        for path, _ in leaves(column.name, column.type):
            if path.lower() in seen:
                raise ConfigurationError(
                    f"columns: {path!r} is there twice, of column {seen[path.lower()]!r} and of column {column.name!r}: a dot in a "
                    "name is the same to Parquet as the step into a STRUCT; leave one of the two out, and its values are kept in "
                    "`rescued`"
                )
            seen[path.lower()] = column.name
