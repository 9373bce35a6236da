"""The component for one topic: a few lines of YAML define its table, checks and sensor."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, Self

import dagster as dg
from dagster._core.definitions.utils import is_valid_owner
from dagster._utils.pydantic_yaml import enrich_validation_errors_with_source_position
from dagster.components.resolved.context import ResolutionContext
from pydantic import BaseModel, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from platform_assets.components.decode_block import decode_declaration
from platform_assets.components.left_out import Candidate
from platform_assets.components.state_block import state_declaration
from platform_assets.components.yaml_texts import TextContext
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import DEFAULT_ENGINE, EngineName, TopicDeclaration
from platform_assets.model.keeping import keep_of
from platform_assets.model.names import checked_topic
from platform_assets.model.sizes import bytes_of
from platform_assets.model.windows import is_cron
from platform_assets.orchestration.definitions import DeepAudit, build_definitions

_AT_LEAST_ONE = (
    "sensor_interval_seconds",
    "tick_budget_seconds",
    "max_records_per_run",
    "max_windows_per_run",
    "max_edges_per_tick",
    "records_per_file",
    "deep_audit_budget_seconds",
)

_MOST = (1 << 31) - 1
_LAST_START = datetime(9000, 1, 1, tzinfo=UTC).timestamp()
"""Latest allowed `start`. With a later start, windows could end after the last supported year."""


class TopicTable(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka topic, and the Delta table that holds each of its committed records exactly once."""

    topic: Annotated[str, Field(description="Kafka topic.")]
    window: Annotated[str, Field(description="Cron schedule of the window boundaries, in UTC. '0 * * * *' is hourly.")]
    start: Annotated[
        str,
        Field(
            description="Earliest window boundary, ISO 8601, in UTC unless it has a UTC offset. Older records go into "
            "the first window. Once windows are sealed, an earlier time is refused."
        ),
    ]
    sensor_interval_seconds: Annotated[
        int, Field(description="Time between two ticks, 1 or more. Dagster's daemon checks every five seconds.")
    ] = 30
    sensor_running: Annotated[bool, Field(description="Run the sensor by default.")] = True
    paused: Annotated[
        bool,
        Field(
            description="Pauses the topic: windows are sealed, loaded and decoded only on request, and `status` says so. "
            "Retention is still watched. If you remove `paused`, loading continues where it stopped."
        ),
    ] = False
    tick_budget_seconds: Annotated[int, Field(description="Maximum duration of a tick, 1 to 50.")] = 20
    max_records_per_run: Annotated[
        int, Field(description="Maximum number of records that a run of several windows loads.")
    ] = 5_000_000
    max_windows_per_run: Annotated[int, Field(description="Maximum number of windows per run.")] = 200
    max_edges_per_tick: Annotated[
        int, Field(description="Maximum number of window boundaries that a tick seals, and of windows that it reports.")
    ] = 200
    records_per_file: Annotated[
        int, Field(description="A window with fewer records than this is written as one file.")
    ] = 200_000
    engine: Annotated[
        EngineName,
        Field(
            description=(
                "Engine that reads Kafka: `connector` is Spark's own; `columnar` is compiled and faster; `auto` "
                "uses `columnar` if it can load the topic."
            )
        ),
    ] = DEFAULT_ENGINE
    decode: Annotated[
        dict[str, Any] | None,
        Field(
            description="Decodes records into typed rows of decoded/<topic>. Without `decode`, there is only the raw "
            "table. `value` and `key` each have a `format` and its options. `dead_letters` sets the shares of a "
            "window's records above which dead letters are a warning (`warn`) or an error (`fail`). `expect` "
            "contains expectations on column values, each of which becomes a check. Raise `revision` to decode all windows "
            "again. `replaces` lists the columns of a table that is to be started over. `repairs` "
            "contains strings or bytes that are decoded in place of the values of single records. `cluster_by` lists the "
            "columns by which merged files are sorted."
        ),
    ] = None
    publish_position: Annotated[
        bool,
        Field(
            description="Publishes the table's position for lag monitors: commits, to the consumer group "
            "`platform-assets.raw/<topic>`, the offsets up to which everything is loaded."
        ),
    ] = True
    target_file_size: Annotated[
        str | int,
        Field(
            description="Size to which upkeep merges small files, 1 MB to 4 GB. A number without a unit is in bytes."
        ),
    ] = "128 MB"
    keep: Annotated[
        str | None,
        Field(
            description="How long rows are kept, such as 400 days or 60 weeks: upkeep removes windows that ended earlier from all "
            "tables of the topic. A new or changed value takes effect a week after upkeep has first seen it. By default, rows are "
            "kept permanently."
        ),
    ] = None
    state: Annotated[
        dict[str, Any] | None,
        Field(
            description="Key and order of the topic's records, for the table changes/<topic>, which has the last record of each "
            "key in each window. `key` lists the columns that identify a row. `order` is `position`, or a column with the "
            "version of a row. `deletes` is `tombstone`, `debezium`, or `none` if no record deletes a key. `keep` is `last` or "
            "`first`. With `history: true`, the table history/<topic> also has the earlier rows. With `deletes_kept`, such as "
            "`7 days`, older deleted keys are removed from state_deleted/<topic>. With `snapshots: whole`, a complete snapshot of "
            "Debezium's connector deletes the keys that it lacks. Needs `decode`, and excludes `keep`."
        ),
    ] = None
    deep_audit: Annotated[str, Field(description="Cron schedule of the deep audit, in UTC.")] = "0 3 * * *"
    deep_audit_running: Annotated[bool, Field(description="Run the deep audit's schedule by default.")] = True
    deep_audit_budget_seconds: Annotated[int, Field(description="Maximum duration of a deep audit.")] = 600
    group: Annotated[str | None, Field(description="Dagster asset group. Default: the folder's name.")] = None
    description: Annotated[str | None, Field(description="Description of the topic, for people.")] = None
    owners: Annotated[tuple[str, ...], Field(description="Owners, as in Dagster: an e-mail address or team:name.")] = ()

    _folder: Path = PrivateAttr(default=Path())
    _left_out: Mapping[str, str] = PrivateAttr(default_factory=dict)

    # Values are checked field by field, because messages name the field's line.

    @field_validator("topic")
    @classmethod
    def _is_a_topic_name(cls, value: str) -> str:
        try:
            return checked_topic(value)
        except ConfigurationError as e:
            raise ValueError(str(e)) from e

    @field_validator("window", "deep_audit")
    @classmethod
    def _is_a_schedule(cls, value: str) -> str:
        if not is_cron(value):
            raise ValueError(
                f"{value!r} is not a cron schedule of five fields, or it never fires: write '0 * * * *' for every hour, or "
                "'* * * * *' for every minute"
            )
        return value

    @field_validator("start")
    @classmethod
    def _is_a_time(cls, value: str) -> str:
        try:
            time = _as_utc(value)
        except ValueError as e:
            raise ValueError(f"{value!r} is not an ISO 8601 time such as 2026-01-31T00:00Z") from e
        if time.timestamp() < 0:
            raise ValueError(f"{value!r} is before 1970")
        if time.timestamp() >= _LAST_START:
            raise ValueError(f"{value!r} is after the year 8999")
        return value

    @field_validator(*_AT_LEAST_ONE)
    @classmethod
    def _is_at_least_one(cls, value: int) -> int:
        if value < 1:
            raise ValueError(f"must be 1 or more, not {value}")
        if value > _MOST:
            raise ValueError(f"must be {_MOST:,} or less")
        return value

    @field_validator("target_file_size")
    @classmethod
    def _is_a_size(cls, value: str | int) -> str | int:
        if bytes_of(str(value)) is None:
            raise ValueError(f"{value!r} is not a size such as 128 MB or 1 GB")
        return value

    @field_validator("keep", mode="before")
    @classmethod
    def _is_a_number_of_days(cls, value: object) -> object:
        if value is not None and (not isinstance(value, str) or keep_of(value) is None):
            raise ValueError(
                f"{value!r} is not a number of days or weeks: write 400 days or 60 weeks, from 1 day to 36500 days. Rows of older "
                "windows are removed, so the unit has to be written out"
            )
        return value

    @field_validator("tick_budget_seconds")
    @classmethod
    def _ends_before_dagsters_own_bound(cls, value: int) -> int:
        if value > 50:
            raise ValueError(f"must be 50 or less, not {value}: Dagster ends a tick after 60 seconds")
        return value

    @field_validator("group")
    @classmethod
    def _is_a_group_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_]+", value):
            raise ValueError(f"{value!r} must consist of letters, digits and underscores only")
        return value

    @field_validator("decode")
    @classmethod
    def _check_decode_block(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            try:
                decode_declaration(value)
            except ConfigurationError as e:
                raise ValueError(str(e)) from e
        return value

    @field_validator("state")
    @classmethod
    def _check_state_block(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        if value is not None:
            decode = info.data.get("decode")
            try:
                state_declaration(value, None if decode is None else decode_declaration(decode))
            except ConfigurationError as e:
                raise ValueError(str(e)) from e
        return value

    @field_validator("owners")
    @classmethod
    def _are_owners(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not is_valid_owner(value):
                raise ValueError(f"{value!r} is neither an e-mail address nor of the form team:name")
        return values

    @model_validator(mode="after")
    def _declares(self) -> TopicTable:
        try:
            self.declaration()
        except ConfigurationError as e:
            raise ValueError(str(e)) from e
        return self

    @classmethod
    def resolve_from_model(cls, context: ResolutionContext, model: BaseModel) -> Self:
        """Resolve like any component, but keep strings unchanged."""
        made: Self = super().resolve_from_model(TextContext.of(context), model)
        return made

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Load like any component, but if a value is refused, give its file and line in the message."""
        file = context.resolution_context.source_position_tree
        lines = None if file is None else file.children.get("attributes")
        if lines is None:
            made = super().load(attributes, context)
        else:
            with enrich_validation_errors_with_source_position(lines, ["attributes"]):
                made = super().load(attributes, context)
        made._folder = context.path
        return made

    def candidates(self) -> list[Candidate]:
        """Return the declared topics and where they are declared. Raises ConfigurationError."""
        return [Candidate(self.declaration(), str(self._folder), found=False)]

    def leave_out(self, topics: Mapping[str, str]) -> None:
        """Define nothing if this topic is among the keys of `topics`, which map topics to the reasons for leaving them
        out."""
        self._left_out = topics

    def declaration(self, together: str | None = None) -> TopicDeclaration:
        """Return the declaration as a plain value. `together` is the name of the topic's group; None if the topic is
        not in a group.

        Raises ConfigurationError.
        """
        decode = None if self.decode is None else decode_declaration(self.decode)
        return TopicDeclaration(
            topic=self.topic,
            schedule=self.window,
            start=_as_utc(self.start),
            sensor_interval=timedelta(seconds=self.sensor_interval_seconds),
            max_records_per_run=self.max_records_per_run,
            max_windows_per_run=self.max_windows_per_run,
            max_edges_per_tick=self.max_edges_per_tick,
            tick_budget=timedelta(seconds=self.tick_budget_seconds),
            records_per_file=self.records_per_file,
            engine=self.engine,
            decode=decode,
            publish_position=self.publish_position,
            paused=self.paused,
            together=together,
            target_file_size=bytes_of(str(self.target_file_size)) or 0,
            keep=None if self.keep is None else keep_of(self.keep),
            state=None if self.state is None else state_declaration(self.state, decode),
        )

    def audit(self) -> DeepAudit:
        """Return the schedule and the maximum duration of the deep audit."""
        return DeepAudit(self.deep_audit, self.deep_audit_running, self.deep_audit_budget_seconds)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the topic's source asset, raw table, checks and sensor."""
        if self.topic in self._left_out:
            return dg.Definitions()
        return self.build_defs_of(self.declaration(), context)

    def build_defs_of(self, declaration: TopicDeclaration, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the definitions for this declaration. They do not include a sensor if the topic is in a group."""
        return build_definitions(
            declaration,
            # A folder may have a topic's name, with characters that Dagster does not allow in groups.
            group=self.group or re.sub(r"[^A-Za-z0-9_]", "_", context.path.name),
            description=self.description,
            owners=self.owners,
            sensor_running=self.sensor_running,
            deep_audit=self.audit(),
        )


def _as_utc(text: str) -> datetime:
    """Parse the time in `text`. If it has no UTC offset, it is in UTC. Raises ValueError."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)
