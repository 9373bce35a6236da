"""Reading without a consumer group."""

from __future__ import annotations

from typing import Any

import pytest

from platform_assets.kafka import plain_consumer
from platform_assets.kafka.plain_consumer import consume
from platform_assets.kafka.settings import ClientSettings


class Message:
    def error(self) -> None:
        return None


class Arrived:
    """A consumer that has received these messages, and receives no others."""

    def __init__(self, *messages: Message) -> None:
        self._messages = list(messages)
        self.waited: list[float] = []

    def poll(self, timeout: float) -> Message | None:
        self.waited += [] if self._messages else [timeout]
        return self._messages.pop(0) if self._messages else None

    def consume(self, num_messages: int, timeout: float) -> list[Message]:
        found, self._messages = self._messages[:num_messages], self._messages[num_messages:]
        self.waited += [timeout] if timeout and len(found) < num_messages else []
        return found


def test_messages_that_have_arrived_are_returned_without_waiting_for_more() -> None:
    messages: list[Any] = [Message() for _ in range(5)]
    consumer: Any = Arrived(*messages)
    assert [*consume(consumer, 3, 60.0), *consume(consumer, 3, 60.0)] == messages
    assert consumer.waited == []
    assert consume(consumer, 3, 60.0) == []
    assert consumer.waited == [60.0]


def test_a_broker_may_take_as_long_to_read_remote_segments_as_librdkafka_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[dict[str, object]] = []
    monkeypatch.setattr(plain_consumer, "Consumer", lambda options, logger: made.append(options))
    settings = ClientSettings("broker:9092")
    plain_consumer.plain_consumer(settings)
    plain_consumer.plain_consumer(settings, 100)
    assert [options.get("fetch.wait.max.ms") for options in made] == [None, 100]
