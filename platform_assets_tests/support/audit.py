"""`make audit`: compare locked packages with the advisories in `infra/advisories.toml`, and assessments with the locks."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from platform_assets.services.home import CHECKOUT
from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.jarlock import read_lock
from platform_assets_tests.support.locks import REQUIREMENTS, locked

ADVISORIES: Final = CHECKOUT / "infra" / "advisories.toml"
UV: Final = CHECKOUT / "uv-requirements.txt"
PYSPARK: Final = "pyspark"
_JAR: Final = re.compile(r"(.+?)-(\d[\w.-]*?)(?:-(?:linux|osx|windows)-\w+)?\.jar")


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """An installed package or jar. `place` is "python", the name of a set in jars.lock, or "pyspark" for the jars
    inside pyspark."""

    place: str
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} ({self.place})"


def installed() -> list[Component]:
    """Return everything that the locks install, including the jars inside pyspark."""
    found = [
        Component("python", name, version)
        for lock in (REQUIREMENTS, UV)
        for name, each in locked(lock).items()
        for version in each.versions
    ]
    found += [Component(jar.jar_set, jar.name, jar.version) for jar in read_lock()]
    found += [Component(PYSPARK, *version_of(path)) for path in pyspark_jars().glob("*.jar")]
    return sorted(found)


def version_of(jar: Path) -> tuple[str, str]:
    """Split the name of a jar file into the name and the version of the jar. Raises ValueError."""
    parts = _JAR.fullmatch(jar.name)
    if parts is None:
        raise ValueError(f"the version of {jar.name} cannot be told from its name")
    return parts[1], parts[2]


def numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version, for comparisons. A suffix such as `.Final` is ignored."""
    leading = re.match(r"\d+(?:\.\d+)*", version)
    if leading is None:
        raise ValueError(f"{version!r} does not begin with a number")
    return tuple(int(part) for part in leading[0].split("."))


def concerns(advisory: Mapping[str, Any], component: Component) -> bool:
    """Return True if an advisory lists this component with this version."""
    kind = "python" if component.place == "python" else "jar"
    if advisory.get(kind) != component.name:
        return False
    version = numbers(component.version)
    return numbers(advisory.get("since", "0")) <= version < numbers(advisory["before"])


def problems(listed: Mapping[str, Sequence[Mapping[str, Any]]], components: Iterable[Component]) -> Iterator[str]:
    """Yield components that must be assessed, and assessments of components that are no longer installed."""
    judged = {(a["id"], Component(a["place"], a["name"], a["version"])) for a in listed.get("assessment", [])}
    matching = {(a["id"], c) for c in components for a in listed["advisory"] if concerns(a, c)}
    for name, component in sorted(matching - judged):
        yield f"{name} concerns {component}, and nobody has assessed it. Upgrade it, or add an [[assessment]]."
    for name, component in sorted(judged - matching):
        yield f"{name} is assessed for {component}, which is not installed or not concerned. Remove that [[assessment]]."


def main(path: Path = ADVISORIES) -> int:
    """Print the problems. Return 1 if there are any problems."""
    components = installed()
    listed = tomllib.loads(path.read_text("utf-8"))
    found = list(problems(listed, components))
    for each in found:
        print(each, file=sys.stderr)
    print(
        f"{len(components)} packages and jars, {len(listed['advisory'])} advisories that somebody remembered, "
        f"{len(listed.get('assessment', []))} assessments"
    )
    return min(len(found), 1)


if __name__ == "__main__":
    sys.exit(main())
