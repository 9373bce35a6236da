"""Credentials of secured brokers and their clients: the home's own certificate authority, its certificates, and
passwords.

All credentials are in files in the home's folder `security`. Only the owner can open the folder and read the files.
Passwords are random and never appear in an argument list. Controllers always identify each other by certificate,
because Kafka stores logins in the log that the controllers themselves replicate. Brokers and clients use the same
listener, and authenticate in the same way.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from platform_assets.services import state
from platform_assets.services.errors import ConfigurationError
from platform_assets.services.home import Home
from platform_assets.services.ports import LOOPBACK

Secure = Literal["password", "certificate"]
"""Ways in which clients authenticate: SASL_SSL with SCRAM-SHA-512, or a client certificate without a login."""

USER: Final = "platform-assets"
MECHANISM: Final = "SCRAM-SHA-512"
_BROKERS_USER: Final = "brokers"
_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
_AUTHORITY_DAYS: Final = 3650
_DAYS: Final = 397
_EARLIER: Final = datetime.timedelta(hours=1)
"""Margin by which the validity of a new certificate begins in the past, so that the certificate is valid even on a
machine whose clock is slightly slow."""


@dataclass(frozen=True, slots=True)
class Security:
    """Credentials of one home. The repr does not show the passwords.

    Attributes:
        folder: the folder that contains the files.
        kind: the way in which clients authenticate.
    """

    folder: Path
    kind: Secure

    @classmethod
    def of_home(cls, home: Home) -> Security | None:
        """Return the credentials that were made for the home, or None if there are none.

        Raises:
            ConfigurationError: the file with the credentials is damaged.
        """
        folder = home.root / "security"
        try:
            kind = _read(folder)["kind"]
        except FileNotFoundError:
            return None
        if kind not in get_args(Secure):
            raise _damaged(folder, f"unknown kind {kind!r}")
        return cls(folder, kind)

    @classmethod
    def make(cls, home: Home, kind: Secure) -> Security:
        """Make new credentials. Raises OSError if the files cannot be written."""
        made = cls(home.root / "security", kind)
        made.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        made.folder.chmod(0o700)
        key, certificate = authority("platform-assets of this machine")
        state.write_private(made.folder / "authority.key", _key_pem(key))
        state.write_private(made.authority, _pem(certificate))
        if kind == "certificate":
            state.write_private(made.client, issued(key, certificate, USER))
        # Written last, so that existing credentials are complete.
        passwords = {USER: secrets.token_urlsafe(32), _BROKERS_USER: secrets.token_urlsafe(32)}
        state.write_private(_file(made.folder), json.dumps({"kind": kind, "passwords": passwords}) + "\n")
        return made

    @property
    def authority(self) -> Path:
        """The authority's certificate, which clients trust."""
        return self.folder / "authority.crt"

    @property
    def client(self) -> Path:
        """A client's key and certificate, for clients that authenticate with a certificate."""
        return self.folder / "client.pem"

    def client_environment(self) -> dict[str, str]:
        """Return the variables that clients of the platform need. They contain the password: never print them."""
        found = {"KAFKA_SSL_CA_LOCATION": str(self.authority)}
        if self.kind == "certificate":
            return found | {
                "KAFKA_SECURITY_PROTOCOL": "SSL",
                "KAFKA_SSL_CERTIFICATE_LOCATION": str(self.client),
                "KAFKA_SSL_KEY_LOCATION": str(self.client),
            }
        return found | {
            "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
            "KAFKA_SASL_MECHANISM": MECHANISM,
            "KAFKA_SASL_USERNAME": USER,
            "KAFKA_SASL_PASSWORD": self._passwords()[USER],
        }

    def librdkafka(self) -> dict[str, str]:
        """Return the client settings for confluent-kafka."""
        return {
            name.removeprefix("KAFKA_").lower().replace("_", "."): value
            for name, value in self.client_environment().items()
        }

    def broker_properties(self, service: str) -> dict[str, str]:
        """Return a broker's own properties, including passwords. Each call renews the broker's certificate, so the
        certificate does not expire if the broker is restarted now and then."""
        stored = self.folder / f"{service}.pem"
        key = serialization.load_pem_private_key((self.folder / "authority.key").read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        by = x509.load_pem_x509_certificate(self.authority.read_bytes())
        state.write_private(stored, issued(key, by, service))
        if self.kind == "certificate":
            state.write_private(self.client, issued(key, by, USER))
        properties = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(stored),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority),
            "listener.name.controller.ssl.client.auth": "required",
        }
        if self.kind == "certificate":
            return properties | {
                "listener.security.protocol.map": "CLIENTS:SSL,CONTROLLER:SSL",
                "listener.name.clients.ssl.client.auth": "required",
            }
        login = f'{_MODULE} required username="{_BROKERS_USER}" password="{self._passwords()[_BROKERS_USER]}";'
        return properties | {
            "listener.security.protocol.map": "CLIENTS:SASL_SSL,CONTROLLER:SSL",
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            f"listener.name.clients.{MECHANISM.lower()}.sasl.jaas.config": login,
        }

    def format_arguments(self) -> tuple[str, ...]:
        """Return the arguments with which Kafka's format tool sets up logins. The arguments point to a file that
        contains the logins, because every user can see arguments."""
        if self.kind == "certificate":
            return ()
        lines = (
            f"--add-scram\n{MECHANISM}=[name={name},password={password}]\n"
            for name, password in self._passwords().items()
        )
        state.write_private(self._logins, "".join(lines))
        return (f"@{self._logins}",)

    def forget_format_arguments(self) -> None:
        """Delete the file that `format_arguments` wrote, because the logins in it are no longer needed."""
        self._logins.unlink(missing_ok=True)

    @property
    def _logins(self) -> Path:
        return self.folder / "logins"

    def _passwords(self) -> Mapping[str, str]:
        found = _read(self.folder)["passwords"]
        if not isinstance(found, dict) or not {USER, _BROKERS_USER} <= set(found):
            raise _damaged(self.folder, "passwords are missing")
        return found


