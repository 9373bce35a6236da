"""Logins by token (OAUTHBEARER): each client gets a token from the endpoint, and the broker checks the token's
signature."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from platform_assets.engines.choice import choose_engine
from platform_assets.errors import BrokerRefusedError
from platform_assets.kafka.batches import tokens
from platform_assets.kafka.batches.tokens import Tokens
from platform_assets.kafka.batches.wire import Connection, Security, addresses
from platform_assets.kafka.cluster import Cluster
from platform_assets.kafka.settings import ClientSettings
from platform_assets.lake.location import Lake
from platform_assets.services import platform
from platform_assets.services.broker import BrokerSettings
from platform_assets.services.platform import UpOptions
from platform_assets.services.ports import LOOPBACK, choose_ports
from platform_assets_tests.support.token_endpoint import CLIENT, TokenEndpoint, token_endpoint
from testbed.homes import home_at, service_environment
from testbed.loads import Record, TopicLake

if TYPE_CHECKING:
    from pyspark.sql.connect.session import SparkSession

_OAUTH = "org.apache.kafka.common.security.oauthbearer"


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    """Run a token endpoint for one test."""
    with token_endpoint() as running:
        yield running


def settings(endpoint: TokenEndpoint, **changed: str) -> ClientSettings:
    return ClientSettings.from_environment({**endpoint.variables(), **changed}, "127.0.0.1:1")


def test_a_token_is_asked_for_once_and_again_when_its_life_is_over(endpoint: TokenEndpoint) -> None:
    first = Tokens(settings(endpoint)).token()
    assert Tokens(settings(endpoint)).token() == first
    assert endpoint.asked == [("kafka", CLIENT)]
    endpoint.seconds = 0
    others = {Tokens(settings(endpoint, KAFKA_SASL_OAUTHBEARER_SCOPE="other")).token() for _ in range(2)}
    assert endpoint.asked[1:] == [("other", CLIENT)] * 2
    assert first not in others


def test_a_wrong_secret_is_named_by_its_settings_and_the_right_one_helps(endpoint: TokenEndpoint) -> None:
    with pytest.raises(BrokerRefusedError, match=r"HTTP 401: check KAFKA_SASL_OAUTHBEARER_CLIENT_ID") as caught:
        Tokens(settings(endpoint, KAFKA_SASL_OAUTHBEARER_CLIENT_SECRET="canary")).token()
    assert "canary" not in repr(caught.value)
    assert Tokens(settings(endpoint)).token()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"{}", b'{"access_token": "a\\u0001auth=Bearer b"}',
     b'{"access_token": "' + b"x" * (1 << 20) + b'"}', b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_token_is_refused(endpoint: TokenEndpoint, content: bytes) -> None:
    endpoint.answer = (200, content)
    with pytest.raises(BrokerRefusedError, match="no access token"):
        Tokens(settings(endpoint)).token()


@pytest.mark.parametrize(
    "life", ["NaN", "1e999", pytest.param("9" * 400, id="huge"), "-1", '"300"', "true", "null", "[]"]
)
def test_a_life_that_is_no_number_of_seconds_is_a_short_one(
    endpoint: TokenEndpoint, life: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_kept", {})
    endpoint.answer = (200, f'{{"access_token": "a", "expires_in": {life}}}'.encode())
    before = time.monotonic()
    assert Tokens(settings(endpoint)).token() == "a"
    ((_, until),) = tokens._kept.values()
    assert 0 < until - before <= 60 + time.monotonic() - before


def test_a_secret_outside_of_latin_1_is_sent_as_utf_8(endpoint: TokenEndpoint) -> None:
    endpoint.secret = "ü\N{GREEK SMALL LETTER ALPHA}"
    assert Tokens(settings(endpoint)).token()


def test_an_answer_has_a_deadline_as_a_whole(endpoint: TokenEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tokens, "_ANSWER_SECONDS", -1.0, raising=False)
        with pytest.raises(OSError, match="TimeoutError"):
            Tokens(settings(endpoint)).token()
    assert Tokens(settings(endpoint)).token()


@pytest.mark.parametrize("status", [302, 408, 429, 500, 503])
def test_an_endpoint_that_fails_may_be_asked_again(endpoint: TokenEndpoint, status: int) -> None:
    endpoint.answer = (status, b"{}")
    with pytest.raises(OSError, match=f"HTTP {status}"):
        Tokens(settings(endpoint)).token()
    endpoint.answer = None
    assert Tokens(settings(endpoint)).token()


# --- a real broker --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guarded:
    """A broker with two listeners: one listener accepts only tokens from the endpoint, and the other, without a login,
    is for tests."""

    endpoint: TokenEndpoint
    plain: str
    guarded: str

    def settings(self, **changed: str) -> ClientSettings:
        return ClientSettings.from_environment({**self.endpoint.variables(), **changed}, self.guarded)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    plain, sasl, controller = choose_ports(3, "KAFKA_PORT", environ={})
    home = home_at(tmp_path_factory.mktemp("guarded"))
    listeners = f"CLIENTS://{LOOPBACK}:{plain},SASL://{LOOPBACK}:{sasl}"
    with token_endpoint() as endpoint:
        broker = BrokerSettings(
            heap="384m",
            properties={
                "listeners": f"{listeners},CONTROLLER://{LOOPBACK}:{controller}",
                "advertised.listeners": listeners,
                "controller.quorum.voters": f"1@{LOOPBACK}:{controller}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,SASL:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "listener.name.sasl.sasl.enabled.mechanisms": "OAUTHBEARER",
                "listener.name.sasl.oauthbearer.sasl.jaas.config": f"{_OAUTH}.OAuthBearerLoginModule required;",
                "listener.name.sasl.oauthbearer.sasl.server.callback.handler.class": f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
                "sasl.oauthbearer.jwks.endpoint.url": endpoint.keys_url,
            },
        )
        allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={endpoint.keys_url}"
        environment = {**service_environment(), "KAFKA_PORT": str(plain)}
        try:
            # Only for this broker: Spark's client contacts another address.
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("JDK_JAVA_OPTIONS", allowed)
                platform.start_service(
                    "kafka", home, UpOptions(broker=broker), report=lambda _: None, environ=environment
                )
            yield Guarded(endpoint, f"{LOOPBACK}:{plain}", f"{LOOPBACK}:{sasl}")
        finally:
            platform.down(home, report=lambda _: None)


@pytest.mark.broker
def test_the_raw_reader_logs_in_by_token(guarded: Guarded) -> None:
    (address,) = addresses(guarded.guarded)
    Connection(address, Security(guarded.settings()), {}, timeout=30, stopped=lambda: False).close()
    forged = TokenEndpoint(url=guarded.endpoint.url, secret=guarded.endpoint.secret)
    guarded.endpoint.answer = (200, f'{{"access_token": "{forged.token()}", "expires_in": 60}}'.encode())
    try:
        stranger = Security(guarded.settings(KAFKA_SASL_OAUTHBEARER_SCOPE="forged"))
        with pytest.raises(BrokerRefusedError, match=r"logging in .* by SASL \(OAUTHBEARER\)"):
            Connection(address, stranger, {}, timeout=30, stopped=lambda: False)
    finally:
        guarded.endpoint.answer = None


@pytest.mark.broker
@pytest.mark.spark
def test_a_topic_is_loaded_by_token(guarded: Guarded, connection: Callable[[], SparkSession], tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = f"guarded-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": guarded.plain})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    lk = TopicLake(guarded.plain, topic, tmp_path / "lake", connection)
    key = lk.window_of([Record(b"one"), Record(b"two")])
    login = guarded.settings()
    before = len(guarded.endpoint.asked)
    loader = replace(
        lk.loader(),
        cluster=Cluster.connect(login),
        engine=choose_engine(Lake.at(lk.root), lambda: login, connection, "connector"),
    )
    assert loader.load(key).receipt.rows == 2
    # librdkafka and Spark's Java client have each requested a token.
    assert len(guarded.endpoint.asked) >= before + 2
