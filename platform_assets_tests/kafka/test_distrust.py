"""Untrusted certificates: each client that reports more than "timed out" reports the fault and its remedy."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from platform_assets.errors import BrokerRefusedError
from platform_assets.kafka.batches.wire import Connection, Security, addresses
from platform_assets.kafka.diagnosis import likely_cause
from platform_assets.kafka.settings import ClientSettings
from platform_assets.services import security

KEY, AUTHORITY = security.authority("the right one")
NOW = datetime.datetime.now(datetime.UTC)


def certificate(folder: Path, **changed: object) -> Path:
    """Write a server's key and certificate to a file and return the file's path; `changed` replaces arguments of
    `issued`."""
    file = folder / "server.pem"
    file.write_text(security.issued(KEY, AUTHORITY, "server", **changed))  # type: ignore[arg-type]
    return file


@contextmanager
def served(file: Path) -> Iterator[str]:
    """Serve TLS with this certificate and close each connection; return the server's address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True):
                    pass
            except OSError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        serving = threading.Thread(target=serve)
        serving.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            serving.join()


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    """Return the certificate of the trusted certificate authority."""
    file = tmp_path / "authority.crt"
    file.write_text(security._pem(AUTHORITY))
    return file


def faults(address: str, authority: Path) -> tuple[str, str]:
    """Return the errors that the raw reader and `status` report for a certificate; "" if they accept it."""
    settings = ClientSettings(address, {"security.protocol": "SSL", "ssl.ca.location": str(authority)})
    cause = likely_cause(settings)
    try:
        Connection(addresses(address)[0], Security(settings), {}, timeout=30, stopped=lambda: False).close()
    except BrokerRefusedError as refused:
        return str(refused), cause
    except OSError:
        # The server is not a Kafka broker, which becomes apparent after the TLS handshake.
        return "", cause if "is not trusted" in cause else ""
    raise AssertionError("it answered as a broker does")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        pytest.param(
            {"start": NOW - datetime.timedelta(days=9), "days": 2},
            ("expired", "the operators of the brokers must renew the certificate"),
            id="expired",
        ),
        pytest.param(
            {"start": NOW + datetime.timedelta(days=9)},
            ("not yet valid", "compare this machine's clock"),
            id="from the future",
        ),
        pytest.param(
            {"hosts": ("127.0.0.2",)},
            ("IP address mismatch", "use the name that is in the certificate"),
            id="other address",
        ),
    ],
)
def test_a_fault_of_a_certificate_is_named_with_whose_turn_it_is(
    tmp_path: Path, trusted: Path, changed: dict[str, object], says: tuple[str, str]
) -> None:
    with served(certificate(tmp_path, **changed)) as address:
        for said in faults(address, trusted):
            assert address in said
            assert all(part in said for part in says), said
            assert "KAFKA_SSL_CA_LOCATION" not in said
    # The remedy: a certificate that is valid now, for the host name in use.
    with served(certificate(tmp_path)) as address:
        assert faults(address, trusted) == ("", "")


def test_a_name_that_is_not_in_the_certificate_is_named_and_the_right_one_helps(tmp_path: Path, trusted: Path) -> None:
    with served(certificate(tmp_path, hosts=("127.0.0.1",))) as address:
        by_name = address.replace("127.0.0.1", "localhost")
        for said in faults(by_name, trusted):
            assert "Hostname mismatch" in said
            assert "in KAFKA_BOOTSTRAP_SERVERS and in the broker's advertised.listeners, use the name" in said
        assert faults(address, trusted) == ("", "")


def test_another_authority_is_told_apart_and_setting_the_right_one_helps(tmp_path: Path, trusted: Path) -> None:
    other = tmp_path / "other.crt"
    other.write_text(security._pem(security.authority("another one")[1]))
    with served(certificate(tmp_path)) as address:
        for said in faults(address, other):
            assert "is not trusted" in said
            assert "set KAFKA_SSL_CA_LOCATION to a file with the certificates of the authority that issued it" in said
        assert faults(address, trusted) == ("", "")
