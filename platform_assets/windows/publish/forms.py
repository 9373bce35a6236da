"""Forms of keys and values whose format has a schema: one module for each format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import pyarrow as pa

from platform_assets.decoding.registry.cache import Registered
from platform_assets.model.publishing import PartFormat
from platform_assets.windows.publish import avro, protobuf
from platform_assets.windows.publish.datums import Marks


class Form(Protocol):
    """The form of keys or values: the schema's text and its kind in a registry, and the columns to which it belongs, in
    its order. `may_refuse` is true if there are values of these columns that it does not have."""

    @property
    def text(self) -> str:
        """The schema."""

    @property
    def kind(self) -> str:
        """The kind of schema."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""

    @property
    def may_refuse(self) -> bool:
        """True if `encode` may raise Misfit."""

    def check_named(self) -> None:
        """Raise ConfigurationError if readers that find the schema by its id differ about the bytes."""

    def encode(self, rows: pa.Table, alive: Marks, head: bytes) -> pa.LargeBinaryArray:
        """Return the bytes of each row, after `head`, which names the schema. Rows that are not alive become meaningless.
        Raises Misfit."""


_MAKERS: Final[dict[PartFormat, Callable[[Sequence[pa.Field], Sequence[str], str | None, str], Form]]] = {
    "avro": avro.form,
    "protobuf": protobuf.form,
}


def form(kind: PartFormat, fields: Sequence[pa.Field], named: Sequence[str], schema: str | None, name: str) -> Form:
    """Return the form in which columns are published. `fields` are the columns of the table that may be published, and
    `named` those that are declared. Without a `schema`, the columns give it, and the record or message has the name
    `name`. Raises ConfigurationError if a schema is not one, or does not go with the columns."""
    return _MAKERS[kind](fields, named, schema, name)


def is_same(schema: Registered, other: Registered) -> bool:
    """Return True if two schemas without references describe the same bytes. Raises SchemaCompilerError (retryable)."""
    if schema.kind != other.kind or schema.references or other.references:
        return False
    is_same_text = avro.is_same if schema.kind == avro.KIND else protobuf.is_same
    return is_same_text(schema.text, other.text)


def renumbered(schema: Registered, later: Registered) -> str | None:
    """Return the name of a field that has another number in a later Protobuf schema; None if there is none. Raises
    SchemaCompilerError (retryable)."""
    if schema.kind != protobuf.KIND or later.kind != protobuf.KIND or schema.references:
        return None
    return protobuf.renumbered(schema.text, later.text)
