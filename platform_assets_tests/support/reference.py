"""Parts of the docs that are generated from the code: commands, fields of the YAML, columns, checks.

`python -m platform_assets_tests.support.reference` writes these parts between their markers, and a test compares them
with the code.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from click.testing import CliRunner
from deltalake.schema import ArrayType, PrimitiveType

from platform_assets.checks.registry import CHECKS, DEEP_AUDIT
from platform_assets.cli.main import main as command
from platform_assets.components.derived_table import DerivedTable
from platform_assets.components.published_topic import PublishedTopic
from platform_assets.components.topic_table import TopicTable
from platform_assets.kafka import settings
from platform_assets.lake import raw_table
from platform_assets.lake.location import Folder
from platform_assets.ledger.decisions import DECISION_COLUMNS
from platform_assets.ledger.entries import COMMIT_COLUMNS, CUT_COLUMNS
from platform_assets.services import spark_server
from platform_assets.services.home import CHECKOUT

DOCS: Final = CHECKOUT / "docs"
_WIDTH: Final = 100


def commands() -> str:
    """Return the help texts of all commands, in the order of the commands' names."""
    parts = [f"```text\n{_help(())}\n```"]
    for name in sorted(command.list_commands(click.Context(command))):
        parts.append(f"### `{name}`\n\n```text\n{_help((name,))}\n```")
    return "\n\n".join(parts)


def _help(arguments: Sequence[str]) -> str:
    shown = CliRunner().invoke(
        command, [*arguments, "--help"], prog_name="platform-assets", terminal_width=_WIDTH, catch_exceptions=False
    )
    return "\n".join(line.rstrip() for line in shown.output.rstrip().splitlines())


def fields() -> str:
    """Return the fields of a topic's YAML. Required fields come first."""
    return _table(("field", "default", "meaning"), _fields(TopicTable))


def derived_fields() -> str:
    """Return the fields of a derived table's YAML. Required fields come first."""
    return _table(("field", "default", "meaning"), _fields(DerivedTable))


def published_fields() -> str:
    """Return the fields of a published topic's YAML."""
    return _table(("field", "default", "meaning"), _fields(PublishedTopic))


def _fields(component: type[TopicTable | DerivedTable | PublishedTopic]) -> Iterator[Sequence[str]]:
    for name, field in component.model_fields.items():
        default = "must be given" if field.is_required() else _yaml(field.default)
        yield f"`{name}`", default, field.description or ""


def _yaml(value: object) -> str:
    if value is None or value == ():
        return "–"
    if isinstance(value, bool):
        return "`true`" if value else "`false`"
    return f"{value:,}" if isinstance(value, int) else f"`{value}`"


def client_settings() -> str:
    """Return the Kafka client settings that are read from the environment."""
    return "\n".join(f"* `KAFKA_{name.upper().replace('.', '_')}`" for name in sorted(settings._ALLOWED))


def spark_settings() -> str:
    """Return the settings with which users must start their own Spark servers."""
    given = list(spark_server.CONFIGURATION.items())
    needed = given[: [name for name, _ in given].index("spark.ui.enabled")]
    return "\n".join(["```properties", *(f"{name}={value}" for name, value in needed), "```"])


def raw_columns() -> str:
    """Return the columns of a newly created raw table."""
    with tempfile.TemporaryDirectory() as place:
        folder = Folder.at(place) / "raw" / "orders"
        raw_table.create(folder, "orders")
        made = folder.delta().schema().fields
    return _table(("column", "type", "meaning"), ((f"`{f.name}`", _type(f.type), f.metadata["comment"]) for f in made))


def _type(delta: Any) -> str:
    if isinstance(delta, ArrayType):
        inner = ", ".join(f"{f.name} {_type(f.type)}" for f in delta.element_type.fields)  # type: ignore[union-attr]
        return f"array of ({inner})"
    return delta.type if isinstance(delta, PrimitiveType) else str(delta)


def cut_columns() -> str:
    """Return the columns of the ledger of cuts."""
    return _ledger(CUT_COLUMNS)


def commit_columns() -> str:
    """Return the columns of the ledger of commits."""
    return _ledger(COMMIT_COLUMNS)


def decision_columns() -> str:
    """Return the columns of the ledger of decisions."""
    return _ledger(DECISION_COLUMNS)


def _ledger(columns: Mapping[str, tuple[str, str]]) -> str:
    return _table(("column", "type", "meaning"), ((f"`{n}`", t, c) for n, (t, c) in columns.items()))


def checks() -> str:
    """Return the checks, and a description of what each check proves."""
    listed = [*CHECKS.values(), DEEP_AUDIT]
    rows = ((f"`{c.name}`", c.description, "after each load" if c.blocking else "by a schedule") for c in listed)
    return _table(("check", "what it proves", "when"), rows)


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)])


SECTIONS: Final[Mapping[str, tuple[Path, Callable[[], str]]]] = {
    "commands": (DOCS / "commands.md", commands),
    "fields": (DOCS / "configuration.md", fields),
    "derived fields": (DOCS / "configuration.md", derived_fields),
    "published fields": (DOCS / "configuration.md", published_fields),
    "client settings": (DOCS / "configuration.md", client_settings),
    "spark settings": (DOCS / "guide" / "spark.md", spark_settings),
    "raw columns": (DOCS / "tables.md", raw_columns),
    "cut columns": (DOCS / "tables.md", cut_columns),
    "commit columns": (DOCS / "tables.md", commit_columns),
    "decision columns": (DOCS / "tables.md", decision_columns),
    "checks": (DOCS / "checks.md", checks),
}
"""For each section name in the markers: the page that contains the section, and the function that generates it."""


def with_section(page: str, name: str, text: str) -> str:
    """Return `page` with `text` between the markers of section `name`. Raises ValueError unless the page has exactly
    one such section."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    found = re.findall(f"{re.escape(begin)}.*?{re.escape(end)}", page, re.DOTALL)
    if len(found) != 1:
        raise ValueError(f"{len(found)} sections between {begin} and {end}")
    return page.replace(found[0], f"{begin}\n\n{text}\n\n{end}")


def main() -> None:
    """Write every section to its page."""
    for name, (page, make) in SECTIONS.items():
        page.write_text(with_section(page.read_text(), name, make()))


if __name__ == "__main__":
    main()
