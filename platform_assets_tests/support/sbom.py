"""`make sbom`: write the product's components as CycloneDX JSON. The components are Python packages and jars, with
their hashes."""

from __future__ import annotations

import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from platform_assets.services.home import CHECKOUT
from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.jarlock import read_lock, sha256_of
from platform_assets.services.registry import ARCHIVE
from platform_assets_tests.support.audit import version_of
from platform_assets_tests.support.locks import PRODUCT, locked

PLACE: Final = "platform-assets:place"
"""Property that shows where a component comes from: "python", the name of a set in jars.lock, "registry", or "pyspark"
for the jars inside pyspark."""
WRITTEN_TO: Final = CHECKOUT / "build" / "sbom.cdx.json"
_TESTS_ALONE: Final = frozenset({"s3proxy", "connect"})


def components() -> Iterator[Component]:
    """Return all components of an installation of the product.

    A Python package has the hashes of all archives that the lock lists for the package.
    """
    for name, each in locked(PRODUCT).items():
        for version in each.versions:
            yield _component(name, version, "python", each.hashes, PackageURL("pypi", name=name, version=version))
    for jar in (*read_lock(), ARCHIVE):
        if jar.jar_set not in _TESTS_ALONE:
            url = PackageURL("maven", jar.organisation, jar.name, jar.version)
            yield _component(jar.name, jar.version, jar.jar_set, {jar.sha256}, url)
    for path in pyspark_jars().glob("*.jar"):
        name, version = version_of(path)
        organisation = _organisation(path, name)
        found = PackageURL("maven", organisation, name, version) if organisation else None
        yield _component(name, version, "pyspark", {sha256_of(path)}, found, path.name)


def sbom() -> str:
    """Return the CycloneDX document. Its content depends only on the locks."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    bom = Bom(components=components())
    bom.metadata.component = Component(
        name=project["name"], version=project["version"], type=ComponentType.APPLICATION, bom_ref=project["name"]
    )
    # The product needs each of them; dependencies among them are not listed.
    bom.register_dependency(bom.metadata.component, bom.components)
    bom.metadata.timestamp = None  # type: ignore[assignment]
    bom.serial_number = uuid5(NAMESPACE_URL, " ".join(sorted(f"{c.bom_ref}" for c in bom.components)))
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _component(
    name: str, version: str, place: str, hashes: set[str] | frozenset[str], url: PackageURL | None, file: str = ""
) -> Component:
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{place}:{file or f'{name}@{version}'}",
        purl=url,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in sorted(hashes)],
        properties=[Property(name=PLACE, value=place)],
    )


def _organisation(path: Path, name: str) -> str | None:
    """Return the group that the jar's own Maven files specify, or None if they do not specify a group for this name."""
    with zipfile.ZipFile(path) as archive:
        groups = [
            parts[2]
            for entry in archive.namelist()
            if len(parts := entry.split("/")) == 5 and entry.startswith("META-INF/maven/") and parts[3] == name
        ]
    return groups[0] if groups else None


def main(path: Path = WRITTEN_TO) -> int:
    """Write the document and print its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sbom(), encoding="utf-8")
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
