"""Diagnosis for brokers that do not answer: after a client has given up, a few plain connections find the likely cause.
A client library reports the same "timed out" for a name that does not resolve, a port without TLS, and a wrong
password."""

from __future__ import annotations

import socket
import ssl
import struct
from typing import Final

from platform_assets.kafka.settings import ClientSettings, distrusted
from platform_assets.model import cleartext

_SECONDS: Final = 2.0
_SERVERS: Final = 3
_API_VERSIONS: Final = 18
_METADATA: Final = 3
_NUMBER: Final = 4711


def likely_cause(settings: ClientSettings) -> str:
    """Return the likely cause for each of the first bootstrap servers, and the next step. This takes a few seconds at
    most."""
    servers = [s.strip() for s in settings.bootstrap_servers.split(",") if s.strip()]
    return "; ".join(dict.fromkeys(_cause(s, settings) for s in servers[:_SERVERS]))


def _cause(server: str, settings: ClientSettings) -> str:
    host, colon, port = server.rpartition(":")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 65536:
        return f"{server!r} does not have the form host:port"
    address = (host.strip("[]"), int(port))
    try:
        socket.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except OSError:
        return f"this machine cannot resolve the name {host!r}: check its spelling and the DNS"
    try:
        socket.create_connection(address, _SECONDS).close()
    except ConnectionRefusedError:
        return f"no service is listening at {server}: start the broker there, or correct the port"
    except OSError as e:
        return f"cannot connect to {server} ({e.strerror or e}): check the network and any firewalls between here and there"
    protocol = settings.options.get("security.protocol", "PLAINTEXT").upper()
    return _encrypted(server, address, protocol, settings) if "SSL" in protocol else _plain(server, address, protocol)


def _encrypted(server: str, address: tuple[str, int], protocol: str, settings: ClientSettings) -> str:
    if not _speaks_tls(address):
        plain = "SASL_PLAINTEXT" if protocol.startswith("SASL") else "PLAINTEXT"
        return (
            f"{server} does not speak TLS, which KAFKA_SECURITY_PROTOCOL={protocol} requires: use the broker's TLS "
            f"port, or set KAFKA_SECURITY_PROTOCOL={plain} if you trust the network{_consent(address[0], plain)}"
        )
    try:
        context = ssl.create_default_context(cafile=settings.options.get("ssl.ca.location"))
    except (OSError, ssl.SSLError) as e:
        return f"the file at KAFKA_SSL_CA_LOCATION contains no readable certificates ({e.strerror or type(e).__name__})"
    context.check_hostname = settings.options.get("ssl.endpoint.identification.algorithm", "https") != "none"
    try:
        with _encrypted_socket(address, context) as connection:
            answered = _answers(connection, _API_VERSIONS, 0, b"")
    except ssl.SSLCertVerificationError as e:
        return f"the certificate of {server} {distrusted(e)}"
    except OSError:
        answered = False
    if not answered:
        return (
            f"{server} speaks TLS but closes the connection: it may require a client certificate "
            f"(KAFKA_SSL_CERTIFICATE_LOCATION and KAFKA_SSL_KEY_LOCATION)"
        )
    return _inside(server, protocol)


def _plain(server: str, address: tuple[str, int], protocol: str) -> str:
    if not _answers_plainly(address, _API_VERSIONS, 0, b""):
        if _speaks_tls(address):
            secure = "SASL_SSL" if protocol.startswith("SASL") else "SSL"
            return f"{server} speaks TLS: set KAFKA_SECURITY_PROTOCOL={secure}"
        return (
            f"the service at {server} does not answer like a Kafka broker: it may still be starting, or it may be a "
            "different service"
        )
    if protocol == "PLAINTEXT" and not _answers_plainly(address, _METADATA, 4, struct.pack(">i?", 0, False)):
        consent = _consent(address[0], "SASL_PLAINTEXT")
        return f"{server} requires a login: set KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT and KAFKA_SASL_*{consent}"
    return _inside(server, protocol)


def _consent(host: str, protocol: str) -> str:
    """Return the additional setting that a login over an unencrypted connection needs."""
    if protocol != "SASL_PLAINTEXT" or cleartext.is_loopback(host):
        return ""
    return f", and {cleartext.VARIABLE}=true, because the login is then not encrypted"


def _inside(server: str, protocol: str) -> str:
    advertised = "the addresses that the brokers advertise (advertised.listeners) cannot be reached from here"
    if protocol.startswith("SASL"):
        return f"{server} answers, so either the login was refused (check KAFKA_SASL_*), or {advertised}"
    return f"{server} answers, so most likely {advertised}"


def _speaks_tls(address: tuple[str, int]) -> bool:
    context = ssl.create_default_context()
    context.check_hostname = False
    # Nothing secret is sent over this connection: only the protocol is tested, not the identity of the server.
    context.verify_mode = ssl.CERT_NONE
    try:
        _encrypted_socket(address, context).close()
    except ssl.SSLError as e:
        # An alert about the client, such as a missing certificate, is also TLS.
        return "ALERT" in (e.reason or "")
    except OSError:
        return False
    return True


def _encrypted_socket(address: tuple[str, int], context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection(address, _SECONDS)
    try:
        return context.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


def _answers_plainly(address: tuple[str, int], api: int, version: int, body: bytes) -> bool:
    try:
        with socket.create_connection(address, _SECONDS) as connection:
            return _answers(connection, api, version, body)
    except OSError:
        return False


def _answers(connection: socket.socket, api: int, version: int, body: bytes) -> bool:
    """Return True if the answer to a request is in Kafka's protocol, that is, repeats the request's number.

    Raises OSError.
    """
    request = struct.pack(">hhih", api, version, _NUMBER, -1) + body
    connection.sendall(struct.pack(">i", len(request)) + request)
    head = b""
    while len(head) < 8 and (more := connection.recv(8 - len(head))):
        head += more
    return head[4:] == struct.pack(">i", _NUMBER)
