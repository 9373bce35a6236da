"""Logins without encryption: they stay on this machine, whatever address a broker or a name server returns."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.kafka.batches.wire import Connection, Security
from platform_assets.kafka.settings import ClientSettings

GIVEN = {
    "KAFKA_BOOTSTRAP_SERVERS": "localhost:1",
    "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
    "KAFKA_SASL_USERNAME": "reader",
    "KAFKA_SASL_PASSWORD": "canary",
}


class _Elsewhere(socket.socket):
    """A connection whose peer appears to be on another machine."""

    def getpeername(self) -> Any:
        return ("192.0.2.7", super().getpeername()[1])


def sent(**changed: str) -> bytes:
    """Connect to a broker that has not answered yet; return the first bytes that the client sends."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        security = Security(ClientSettings.from_environment({**GIVEN, **changed}))
        with pytest.raises(TimeoutError):
            Connection(("localhost", port), security, {}, timeout=0.3, stopped=lambda: False)
        accepted, _ = listening.accept()
        with accepted:
            return accepted.recv(1 << 10)


@pytest.fixture
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every connection appear to be a connection to another machine."""
    connected = socket.create_connection

    def elsewhere(address: Any, timeout: float) -> socket.socket:
        near = connected(address, timeout)
        there = _Elsewhere(near.family, near.type, fileno=near.detach())
        there.settimeout(timeout)
        return there

    monkeypatch.setattr(socket, "create_connection", elsewhere)


@pytest.mark.usefixtures("far")
def test_a_login_is_not_sent_unencrypted_to_an_address_that_brokers_advertise() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        security = Security(ClientSettings.from_environment(GIVEN))
        with pytest.raises(ConfigurationError, match=r"^the Kafka broker .* unencrypted") as refused:
            Connection(listening.getsockname(), security, {}, timeout=0.3, stopped=lambda: False)
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.recv(1) == b"", "nothing was sent"
    assert "192.0.2.7" in str(refused.value)
    assert "canary" not in str(refused.value)
    # Follow each remedy in the message.
    assert "PLATFORM_ALLOW_CLEARTEXT_LOGINS=true" in str(refused.value)
    assert b"platform-assets" in sent(PLATFORM_ALLOW_CLEARTEXT_LOGINS="true")
    assert "KAFKA_SECURITY_PROTOCOL=SASL_SSL" in str(refused.value)
    assert sent(KAFKA_SECURITY_PROTOCOL="SASL_SSL")[0] == 0x16, "TLS begins so"


def test_a_login_on_this_machine_needs_no_consent() -> None:
    assert b"platform-assets" in sent()


@pytest.mark.usefixtures("far")
def test_without_a_login_nothing_is_refused() -> None:
    assert b"platform-assets" in sent(KAFKA_SECURITY_PROTOCOL="PLAINTEXT")
