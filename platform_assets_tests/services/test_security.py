"""Secured brokers: the files in a home have the right permissions, and clients without credentials are refused."""

from __future__ import annotations

import json
import os
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from cryptography import x509

from platform_assets.kafka.batches.wire import Connection, addresses
from platform_assets.kafka.batches.wire import Security as WireSecurity
from platform_assets.kafka.settings import ClientSettings
from platform_assets.services import brokers, platform, ports, state
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.brokers import Brokers
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.ports import LOOPBACK
from platform_assets.services.security import Secure, Security
from platform_assets_tests.support.listening import listening
from platform_assets_tests.support.shell import Shell
from testbed.homes import home_at, service_environment


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Return a home in which nothing runs."""
    made = home_at(tmp_path / "a home")
    made.prepare()
    return made


def formatted(home: Home) -> None:
    """Create the storage of one broker as Kafka's format tool would create it."""
    (home.root / "kafka").mkdir()
    (home.root / "kafka" / "meta.properties").write_text("version=1\ncluster.id=the-cluster\n")


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}


@pytest.mark.parametrize("kind", ["password", "certificate"])
def test_all_that_is_made_is_its_owners_alone_and_no_password_is_shown(home: Home, kind: Secure) -> None:
    (home.root / "security").mkdir(mode=0o755)
    before = os.umask(0)
    try:
        made = Security.make(home, kind)
        made.broker_properties("kafka")
        (argument,) = made.format_arguments() or ("@none",)
    finally:
        os.umask(before)
    found = modes(made.folder)
    assert found.pop("security") == 0o700
    assert {*found.values()} == {0o600}, found
    assert {"authority.key", "authority.crt", "kafka.pem", "security.json"} <= {*found}
    passwords = json.loads((made.folder / "security.json").read_text())["passwords"].values()
    assert [p for p in passwords if p in repr(made) + argument or len(p) < 32] == []
    assert Security.of_home(home) == made
    made.forget_format_arguments()
    assert not (made.folder / "logins").exists()


def test_two_homes_have_nothing_in_common(tmp_path: Path) -> None:
    made = [Security.make(home_at(tmp_path / name), "password") for name in ("a", "b")]
    assert made[0].client_environment()["KAFKA_SASL_PASSWORD"] != made[1].client_environment()["KAFKA_SASL_PASSWORD"]
    assert made[0].authority.read_bytes() != made[1].authority.read_bytes()


def test_clients_settings_are_those_that_the_platform_takes(tmp_path: Path) -> None:
    for kind in ("password", "certificate"):
        made = Security.make(home_at(tmp_path / kind), kind)
        assert ClientSettings.from_environment(made.client_environment(), "a:1").librdkafka() == {
            "bootstrap.servers": "a:1",
            **made.librdkafka(),
        }


def test_a_broker_gets_a_new_certificate_with_each_start_by_the_same_authority(home: Home) -> None:
    made = Security.make(home, "password")
    authority = made.authority.read_bytes()
    found = []
    for _ in range(2):
        stored = Path(made.broker_properties("kafka")["ssl.keystore.location"])
        found.append(x509.load_pem_x509_certificate(stored.read_bytes()))
    assert found[0].serial_number != found[1].serial_number
    assert made.authority.read_bytes() == authority
    for each in found:
        each.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


@pytest.mark.parametrize("there", [None, "certificate"])
def test_storage_keeps_the_way_that_clients_come_and_each_remedy_that_is_named_helps(
    home: Home, tmp_path: Path, there: Secure | None
) -> None:
    if there is not None:
        Security.make(home, there)
    formatted(home)
    asked = BrokerSettings(secure="password")
    with pytest.raises(ConfigurationError, match=r"--secure=password: .* formatted for") as caught:
        Brokers(home, asked, {}, ["kafka"])
    assert "Omit --secure" in str(caught.value)
    left_out = Brokers(home, BrokerSettings(), {}, ["kafka"]).client_environment()
    assert left_out.get("KAFKA_SECURITY_PROTOCOL") == (None if there is None else "SSL")
    assert "set PLATFORM_HOME to another folder" in str(caught.value)
    another = Brokers(home_at(tmp_path / "another"), asked, {}, ["kafka"])
    assert another.client_environment()["KAFKA_SECURITY_PROTOCOL"] == "SASL_SSL"


