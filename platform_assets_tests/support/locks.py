"""What the lock file says, for files that have to say the same."""

from __future__ import annotations

import re
from typing import Final

from infra.home import CHECKOUT

DOCKERFILE: Final = CHECKOUT / "infra" / "Dockerfile"
REQUIREMENTS: Final = CHECKOUT / "requirements.lock"


def locked_python(name: str) -> str:
    """The version of a Python package in the lock file."""
    match = re.search(rf"^{re.escape(name)}(?:\[[^\]]*\])?==([^\s;\\]+)", REQUIREMENTS.read_text("utf-8"), re.MULTILINE)
    assert match, f"{name} is not in {REQUIREMENTS.name}"
    return match.group(1)
