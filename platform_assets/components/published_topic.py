"""The component for a published topic: rows of a table to a Kafka topic, exactly once."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

import dagster as dg
from dagster.components.resolved.context import ResolutionContext
from pydantic import BaseModel, Field, field_validator, model_validator

from platform_assets.components.yaml_texts import TextContext
from platform_assets.errors import ConfigurationError
from platform_assets.model.derived import DerivedRef
from platform_assets.model.names import checked_topic
from platform_assets.model.publishing import (
    WITH_SCHEMA,
    Corrections,
    Decimals,
    Identity,
    NonFinite,
    Part,
    PublishDeclaration,
)
from platform_assets.model.tables import StateRef, TableRef
from platform_assets.model.windows import edge_of
from platform_assets.orchestration.published import build_definitions

_FORMATS = ("json", "text", "bytes", *WITH_SCHEMA)
_FLAGS = ("registry", "register")
_TEXTS = ("name", "message", "subject")
_FIELDS = ("format", "columns", "schema", *_TEXTS, *_FLAGS)


class PublishedTopic(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka topic that has each row of a table exactly once."""

    topic: Annotated[str, Field(description="Kafka topic to publish to. It must exist.")]
    table: Annotated[
        str, Field(description="Table to publish: decoded/<topic>, raw/<topic>, state/<topic> or derived/<name>.")
    ]
    key: Annotated[
        str | dict[str, Any] | None,
        Field(
            description="Key of the records: a column, whose values become text, or `format` (`json`, `text`, `bytes`, "
            "`avro` or `protobuf`) and `columns`; for `avro` and `protobuf` also `schema`, `name` or `message`, `registry`, "
            "`register` and `subject`. By default, "
            "records have no key; those of a raw table have their own."
        ),
    ] = None
    value: Annotated[
        dict[str, Any] | None,
        Field(
            description="Value of the records: fields as for `key`. By default, a JSON object of all declared columns; for "
            "a raw table, the record's own value."
        ),
    ] = None
    headers: Annotated[
        dict[str, str] | None,
        Field(description="Additional headers: names, each with the column that it shows as text."),
    ] = None
    corrections: Annotated[
        Literal["publish", "hold"],
        Field(
            description="If a window is loaded or decoded again: `publish` publishes the rows that differ, `hold` nothing."
        ),
    ] = "publish"
    tombstones: Annotated[
        bool,
        Field(description="Publish a row that a later load no longer has as a record with its key and no value."),
    ] = False
    decimals: Annotated[Literal["string", "number"], Field(description="How JSON shows decimals.")] = "string"
    non_finite: Annotated[
        Literal["refuse", "null"],
        Field(
            description="How JSON shows NaN, infinity, and times and dates outside the years 1 to 9999: not at all, or as null."
        ),
    ] = "refuse"
    identity: Annotated[
        Literal["header", "progress"],
        Field(
            description="How the record of a row is identified: by a `header` of its own, or by its offset, which the "
            "`progress` topic names. `progress` is faster, and consumers see only your headers."
        ),
    ] = "header"
    start: Annotated[
        str | None, Field(description="Key of the first window to publish. By default, all windows are published.")
    ] = None
    transaction_rows: Annotated[int, Field(description="Maximum number of records in a transaction.")] = 100_000
    transaction_timeout_seconds: Annotated[
        int,
        Field(description="Time after which brokers end a transaction of a publisher that died, 10 to 900."),
    ] = 60
    sensor_interval_seconds: Annotated[int, Field(description="Time between two ticks, 1 or more.")] = 30
    sensor_running: Annotated[bool, Field(description="Run the sensor by default.")] = True
    group: Annotated[str | None, Field(description="Dagster asset group. Default: the folder's name.")] = None
    description: Annotated[str | None, Field(description="Description of the topic, for people.")] = None
    owners: Annotated[tuple[str, ...], Field(description="Owners, as in Dagster: an e-mail address or team:name.")] = ()

    @field_validator("topic")
    @classmethod
    def _is_a_topic_name(cls, value: str) -> str:
        checked: str = _checked(checked_topic, value)
        return checked

    @field_validator("table")
    @classmethod
    def _is_a_table(cls, value: str) -> str:
        if "/" not in value:
            raise ValueError(f"{value!r} is not a table: write decoded/{value} or raw/{value}")
        _checked(_table, value)
        return value

    @field_validator("key", "value")
    @classmethod
    def _is_a_part(cls, value: str | dict[str, Any] | None) -> str | dict[str, Any] | None:
        _checked(_part, value)
        return value

    @field_validator("start")
    @classmethod
    def _is_a_window(cls, value: str | None) -> str | None:
        if value is not None:
            _checked(edge_of, value)
        return value

    @field_validator("sensor_interval_seconds")
    @classmethod
    def _is_at_least_one(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"must be 1 or more, not {value}")
        return value

    @model_validator(mode="after")
    def _declares(self) -> PublishedTopic:
        _checked(lambda _: self.declaration(), None)
        return self

    @classmethod
    def resolve_from_model(cls, context: ResolutionContext, model: BaseModel) -> Self:
        """Resolve like any component, but keep strings unchanged."""
        made: Self = super().resolve_from_model(TextContext.of(context), model)
        return made

    def declaration(self) -> PublishDeclaration:
        """Return the declaration as a plain value. Raises ConfigurationError."""
        table = _table(self.table)
        key, value = _part(self.key), _part(self.value)
        if isinstance(table, TableRef) and table.kind == "raw":
            key, value = key or Part("bytes", ("key",)), value or Part("bytes", ("value",))
        corrections: Corrections = self.corrections
        decimals: Decimals = self.decimals
        non_finite: NonFinite = self.non_finite
        identity: Identity = self.identity
        return PublishDeclaration(
            topic=self.topic,
            table=table,
            key=key,
            value=value or Part("json"),
            headers=tuple((self.headers or {}).items()),
            corrections=corrections,
            tombstones=self.tombstones,
            decimals=decimals,
            non_finite=non_finite,
            identity=identity,
            start=self.start,
            transaction_rows=self.transaction_rows,
            transaction_timeout=timedelta(seconds=self.transaction_timeout_seconds),
            sensor_interval=timedelta(seconds=self.sensor_interval_seconds),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the asset, its check and its sensor."""
        return build_definitions(
            self.declaration(),
            group=self.group or re.sub(r"[^A-Za-z0-9_]", "_", context.path.name),
            description=self.description,
            owners=self.owners,
            sensor_running=self.sensor_running,
        )


def _checked(call: Any, value: Any) -> Any:
    try:
        return call(value)
    except ConfigurationError as e:
        raise ValueError(str(e)) from e


def _table(name: str) -> TableRef | StateRef | DerivedRef:
    """Parse the name of a table. Raises ConfigurationError."""
    return StateRef.parse(name) or DerivedRef.parse(name) or TableRef.parse(name)


def _part(given: str | dict[str, Any] | None) -> Part | None:
    """Return the key or value that YAML declares. Raises ConfigurationError."""
    if given is None:
        return None
    if isinstance(given, str):
        return Part("text", (given,))
    if unknown := sorted(set(given) - set(_FIELDS)):
        raise ConfigurationError(f"unknown field {unknown[0]!r}: use {', '.join(_FIELDS)}")
    kind, columns = given.get("format", "json"), given.get("columns", [])
    if kind not in _FORMATS:
        raise ConfigurationError(f"format {kind!r} is not one of {', '.join(_FORMATS)}")
    if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
        raise ConfigurationError("columns must be a list such as [a, b]")
    for name in _FLAGS:
        if not isinstance(given.get(name, False), bool):
            raise ConfigurationError(f"{name} must be true or false")
    for name in _TEXTS:
        if not isinstance(given.get(name, "-"), str) or given.get(name) == "":
            raise ConfigurationError(f"{name} must be text")
    options = {name: given[name] for name in (*_TEXTS, *_FLAGS) if name in given}
    if "message" in options:
        if kind != "protobuf" or "name" in options:
            raise ConfigurationError("message is the name of a Protobuf message; a record of Avro has `name`")
        options["name"] = options.pop("message")
    return Part(kind, tuple(columns), _schema(given.get("schema")), **options)


def _schema(given: Any) -> str | None:
    """Return the text of a schema that is given as YAML values or as text. Raises ConfigurationError."""
    if given is None or (isinstance(given, str) and given.lstrip()[:1] in ("{", "[")):
        return given
    try:
        return json.dumps(given)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"schema must be an Avro schema, as YAML or as JSON ({error})") from error
