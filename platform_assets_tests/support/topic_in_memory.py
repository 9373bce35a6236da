"""A published topic in memory, and publishers to it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from platform_assets.kafka.publisher import Committed, Record, Target, Topics
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish.publishing import Publisher
from platform_assets_tests.support.decoded_topic import DecodedTopic

RAW: dict[str, Any] = {"key": Part("text", ("kafka_offset",)), "value": Part("bytes", ("value",)), "tombstones": True}


class Stopped(Exception):
    """A publisher that ended after a transaction."""


@dataclass(frozen=True)
class Message:
    """A record as a consumer returns it."""

    at: int
    of_key: bytes | None
    of_value: bytes | None
    of_headers: Any

    def offset(self) -> int:
        return self.at

    def key(self) -> bytes | None:
        return self.of_key

    def value(self) -> bytes | None:
        return self.of_value

    def headers(self) -> Any:
        return self.of_headers


@dataclass
class Log:
    """A topic in memory: the records of each committed transaction, and the progress. Stops after `left` transactions."""

    topic_id: str = "T"
    transactions: list[list[Record]] = field(default_factory=list)
    records: dict[bytes, bytes] = field(default_factory=dict)
    progress_id: str = "P"
    elsewhere: dict[tuple[int, bytes], bytes] = field(default_factory=dict)
    left: int = -1

    starts: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    forged: list[tuple[int, Record]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    partition_of: Callable[[int], int] = lambda number: 0

    def topic(self, name: str) -> Any:
        return SimpleNamespace(topic_id=self.topic_id, partitions=(0, 1))

    policy: str = "delete"

    def topic_config(self, name: str) -> dict[str, str]:
        return {"cleanup.policy": self.policy}

    def log_starts(self, state: object) -> dict[int, Any]:
        return {p: SimpleNamespace(offset=start) for p, start in self.starts.items()}

    def last_stable_offsets(self, state: object) -> dict[int, Any]:
        return dict.fromkeys((0, 1), SimpleNamespace(offset=10**6))

    def messages(self, partition: int, start: int) -> list[Any]:
        """Return the records of a partition: without those that are lost, and with forged ones after them."""
        sent = [record for each in self.transactions for record in each]
        placed = [(self.partition_of(n), r) for n, r in enumerate(sent)] + self.forged
        return [
            Message(n, *r) for n, (p, r) in enumerate(placed) if p == partition and n >= start and n not in self.lost
        ]

    def prepare(self, recorded: Topics | None) -> Topics:
        return Topics(self.topic_id, self.progress_id)

    def session(self) -> Log:
        return self

    progress_topic = "target.published"

    @staticmethod
    def require_same(found: Topics, recorded: Topics | None) -> None:
        unused: Any = None
        Target(unused, "target").require_same(found, recorded)

    @property
    def progress(self) -> Committed:
        return Committed(self.progress_id, self.records, self.elsewhere)

    def committed(self) -> Committed:
        return self.progress

    def settled_ends(self) -> dict[int, int]:
        return dict.fromkeys((0, 1), 10**6)

    def send_batches(self, batches: Iterable[Iterable[Record]], progress: Callable[[], Mapping[bytes, bytes]]) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1
        self.transactions.append([record for batch in batches for record in batch])
        self.records = {**self.records, **progress()}

    @property
    def values(self) -> list[bytes | None]:
        return [value for each in self.transactions for _, value, _ in each]


class Offline(Publisher):
    """A publisher to a log in memory."""

    @property
    def target(self) -> Any:
        return self.cluster


def publisher(made: DecodedTopic, log: Log, most_bytes: int = 1 << 20, **changes: Any) -> Offline:
    declared = PublishDeclaration(
        "target", made.declaration.decoded_table, key=Part("text", ("id",)), transaction_rows=4
    )
    given: Any = log
    return Offline(replace(declared, **changes), made.ledger, given, most_bytes=most_bytes)