def test_what_a_start_left_that_formatted_nothing_secures_nothing(home: Home) -> None:
    first = Brokers(home, BrokerSettings(secure="password"), {}, ["kafka"]).client_environment()
    assert brokers.security_of(home) is None
    assert Brokers(home, BrokerSettings(), {}, ["kafka"]).client_environment() == {}
    # A second call returns the same one: some brokers may have been formatted with it.
    assert Brokers(home, BrokerSettings(secure="password"), {}, ["kafka"]).client_environment() == first


def test_a_damaged_file_is_named_without_what_it_holds(home: Home) -> None:
    Security.make(home, "password")
    file = home.root / "security" / "security.json"
    kept = file.read_text()
    for text in ("canary", '{"kind": "canary", "passwords": {}}', '{"kind": "password"}', "[]"):
        file.write_text(text)
        with pytest.raises(ConfigurationError, match=r"security\.json is damaged .*restore it from a backup"):
            Security.of_home(home)
    file.write_text(kept)
    assert Security.of_home(home) is not None


def test_settings_are_given_for_the_homes_own_brokers_alone(home: Home) -> None:
    made = Security.make(home, "password").client_environment()
    formatted(home)
    # Nothing runs, so no address is known, and no setting is given.
    assert not {*made} & {*platform.environment(home, environ={})}
    foreign = {"KAFKA_BOOTSTRAP_SERVERS": "broker.example:9093"}
    assert not {*made} & {*platform.environment(home, environ=foreign)}


def test_brokers_and_clients_accept_each_others_certificates_and_a_client_without_one_is_refused(home: Home) -> None:
    made = Security.make(home, "certificate")
    properties = made.broker_properties("kafka")
    assert properties["listener.name.clients.ssl.client.auth"] == "required"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.verify_mode = ssl.CERT_REQUIRED
    server.load_cert_chain(properties["ssl.keystore.location"])
    server.load_verify_locations(properties["ssl.truststore.location"])
    client = WireSecurity(ClientSettings.from_environment(made.client_environment(), "a:1")).context
    assert client is not None
    shake_hands(server, client)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(server, ssl.create_default_context(cafile=made.authority))


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Exchange the messages of a TLS handshake in memory. Raises SSLError if a side refuses the other."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname=LOOPBACK),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while sides:
        for side in list(sides):
            try:
                side.do_handshake()
                sides.remove(side)
            except ssl.SSLWantReadError:
                pass


# --- real brokers ---------------------------------------------------------------------------------------------------


passwords = pytest.mark.parametrize(
    "shell", ["password", pytest.param("certificate", marks=pytest.mark.long)], indirect=True
)
"""For tests of which `make test` needs no run with client certificates."""


