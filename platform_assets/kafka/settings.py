"""Client settings for the three Kafka clients in use, read only from environment variables.

`KAFKA_SECURITY_PROTOCOL=SASL_SSL` means `security.protocol=SASL_SSL`: the variable has the setting's name in upper
case, with underscores instead of dots. A secret may also be in a file, whose path is in a variable such as
`KAFKA_SASL_PASSWORD_FILE`. Only the settings listed here are accepted, because some other settings make a client fetch
addresses or load classes (CVE-2025-27817, CVE-2025-27818). Values never appear in a message, a repr or a log.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from platform_assets.errors import ConfigurationError
from platform_assets.model import cleartext
from platform_assets.secret_files import SUFFIX, has_controls, secret

_NOT_YET_VALID, _EXPIRED = 9, 10
_WRONG_NAME, _WRONG_ADDRESS = 62, 64
"""OpenSSL's error numbers (X509_V_ERR_…)."""

_REMEDIES: Final = {
    _NOT_YET_VALID: "compare this machine's clock with that of the machine that issued the certificate",
    _EXPIRED: "the operators of the brokers must renew the certificate; you cannot fix this on the client side",
    _WRONG_NAME: "in KAFKA_BOOTSTRAP_SERVERS and in the broker's advertised.listeners, use the name that is in the certificate",
    _WRONG_ADDRESS: "in KAFKA_BOOTSTRAP_SERVERS and in the broker's advertised.listeners, use the name that is in the certificate",
}
_OTHERWISE: Final = "set KAFKA_SSL_CA_LOCATION to a file with the certificates of the authority that issued it"


def distrusted(error: ssl.SSLCertVerificationError) -> str:
    """Return OpenSSL's description of the cause, and the next step. The string continues a sentence that begins with
    "the certificate"."""
    return f"is not trusted ({error.verify_message}): {_REMEDIES.get(error.verify_code, _OTHERWISE)}"


BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

BATCH_VARIABLES: Final[Mapping[str, str]] = {
    "bytes": "KAFKA_BATCH_MAX_BYTES",
    "records": "KAFKA_BATCH_MAX_RECORDS",
    "headers": "KAFKA_BATCH_MAX_HEADERS",
}
"""Maps each field of `BatchLimits` to its environment variable."""

_BATCH_PREFIX: Final = "KAFKA_BATCH_"
_NUMBER: Final = re.compile("[0-9]{1,10}")
_ALLOWED = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.extensions",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.token.endpoint.url",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "client.id",
    "client.rack",
}
_SECRET: Final = ("sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password")
_GUARDED_PREFIXES = ("KAFKA_SASL_", "KAFKA_SSL_", "KAFKA_SECURITY_", "KAFKA_CLIENT_")
_PROTOCOLS = {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}
_JAAS_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_BEARER: Final = "OAUTHBEARER"
_BEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_BEARER_HANDLER: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
_MECHANISMS: Final = sorted({*_JAAS_MODULES, _BEARER})
_LOGIN: Final = ("sasl.username", "sasl.password")
_BEARER_LOGIN: Final = (
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.token.endpoint.url",
)
_EXTENSIONS: Final = re.compile(r"[A-Za-z]+=[\x20-\x2b\x2d-\x7e]+(?:,[A-Za-z]+=[\x20-\x2b\x2d-\x7e]+)*")
"""Pattern of extensions according to RFC 7628, but without commas, because a comma separates extensions here."""


