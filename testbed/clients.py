"""Client settings for tests and benchmarks: the given address, and the settings in the environment."""

from __future__ import annotations

import os

from platform_assets.kafka.settings import ClientSettings


def client_settings(bootstrap: str) -> ClientSettings:
    """Return settings for the platform's own clients. Raises ConfigurationError."""
    return ClientSettings.from_environment(os.environ, bootstrap)


def librdkafka(bootstrap: str) -> dict[str, str]:
    """Return settings for confluent-kafka, which the caller may extend. Raises ConfigurationError."""
    return client_settings(bootstrap).librdkafka()
