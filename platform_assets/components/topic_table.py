"""The component behind a few lines of YAML: one topic, its table, its checks and its sensor."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

import dagster as dg
from pydantic import Field, field_validator, model_validator

from platform_assets.components.assets import DeepAudit, build_definitions
from platform_assets.declaration import TopicDeclaration
from platform_assets.errors import ConfigurationError


class TopicTable(dg.Component, dg.Model, dg.Resolvable):
    """A Kafka topic, and the Delta table that holds each of its committed records exactly once."""

    topic: Annotated[str, Field(description="Kafka topic.")]
    window: Annotated[
        str, Field(description="Cron schedule in UTC whose ticks are the edges of the windows: '0 * * * *' is hourly.")
    ]
    start: Annotated[
        str,
        Field(
            description="Where the first edge is looked for, ISO 8601, UTC unless it says otherwise. Older records are "
            "in the first window. Must not change once windows were sealed."
        ),
    ]
    sensor_interval_seconds: Annotated[int, Field(ge=1, description="Least time between two ticks.")] = 30
    sensor_running: Annotated[bool, Field(description="Whether the sensor runs unless somebody stops it.")] = True
    tick_budget_seconds: Annotated[int, Field(ge=1, le=50, description="Longest time that one tick may take.")] = 20
    max_records_per_run: Annotated[int, Field(ge=1, description="Most records that a run of many windows loads.")] = (
        5_000_000
    )
    max_windows_per_run: Annotated[int, Field(ge=1, description="Most windows in one run.")] = 200
    max_edges_per_tick: Annotated[int, Field(ge=1, description="Most edges that one tick seals.")] = 1_000
    records_per_file: Annotated[int, Field(ge=1, description="Windows smaller than this are written as one file.")] = (
        200_000
    )
    deep_audit: Annotated[str, Field(description="Cron schedule in UTC of the deep audit.")] = "0 3 * * *"
    deep_audit_running: Annotated[bool, Field(description="Whether that schedule runs unless somebody stops it.")] = (
        True
    )
    deep_audit_budget_seconds: Annotated[int, Field(ge=1, description="Longest time that one deep audit may take.")] = (
        600
    )
    group: Annotated[str | None, Field(description="Dagster asset group; the domain's folder by default.")] = None
    description: Annotated[str | None, Field(description="What the topic holds, for people.")] = None
    owners: Annotated[tuple[str, ...], Field(description="Owners as Dagster takes them: e-mail or team:name.")] = ()

    @field_validator("start")
    @classmethod
    def _start_is_a_time(cls, value: str) -> str:
        try:
            datetime.fromisoformat(value)
        except ValueError as e:
            raise ValueError(f"{value!r} is not an ISO 8601 time such as 2026-01-31T00:00Z") from e
        return value

    @model_validator(mode="after")
    def _declares(self) -> TopicTable:
        try:
            self.declaration()
        except ConfigurationError as e:
            raise ValueError(str(e)) from e
        return self

    def declaration(self) -> TopicDeclaration:
        """The same as a plain value. Raises ConfigurationError."""
        start = datetime.fromisoformat(self.start)
        return TopicDeclaration(
            topic=self.topic,
            schedule=self.window,
            start=start if start.tzinfo else start.replace(tzinfo=UTC),
            sensor_interval=timedelta(seconds=self.sensor_interval_seconds),
            max_records_per_run=self.max_records_per_run,
            max_windows_per_run=self.max_windows_per_run,
            max_edges_per_tick=self.max_edges_per_tick,
            tick_budget=timedelta(seconds=self.tick_budget_seconds),
            records_per_file=self.records_per_file,
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The topic's source asset, raw table, checks and sensor."""
        return build_definitions(
            self.declaration(),
            group=self.group or context.path.name,
            description=self.description,
            owners=self.owners,
            sensor_running=self.sensor_running,
            deep_audit=DeepAudit(self.deep_audit, self.deep_audit_running, self.deep_audit_budget_seconds),
        )
