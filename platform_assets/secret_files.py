"""Secrets from the environment: variable `NAME` has the value, or variable `NAME_FILE` has the path of a file, such as
a mounted secret.

A file is read each time, so the next run, tick or task uses a secret that was replaced in the file.
"""

from __future__ import annotations

import base64
import os
import stat
import unicodedata
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Final

from platform_assets.errors import ConfigurationError

SUFFIX: Final = "_FILE"
MOST_BYTES: Final = 64 << 10
STORE: Final = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
"""Secrets of an object store. The store's clients (delta-rs, Spark, obstore) read the environment themselves."""


def secret(environ: Mapping[str, str], name: str) -> str | None:
    """The secret `name`; None if it is not set.

    Raises:
        ConfigurationError: both variables are set, the file cannot be used, or the secret has control characters. The
            message shows neither the secret nor the path, because somebody may have set the secret in place of its
            path.
    """
    value, path = environ.get(name) or None, environ.get(name + SUFFIX) or None
    if path is None:
        if value is not None and has_controls(value):
            raise _with_controls(name)
        return value
    if value is not None:
        raise ConfigurationError(f"{name} and {name}{SUFFIX} are both set. Unset one of them.")
    try:
        content = _content(path)
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or type(error).__name__
        raise _unusable(name, f"cannot be read ({cause})") from None
    if content is None:
        raise _unusable(name, "is not a regular file")
    if len(content) > MOST_BYTES:
        raise _unusable(name, f"has more than {MOST_BYTES:,} bytes")
    try:
        found = content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise _unusable(name, "is not UTF-8") from None
    if not found:
        raise _unusable(name, "is empty")
    if has_controls(found):
        raise _unusable(name, "holds a control character, such as a second line break")
    return found


def take(environ: MutableMapping[str, str], names: Iterable[str]) -> None:
    """Set the variables in `names` whose secrets are in files, for clients that read the environment themselves.

    Call it when a process starts, before the process has threads. The files are read once. Raises ConfigurationError as
    `secret` does.
    """
    for name in names:
        if environ.get(name + SUFFIX) and (found := secret(environ, name)) is not None:
            environ[name] = found
            # A child process gets the secret itself, and both would be refused.
            del environ[name + SUFFIX]


def _content(path: str) -> bytes | None:
    """Return the beginning of a file, one byte more than is allowed; None if it is not a regular file. Never wait for a
    writer."""
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            return None
        with open(opened, "rb", closefd=False) as stream:
            return stream.read(MOST_BYTES + 1)
    finally:
        os.close(opened)


def has_controls(text: str) -> bool:
    """Return whether `text` has control characters, or bytes that are not UTF-8."""
    return any(unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") for each in text)


def basic_login(user: str, password: str) -> dict[str, str]:
    """Return the header for an HTTP Basic login, in UTF-8 (RFC 7617)."""
    return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}


def _with_controls(name: str) -> ConfigurationError:
    return ConfigurationError(
        f"{name} holds a control character, such as a line end, or bytes that are not UTF-8. Set {name} to only the secret."
    )


def _unusable(name: str, problem: str) -> ConfigurationError:
    return ConfigurationError(
        f"The file set in {name}{SUFFIX} {problem}. Give the path of a file that this user can read and that "
        f"contains only the secret, or set {name} instead."
    )
