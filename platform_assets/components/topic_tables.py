"""The component behind a list of topics that are declared alike: for each of them what `TopicTable` makes of one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

import dagster as dg
from dagster._utils.pydantic_yaml import enrich_validation_errors_with_source_position
from dagster_shared.yaml_utils.source_position import SourcePositionTree
from pydantic import BaseModel, Field, field_validator

from platform_assets.components.topic_table import TopicTable

_AN_ENTRY: Final = "a topic's name nor a mapping with `topic: <name>` and the fields that differ for it"


@dataclass(frozen=True, slots=True)
class Entry:
    """The attributes of one topic of a list, as a `TopicTable` of its own would have them, and where each of them stands."""

    attributes: Mapping[str, Any]
    tree: SourcePositionTree | None


class TopicTables(dg.Component, dg.Model, dg.Resolvable):
    """Kafka topics that share their settings, each with tables, checks and a sensor of its own."""

    topics: Annotated[
        list[Any],
        Field(
            description="The topics: a name alone, or a mapping with `topic` and the fields that differ for it, which win over those "
            "of `each`."
        ),
    ]
    each: Annotated[
        dict[str, Any], Field(description="The fields of a `TopicTable`, without `topic`, for all of them.")
    ]

    @field_validator("topics")
    @classmethod
    def _are_entries(cls, values: list[Any]) -> list[Any]:
        if not values:
            raise ValueError("there is none: name one, or delete the component")
        for value in values:
            if not isinstance(value, str) and not (isinstance(value, dict) and isinstance(value.get("topic"), str)):
                raise ValueError(f"{value!r} is neither {_AN_ENTRY}")
        return values

    @field_validator("each")
    @classmethod
    def _names_no_topic(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "topic" in value:
            raise ValueError("it has `topic`, which is not the same for all: name it under `topics`")
        return value

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """As any component is loaded, and with file and line in the message where a topic is refused."""
        made = super().load(attributes, context)
        file = context.resolution_context.source_position_tree
        for entry in made.entries(None if file is None else file.children.get("attributes")):
            if entry.tree is None:
                TopicTable(**entry.attributes)
            else:
                with enrich_validation_errors_with_source_position(entry.tree, ["attributes"]):
                    TopicTable(**entry.attributes)
        return made

    def entries(self, tree: SourcePositionTree | None = None) -> Iterator[Entry]:
        """What is declared of each topic; `tree` says where the attributes of this component stand."""
        for number, value in enumerate(self.topics):
            own = {"topic": value} if isinstance(value, str) else value
            yield Entry({**self.each, **own}, None if tree is None else _merged(tree, number))

    def tables(self) -> tuple[TopicTable, ...]:
        """Each topic as a component of its own. Raises ValidationError."""
        return tuple(TopicTable(**entry.attributes) for entry in self.entries())

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The source assets, tables, checks and sensors of all topics."""
        return dg.Definitions.merge(*(table.build_defs(context) for table in self.tables()))


def _merged(tree: SourcePositionTree, number: int) -> SourcePositionTree:
    """Where the fields of one topic stand: in its own entry, or else in `each`, where one that is missing belongs."""
    nowhere = SourcePositionTree(tree.position, {})
    shared = tree.children.get("each", nowhere)
    own = tree.children.get("topics", nowhere).children.get(number, nowhere)
    fields = own.children or {"topic": own}
    return SourcePositionTree(shared.position, {**shared.children, **fields})
