"""The component for a list of topics with common settings. Each topic gets what `TopicTable` defines for a single
topic."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Self

import dagster as dg
from dagster._utils.pydantic_yaml import enrich_validation_errors_with_source_position
from dagster.components.resolved.context import ResolutionContext
from dagster_shared.yaml_utils.source_position import SourcePositionTree
from pydantic import BaseModel, Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from platform_assets.components import found_topics, new_topics
from platform_assets.components.left_out import Candidate
from platform_assets.components.topic_table import TopicTable
from platform_assets.components.yaml_texts import TextContext
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration
from platform_assets.orchestration import definitions
from platform_assets.orchestration.tick import Group

_SHARED: Final = (
    "sensor_interval_seconds",
    "sensor_running",
    "tick_budget_seconds",
    "max_records_per_run",
    "max_windows_per_run",
)
"""Fields of a `TopicTable` that apply to the shared sensor and its runs, not to a single topic."""
_AN_ENTRY: Final = "a topic's name nor a mapping with `topic: <name>` and the fields that differ for it"


@dataclass(frozen=True, slots=True)
class Entry:
    """The attributes of one topic in a list, in the form of a separate `TopicTable`, and the attributes' positions in
    the file."""

    attributes: Mapping[str, Any]
    tree: SourcePositionTree | None
    found: bool = False
    """True if a pattern found the topic."""


class TopicTables(dg.Component, dg.Model, dg.Resolvable):
    """Kafka topics that share their settings, each with its own tables, checks and sensor."""

    pattern: Annotated[
        str | None,
        Field(
            description="RE2 expression that selects further topics by their whole name. Topics that `platform-assets "
            "find-topics` or a sensor found on the brokers are declared in the file `found-topics.txt` next to this "
            "one. Names that begin with two underscores are Kafka's own and are left out."
        ),
    ] = None
    exclude: Annotated[
        list[str],
        Field(description="RE2 expressions; topics that match one of them are left out of what `pattern` finds."),
    ] = []  # noqa: RUF012
    topics: Annotated[
        list[Any],
        Field(
            description="The topics. Each is a name, or a mapping with `topic` and the fields that differ for that topic, which "
            "override those of `each`. Not needed with a `pattern`."
        ),
    ] = []  # noqa: RUF012  pydantic copies it
    each: Annotated[
        dict[str, Any], Field(description="Fields of a `TopicTable`, except `topic`, that apply to all topics.")
    ]

    together: Annotated[
        str | None,
        Field(
            description="Name of a group whose topics share one sensor and runs, for many topics with small "
            "windows. Without it, each topic has its own sensor and runs."
        ),
    ] = None

    @field_validator("together")
    @classmethod
    def _is_a_name(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"[A-Za-z0-9_]{1,60}", value):
            raise ValueError(f"{value!r} must consist of 1 to 60 letters, digits and underscores")
        return value

    @model_validator(mode="after")
    def _share_what_is_the_sensors(self) -> TopicTables:
        own = self.topics if self.together is not None else []
        for entry in own:
            for name in _SHARED if isinstance(entry, dict) else ():
                if name in entry:
                    raise ValueError(
                        f"topic {entry['topic']!r} sets {name!r}, but the topics of a group (`together`) "
                        "share this field: set it under `each`"
                    )
        return self

    _found: tuple[str, ...] = PrivateAttr(default=())
    _folder: Path = PrivateAttr(default=Path())
    _left_out: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @field_validator("pattern", "exclude")
    @classmethod
    def _are_expressions(cls, value: str | list[str] | None) -> str | list[str] | None:
        for expression in [value] if isinstance(value, str) else value or ():
            try:
                found_topics.check(expression)
            except ConfigurationError as e:
                raise ValueError(str(e)) from e
        return value

    @model_validator(mode="after")
    def _name_topics(self) -> TopicTables:
        if not self.topics and self.pattern is None:
            raise ValueError("it lists no topics: add `topics: [orders, payments]`, or a `pattern`")
        if self.exclude and self.pattern is None:
            raise ValueError("exclude: without a `pattern` there is nothing to leave out: delete it")
        return self

    @field_validator("topics")
    @classmethod
    def _are_entries(cls, values: list[Any], info: ValidationInfo) -> list[Any]:
        if not values and info.data.get("pattern") is None:
            raise ValueError("it lists no topic: add one, give a `pattern`, or delete the component")
        for value in values:
            if not isinstance(value, str) and not (isinstance(value, dict) and isinstance(value.get("topic"), str)):
                raise ValueError(f"{value!r} is neither {_AN_ENTRY}")
        return values

    @field_validator("each")
    @classmethod
    def _names_no_topic(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "topic" in value:
            raise ValueError("it sets `topic`, which differs for each topic: put it under `topics`")
        return value

    @classmethod
    def resolve_from_model(cls, context: ResolutionContext, model: BaseModel) -> Self:
        """Resolve like any component, but keep strings unchanged."""
        made: Self = super().resolve_from_model(TextContext.of(context), model)
        return made

    @classmethod
    def load(cls, attributes: BaseModel | None, context: dg.ComponentLoadContext) -> Self:
        """Load like any component, but if a topic is refused, give its file and line in the message."""
        made = super().load(attributes, context).with_found(context.path)
        file = context.resolution_context.source_position_tree
        for entry in made.entries(None if file is None else file.children.get("attributes")):
            if entry.tree is None:
                TopicTable(**entry.attributes)
            else:
                with enrich_validation_errors_with_source_position(entry.tree, ["attributes"]):
                    TopicTable(**entry.attributes)
        return made

    def entries(self, tree: SourcePositionTree | None = None) -> Iterator[Entry]:
        """Yield an entry for each topic. `tree` has the positions of this component's attributes in the file."""
        for number, value in enumerate(self.topics):
            own = {"topic": value} if isinstance(value, str) else value
            yield Entry({**self.each, **own}, None if tree is None else _merged(tree, number))
        for name in self.found:
            yield Entry({**self.each, "topic": name}, None if tree is None else _merged(tree, None), found=True)

    def with_found(self, folder: Path) -> Self:
        """Add the topics that the pattern found to this list, and return the list. These topics are read from the file
        in `folder`.

        Raises ConfigurationError.
        """
        self._folder = folder
        if self.pattern is not None:
            self._found = found_topics.read(folder)
        return self

    @property
    def folder(self) -> Path:
        """Folder of the file that declares this list."""
        return self._folder

    @property
    def found(self) -> tuple[str, ...]:
        """Topics that the pattern found and that `topics` does not list."""
        return self.wanted(self._found)

    def wanted(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of `names` that the pattern selects and `topics` does not list."""
        if self.pattern is None:
            return ()
        named = {value if isinstance(value, str) else value["topic"] for value in self.topics}
        return tuple(n for n in found_topics.matching(names, self.pattern, self.exclude) if n not in named)

    def tables(self) -> tuple[TopicTable, ...]:
        """Return each topic as a separate component. Raises ValidationError."""
        return tuple(TopicTable(**entry.attributes) for entry in self.entries())

    def declarations(self) -> dict[str, TopicDeclaration]:
        """Map the name of each topic to its declaration. Raises ConfigurationError and ValidationError."""
        return {table.topic: table.declaration(self.together) for table in self.tables()}

    def candidates(self) -> list[Candidate]:
        """Return a candidate for each topic: its declaration, the place of the declaration, and True if the pattern
        found the topic."""
        found = set(self.found)
        return [Candidate(d, str(self.folder), topic in found) for topic, d in self.declarations().items()]

    def leave_out(self, topics: Mapping[str, str]) -> None:
        """Define all topics except the keys of `topics`, which map topics to the reasons for leaving them out."""
        self._left_out = topics

    def _sensor_of(self, pattern: str, folder: Path) -> dg.Definitions:
        return new_topics.build_definitions(pattern, self.wanted, folder, self._left_out)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Build the source assets, tables, checks and sensors of all topics. If the topics share a sensor, build that
        sensor instead of separate ones."""
        tables = {table.topic: table for table in self.tables() if table.topic not in self._left_out}
        declared = {topic: table.declaration(self.together) for topic, table in tables.items()}
        made = dg.Definitions.merge(*(t.build_defs_of(declared[topic], context) for topic, t in tables.items()))
        if self.pattern is not None:
            made = dg.Definitions.merge(made, self._sensor_of(self.pattern, context.path))
        if self.together is None or not tables:
            return made
        audits = {topic: table.audit() for topic, table in tables.items()}
        running = next(iter(tables.values())).sensor_running
        group = Group(self.together, tuple(declared.values()))
        return dg.Definitions.merge(made, definitions.build_group(group, running, list(made.jobs or ()), audits))


def _merged(tree: SourcePositionTree, number: int | None) -> SourcePositionTree:
    """Return the positions of one topic's fields. If a field is not in the topic's own entry, its position is in
    `each`, where missing fields belong.

    If there is no `number`, the pattern found the topic.
    """
    nowhere = SourcePositionTree(tree.position, {})
    shared = tree.children.get("each", nowhere)
    own = tree.children.get("pattern", nowhere)
    if number is not None:
        own = tree.children.get("topics", nowhere).children.get(number, nowhere)
    fields = own.children or {"topic": own}
    return SourcePositionTree(shared.position, {**shared.children, **fields})