def authority(name: str) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make a new certificate authority: its key, and its self-signed certificate."""
    key, now = _new_key(), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key, now - _EARLIER, now + datetime.timedelta(days=_AUTHORITY_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def issued(
    key: ec.EllipticCurvePrivateKey,
    by: x509.Certificate,
    name: str,
    *,
    hosts: tuple[str, ...] = ("localhost", LOOPBACK, "::1"),
    start: datetime.datetime | None = None,
    days: int = _DAYS,
) -> str:
    """Make a new key, and a certificate for the key that an authority signs. Return both as one PEM string in the form
    of Kafka's stores.

    Args:
        key: the key of the authority.
        by: the certificate of the authority.
        name: the subject of the new certificate.
        hosts: the names and addresses for which the certificate is valid.
        start: the start of the validity; now by default.
        days: the length of the validity.
    """
    own, begin = _new_key(), start or datetime.datetime.now(datetime.UTC) - _EARLIER
    certificate = (
        _builder(
            x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
            by.subject, own, begin, begin + datetime.timedelta(days=days),
        )
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(authority=False), critical=True)
        .add_extension(
            # Brokers are also clients of each other.
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    return _key_pem(own) + _pem(certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime.datetime,
    end: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=authority, crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode("ascii")


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")


def _file(folder: Path) -> Path:
    return folder / "security.json"


def _read(folder: Path) -> dict[str, Any]:
    try:
        value = json.loads(_file(folder).read_text(encoding="utf-8"))
    except ValueError:
        raise _damaged(folder, "it is not JSON") from None
    if not isinstance(value, dict) or "kind" not in value or "passwords" not in value:
        raise _damaged(folder, "fields are missing")
    return value


def _damaged(folder: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{_file(folder)} is damaged ({why}): restore it from a backup, or set PLATFORM_HOME to another folder for a "
        "new cluster."
    )
