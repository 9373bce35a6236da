"""The topics that the project declares, for commands that work outside a code location."""

from __future__ import annotations

import os
from pathlib import Path

import dagster as dg

from infra import platform
from platform_assets.components.topic_table import TopicTable
from platform_assets.errors import ConfigurationError
from platform_assets.model.declaration import TopicDeclaration


def declarations(project: Path | None = None) -> dict[str, TopicDeclaration]:
    """Every declared topic by name, from the YAML under `defs/`. Raises ConfigurationError where two declare one.

    What the YAML takes from the environment may stand in the data folder's `platform.env` too.
    """
    for name, value in platform.variables().items():
        os.environ.setdefault(name, value)
    tree = dg.ComponentTree.for_project(project or Path(__file__).parents[1])
    found: dict[str, TopicDeclaration] = {}
    for component in tree.get_all_components(of_type=TopicTable):
        if component.topic in found:
            raise ConfigurationError(f"topic {component.topic!r} is declared twice under defs/: keep one of them")
        found[component.topic] = component.declaration()
    return dict(sorted(found.items()))


def declaration_of(table: str) -> TopicDeclaration:
    """The declaration behind `table`, which is a raw table's name or its topic's alone.

    Raises ConfigurationError, naming the tables that there are.
    """
    known = declarations()
    found = next((d for d in known.values() if table in (d.raw_table.name, d.topic)), None)
    if found is None:
        names = ", ".join(d.raw_table.name for d in known.values())
        raise ConfigurationError(f"{table!r} is no table of this project; there are: {names or 'none'}")
    return found
