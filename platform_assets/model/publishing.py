"""The declaration of a published topic: which rows go to which Kafka topic, and in what form. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from platform_assets.errors import ConfigurationError
from platform_assets.model.derived import DerivedRef
from platform_assets.model.names import LONGEST_TOPIC, checked_topic, is_topic
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.model.windows import edge_of

PartFormat = Literal["json", "text", "bytes", "avro", "protobuf"]
"""json: an object of the columns; text: one column as UTF-8; bytes: one binary or string column, unchanged; avro: a datum
of the columns; protobuf: a message of the columns."""
Side = Literal["key", "value"]
WITH_SCHEMA: Final = ("avro", "protobuf")
"""Formats whose bytes only a schema explains."""
Corrections = Literal["publish", "hold"]
Decimals = Literal["string", "number"]
NonFinite = Literal["refuse", "null"]
Identity = Literal["header", "progress"]
"""header: each record has a header that identifies it; progress: the progress names the offsets of each window's rows."""

HEADER: Final = "platform_assets.published"
"""Header that identifies each published record: table, window, ordinal, kind, source partition, source offset and load,
separated by spaces."""
POSITION: Final = ("kafka_partition", "kafka_offset")
"""Columns that give the position of a row in the topic from which its table is loaded."""
SUFFIX: Final = ".published"
"""Suffix of the topic that records what was sent."""
MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """The key or the value of published records. Without `columns`, a JSON object or an Avro record has all columns of the
    data.

    The other fields are for formats with a schema. `schema` is its text; without it, the columns give it, and `name` is the
    full name of the record or message. With `registry`, each record names its schema by the id in a registry. With `register`, the
    schema is registered; otherwise, it must be registered already. `subject` is the subject's name there.
    """

    format: PartFormat
    columns: tuple[str, ...] = ()
    schema: str | None = None
    name: str | None = None
    registry: bool = False
    register: bool = False
    subject: str | None = None

    def __post_init__(self) -> None:
        if self.format in ("text", "bytes") and len(self.columns) != 1:
            raise ConfigurationError(f"format {self.format!r} needs exactly one column: write `columns: [name]`")
        if self.format not in WITH_SCHEMA:
            for field in ("schema", "name", "registry", "register", "subject"):
                if getattr(self, field):
                    raise ConfigurationError(
                        f"format {self.format!r} does not support `{field}`: use {' or '.join(WITH_SCHEMA)}"
                    )
        if self.schema is not None and self.name is not None:
            raise ConfigurationError(
                "`name` is the name of a record whose schema the columns give: leave it out, or `schema`"
            )
        for field in ("register", "subject"):
            if getattr(self, field) and not self.registry:
                raise ConfigurationError(f"`{field}` needs `registry: true`")

    def __repr__(self) -> str:
        # Digests of declarations contain this text, so a field that is not declared must not change it.
        named = [f"format={self.format!r}", f"columns={self.columns!r}"]
        optional = ("schema", "name", "registry", "register", "subject")
        named += [f"{field}={getattr(self, field)!r}" for field in optional if getattr(self, field)]
        return f"Part({', '.join(named)})"


