"""A broker that refuses a login with hostile text: no error message and no log contains that text unescaped."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from platform_assets.errors import PlatformError
from platform_assets.kafka.batches.wire import Connection, Security, addresses
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets_tests.soak.hostile import HostileBroker, hostile_broker
from platform_assets_tests.soak.judges import acts_in


@pytest.fixture
def broker() -> Iterator[HostileBroker]:
    """Start a hostile broker and return it."""
    with hostile_broker() as running:
        yield running


def settings(broker: HostileBroker) -> ClientSettings:
    return ClientSettings.from_environment(
        {
            "KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "KAFKA_SASL_MECHANISM": "PLAIN",
            "KAFKA_SASL_USERNAME": "reader",
            "KAFKA_SASL_PASSWORD": "secret",
        }
    )


def test_the_raw_reader_shows_no_text_that_acts(broker: HostileBroker) -> None:
    (address,) = addresses(broker.bootstrap)
    with pytest.raises(PlatformError, match="while logging in") as refused:
        Connection(address, Security(settings(broker)), {}, timeout=10, stopped=lambda: False)
    assert broker.logins == 1
    assert acts_in(str(refused.value)) is None


def test_a_client_of_the_cluster_shows_its_text_as_text(
    broker: HostileBroker, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(PlatformError) as refused:
        Cluster.connect(settings(broker), timeout=3).topic("orders")
    assert broker.logins
    assert acts_in(str(refused.value)) is None
    assert [text for text in caplog.messages if acts_in(text)] == []
    assert [text for text in capfd.readouterr() if acts_in(text)] == []
