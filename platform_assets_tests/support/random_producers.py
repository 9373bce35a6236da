"""Producers that act at random, and record the fate of each value that they send. Several producers take turns, and
each turn is one step. Every value is unique. A send is acknowledged, has certainly failed, or has an unknown outcome.
This is judged only from the client's answers."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal

from confluent_kafka import KafkaError, KafkaException, Producer

from platform_assets.model.windows import milliseconds
from platform_assets.services.home import CHECKOUT
from platform_assets_tests.support.history import Outcome, Send
from testbed.clients import librdkafka
from testbed.loads import START

_AT_ONCE = 3
_NEVER_LEFT = (KafkaError._PURGE_QUEUE, KafkaError.MSG_SIZE_TOO_LARGE)


@dataclass
class Attempt:
    """A value that is being sent. `offset` and `error` come from the delivery report of the value, and `reported` is
    true if there was a report."""

    value: bytes
    partition: int
    timestamp: int
    offset: int | None = None
    error: KafkaError | None = None
    reported: bool = False

    def delivered(self, error: KafkaError | None, message: Any) -> None:
        """Store the client's delivery report."""
        self.reported, self.error = True, error
        self.offset = message.offset() if error is None else None


class RandomProducers:
    """Random producers of every kind. `run` sends values, and `sends` records the fate of each value."""

    def __init__(self, bootstrap: str, topic: str, partitions: int, rng: random.Random) -> None:
        self.sends: list[Send] = []
        self._bootstrap, self._topic, self._partitions, self._rng = bootstrap, topic, partitions, rng
        self._number = 0
        self._names = 0

    def run(self, stepped: Callable[[], None]) -> None:
        """Run all producers, and call `stepped` after each step. At the end, no transaction is open."""
        kinds: list[Callable[[], Iterator[None]]] = [
            *[self._plain] * 8, *[self._purged] * 3, *[self._committed] * 6, *[self._aborted] * 4,
            *[self._fenced] * 2, *[self._raced] * 2,
            partial(self._killed, "delivered"), partial(self._killed, "committing"), partial(self._killed, "unheard"),
        ]  # fmt: skip
        self._rng.shuffle(kinds)
        active: list[Iterator[None]] = []
        while kinds or active:
            while kinds and len(active) < _AT_ONCE:
                active.append(kinds.pop()())
            one = self._rng.choice(active)
            if next(one, self) is self:
                active.remove(one)
            stepped()

    # --- kinds of producers; each yields between its steps -----------------------------------------------------

    def _plain(self) -> Iterator[None]:
        producer = self._producer()
        for _ in range(self._rng.randint(1, 3)):
            self._note_outcome(self._sent(producer), "ok")
            yield

    def _purged(self) -> Iterator[None]:
        """Purge values that are queued or in flight. Queued values have then certainly failed, and the outcome of
        values in flight is unknown."""
        linger = self._rng.choice((0, 1, 5))
        producer = self._producer(changes={"enable.idempotence": False, "retries": 0, "linger.ms": linger})
        attempts = self._produced(producer, self._rng.randint(20, 60))
        producer.poll(self._rng.choice((0, 0.001, 0.003)))
        producer.purge(in_queue=True, in_flight=True)
        assert producer.flush(30) == 0
        self._note_outcome(attempts, "ok")
        yield

    def _committed(self) -> Iterator[None]:
        producer, attempts = yield from self._transaction()
        producer.commit_transaction(30)
        self._note_outcome(attempts, "ok")

    def _aborted(self) -> Iterator[None]:
        producer, attempts = yield from self._transaction(least=1)
        producer.abort_transaction(30)
        self._note_outcome(attempts, "failed")

    def _fenced(self) -> Iterator[None]:
        """Commit after another producer with the same name was started. The outcome is unknown."""
        producer, attempts = yield from self._transaction(name := self._name())
        self._restarted(name)
        yield
        try:
            producer.commit_transaction(30)
        except KafkaException:
            self._note_outcome(attempts, "unknown")
        else:
            assert not attempts, "a fenced producer committed"  # a client with nothing to commit does not ask

    def _raced(self) -> Iterator[None]:
        """Commit while another producer with the same name starts. Either of the two can be first."""
        producer, attempts = yield from self._transaction(name := self._name())
        with ThreadPoolExecutor(1) as pool:
            commit = pool.submit(producer.commit_transaction, 30)
            self._restarted(name)
            error = commit.exception()
        if error is not None and not isinstance(error, KafkaException):
            raise error
        self._note_outcome(attempts, "ok" if error is None else "unknown")

    def _killed(self, when: Literal["delivered", "committing", "unheard"]) -> Iterator[None]:
        """Kill a producer in a transaction, before, during or after its commit. The producer never reports the commit.
        An open transaction holds back the last stable offset until the producer is restarted."""
        name = self._name()
        attempts = [self._attempt() for _ in range(self._rng.randint(2, 12))]
        by_value = {a.value.decode(): a for a in attempts}
        child = subprocess.Popen(
            [sys.executable, "-m", "platform_assets_tests.support.doomed_producer"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT,
        )  # fmt: skip
        with child:
            assert child.stdin is not None
            assert child.stdout is not None
            records = [(a.partition, a.value.decode(), a.timestamp) for a in attempts]
            work = {
                "settings": self._settings(name),
                "topic": self._topic,
                "records": records,
                "dies_unheard": when == "unheard",
            }
            child.stdin.write(json.dumps(work) + "\n")
            child.stdin.flush()
            outcome: Outcome = "unknown"
            for line in child.stdout:
                told = json.loads(line)
                if told["step"] == "delivery":
                    by_value[told["value"]].offset = told["offset"]
                elif told["step"] == when:
                    child.kill()
                elif told["step"] == "delivered":
                    child.stdin.write("commit\n")
                    child.stdin.flush()
                elif told["step"] == "committed":
                    outcome = "ok"
        for attempt in attempts:
            attempt.reported = True
        self._note_outcome(attempts, outcome)
        yield
        yield
        self._restarted(name)

    # --- what they have in common ------------------------------------------------------------------------------

    def _transaction(
        self, name: str | None = None, least: int = 0
    ) -> Generator[None, None, tuple[Producer, list[Attempt]]]:
        producer = self._producer(name or self._name())
        producer.init_transactions(30)
        producer.begin_transaction()
        attempts: list[Attempt] = []
        for _ in range(self._rng.randint(least, 3)):
            attempts += self._sent(producer)
            yield
        return producer, attempts

    def _restarted(self, name: str) -> None:
        """Start the next incarnation of a producer, which first ends the transaction of the previous incarnation."""
        self._producer(name).init_transactions(30)

    def _sent(self, producer: Producer) -> list[Attempt]:
        attempts = self._produced(producer, self._rng.randint(1, 15))
        assert producer.flush(30) == 0
        return attempts

    def _produced(self, producer: Producer, count: int) -> list[Attempt]:
        attempts = [self._attempt() for _ in range(count)]
        for a in attempts:
            producer.produce(self._topic, a.value, None, a.partition, on_delivery=a.delivered, timestamp=a.timestamp)
        return attempts

    def _attempt(self) -> Attempt:
        self._number += 1
        # Clocks that differ by minutes, and some that are off by years.
        minutes = self._rng.randint(-3, 40) if self._rng.random() < 0.95 else -20_000_000
        value = f"{self._number}".encode() + b"." * self._rng.choice((0, 10, 300))
        return Attempt(value, self._rng.randrange(self._partitions), milliseconds(START + timedelta(minutes=minutes)))

    def _note_outcome(self, attempts: Sequence[Attempt], outcome: Outcome) -> None:
        """Record `outcome` for all delivered values. For all other values, record the outcome that follows from the
        reported error."""
        for a in attempts:
            assert a.reported
            ended = outcome
            if a.error is not None:
                ended = "failed" if a.error.code() in _NEVER_LEFT else "unknown"
            self.sends.append(Send(a.value, a.partition, a.offset, ended))

    def _name(self) -> str:
        self._names += 1
        return f"{self._topic}-{self._names}"

    def _settings(self, name: str | None = None) -> dict[str, Any]:
        settings: dict[str, Any] = {**librdkafka(self._bootstrap), "linger.ms": 1, "log_level": 2}
        return settings if name is None else {**settings, "transactional.id": name, "transaction.timeout.ms": 60_000}

    def _producer(self, name: str | None = None, changes: Mapping[str, Any] | None = None) -> Producer:
        return Producer({"enable.idempotence": True, **self._settings(name), **(changes or {})})
