"""The packages that optional parts of the installed release require."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import requires
from typing import Final, Literal

Extra = Literal["postgres", "kubernetes", "demo"]

_DISTRIBUTION: Final = "platform-assets"
_OF_EXTRA: Final = re.compile(r"""\s*extra\s*==\s*["'](\w+)["']\s*""")


def requirements(extra: Extra) -> list[str]:
    """Return the packages that this release requires for `extra`, with their versions, in pip's syntax."""
    pairs = (each.partition(";") for each in requires(_DISTRIBUTION) or ())
    return [name.strip() for name, _, marker in pairs if (of := _OF_EXTRA.fullmatch(marker)) and of[1] == extra]


def install_command(extra: Extra) -> str:
    """Return the command that installs the packages of an extra. The command lists the packages by their own names,
    because an index can contain a different package with the name of this package."""
    return f"pip install {shlex.join(requirements(extra))}"
