"""Versions in the lock files, which tests compare with other files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from platform_assets.services.home import CHECKOUT

DOCKERFILE: Final = CHECKOUT / "infra" / "Dockerfile"
REQUIREMENTS: Final = CHECKOUT / "requirements.lock"
PRODUCT: Final = CHECKOUT / "requirements-product.lock"
DEMO: Final = CHECKOUT / "requirements-demo.lock"

_ENTRY: Final = re.compile(
    r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;\\]+)([^\\\n]*)((?:\\\n\s+--hash=sha256:\w+\s*)*)", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Locked:
    """One package in a lock: its versions and the hashes of its archives. There is a single version, or one version for
    each range of Python versions."""

    versions: frozenset[str]
    hashes: frozenset[str]

    def __le__(self, other: Locked) -> bool:
        return self.versions <= other.versions and self.hashes <= other.hashes


def normal(name: str) -> str:
    """Return a package's name in the normalized form that package indexes use."""
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(lock: Path) -> dict[str, Locked]:
    """Return the packages of a lock, by name."""
    found = dict[str, Locked]()
    for name, version, _, hashes in _ENTRY.findall(lock.read_text("utf-8")):
        before = found.get(normal(name), Locked(frozenset(), frozenset()))
        now = frozenset(re.findall(r"sha256:(\w+)", hashes))
        found[normal(name)] = Locked(before.versions | {version}, before.hashes | now)
    return found


def locked_python(name: str) -> str:
    """Return the version of a Python package in the lock file."""
    (version,) = locked(REQUIREMENTS)[normal(name)].versions
    return version
