"""The guide, executed word for word in an empty folder: the test runs every command, with services that the guide
itself starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml

from platform_assets.services import platform
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.walk import fences, steps, walk
from testbed.homes import home_at, service_environment

GUIDE: Final = CHECKOUT / "docs" / "guide"
WALKED: Final = ("first-topic", "read", "load", "alerts", "backup", "remove")
"""Pages with commands, in the order in which readers follow them."""


def test_every_page_with_commands_is_walked() -> None:
    pages = {*(CHECKOUT / "docs").rglob("*.md"), *CHECKOUT.glob("*.md")}
    commands = {p for p in pages if any(language == "bash" or title for _, language, title, _ in fences(p.read_text()))}
    assert commands == {GUIDE / f"{name}.md" for name in WALKED}
    for page in pages:
        assert {language for _, language, _, _ in fences(page.read_text())}.isdisjoint({"console", "sh", "shell"}), page


def test_pages_are_walked_in_the_order_of_the_navigation() -> None:
    navigation = (CHECKOUT / "mkdocs.yml").read_text()
    places = [navigation.index(f"guide/{name}.md") for name in WALKED]
    assert places == sorted(places)


def test_declarations_in_the_docs_are_ones_that_are_taken() -> None:
    from platform_assets.components import DerivedTable, PublishedTopic, TopicTable, TopicTables
    from platform_assets.components.decode_block import decode_declaration

    found = 0
    for page in (CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")):
        for _, language, _, text in fences(page.read_text()):
            # Other pages show only part of a topic, for example `decode:`.
            if language == "yaml" and "attributes" in (declared := yaml.safe_load(text)):
                given = declared["attributes"]
                others = {"DerivedTable": DerivedTable, "PublishedTopic": PublishedTopic}
                if (other := others.get(declared.get("type", "").rpartition(".")[2])) is not None:
                    other(**given).declaration()
                    continue
                tables = TopicTables(**given).tables() if "topics" in given else (TopicTable(**given),)
                found += len([table.declaration() for table in tables])
            elif language == "yaml" and "decode" in declared and "…" not in text:
                decode_declaration(declared["decode"])
                found += 1
    assert found >= 4


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_the_guide_walked_word_for_word(tmp_path: Path) -> None:
    folder = tmp_path / "empty"
    folder.mkdir()
    home = home_at(folder / "shop" / ".platform")
    environment = {
        **service_environment(),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PLATFORM_JARS": str(home.jars),
    }
    todo = [step for name in WALKED for step in steps(f"{name}.md", (GUIDE / f"{name}.md").read_text())]
    try:
        done = list(walk(todo, folder, environment, timeout=3000))
    finally:
        platform.down(home, report=lambda line: None)
    assert [d.fault for d in done if d.fault] == []
    assert len(done) == len(todo)
