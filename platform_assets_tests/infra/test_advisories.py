"""The table of advisories in SECURITY.md judges the jars that are installed."""

from __future__ import annotations

import re
from pathlib import Path

import pyspark

from infra.home import CHECKOUT
from infra.jarlock import read_lock

PLACES = ("pyspark's own jars", "embedded broker")


def test_the_judged_versions_are_the_installed_ones() -> None:
    text = (CHECKOUT / "SECURITY.md").read_text("utf-8")
    rows = re.findall(rf"^\| ([\w-]+) (\S+) \| ({'|'.join(PLACES)}) \|", text, re.MULTILINE)
    assert {name for name, _, _ in rows} == {"netty", "lz4-java", "log4j-core", "jackson-core"}
    jars = {path.name for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    broker = {jar.file_name for jar in read_lock() if jar.jar_set == "broker"}
    for name, version, place in rows:
        file = f"{'netty-all' if name == 'netty' else name}-{version}.jar"
        assert file in (jars if place == PLACES[0] else broker), f"judge {name} again: {place} have another version"
