"""One blocking connection to one broker, with a deadline on everything.

Requests and answers are kafka-python's protocol classes, and so are the SASL mechanisms. This module reads the socket
itself, because kafka-python's client reads 4 KB at a time and copies each answer several times. That takes six times as
long as receiving an answer into one buffer.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import kafka.errors
from kafka.net.sasl import get_sasl_mechanism
from kafka.protocol.metadata import ApiVersionsRequest
from kafka.protocol.sasl import SaslAuthenticateRequest, SaslHandshakeRequest

from platform_assets.errors import BrokerRefusedError, ConfigurationError
from platform_assets.kafka.batches.tokens import Tokens
from platform_assets.kafka.settings import ClientSettings, distrusted
from platform_assets.model import cleartext

Address = tuple[str, int]

_DEFAULT_PORT = 9092
_SLICE = 0.25  # seconds between two checks for the end of a wait
_CONNECT_TIMEOUT = 5.0
_SMALL_ANSWER = 1 << 26
_SIZE_BELIEVED: Final = 1 << 24
"""Number of bytes of an answer for which memory is allocated before the bytes arrive."""
_API_VERSIONS, _HANDSHAKE, _AUTHENTICATE = 3, 1, 1
_frame_head = struct.Struct(">ii").unpack_from
_NO_ANSWER: Final = (
    ValueError, struct.error, LookupError, TypeError, AttributeError, ArithmeticError, AssertionError, kafka.errors.KafkaError,
)  # fmt: skip
"""Errors that kafka-python, and the code here that reads its answers, can raise for bytes that no broker would send."""
_LATEST_MOMENT: Final = 253_370_764_800_000
"""Start of the year 9999 in ms. This limit leaves headroom for additions to the times that brokers report."""
_SHOWN: Final = 10
_SHOWN_CHARACTERS: Final = 100

T = TypeVar("T")


class Stopped(Exception):
    """The caller's deadline passed, or the caller was stopped, while the call waited for a broker."""


def addresses(bootstrap_servers: str) -> list[Address]:
    """Parse `host:port[,host:port…]`; IPv6 addresses are in brackets. Raises ConfigurationError."""
    found = []
    for item in filter(None, (part.strip() for part in bootstrap_servers.split(","))):
        host, colon, port = item.rpartition(":")
        if not colon or item.endswith("]"):
            host, port = item, str(_DEFAULT_PORT)
        if not port.isdigit() or not 0 < int(port) < 1 << 16 or not host.strip("[]"):
            raise ConfigurationError("KAFKA_BOOTSTRAP_SERVERS must have the form host:port[,host:port…]")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ConfigurationError(
            "KAFKA_BOOTSTRAP_SERVERS lists no broker: it must have the form host:port[,host:port…]"
        )
    return found


def moment(milliseconds: int) -> datetime:
    """Convert a time from a broker to a UTC datetime, limited to the years 1970 to 9998."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LATEST_MOMENT) / 1000, UTC)


class Security:
    """TLS and SASL settings from `ClientSettings`, in the form that `ssl` and kafka-python expect."""

    def __init__(self, settings: ClientSettings) -> None:
        options = settings.options
        protocol = options.get("security.protocol", "PLAINTEXT").upper()
        self.client_id = options.get("client.id", "platform-assets-evidence")
        self.context = _tls(options) if protocol.endswith("SSL") else None
        self.mechanism = settings.mechanism if protocol.startswith("SASL") else None
        self.needs_loopback = protocol == "SASL_PLAINTEXT" and not settings.cleartext_logins
        self._sasl = {
            "security_protocol": protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": options.get("sasl.username", ""),
            "sasl_plain_password": options.get("sasl.password", ""),
            "sasl_oauth_token_provider": Tokens(settings) if self.mechanism == "OAUTHBEARER" else None,
        }

    def sasl(self, host: str) -> Any:
        """Return a new SASL exchange with `host`."""
        return get_sasl_mechanism(self.mechanism)(host=host, **self._sasl)


def _tls(options: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = options.get("ssl.endpoint.identification.algorithm", "https").lower() != "none"
    setting = "KAFKA_SSL_CA_LOCATION"
    try:
        if "ssl.ca.location" in options:
            context = _trusting(options["ssl.ca.location"], context.check_hostname)
        if "ssl.certificate.location" in options:
            setting = "KAFKA_SSL_CERTIFICATE_LOCATION or KAFKA_SSL_KEY_LOCATION"
            # A callable, because OpenSSL would otherwise ask for a missing password on the terminal.
            context.load_cert_chain(
                options["ssl.certificate.location"],
                options.get("ssl.key.location"),
                lambda: options.get("ssl.key.password", ""),
            )
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{setting} cannot be used: {type(error).__name__}") from None
    return context


def _trusting(location: str, check_hostname: bool) -> ssl.SSLContext:
    """Return a TLS context that trusts only the certificate authorities in a PEM file. The other clients do the same if
    such a file is set."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = check_hostname
    context.load_verify_locations(location)
    return context


