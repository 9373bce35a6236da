"""The lock file of the jars, which contains the hash of each jar."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from platform_assets.services.errors import ConfigurationError, JarMismatchError

JarSet = Literal["broker", "spark", "s3a", "s3proxy", "connect"]
JAR_SETS: Final[tuple[JarSet, ...]] = get_args(JarSet)
INSTALLED_SETS: Final[tuple[JarSet, ...]] = ("broker", "spark")
"""Sets of jars that every platform needs. The set `s3a` is for a lake in an object store, and `s3proxy` is for tests of
such a lake. The set `connect` is for tests with Debezium's PostgreSQL connector."""
LOCK_FILE: Final = Path(__file__).with_name("jars.lock")

_HEADER: Final = (
    "# Every jar of the embedded services. Written by `python -m platform_assets.services.jars lock` from ivy.xml; do not edit.\n"
    "# set  organisation  name  version  sha256\n"
)


@dataclass(frozen=True, slots=True, order=True)
class Jar:
    """One locked jar: the set to which it belongs, its coordinates, and the SHA-256 of its bytes in hex.

    The schema registry is not a set of jars but a single archive, whose set is `registry`. Some jars are used only by
    benchmarks, for comparison; these jars are in no lock, and no service uses them.
    """

    jar_set: JarSet | Literal["registry", "benchmark"]
    organisation: str
    name: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the jar's file."""
        return f"{self.name}-{self.version}.jar"


def read_lock(path: Path = LOCK_FILE) -> tuple[Jar, ...]:
    """Read the lock file.

    Raises:
        ConfigurationError: the file is missing, or a line is invalid.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"the jar lock file cannot be read: {error}") from error
    jars: list[Jar] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) != 5 or fields[0] not in JAR_SETS or len(fields[4]) != 64:
            raise ConfigurationError(
                f"{path}:{number} is not a valid line of the lock file: {line!r}. Run `python -m platform_assets.services.jars lock`."
            )
        jars += [Jar(jar_set, *fields[1:]) for jar_set in JAR_SETS if jar_set == fields[0]]
    return tuple(jars)


def write_lock(jars: Iterable[Jar], path: Path = LOCK_FILE) -> None:
    """Write the lock file in sorted order, so that a change gives a short diff."""
    lines = (f"{jar.jar_set} {jar.organisation} {jar.name} {jar.version} {jar.sha256}\n" for jar in sorted(jars))
    path.write_text(_HEADER + "".join(lines), encoding="utf-8")


def sha256_of(path: Path) -> str:
    """Return the hash of a file.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def verify(jar: Jar, path: Path, label: str | None = None) -> None:
    """Compare a file with the lock.

    Args:
        jar: the jar that the file should be.
        path: the file.
        label: the file's name in errors; its path by default.

    Raises:
        JarMismatchError: the bytes of the file differ from the lock. The error contains the name of the jar.
        OSError: the file cannot be read.
    """
    found = sha256_of(path)
    if found != jar.sha256:
        raise JarMismatchError(label or str(path), jar.sha256, found)