@pytest.fixture(scope="module")
def shell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Return a shell in which a command has started a secured broker."""
    made = Shell(tmp_path_factory.mktemp("secured"))
    own = made.root / "home"
    made.variables |= {"PLATFORM_JARS": str(home_at(own).jars), "KAFKA_HEAP": "384m"}
    made.variables |= dict.fromkeys(("AWS_SECRET_ACCESS_KEY", "SCHEMA_REGISTRY_PASSWORD", "PGPASSWORD"), "canary")
    try:
        done = made.run("up", "--service", "kafka", f"--secure={request.param}")
        assert done.exit_code == 0, done.output
        yield made
    finally:
        platform.down(home_at(own), report=lambda _: None)


def secrets_of(home: Home) -> list[str]:
    """Return the passwords, and a part from the middle of each private key."""
    folder = home.root / "security"
    keys = [p.read_text().splitlines()[1] for p in folder.iterdir() if "PRIVATE KEY" in p.read_text()]
    return [*keys, *json.loads((folder / "security.json").read_text())["passwords"].values()]


@passwords
@pytest.mark.broker
def test_env_lets_a_shell_in_and_nobody_comes_in_without(shell: Shell) -> None:
    found = json.loads(shell.run("env", "--json").stdout)
    settings = ClientSettings.from_environment(found)
    admin = AdminClient({**settings.librdkafka(), "log_level": 0})
    assert admin.describe_cluster(request_timeout=30).result(60).cluster_id == brokers.cluster_id(
        home_at(shell.root / "home")
    )
    # A real shell's brokers are reached through the same variables.
    assert shell.run("status", **found).exit_code in (0, 1)
    for lacking in ({}, {"security.protocol": "SSL", "ssl.ca.location": settings.options["ssl.ca.location"]}):
        nobody = AdminClient({"bootstrap.servers": settings.bootstrap_servers, "log_level": 0, **lacking})
        with pytest.raises(KafkaException):
            nobody.describe_cluster(request_timeout=3).result(30)
    wire = WireSecurity(settings)
    Connection(addresses(settings.bootstrap_servers)[0], wire, {}, timeout=30, stopped=lambda: False).close()


@passwords
@pytest.mark.broker
def test_secrets_are_in_the_homes_private_folders_alone(shell: Shell) -> None:
    home = home_at(shell.root / "home")
    secrets = secrets_of(home)
    assert len(secrets) >= 4
    private = {home.root / "security", home.run}
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in private} == {0o700}
    for path in home.root.rglob("*"):
        if not path.is_file():
            continue
        held = [secret for secret in secrets if secret.encode() in path.read_bytes()]
        if path.parent in private:
            assert not held or stat.S_IMODE(path.stat().st_mode) == 0o600, path
        else:
            assert held == [], path
    told = shell.run("up", "--service", "kafka").output + shell.run("status").output
    pid = next(s.pid for s in platform.running_state(home, environ={}) if s.service == "kafka")
    told += " ".join(psutil.Process(pid).cmdline()) + repr(psutil.Process(pid).environ())
    assert [secret for secret in secrets if secret in told] == []


@passwords
@pytest.mark.broker
def test_a_broker_is_private_on_disk_in_its_environment_and_on_the_network(shell: Shell) -> None:
    home = home_at(shell.root / "home")
    record = state.read_records(home)["kafka"]
    found = {
        path: stat.S_IMODE(path.stat().st_mode) for path in (home.root / "kafka", *(home.root / "kafka").rglob("*"))
    }
    assert len(found) > 3
    assert [path for path, mode in found.items() if mode & 0o077] == []
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert "canary" not in repr(psutil.Process(record.pid).environ())
    assert listening(record) == {(LOOPBACK, port) for port in record.ports}


@passwords
@pytest.mark.broker
def test_it_comes_back_secured_without_the_option_and_on_the_port_that_is_asked_for(shell: Shell) -> None:
    home = home_at(shell.root / "home")
    assert shell.run("down").exit_code == 0
    before = secrets_of(home)
    (other,) = ports.choose_ports(1, "X", environ={})
    said = shell.run("up", "--service", "kafka", KAFKA_PORT=str(other))
    assert said.exit_code == 0, said.output
    assert [s for s in before if s in secrets_of(home)]
    settings = ClientSettings.from_environment(json.loads(shell.run("env", "--json").stdout))
    assert settings.bootstrap_servers == f"{LOOPBACK}:{other}"
    admin = AdminClient({**settings.librdkafka(), "log_level": 0})
    cluster = admin.describe_cluster(request_timeout=30).result(60)
    assert (cluster.cluster_id, [n.port for n in cluster.nodes]) == (brokers.cluster_id(home), [other])
    refused = shell.run("up", "--service", "kafka", "--secure", "--brokers", "1")
    kind = Security.of_home(home)
    assert kind is not None
    assert (refused.exit_code == 1) is (kind.kind == "certificate"), refused.output
    assert service_environment().get("KAFKA_SASL_PASSWORD") not in before
