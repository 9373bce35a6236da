"""What the installed release needs for a part that not everybody uses."""

from __future__ import annotations

import re
import shlex
from importlib.metadata import requires
from typing import Final, Literal

Extra = Literal["postgres", "kubernetes", "demo"]

_DISTRIBUTION: Final = "platform-assets"
_OF_EXTRA: Final = re.compile(r"""\s*extra\s*==\s*["'](\w+)["']\s*""")


def requirements(extra: Extra) -> list[str]:
    """The packages that this release names for `extra`, with their versions, as pip takes them."""
    pairs = (each.partition(";") for each in requires(_DISTRIBUTION) or ())
    return [name.strip() for name, _, marker in pairs if (of := _OF_EXTRA.fullmatch(marker)) and of[1] == extra]


def install_command(extra: Extra) -> str:
    """What installs them: by their own names, since an index may have anybody's package under the name of this one."""
    return f"pip install {shlex.join(requirements(extra))}"
