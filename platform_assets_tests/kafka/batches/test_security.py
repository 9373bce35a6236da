"""Evidence over TLS and SASL, from a real broker with listeners for both."""

from __future__ import annotations

import logging
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from platform_assets.errors import BrokerRefusedError, BrokerUnreachableError
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.diagnosis import likely_cause
from platform_assets.kafka.evidence.gathering import gather_evidence
from platform_assets.kafka.settings import ClientSettings
from platform_assets.model.offsets import OffsetRange, TopicRanges
from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.platform import UpOptions
from testbed.homes import home_at, service_environment

pytestmark = pytest.mark.broker

PASSWORD = "canary-9f3c"


@dataclass
class Secured:
    """A topic with five records. Clients reach it at `sasl` (SASL_SSL) and at `mutual` (SSL with a client certificate)."""

    topic: str
    topic_id: str
    sasl: str
    mutual: str
    files: Path

    def read(self, bootstrap: str, options: Mapping[str, str]) -> int:
        found = gather_evidence(
            ClientSettings(bootstrap, options),
            self.topic,
            self.topic_id,
            TopicRanges({0: OffsetRange(0, 5)}),
            compacted=False,
            deadline=time.monotonic() + 30,
            patience=2.0,
        )
        assert found.complete
        return found.records

    def login(self, mechanism: str, **changes: str) -> dict[str, str]:
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": "reader",
            "sasl.password": PASSWORD,
            "ssl.ca.location": str(self.files / "broker.crt"),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }


def certificate(folder: Path, name: str, *options: str) -> None:
    """Write a self-signed certificate and its key to separate files, and both to a single file in the PEM form of
    Kafka's stores."""
    key, crt = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-keyout", key, "-out", crt, "-days", "2",
         "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1", *options],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / f"{name}.pem").write_text(key.read_text() + crt.read_text())


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    if shutil.which("openssl") is None:
        pytest.skip("making certificates needs the openssl command")
    files = tmp_path_factory.mktemp("certificates")
    certificate(files, "broker", "-nodes")
    certificate(files, "client", "-passout", f"pass:{PASSWORD}")
    plain, sasl, mutual, controller = free_ports(4)
    module = "org.apache.kafka.common.security"
    listeners = f"CLIENTS://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},MUTUAL://127.0.0.1:{mutual}"
    properties = {
        "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": listeners,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SASL:SASL_SSL,MUTUAL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(files / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(files / "client.crt"),
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.sasl.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_reader="{PASSWORD}";'
        ),
        "listener.name.sasl.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "listener.name.sasl.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    home = home_at(tmp_path_factory.mktemp("secured broker"))
    home.prepare()
    environment = {**service_environment(), "KAFKA_PORT": str(plain)}
    try:
        record = platform.start_service(
            "kafka", home, UpOptions(broker=BrokerSettings(properties=properties)), environ=environment
        )
        admin = AdminClient({"bootstrap.servers": record.address, "log_level": 2})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(
                "reader", ScramCredentialInfo(mechanism, 4096), PASSWORD.encode(), b"salt-and-more-salt"
            )
            admin.alter_user_scram_credentials([change])["reader"].result(30)
        admin.create_topics([NewTopic("secured", 1, 1)])["secured"].result(30)
        producer = Producer({"bootstrap.servers": record.address, "log_level": 2})
        for n in range(5):
            producer.produce("secured", b"%d" % n)
        assert producer.flush(30) == 0
        topic_id = Cluster.connect(ClientSettings(record.address)).topic("secured").topic_id
        yield Secured("secured", topic_id, f"127.0.0.1:{sasl}", f"127.0.0.1:{mutual}", files)
    finally:
        platform.down(home)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "scram-sha-512"])
def test_login_by_each_mechanism(secured: Secured, mechanism: str) -> None:
    assert secured.read(secured.sasl, secured.login(mechanism)) == 5


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
def test_wrong_password_is_refused_and_never_shown(
    secured: Secured, mechanism: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    begun = time.monotonic()
    with pytest.raises(BrokerRefusedError, match="logging in") as refusal:
        secured.read(secured.sasl, secured.login(mechanism, sasl_password=PASSWORD + "!"))
    assert time.monotonic() - begun < 5
    assert PASSWORD not in str(refusal.value) + repr(refusal.value) + caplog.text


def test_unknown_authority_is_refused_at_once(secured: Secured) -> None:
    login = secured.login("PLAIN")
    del login["ssl.ca.location"]
    with pytest.raises(BrokerRefusedError, match="certificate is not trusted"):
        secured.read(secured.sasl, login)


def test_wrong_host_name_is_refused_unless_it_is_not_to_be_checked(secured: Secured) -> None:
    port = secured.sasl.rpartition(":")[2]
    with pytest.raises(BrokerRefusedError, match="certificate is not trusted"):
        secured.read(f"localhost:{port}", secured.login("PLAIN"))
    lax = secured.login("PLAIN", ssl_endpoint_identification_algorithm="none")
    assert secured.read(f"localhost:{port}", lax) == 5


def test_client_certificate_with_a_locked_key(secured: Secured) -> None:
    options = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(secured.files / "broker.crt"),
        "ssl.certificate.location": str(secured.files / "client.crt"),
        "ssl.key.location": str(secured.files / "client.key"),
        "ssl.key.password": PASSWORD,
    }
    assert secured.read(secured.mutual, options) == 5
    without = {k: v for k, v in options.items() if k.startswith("ssl.ca") or k == "security.protocol"}
    with pytest.raises(BrokerRefusedError, match="CERTIFICATE"):
        secured.read(secured.mutual, without)


def test_plain_text_to_a_tls_listener_is_given_up_in_time(secured: Secured) -> None:
    begun = time.monotonic()
    with pytest.raises(BrokerUnreachableError):
        secured.read(secured.sasl, {})
    assert time.monotonic() - begun < 10


def test_the_likely_cause_of_silence_is_told_apart(secured: Secured) -> None:
    login, mutual = (
        secured.login("PLAIN"),
        {"security.protocol": "SSL", "ssl.ca.location": secured.login("PLAIN")["ssl.ca.location"]},
    )
    unknown = {k: v for k, v in login.items() if k != "ssl.ca.location"}
    plain_login = login | {"security.protocol": "SASL_PLAINTEXT"}
    causes = {
        "set KAFKA_SECURITY_PROTOCOL=SSL": likely_cause(ClientSettings(secured.mutual)),
        "set KAFKA_SECURITY_PROTOCOL=SASL_SSL": likely_cause(ClientSettings(secured.sasl, plain_login)),
        "is not trusted (self-signed certificate)": likely_cause(ClientSettings(secured.sasl, unknown)),
        "the login was refused": likely_cause(
            ClientSettings(secured.sasl, secured.login("PLAIN", sasl_password=PASSWORD + "!"))
        ),
        "it may require a client certificate": likely_cause(ClientSettings(secured.mutual, mutual)),
    }
    assert [(said, found) for said, found in causes.items() if said not in found] == []
    assert PASSWORD not in repr(causes)
