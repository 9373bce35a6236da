"""The component for a derived table: SQL over other tables of the lake, as a Delta table and a Dagster asset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import dagster as dg
from dagster._core.definitions.utils import is_valid_owner
from dagster._utils.pydantic_yaml import enrich_validation_errors_with_source_position
from dagster.components.resolved.context import ResolutionContext
from pydantic import BaseModel, Field, PrivateAttr, field_validator, model_validator

from platform_assets.components.decode_block import expectations_without_types
from platform_assets.components.yaml_texts import TextContext
from platform_assets.errors import ConfigurationError
from platform_assets.model.derived import WINDOW, DerivedDeclaration, DerivedRef, Totals
from platform_assets.orchestration import derived_definitions
from platform_assets.windows.derive import query

_MOST_SECONDS = 24 * 3600


class DerivedTable(dg.Component, dg.Model, dg.Resolvable):
    """A Delta table with the result of a query, kept up to date group by group."""

    table: Annotated[str, Field(description="Name of the table: `delays_by_day` is derived/delays_by_day.")]
    by: Annotated[
        dict[str, str] | str,
        Field(
            description="The columns that divide the rows into groups, each with its SQL expression over the driving table, which is "
            "the first table in FROM; or `window`, for a result per window. Groups are computed again together."
        ),
    ]
    sql: Annotated[
        str,
        Field(
            description="A SELECT in Spark's SQL over tables such as decoded.orders, raw.orders, state.customers and "
            "derived.delays_by_day."
        ),
    ]
    totals: Annotated[
        dict[str, Any] | None,
        Field(
            description="Keep totals of the query's rows over all groups: `count` names a column for the number of rows that are "
            "equal in the other columns, without those in `by`, and `sum` lists columns that are added. A run adds what changed "
            "groups have now, and subtracts what they had before."
        ),
    ] = None
    expect: Annotated[
        list[Any],
        Field(description="Expectations on the table's values, as in `decode:`. Each of them becomes a check."),
    ] = []  # noqa: RUF012  pydantic copies it
    sensor_interval_seconds: Annotated[
        int, Field(description="Time between two looks at the inputs' versions, 1 or more.")
    ] = 30
    sensor_running: Annotated[bool, Field(description="Run the sensor by default.")] = True
    group: Annotated[str | None, Field(description="Dagster asset group. Default: the folder's name.")] = None
    description: Annotated[str | None, Field(description="Description of the table, for people.")] = None
    owners: Annotated[tuple[str, ...], Field(description="Owners, as in Dagster: an e-mail address or team:name.")] = ()

    _folder: Path = PrivateAttr(default=Path())

    @field_validator("table")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        try:
            return DerivedRef(value).short
        except ConfigurationError as e:
            raise ValueError(str(e)) from e

    @field_validator("by")
    @classmethod
    def _are_groups(cls, value: Mapping[str, str] | str) -> Mapping[str, str] | str:
        if isinstance(value, str) and value != WINDOW:
            raise ValueError(f"{value!r} is neither `window` nor a mapping such as {{day: date(time_hour)}}")
        if not value:
            raise ValueError("names no column: write a mapping such as {day: date(time_hour)}, or `window`")
        return value

    @field_validator("totals")
    @classmethod
    def _are_totals(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        if value is not None:
            try:
                _totals(value)
            except ConfigurationError as e:
                raise ValueError(str(e)) from e
        return value

    @field_validator("expect")
    @classmethod
    def _are_expectations(cls, value: list[Any]) -> list[Any]:
        try:
            expectations_without_types(value, derived_definitions.CHECK_NAMES)
        except ConfigurationError as e:
            raise ValueError(str(e)) from e
        return value

    @field_validator("sensor_interval_seconds")
    @classmethod
    def _is_an_interval(cls, value: int) -> int:
        if not 1 <= value <= _MOST_SECONDS:
            raise ValueError(f"must be between 1 and {_MOST_SECONDS:,}, not {value}")
        return value

    @field_validator("group")
    @classmethod
    def _is_a_group_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_]+", value):
            raise ValueError(f"{value!r} must consist of letters, digits and underscores only")
        return value

    @field_validator("owners")
    @classmethod
    def _are_owners(cls, values: tuple[str, ...]) -> tuple[str, ...]:
        for value in values:
            if not is_valid_owner(value):
                raise ValueError(f"{value!r} is neither an e-mail address nor of the form team:name")
        return values

    @model_validator(mode="after")
    def _is_a_query(self) -> DerivedTable:
        try:
            query.parsed(self.declaration())
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
            return super().load(attributes, context)
        with enrich_validation_errors_with_source_position(lines, ["attributes"]):
            return super().load(attributes, context)

    def declaration(self) -> DerivedDeclaration:
        """Return the declaration as a plain value. Raises ConfigurationError."""
        by = {WINDOW: WINDOW} if isinstance(self.by, str) else dict(self.by)
        return DerivedDeclaration(
            DerivedRef(self.table),
            by,
            self.sql,
            expectations_without_types(self.expect, derived_definitions.CHECK_NAMES),
            None if self.totals is None else _totals(self.totals),
        )

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the table's asset, checks and sensor."""
        return derived_definitions.build(
            self.declaration(),
            group=self.group or re.sub(r"[^A-Za-z0-9_]", "_", context.path.name),
            description=self.description,
            owners=self.owners,
            interval_seconds=self.sensor_interval_seconds,
            sensor_running=self.sensor_running,
        )


def _totals(given: Mapping[str, Any]) -> Totals:
    """Return the totals that YAML declares. Raises ConfigurationError."""
    if unknown := sorted(set(given) - {"count", "sum"}):
        raise ConfigurationError(f"totals: unknown field {unknown[0]!r}: write `count` and `sum` only")
    count, sums = given.get("count"), given.get("sum", [])
    if not isinstance(count, str):
        raise ConfigurationError(
            "totals: `count` must be the name of the column for the number of rows, such as flights"
        )
    if not isinstance(sums, list) or not all(isinstance(name, str) for name in sums):
        raise ConfigurationError("totals: `sum` must be a list of columns, such as [minutes_late]")
    return Totals(count, tuple(sums))