def variable(setting: str) -> str:
    """Return the environment variable for a client setting."""
    return "KAFKA_" + setting.upper().replace(".", "_")


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """Limits on one unpacked record batch: its size in bytes, the number of its records, and the number of headers in
    all its records. Larger batches are not opened.

    A few kilobytes can unpack to gigabytes, so each limit is checked before memory is allocated. Raises
    ConfigurationError for a limit that is not between 1 and 2^30.
    """

    bytes: int = 128 << 20
    records: int = 2 << 20
    headers: int = 8 << 20

    def __post_init__(self) -> None:
        for name in BATCH_VARIABLES:
            if not 1 <= getattr(self, name) <= 1 << 30:
                raise ConfigurationError(f"{BATCH_VARIABLES[name]} must be a number from 1 to {1 << 30}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> BatchLimits:
        """Read the variables in BATCH_VARIABLES from `environment`. Raises ConfigurationError."""
        known = sorted(BATCH_VARIABLES.values())
        if unknown := sorted(name for name in environment if name.startswith(_BATCH_PREFIX) and name not in known):
            raise ConfigurationError(
                f"{unknown[0]} is not a setting for limits on record batches. Use one of {', '.join(known)}."
            )
        given = {name: environment[v].strip() for name, v in BATCH_VARIABLES.items() if environment.get(v, "").strip()}
        return cls(**{name: int(text) if _NUMBER.fullmatch(text) else 0 for name, text in given.items()})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings for connections to the brokers, and limits on the brokers' answers. `options` have librdkafka's names
    and are hidden from the repr. `cleartext_logins` allows unencrypted logins to other machines. Raises
    ConfigurationError for options that are not allowed, or that lack something the protocol needs."""

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: BatchLimits = field(default_factory=BatchLimits)
    cleartext_logins: bool = False

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise ConfigurationError(
                f"no Kafka broker is configured: set {BOOTSTRAP_VARIABLE} to host:port[,host:port…]"
            )
        unknown = sorted(set(self.options) - _ALLOWED)
        if unknown:
            raise ConfigurationError(f"Kafka client settings {unknown} are not allowed; allowed: {sorted(_ALLOWED)}")
        for name, value in self.options.items():
            if has_controls(value):
                raise ConfigurationError(
                    f"{variable(name)} holds a control character, such as a line end, or bytes that are not UTF-8, "
                    f"which could change other settings. Set {variable(name)} to only the value."
                )
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise ConfigurationError(f"KAFKA_SECURITY_PROTOCOL must be one of {sorted(_PROTOCOLS)}")
        if not protocol.startswith("SASL"):
            return
        if self.mechanism not in _MECHANISMS:
            raise ConfigurationError(f"KAFKA_SASL_MECHANISM must be one of {_MECHANISMS}")
        for name in _BEARER_LOGIN if self.mechanism == _BEARER else _LOGIN:
            if name not in self.options:
                raise ConfigurationError(f"{variable(name)} must be set for {protocol} with {self.mechanism}")
        if self.mechanism == _BEARER:
            _check_endpoint(self.options["sasl.oauthbearer.token.endpoint.url"])
            if not _EXTENSIONS.fullmatch(self.options.get("sasl.oauthbearer.extensions", "none=given")):
                raise ConfigurationError(
                    "KAFKA_SASL_OAUTHBEARER_EXTENSIONS is not valid. Write it as name=value[,name=value…]; names "
                    "may contain only letters."
                )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], bootstrap_servers: str | None = None) -> ClientSettings:
        """Read `KAFKA_*` from `environment`. Raises ConfigurationError, whose message contains the names of settings
        but never their values."""
        options: dict[str, str] = {}
        in_files = {variable(setting) + SUFFIX for setting in _SECRET}
        for name, value in environment.items():
            setting = name.removeprefix("KAFKA_").lower().replace("_", ".")
            if name.startswith("KAFKA_") and setting in _ALLOWED:
                options[setting] = value
            elif name.startswith(_GUARDED_PREFIXES) and name not in in_files:
                raise ConfigurationError(
                    f"{name} is not a Kafka client setting that the platform accepts; allowed: "
                    f"{sorted(variable(s) for s in _ALLOWED)}"
                )
        for setting in _SECRET:
            if (found := secret(environment, variable(setting))) is not None:
                options[setting] = found
        limits = BatchLimits.from_environment(environment)
        servers = bootstrap_servers or environment.get(BOOTSTRAP_VARIABLE, "")
        made = cls(servers, options, limits, cleartext.allowed(environment))
        if not made.cleartext_logins:
            made._refuse_cleartext()
        return made

    def _refuse_cleartext(self) -> None:
        """Refuse a login that would cross a network unencrypted. Raises ConfigurationError."""
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        if protocol == "SASL_PLAINTEXT" and (remote := _remote_hosts(self.bootstrap_servers)):
            raise ConfigurationError(
                f"KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT would send the login to {remote[0]!r} unencrypted. "
                + cleartext.remedy("KAFKA_SECURITY_PROTOCOL=SASL_SSL")
            )
        if protocol.startswith("SASL") and self.mechanism == _BEARER:
            parts = urlsplit(self.options["sasl.oauthbearer.token.endpoint.url"])
            if parts.scheme == "http" and not cleartext.is_loopback(parts.hostname or ""):
                raise ConfigurationError(
                    "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL begins with http://, so the client secret would "
                    "cross the network "
                    "unencrypted. " + cleartext.remedy("an address with https://")
                )

    @property
    def mechanism(self) -> str:
        """The SASL mechanism, in upper case."""
        return self.options.get("sasl.mechanism", "PLAIN").upper()

    def librdkafka(self) -> dict[str, str]:
        """Return settings for confluent-kafka."""
        settings = {"bootstrap.servers": self.bootstrap_servers, **self.options}
        if self.options.get("security.protocol", "").upper().startswith("SASL"):
            # Its own default is GSSAPI, which the wheel lacks.
            settings["sasl.mechanism"] = self.mechanism
            if self.mechanism == _BEARER:
                settings["sasl.oauthbearer.method"] = "oidc"
        return settings

    def java(self) -> dict[str, str]:
        """Return settings for the Java client inside Spark, without the prefix `kafka.`, which the options of Spark's
        reader have."""
        given = self.options
        settings = {"bootstrap.servers": self.bootstrap_servers}
        for same in (
            "security.protocol",
            "ssl.key.password",
            "ssl.endpoint.identification.algorithm",
            "client.id",
            "client.rack",
        ):
            if same in given:
                settings[same] = given[same]
        if given.get("ssl.endpoint.identification.algorithm") == "none":
            # librdkafka uses "none" for what is an empty string in the Java client.
            settings["ssl.endpoint.identification.algorithm"] = ""
        if "ssl.ca.location" in given:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
        if "ssl.key.location" in given:
            # The Java client needs key and certificates in one PEM file.
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": given["ssl.key.location"]}
        if given.get("security.protocol", "").upper().startswith("SASL"):
            settings["sasl.mechanism"] = self.mechanism
            if self.mechanism == _BEARER:
                return settings | self._java_bearer()
            quoted = {k: _jaas_quoted(given.get(k, "")) for k in _LOGIN}
            settings["sasl.jaas.config"] = (
                f"{_JAAS_MODULES[self.mechanism]} required username={quoted['sasl.username']} "
                f"password={quoted['sasl.password']};"
            )
        return settings

    def extensions(self) -> dict[str, str]:
        """Extensions to send to brokers together with an OAUTHBEARER token."""
        given = self.options.get("sasl.oauthbearer.extensions")
        return dict(part.split("=", 1) for part in given.split(",")) if given else {}

    def _java_bearer(self) -> dict[str, str]:
        given = self.options
        options = {
            "clientId": given["sasl.oauthbearer.client.id"],
            "clientSecret": given["sasl.oauthbearer.client.secret"],
            **({"scope": given["sasl.oauthbearer.scope"]} if "sasl.oauthbearer.scope" in given else {}),
            **{f"extension_{name}": value for name, value in self.extensions().items()},
        }
        listed = " ".join(f"{name}={_jaas_quoted(value)}" for name, value in options.items())
        return {
            "sasl.login.callback.handler.class": _BEARER_HANDLER,
            "sasl.oauthbearer.token.endpoint.url": given["sasl.oauthbearer.token.endpoint.url"],
            "sasl.jaas.config": f"{_BEARER_MODULE} required {listed};",
        }


def _check_endpoint(url: str) -> None:
    """Refuse an invalid address of a token endpoint, which could direct a client to a file or to another host."""
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits or parts.username is not None or parts.password is not None or parts.fragment:
        raise ConfigurationError(
            "KAFKA_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL is not the address of a token endpoint. Write it as "
            "https://host[:port]/path, without a user or a password."
        )


def _remote_hosts(bootstrap_servers: str) -> list[str]:
    """Return those hosts in `host:port[,host:port…]` that are not loopback addresses."""
    found = []
    for item in filter(None, (part.strip() for part in bootstrap_servers.split(","))):
        host, colon, _ = item.rpartition(":")
        found.append(item if not colon or item.endswith("]") else host)
    return [host for host in found if not cleartext.is_loopback(host)]


def _jaas_quoted(value: str) -> str:
    # Double quotes, because redaction of JAAS texts matches no other form (see KafkaRedactionUtil).
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'
