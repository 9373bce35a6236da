"""The output of `make sbom`: it is valid CycloneDX, and lists every package that the locks install."""

from __future__ import annotations

import json
from pathlib import Path

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.jarlock import read_lock, sha256_of
from platform_assets_tests.support import sbom
from platform_assets_tests.support.locks import PRODUCT, locked


def test_it_is_valid_and_names_packages_and_jars_with_their_hashes(tmp_path: Path) -> None:
    file = tmp_path / "build" / "sbom.cdx.json"
    assert sbom.main(file) == 0
    text = file.read_text("utf-8")
    assert sbom.sbom() == text
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(text) is None
    assert validator.validate_str(text.replace('"SHA-256"', '"SHA-0"', 1)) is not None
    by_place: dict[str, dict[str, set[str]]] = {}
    for each in json.loads(text)["components"]:
        (place,) = (p["value"] for p in each["properties"] if p["name"] == sbom.PLACE)
        by_place.setdefault(place, {})[each["bom-ref"]] = {found["content"] for found in each["hashes"]}
    assert by_place.keys() == {"python", "broker", "spark", "s3a", "registry", "pyspark"}
    packages = locked(PRODUCT)
    assert by_place["python"] == {
        f"python:{name}@{version}": set(each.hashes) for name, each in packages.items() for version in each.versions
    }
    for jar_set in ("broker", "spark", "s3a"):
        jars = {f"{jar_set}:{jar.name}@{jar.version}": {jar.sha256} for jar in read_lock() if jar.jar_set == jar_set}
        assert by_place[jar_set] == jars
    assert by_place["pyspark"] == {f"pyspark:{path.name}": {sha256_of(path)} for path in pyspark_jars().glob("*.jar")}
