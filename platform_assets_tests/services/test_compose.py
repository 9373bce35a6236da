"""Containers: compose.yaml and Dockerfile agree with the versions and settings in the locks and the code."""

from __future__ import annotations

import re
from importlib import metadata
from typing import Any

import pytest
import yaml

from platform_assets.services.broker import _SINGLE_NODE
from platform_assets.services.home import CHECKOUT
from platform_assets.services.ivy import pyspark_jars
from platform_assets.services.jarlock import read_lock
from platform_assets.services.jars import REPLACING, _module_name
from platform_assets.services.spark_server import CONFIGURATION, GUARDED, TOKEN_VARIABLE
from platform_assets_tests.support.locks import DOCKERFILE, locked_python

COMPOSE = CHECKOUT / "infra" / "compose.yaml"


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    """Return the services in the parsed compose file."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    return found


def image_tag(text: str, image: str) -> str:
    """Return the tag of an image in a file."""
    (tag,) = set(re.findall(rf"{re.escape(image)}:([\w.-]+)", text))
    return str(tag)


def test_kafka_image_is_the_locked_broker(services: dict[str, Any]) -> None:
    locked = next(jar.version for jar in read_lock() if jar.name == "kafka_2.13")
    assert services["kafka"]["image"] == f"${{KAFKA_IMAGE:-apache/kafka:{locked}}}"


def test_spark_image_is_the_locked_pyspark() -> None:
    for file in (DOCKERFILE, COMPOSE):
        assert image_tag(file.read_text("utf-8"), "apache/spark") == locked_python("pyspark")


def test_locked_delta_jar_is_of_the_locked_delta_package() -> None:
    locked = {jar.name: jar.version for jar in read_lock() if jar.jar_set == "spark"}
    assert locked["delta-spark_4.0_2.13"] == locked_python("delta-spark")


def test_installed_pyspark_is_the_locked_one() -> None:
    assert metadata.version("pyspark") == locked_python("pyspark")


def test_spark_jars_come_from_the_lock_and_are_verified() -> None:
    text = DOCKERFILE.read_text("utf-8")
    assert "python -m platform_assets.services.jars install --set spark" in text
    assert "--require-hashes -r requirements-product.lock" in text
    replaced = [path.name for path in pyspark_jars().glob("*.jar") if _module_name(path) in REPLACING]
    assert re.findall(r"RUN rm /opt/spark/jars/(\S+)", text) == replaced


def test_every_service_of_the_embedded_set_is_there(services: dict[str, Any]) -> None:
    assert {"kafka", "spark", "webserver", "daemon"} <= set(services)


def test_every_published_port_is_on_loopback(services: dict[str, Any]) -> None:
    published = [port for service in services.values() for port in service.get("ports", [])]
    assert len(published) == 3
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_token_is_required_and_nowhere_written(services: dict[str, Any]) -> None:
    required = "${" + TOKEN_VARIABLE + ":?"
    for name in ("spark", "code", "daemon"):
        values = [str(value) for value in services[name]["environment"].values()]
        assert any(required in value for value in values), name
    assert not any(TOKEN_VARIABLE in str(service.get("command")) for service in services.values())
    for line in COMPOSE.read_text("utf-8").splitlines():
        if not line.startswith("#") and "token=" in line:
            assert "token=${" in line, line


def test_spark_has_the_settings_of_the_embedded_server(services: dict[str, Any]) -> None:
    given = dict(
        part.removeprefix("--conf=").split("=", 1) for part in services["spark"]["command"] if "--conf=" in part
    )
    expected = {**CONFIGURATION, **GUARDED}
    assert {name: given.get(name) for name in expected} == expected


def test_broker_has_the_settings_of_the_embedded_broker(services: dict[str, Any]) -> None:
    given = services["kafka"]["environment"]
    for name, value in _SINGLE_NODE.items():
        if name.startswith(
            ("offsets.topic", "transaction.state", "share.coordinator", "auto.create", "min.insync", "log.retention")
        ):
            assert str(given["KAFKA_" + name.upper().replace(".", "_")]) == value, name


def test_clients_of_spark_reach_it_as_localhost(services: dict[str, Any]) -> None:
    """pyspark sends a token without TLS only if the host has that name."""
    for name in ("code", "daemon"):
        assert services[name]["network_mode"] == "service:spark"
        assert services[name]["environment"]["SPARK_REMOTE"].startswith("sc://localhost:")


def test_the_web_server_has_neither_the_token_nor_the_lake(services: dict[str, Any]) -> None:
    assert services["webserver"]["environment"].keys() == {
        "DAGSTER_HOME", "DAGSTER_DISABLE_TELEMETRY", "PLATFORM_UI_HOSTS",
    }  # fmt: skip
    assert not any(volume.startswith("lake:") for volume in services["webserver"]["volumes"])


def test_the_web_server_is_the_guarded_one(services: dict[str, Any]) -> None:
    assert services["webserver"]["command"][:3] == ["python", "-m", "platform_assets.services.webserver"]


def test_instance_settings_are_the_embedded_ones(services: dict[str, Any]) -> None:
    mounted = [volume for volume in services["daemon"]["volumes"] if volume.endswith("/dagster/dagster.yaml:ro")]
    (source,) = (volume.split(":")[0] for volume in mounted)
    assert (COMPOSE.parent / source).resolve() == CHECKOUT / "platform_assets" / "services" / "dagster.yaml"
