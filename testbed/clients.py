"""How clients of tests and benchmarks reach brokers: the address that they name, and the settings of the environment."""

from __future__ import annotations

import os

from platform_assets.kafka.settings import ClientSettings


def client_settings(bootstrap: str) -> ClientSettings:
    """Settings of the platform's own clients. Raises ConfigurationError."""
    return ClientSettings.from_environment(os.environ, bootstrap)


def librdkafka(bootstrap: str) -> dict[str, str]:
    """The same for confluent-kafka, to be added to. Raises ConfigurationError."""
    return client_settings(bootstrap).librdkafka()
