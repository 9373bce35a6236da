"""Secrets that a variable holds, or a file that a second variable names: `NAME` or `NAME_FILE`, as for mounted secrets.

A file is read each time, so a secret that is replaced there is taken by the next run, tick or task.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from platform_assets.errors import ConfigurationError

SUFFIX: Final = "_FILE"
MOST_BYTES: Final = 64 << 10


def secret(environ: Mapping[str, str], name: str) -> str | None:
    """The secret `name`; None where it is not set.

    Raises:
        ConfigurationError: both variables are set, or the file cannot be used. It shows neither secret nor path, since somebody may
            have put the secret where its path belongs.
    """
    value, path = environ.get(name) or None, environ.get(name + SUFFIX) or None
    if path is None:
        return value
    if value is not None:
        raise ConfigurationError(f"{name} and {name}{SUFFIX} are both set. Unset one of them.")
    try:
        with Path(path).open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or type(error).__name__
        raise _unusable(name, f"cannot be read ({cause})") from None
    if len(content) > MOST_BYTES:
        raise _unusable(name, f"has more than {MOST_BYTES:,} bytes")
    try:
        found = content.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _unusable(name, "is not UTF-8") from None
    if not found:
        raise _unusable(name, "is empty")
    return found


def _unusable(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"The file that {name}{SUFFIX} names {problem}. Give the path of a file that this user can read and that holds the secret "
        f"alone, or set {name} instead."
    )