@dataclass(frozen=True, slots=True)
class PublishDeclaration:
    """Publishes the rows of `table` to the Kafka topic `topic`, from the window `start` on. Of a table without windows, it
    publishes changes, and tombstones for deleted keys.

    `headers` maps header names to columns. `corrections` decides whether differing rows of a window that is loaded or
    decoded again are published. With `tombstones`, a row that no longer exists is published as a record with the row's
    key and no value. `decimals` and `non_finite` decide how JSON shows decimals, and numbers such as NaN. `identity`
    decides how the first record of each row is identified; corrections always have a header.
    """

    topic: str
    table: TableRef | StateRef | DerivedRef
    key: Part | None = None
    value: Part = Part("json")
    headers: tuple[tuple[str, str], ...] = ()
    corrections: Corrections = "publish"
    tombstones: bool = False
    decimals: Decimals = "string"
    non_finite: NonFinite = "refuse"
    identity: Identity = "header"
    start: str | None = None
    transaction_rows: int = 100_000
    transaction_timeout: timedelta = timedelta(seconds=60)
    sensor_interval: timedelta = timedelta(seconds=30)

    def __post_init__(self) -> None:
        checked_topic(self.topic)
        if not is_topic(self.topic + SUFFIX):
            raise ConfigurationError(
                f"{self.topic!r} is too long: the topic that records what was sent has the suffix {SUFFIX!r}, and a topic name has "
                f"up to {LONGEST_TOPIC} characters. Choose a name of up to {LONGEST_TOPIC - len(SUFFIX)} characters"
            )
        if self.topic.endswith(SUFFIX):
            raise ConfigurationError(
                f"{self.topic!r} ends with {SUFFIX!r}, which is reserved for topics that record what was sent: choose another name"
            )
        if isinstance(self.table, TableRef) and self.topic == self.table.topic:
            raise ConfigurationError(
                f"{self.table} cannot be published to topic {self.topic!r}, because the table is loaded from that topic, so "
                "rows would be published again and again. Name another topic"
            )
        if isinstance(self.table, TableRef) and self.table.kind not in ("raw", "decoded"):
            raise ConfigurationError(
                f"{self.table} cannot be published: name raw/<topic>, decoded/<topic>, state/<topic> or derived/<name>"
            )
        if not isinstance(self.table, TableRef):
            self._check_keyed(self.table)
        if self.start is not None:
            edge_of(self.start)
        if not 1 <= self.transaction_rows <= MOST_ROWS:
            raise ConfigurationError(f"transaction_rows must be from 1 to {MOST_ROWS:,}, not {self.transaction_rows}")
        if not timedelta(seconds=10) <= self.transaction_timeout <= timedelta(minutes=15):
            raise ConfigurationError("transaction_timeout_seconds must be from 10 to 900")
        if self.tombstones and self.key is None:
            raise ConfigurationError("tombstones need a key: declare `key`, or leave out `tombstones`")
        if any(name == HEADER for name, _ in self.headers):
            raise ConfigurationError(f"the header {HEADER!r} is reserved: choose another name")

    def _check_keyed(self, table: StateRef | DerivedRef) -> None:
        """Refuse what a table without windows does not have."""
        if isinstance(table, StateRef) and table.kind != "state":
            raise ConfigurationError(f"{table} cannot be published: name state/{table.topic}")
        if isinstance(table, StateRef) and table.topic == self.topic:
            raise ConfigurationError(
                f"{table} cannot be published to the topic from which it is made. Name another topic"
            )
        if self.key is None:
            raise ConfigurationError(f"{table} needs a `key`: columns that identify a row, so that changes replace it")
        if self.value.format in ("text", "bytes"):
            raise ConfigurationError(
                f"{table} needs a value in the format json, avro or protobuf, because a null value would delete its key"
            )
        for field, is_default in (
            ("start", self.start is None),
            ("identity", self.identity == "header"),
            ("corrections", self.corrections == "publish"),
        ):
            if not is_default:
                raise ConfigurationError(
                    f"{field} is for tables with windows, which {table} does not have: leave it out"
                )

    @property
    def sides(self) -> dict[Side, Part]:
        """The key, if there is one, and the value."""
        return {"value": self.value} if self.key is None else {"key": self.key, "value": self.value}

    def subject_of(self, side: Side) -> str:
        """Return the subject of a schema: that which is declared, or `<topic>-key` or `<topic>-value`."""
        return self.sides[side].subject or f"{self.topic}-{side}"

    def name_of(self, side: Side) -> str:
        """Return the full name of a record whose schema the columns give: that which is declared, or the topic with _
        for each character that Avro does not allow, with `_key` for a key."""
        given = self.sides[side].name
        if given is not None:
            return given
        plain = re.sub(r"[^A-Za-z0-9_]", "_", self.topic) + ("_key" if side == "key" else "")
        return f"_{plain}" if plain[0].isdigit() else plain

    @property
    def windowed(self) -> TableRef:
        """The table, which has windows."""
        if not isinstance(self.table, TableRef):
            raise TypeError(f"{self.table} has no windows")
        return self.table

    @property
    def name(self) -> str:
        """The asset's name, such as `published/orders-clean`."""
        return f"published/{self.topic}"
