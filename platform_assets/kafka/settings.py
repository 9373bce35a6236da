"""Client settings for the three Kafka clients in use, from the environment alone.

`KAFKA_SECURITY_PROTOCOL=SASL_SSL` means `security.protocol=SASL_SSL`: the name in upper case, dots as underscores.
Only the settings listed here are taken, since some others make a client fetch addresses or load classes
(CVE-2025-27817, CVE-2025-27818). Values never appear in a message, a repr or a log.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from platform_assets.errors import ConfigurationError

BOOTSTRAP_VARIABLE = "KAFKA_BOOTSTRAP_SERVERS"

BATCH_VARIABLES: Final[Mapping[str, str]] = {
    "bytes": "KAFKA_BATCH_MAX_BYTES",
    "records": "KAFKA_BATCH_MAX_RECORDS",
    "headers": "KAFKA_BATCH_MAX_HEADERS",
}
"""The environment variable of each of the `BatchLimits`."""

_NUMBER: Final = re.compile("[0-9]{1,10}")
_ALLOWED = {
    "security.protocol",
    "sasl.mechanism",
    "sasl.username",
    "sasl.password",
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.key.location",
    "ssl.key.password",
    "ssl.endpoint.identification.algorithm",
    "client.id",
    "client.rack",
}
_GUARDED_PREFIXES = ("KAFKA_SASL_", "KAFKA_SSL_", "KAFKA_SECURITY_", "KAFKA_CLIENT_")
_PROTOCOLS = {"PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"}
_JAAS_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one record batch may unpack to: bytes, records, and headers of all its records. Larger batches are not opened.

    A few kilobytes can unpack to gigabytes, so each limit is checked before memory is allocated for what it limits. Raises
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
        """Take the variables of BATCH_VARIABLES from `environment`. Raises ConfigurationError."""
        given = {name: environment[v].strip() for name, v in BATCH_VARIABLES.items() if environment.get(v, "").strip()}
        return cls(**{name: int(text) if _NUMBER.fullmatch(text) else 0 for name, text in given.items()})


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to reach the brokers, and what is accepted from them.

    `options` are spelt as librdkafka spells them and hidden from the repr. Raises ConfigurationError for options that are not
    allowed, or not enough for the protocol that they name.
    """

    bootstrap_servers: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: BatchLimits = field(default_factory=BatchLimits)

    def __post_init__(self) -> None:
        if not self.bootstrap_servers.strip():
            raise ConfigurationError(f"no Kafka broker is named: set {BOOTSTRAP_VARIABLE} to host:port[,host:port…]")
        unknown = sorted(set(self.options) - _ALLOWED)
        if unknown:
            raise ConfigurationError(f"Kafka client settings {unknown} are not allowed; allowed: {sorted(_ALLOWED)}")
        protocol = self.options.get("security.protocol", "PLAINTEXT").upper()
        if protocol not in _PROTOCOLS:
            raise ConfigurationError(f"KAFKA_SECURITY_PROTOCOL must be one of {sorted(_PROTOCOLS)}")
        if protocol.startswith("SASL") and self._mechanism not in _JAAS_MODULES:
            raise ConfigurationError(f"KAFKA_SASL_MECHANISM must be one of {sorted(_JAAS_MODULES)}")
        for name in ("sasl.username", "sasl.password") if protocol.startswith("SASL") else ():
            if name not in self.options:
                raise ConfigurationError(f"KAFKA_{name.upper().replace('.', '_')} must be set for {protocol}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], bootstrap_servers: str | None = None) -> ClientSettings:
        """Take `KAFKA_*` from `environment`. Raises ConfigurationError, naming settings but never their values."""
        options: dict[str, str] = {}
        for name, value in environment.items():
            setting = name.removeprefix("KAFKA_").lower().replace("_", ".")
            if name.startswith("KAFKA_") and setting in _ALLOWED:
                options[setting] = value
            elif name.startswith(_GUARDED_PREFIXES):
                raise ConfigurationError(
                    f"{name} is no Kafka client setting that the platform takes; allowed: "
                    f"{sorted('KAFKA_' + s.upper().replace('.', '_') for s in _ALLOWED)}"
                )
        limits = BatchLimits.from_environment(environment)
        return cls(bootstrap_servers or environment.get(BOOTSTRAP_VARIABLE, ""), options, limits)

    @property
    def _mechanism(self) -> str:
        return self.options.get("sasl.mechanism", "PLAIN").upper()

    def librdkafka(self) -> dict[str, str]:
        """Settings for confluent-kafka."""
        return {"bootstrap.servers": self.bootstrap_servers, **self.options}

    def java(self) -> dict[str, str]:
        """Settings for the Java client inside Spark, without the `kafka.` prefix that the reader's options have."""
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
            # librdkafka says "none" where the Java client wants an empty string.
            settings["ssl.endpoint.identification.algorithm"] = ""
        if "ssl.ca.location" in given:
            settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": given["ssl.ca.location"]}
        if "ssl.key.location" in given:
            # The Java client wants key and certificates in one PEM file.
            settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": given["ssl.key.location"]}
        if given.get("security.protocol", "").upper().startswith("SASL"):
            quoted = {k: _jaas_quoted(given.get(k, "")) for k in ("sasl.username", "sasl.password")}
            settings["sasl.mechanism"] = self._mechanism
            settings["sasl.jaas.config"] = (
                f"{_JAAS_MODULES[self._mechanism]} required "
                f"username={quoted['sasl.username']} password={quoted['sasl.password']};"
            )
        return settings


def _jaas_quoted(value: str) -> str:
    # Double quotes, because redaction of JAAS texts matches no other form (see KafkaRedactionUtil).
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
