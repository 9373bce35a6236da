"""Install hints in messages match the release's requirements, and name only packages that strangers cannot register."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from platform_assets.services.extras import Extra, install_command, requirements

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize("extra", ["postgres", "kubernetes", "demo"])
def test_the_command_names_the_packages_of_the_release(extra: Extra) -> None:
    declared = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    assert requirements(extra) == declared
    assert install_command(extra).startswith("pip install ")
    assert "platform-assets" not in install_command(extra)


def test_no_page_or_message_has_an_index_asked_for_the_platform_itself() -> None:
    pages = [CHECKOUT / "README.md", *(CHECKOUT / "docs").rglob("*.md")]
    code = list((CHECKOUT / "platform_assets").rglob("*.py"))
    asked = re.compile(r"pip install[^\n`]*\bplatform-assets")
    assert [str(path) for path in (*pages, *code) if asked.search(path.read_text())] == []
