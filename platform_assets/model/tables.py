"""Tables of the lake. Each table has a kind, a topic, and a name made from these two. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from platform_assets.errors import ConfigurationError
from platform_assets.model import names
from platform_assets.model.names import checked_topic

TableKind = Literal["raw", "decoded", "dead_letters", "changes"]
"""raw: every committed record as bytes; decoded: typed rows; dead_letters: records that could not be decoded; changes:
the last record of each key in each window."""

KINDS: Final[tuple[TableKind, ...]] = get_args(TableKind)
"""All kinds of tables, upstream first: each kind comes after the kinds from which it is made. `test_table_kinds` checks
the code that must know every kind."""
RESERVED_KINDS: Final = ("state", "derived")
"""Kinds of tables without windows: `derived` tables have no topic, and for `state` see `StateRef`."""
StateKind = Literal["state", "state_deleted", "history"]
"""state: the current row of each key; state_deleted: the keys that were deleted; history: the rows of each key, and the
windows in which each counted."""
STATE_KINDS: Final[tuple[StateKind, ...]] = get_args(StateKind)


class _OfTopic:
    """A table whose name is its kind and its topic."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def kind(self) -> str: ...

        @property
        def topic(self) -> str: ...

    def __post_init__(self) -> None:
        checked_topic(self.topic)

    def __str__(self) -> str:
        return self.name

    @property
    def name(self) -> str:
        """The table's name for users and tools, such as `raw/orders`."""
        return f"{self.kind}/{self.topic}"

    @property
    def parts(self) -> tuple[str, str]:
        """The parts of the name in a path or an asset key, such as `("raw", "orders")`."""
        return self.kind, self.topic


@dataclass(frozen=True, slots=True, order=True)
class TableRef(_OfTopic):
    """One table in the lake. The name of the table is its path below the lake root, and also its asset key without the
    asset prefix."""

    kind: TableKind
    topic: str

    @property
    def ledger_name(self) -> str:
        """The table's key in the ledger: the table's name, or a shorter name if the topic's name is very long."""
        return names.ledger_name(self.kind, self.topic)

    @classmethod
    def of_ledger(cls, key: str, topic: str) -> TableRef:
        """Return the table for a ledger entry with this key and topic. Raises ConfigurationError."""
        return cls.parse(f"{key.partition('/')[0]}/{topic}")

    @classmethod
    def raw(cls, topic: str) -> TableRef:
        """Return the raw table of `topic`. Raises TopicNameError."""
        return cls("raw", topic)

    @classmethod
    def parse(cls, name: str) -> TableRef:
        """Parse a table's name. The name of a topic alone means the topic's raw table. Raises ConfigurationError."""
        kind, slash, topic = name.partition("/")
        if not slash:
            return cls.raw(name)
        for known in KINDS:
            if kind == known:
                return cls(known, topic)
        raise ConfigurationError(
            f"{name!r} is not a table name; a table name has the form KIND/TOPIC, where KIND is one of {', '.join(KINDS)}"
        )


@dataclass(frozen=True, slots=True, order=True)
class StateRef(_OfTopic):
    """A table of a topic's state. It has no windows of its own, and no receipts in the ledger."""

    kind: StateKind
    topic: str

    @classmethod
    def parse(cls, name: str) -> StateRef | None:
        """Return the table with the name `name`; None for names of other tables. Raises TopicNameError."""
        kind, slash, topic = name.partition("/")
        return next((cls(known, topic) for known in STATE_KINDS if slash and kind == known), None)


@dataclass(frozen=True, slots=True)
class TableLoad:
    """The source of a window in a derived table: the load of that window in another table, and the declaration.

    `version` is the Delta version of the load in that other table. `declaration` is the digest of the declaration that
    determined the rows.
    """

    table: TableRef
    version: int
    load_id: str
    declaration: str

    def to_fields(self) -> dict[str, str | int]:
        """Return the source in the form that commit metadata and the ledger use."""
        return {
            "table": self.table.name,
            "version": self.version,
            "load_id": self.load_id,
            "declaration": self.declaration,
        }

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> TableLoad:
        """Read a source from the form that `to_fields` returns."""
        return cls(TableRef.parse(fields["table"]), fields["version"], fields["load_id"], fields["declaration"])