class Connection:
    """A connection that is ready for requests. Not thread-safe. All methods raise OSError if the broker is unreachable
    or sends invalid data, Stopped if `stopped()` became true in the meantime, and BrokerRefusedError if the broker
    refuses this client. After any of these errors, close the connection. The constructor also raises ConfigurationError
    if the login would leave this machine unencrypted."""

    def __init__(
        self,
        address: Address,
        security: Security,
        needs: Mapping[type, int],
        *,
        timeout: float,
        stopped: Callable[[], bool],
    ) -> None:
        """Connect. `needs` lists the kinds of requests that will be sent, with their versions; `timeout` limits the
        wait for each answer, in seconds."""
        self._timeout, self._stopped = timeout, stopped
        self._client_id = security.client_id
        self._correlation = 0
        self._head = memoryview(bytearray(8))
        self._name = f"{str(address[0])[:_SHOWN_CHARACTERS]}:{address[1]}"
        if not isinstance(address[0], str) or not 0 < address[1] < 1 << 16:
            raise ConnectionError(f"{self._name} is not the address of a broker")
        try:
            self._socket = socket.create_connection(address, timeout=min(timeout, _CONNECT_TIMEOUT))
        except UnicodeError:
            raise ConnectionError(f"{self._name!a} is not the name of a host") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if security.needs_loopback:
                self._refuse_another_machine()
            if security.context is not None:
                self._socket = security.context.wrap_socket(self._socket, server_hostname=address[0])
            self._agree_on_versions(needs)
            if security.mechanism is not None:
                self._authenticate(security, address[0])
        except ssl.SSLCertVerificationError as error:
            self.close()
            raise BrokerRefusedError(
                f"setting up TLS with {self._name}", f"its certificate {distrusted(error)}"
            ) from None
        except ssl.SSLError as error:
            self.close()
            if "ALERT" not in (error.reason or ""):
                raise
            reason = f"the broker ended the TLS handshake ({error.reason})"  # for example because it requires a client certificate
            raise BrokerRefusedError(f"setting up TLS with {self._name}", reason) from None
        except BaseException:
            self.close()
            raise

    def offers(self, kind: type, version: int) -> bool:
        """Return True if the broker accepts this version of requests of this kind."""
        return version in self._offered.get(kind.API_KEY, ())  # type: ignore[attr-defined]

    def close(self) -> None:
        """Close the connection; if a call is in progress in another thread, that call fails."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def request(self, request: Any, read: Callable[[Any], T]) -> T:
        """Send a small request of kafka-python and decode its answer; return what `read` extracts from the answer. An
        answer can be well encoded and still lack required fields, so errors in `read` are raised as OSError."""
        self.send(request)
        frame = self.receive(bytearray())
        version, answers = request.API_VERSION, request.header.get_response_class()
        # The header of an answer of a flexible version ends in tags; that of ApiVersions never does.
        flexible = answers.flexible_version_q(version) and request.API_KEY != ApiVersionsRequest.API_KEY
        try:
            return read(answers.decode(frame[1:] if flexible else frame))
        except _NO_ANSWER as error:
            raise ConnectionError(f"{self._name} sent a malformed answer ({type(error).__name__})") from None

    def send(self, request: Any) -> None:
        """Send a request whose version is set. Receive its answer before you receive the answer to the next request."""
        self._correlation += 1
        request.with_header(correlation_id=self._correlation, client_id=self._client_id)
        self._socket.settimeout(self._timeout)
        self._socket.sendall(request.encode(framed=True, header=True))

    def receive(self, buffer: bytearray, limit: int = _SMALL_ANSWER) -> memoryview:
        """Return the next answer, without its correlation id, in `buffer` or, if that is too small, in a new buffer. An
        answer of more than `limit` bytes is treated as invalid and raises OSError."""
        until = time.monotonic() + self._timeout
        self._fill(self._head, until)
        size, correlation = _frame_head(self._head)
        size -= 4
        if not 0 <= size <= limit or correlation != self._correlation:
            raise ConnectionError(f"{self._name} does not answer like a Kafka broker")
        room = buffer if len(buffer) >= size else bytearray(min(size, _SIZE_BELIEVED))
        self._fill(memoryview(room)[:size], until)
        while (got := len(room)) < size:
            # Never allocate more memory for the rest than has already arrived.
            room.extend(bytes(min(got, size - got)))
            self._fill(memoryview(room)[got:], time.monotonic() + self._timeout)
        return memoryview(room)[:size]

    def _fill(self, target: memoryview, until: float) -> None:
        got = 0
        while got < len(target):
            if self._stopped():
                raise Stopped
            self._socket.settimeout(_SLICE)
            try:
                count = self._socket.recv_into(target[got:])
            except TimeoutError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{self._name} did not answer within {self._timeout:g} s") from None
                continue
            if not count:
                raise ConnectionResetError(f"{self._name} closed the connection")
            got += count
            until = max(until, time.monotonic() + self._timeout)  # an answer that keeps arriving is in time

    def _refuse_another_machine(self) -> None:
        """Refuse an unencrypted login to another machine. This check uses the address of the actual connection, because
        brokers may advertise addresses that are not in the settings, and names may resolve to any address."""
        peer = self._socket.getpeername()[0]
        if not cleartext.is_loopback(peer):
            raise ConfigurationError(
                f"the Kafka broker {self._name!r} is at {peer}, and the login would be sent there unencrypted. "
                + cleartext.remedy("KAFKA_SECURITY_PROTOCOL=SASL_SSL")
            )

    def _agree_on_versions(self, needs: Mapping[type, int]) -> None:
        request = ApiVersionsRequest(
            version=_API_VERSIONS, client_software_name="platform-assets", client_software_version="1"
        )
        error, self._offered = self.request(
            request,
            lambda answer: (
                answer.error_code,
                {key.api_key: range(key.min_version, key.max_version + 1) for key in answer.api_keys},
            ),
        )
        lacking = [kind.__name__ for kind, version in needs.items() if not self.offers(kind, version)]
        if error or lacking:
            raise BrokerRefusedError(
                f"negotiating protocol versions with {self._name}",
                f"the broker does not support the required version of {', '.join(lacking) or 'ApiVersions'}; "
                "reading evidence needs Kafka 3.1 or later",
            )

    def _authenticate(self, security: Security, host: str) -> None:
        doing = f"logging in to {self._name} by SASL ({security.mechanism})"
        refused, offered = self.request(
            SaslHandshakeRequest(version=_HANDSHAKE, mechanism=security.mechanism),
            lambda answer: (
                answer.error_code,
                [name[:_SHOWN_CHARACTERS] for name in (answer.mechanisms or ())[:_SHOWN]],
            ),
        )
        if refused:
            raise BrokerRefusedError(doing, f"it offers {offered}, not {security.mechanism}")
        exchange = security.sasl(host)
        try:
            while not exchange.is_done():
                code, token = self.request(
                    SaslAuthenticateRequest(version=_AUTHENTICATE, auth_bytes=exchange.auth_bytes()),
                    lambda answer: (answer.error_code, answer.auth_bytes),
                )
                if code:
                    raise BrokerRefusedError(doing, kafka.errors.for_code(code).__name__)
                exchange.receive(token)
        except _NO_ANSWER as error:
            raise BrokerRefusedError(doing, f"the exchange failed ({type(error).__name__})") from None
        if not exchange.is_authenticated():
            raise BrokerRefusedError(doing, "the broker did not accept the login")
