"""Environments of services: each service receives the variables that it needs, and no other service's secrets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from platform_assets.services import broker, dagster_services, process, registry, spark_server, state
from platform_assets.services.broker import Member
from platform_assets.services.home import Home
from platform_assets.services.inherited import STORE, SYSTEM, WORKERS, inherited
from platform_assets.services.ports import LOOPBACK
from platform_assets.services.process import ProcessRecord, ServiceSpec
from platform_assets_tests.conftest import Registry
from platform_assets_tests.support import services
from platform_assets_tests.support.listening import listening
from testbed.homes import home_at

CLIENTS = {
    "KAFKA_SASL_PASSWORD", "KAFKA_SSL_KEY_PASSWORD", "SCHEMA_REGISTRY_PASSWORD", "SCHEMA_REGISTRY_TOKEN",
}  # fmt: skip
STORES = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}
SECRETS = {*CLIENTS, *STORES, "DAGSTER_POSTGRES_URL", "MY_OWN_SECRET"}


@pytest.fixture(autouse=True)
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a secret into each variable that may contain a secret."""
    for name in SECRETS:
        monkeypatch.setenv(name, f"canary of {name}")


def kafka(home: Home) -> ServiceSpec:
    return broker.spec(home, Member("kafka", 1, (1, 2), "id", ("java",), home.run / "kafka.properties", 1.0))


def schemas(home: Home) -> ServiceSpec:
    program = home.jars / f"registry-{registry.ARCHIVE.version}-{registry.ARCHIVE.sha256[:16]}" / "quarkus-run.jar"
    program.parent.mkdir(parents=True)
    program.touch()
    return registry.registry_spec(home)


def spark(home: Home) -> ServiceSpec:
    return spark_server.spark_spec(home)


def daemon(home: Home) -> ServiceSpec:
    return dagster_services.daemon_spec(home, home.root / "workspace.yaml", {})


@pytest.mark.parametrize(
    ("lake", "spec_of", "needed"),
    [
        ("", kafka, set[str]()),
        ("", schemas, set[str]()),
        ("", spark, CLIENTS),
        ("s3://bucket/lake", spark, CLIENTS | STORES),
        # The code of a project may read any variable.
        ("", daemon, SECRETS),
    ],
)
def test_a_service_is_given_the_secrets_that_it_needs(
    tmp_path: Path, lake: str, spec_of: Callable[[Home], ServiceSpec], needed: set[str]
) -> None:
    home = Home.from_environment({"PLATFORM_HOME": str(tmp_path / "home"), "LAKE_ROOT": lake})
    home.prepare()
    given = process.environment_of(spec_of(home), "mark")
    assert {name for name, value in given.items() if "canary" in value} == needed
    assert given["PATH"]


def test_sparks_workers_trust_the_authorities_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers contact the registry and the token endpoint. OpenSSL uses these variables to verify the certificates of
    both."""
    authorities = {"SSL_CERT_FILE": "/etc/our.pem", "SSL_CERT_DIR": "/etc/our"}
    for name, value in authorities.items():
        monkeypatch.setenv(name, value)
    home = home_at(tmp_path / "home")
    home.prepare()
    assert process.environment_of(spark(home), "mark").items() >= authorities.items()


def test_a_process_has_what_was_chosen_and_nothing_else(tmp_path: Path) -> None:
    home = home_at(tmp_path / "a home")
    home.prepare()
    spec = services.spec_of(home, "thing", services.SERVES)
    record = process.spawn(spec, process.planned(spec))
    try:
        process.wait_ready(spec, record)
        found = psutil.Process(record.pid).environ()
        assert "canary" not in repr(found)
        assert {"PATH", process.MARK_VARIABLE} <= {*found}
    finally:
        process.terminate(record, 5.0)


def names_of(record: ProcessRecord) -> set[str]:
    """Return the names of the variables in a running service's environment."""
    return {*psutil.Process(record.pid).environ()}


def test_names_are_matched_as_a_whole() -> None:
    assert inherited({"XPATH": "1", "PATH": "2", "PATH_TO": "3", "LC_ALL": "4"}, SYSTEM) == {"PATH": "2", "LC_ALL": "4"}
    assert not {*inherited(dict.fromkeys(STORES, "x"), WORKERS)}
    assert {*inherited(dict.fromkeys(STORES, "x"), STORE)} == STORES


@pytest.mark.long
@pytest.mark.broker
def test_the_registry_has_no_variable_of_others_and_listens_on_loopback(
    platform_home: Home, registry: Registry
) -> None:
    record = state.read_records(platform_home)["registry"]
    assert listening(record) == {(LOOPBACK, port) for port in record.ports}
    found = dict.fromkeys(names_of(record) - {process.MARK_VARIABLE}, "")
    assert {*found} == {*inherited(found, SYSTEM)}
