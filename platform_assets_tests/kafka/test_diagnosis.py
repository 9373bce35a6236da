"""Diagnosis of brokers that do not answer: the error points out a wrong host name, port or protocol."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from platform_assets.kafka.diagnosis import likely_cause
from platform_assets.kafka.settings import ClientSettings

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker

LOGIN = {"sasl.username": "reader", "sasl.password": "canary-51c0"}


@pytest.mark.parametrize(
    ("server", "says"),
    [
        ("nohost.invalid:9092", "this machine cannot resolve the name 'nohost.invalid'"),
        ("127.0.0.1:1", "no service is listening at 127.0.0.1:1: start the broker there, or correct the port"),
        ("127.0.0.1", "'127.0.0.1' does not have the form host:port"),
        ("127.0.0.1:kafka", "does not have the form host:port"),
    ],
)
def test_an_address_that_cannot_be_right_is_named(server: str, says: str) -> None:
    assert says in likely_cause(ClientSettings(server))


def test_each_server_is_looked_at() -> None:
    found = likely_cause(ClientSettings("nohost.invalid:9092, 127.0.0.1:1"))
    assert "nohost.invalid" in found
    assert "127.0.0.1:1" in found


def test_a_port_that_is_no_broker_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert "does not answer like a Kafka broker" in likely_cause(ClientSettings(address))


@pytest.mark.broker
@pytest.mark.parametrize("protocol", ["SSL", "SASL_SSL"])
def test_tls_to_a_plain_port_is_named(broker: Broker, protocol: str) -> None:
    options = {"security.protocol": protocol, **(LOGIN if protocol == "SASL_SSL" else {})}
    found = likely_cause(ClientSettings(broker.bootstrap, options))
    assert f"{broker.bootstrap} does not speak TLS, which KAFKA_SECURITY_PROTOCOL={protocol} requires" in found
    assert LOGIN["sasl.password"] not in found
