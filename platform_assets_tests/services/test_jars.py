"""Jars: only locked jars are used."""

from __future__ import annotations

import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest

from platform_assets.services import jars, truststore
from platform_assets.services.errors import ConfigurationError, JarMismatchError, JarsUnavailableError
from platform_assets.services.home import Home
from platform_assets.services.ivy import WANTED_FILE, pyspark_jars
from platform_assets.services.jarlock import Jar, read_lock, sha256_of, write_lock
from platform_assets.services.java import find_java
from testbed.homes import home_at


@pytest.fixture
def shop(tmp_path: Path) -> tuple[Home, Path, Jar]:
    """Return a home that has one locked jar, the path of the lock file, and the jar's entry in the lock file."""
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "a home")})
    path = home.jars / "spark" / "thing-1.0.jar"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"the jar")
    jar = Jar("spark", "org.example", "thing", "1.0", sha256_of(path))
    write_lock([jar], tmp_path / "jars.lock")
    return home, tmp_path / "jars.lock", jar


def test_present_and_equal_needs_no_java_and_no_network(shop: tuple[Home, Path, Jar], tmp_path: Path) -> None:
    home, lock, _ = shop
    said: list[str] = []
    jars.install(home, environ={"PATH": str(tmp_path)}, lock_file=lock, report=said.append)
    assert said == ["jars: 1 present and verified"]


def test_changed_jar_is_refused_by_name(shop: tuple[Home, Path, Jar]) -> None:
    home, lock, jar = shop
    path = home.jars / "spark" / jar.file_name
    path.write_bytes(b"another jar")
    with pytest.raises(JarMismatchError) as caught:
        jars.install(home, lock_file=lock, report=lambda _: None)
    assert str(path) in str(caught.value)
    assert jar.sha256 in str(caught.value)


def test_fetched_jar_that_differs_is_not_placed(tmp_path: Path, shop: tuple[Home, Path, Jar]) -> None:
    home, _, jar = shop
    target = home.jars / "spark" / jar.file_name
    target.unlink()
    fetched = tmp_path / "out" / jar.organisation / jar.name / "1.0.jar"
    fetched.parent.mkdir(parents=True)
    fetched.write_bytes(b"not the jar")
    with pytest.raises(JarMismatchError, match=r"thing-1\.0\.jar"):
        jars.place(jar, tmp_path / "out", home.jars)
    assert not target.exists()


def test_failed_fetch_names_its_log_and_leaves_no_half(tmp_path: Path, shop: tuple[Home, Path, Jar]) -> None:
    home, lock, jar = shop
    (home.jars / "spark" / jar.file_name).unlink()
    nowhere = tmp_path / "settings.xml"
    nowhere.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">'
        f'<artifact pattern="{tmp_path}/none/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    environ = {"PLATFORM_IVY_SETTINGS": str(nowhere)}
    with pytest.raises(JarsUnavailableError, match="not found") as caught:
        jars.install(home, environ=environ, lock_file=lock, report=lambda _: None)
    assert "org.example#thing" in caught.value.reason
    assert Path(caught.value.log_path).is_file()
    assert sorted(path.name for path in home.jars.iterdir()) == [".lock", "ivy-0.log", "spark"]
    assert list((home.jars / "spark").iterdir()) == []


def test_fetch_from_a_mirror_verifies_and_reports(tmp_path: Path, shop: tuple[Home, Path, Jar]) -> None:
    home, lock, jar = shop
    present = home.jars / "spark" / jar.file_name
    mirror = tmp_path / "a mirror" / "thing.jar"
    mirror.parent.mkdir()
    present.rename(mirror)
    settings = tmp_path / "settings.xml"
    settings.write_text(
        '<ivysettings><settings defaultResolver="here"/><resolvers><filesystem name="here">'
        f'<artifact pattern="{mirror.parent}/[artifact].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    said: list[str] = []
    jars.install(home, environ={"PLATFORM_IVY_SETTINGS": str(settings)}, lock_file=lock, report=said.append)
    assert present.read_bytes() == b"the jar"
    assert said == ["jars: fetching 1 (0 already present)", "jars: 1 of 1 fetched", "jars: 1 verified"]


def test_damaged_lock_names_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "jars.lock").write_text("# a comment\nspark org.example thing 1.0 beef\n")
    with pytest.raises(ConfigurationError, match=r"jars\.lock:2"):
        read_lock(tmp_path / "jars.lock")


def test_lock_has_every_direct_dependency_at_its_version() -> None:
    locked = {(jar.jar_set, jar.organisation, jar.name, jar.version) for jar in read_lock()}
    for wanted in ElementTree.parse(WANTED_FILE).getroot().iter("dependency"):
        jar_set = wanted.attrib["conf"].partition("->")[0]
        assert (jar_set, wanted.attrib["org"], wanted.attrib["name"], wanted.attrib["rev"]) in locked


def test_no_jar_of_the_spark_set_is_one_that_pyspark_brings_but_the_replacements() -> None:
    brought = {jars._module_name(path) for path in pyspark_jars().glob("*.jar")}
    assert brought & {jar.name for jar in read_lock() if jar.jar_set == "spark"} == jars.REPLACING


def test_kafka_clients_of_spark_is_past_the_vulnerable_release() -> None:
    version = next(jar.version for jar in read_lock() if jar.jar_set == "spark" and jar.name == "kafka-clients")
    assert (3, 9, 1) <= tuple(int(part) for part in version.split(".")) < (3, 10, 0)


def test_class_path_lists_locked_jars_alone(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    listed = jars.class_path(home, "broker")
    assert home.jars / "broker" / "kafka_2.13-4.2.0.jar" in listed
    assert all(path.parent == home.jars / "broker" for path in listed)


def test_trust_store_is_one_that_java_reads(tmp_path: Path) -> None:
    options = truststore.trust_options(tmp_path)
    if not options:
        pytest.skip("Python names no certificate bundle on this machine")
    keytool = find_java({"PATH": ""}).executable.with_name("keytool")
    listed = subprocess.run(
        [keytool, "-list", "-keystore", tmp_path / "trust.jks", "-storepass", truststore.PASSWORD],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "ca-0" in listed.stdout
    assert "trustedCertEntry" in listed.stdout
