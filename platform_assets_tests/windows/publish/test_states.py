"""Publishing to a log in memory: loads begun in another form, and what the evidence says about forged or lost records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from platform_assets.checks import published
from platform_assets.checks.published import Evidence, gather
from platform_assets.errors import ConfigurationError
from platform_assets.kafka.publisher import Record
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish.publishing import Progress, Publisher
from platform_assets_tests.support.decoded_topic import DecodedTopic, order
from testbed import samples


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
    progress: dict[bytes, bytes] = field(default_factory=dict)
    left: int = -1

    starts: dict[int, int] = field(default_factory=lambda: {0: 0, 1: 0})
    forged: list[tuple[int, Record]] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    partition_of: Callable[[int], int] = lambda number: 0

    def topic(self, name: str) -> Any:
        return SimpleNamespace(topic_id=self.topic_id, partitions=(0, 1))

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

    def prepare(self) -> Log:
        return self

    def session(self) -> Log:
        return self

    def committed(self) -> dict[bytes, bytes]:
        return self.progress

    def send(self, records: Iterable[Record], progress: Mapping[bytes, bytes]) -> None:
        if self.left == 0:
            raise Stopped
        self.left -= 1
        self.transactions.append(list(records))
        self.progress = {**self.progress, **progress}

    @property
    def values(self) -> list[bytes | None]:
        return [value for each in self.transactions for _, value, _ in each]


class Offline(Publisher):
    """A publisher to a log in memory."""

    @property
    def target(self) -> Any:
        return self.cluster


def publisher(made: DecodedTopic, log: Log, **changes: Any) -> Offline:
    declared = PublishDeclaration(
        "target", made.declaration.decoded_table, key=Part("text", ("id",)), transaction_rows=4
    )
    given: Any = log
    return Offline(replace(declared, **changes), made.ledger, given)


def begun(tmp_path: Path) -> tuple[DecodedTopic, Log]:
    """Return a topic of ten rows, four of which are published."""
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    made.decode()
    log = Log(left=1)
    with pytest.raises(Stopped):
        publisher(made, log).run()
    log.left = -1
    return made, log


def test_a_begun_load_is_finished_only_in_the_form_in_which_it_was_begun(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    with pytest.raises(
        ConfigurationError, match=r"4 of 10 records, and cannot be finished: the declaration.*new topic"
    ):
        publisher(made, log, value=Part("json", ("id",))).run()
    assert len(log.values) == 4
    publisher(made, log, transaction_rows=3).run()
    assert [len(each) for each in log.transactions] == [4, 3, 3]
    assert len(set(log.values)) == 10
    # A declaration that changes between loads is no reason to refuse.
    assert publisher(made, log, value=Part("json", ("id",))).run().records == 0


@pytest.mark.parametrize("changes", [{"total": 3, "sent": 4}, {"total": 11, "sent": 4}, {"total": 9, "sent": 12}])
def test_a_progress_that_does_not_fit_the_rows_is_an_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    made, log = begun(tmp_path)
    log.progress = {
        key: replace(Progress.from_bytes(value), **changes, digest="").to_bytes() for key, value in log.progress.items()
    }
    with pytest.raises(ConfigurationError, match="cannot be finished: it has 10 records now"):
        publisher(made, log).run()
    assert len(log.values) == 4


@pytest.fixture(autouse=True)
def _reads_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    def messages(log: Log, topic: str, partition: int, start: int, end: int) -> list[Message]:
        return log.messages(partition, start)

    monkeypatch.setattr(published, "_messages", messages)


def evidence_of_the_rest(made: DecodedTopic, log: Log, lost: set[int], starts: dict[int, int]) -> Evidence:
    """Return the evidence that a run collects, which publishes rows 4 to 9."""
    each = publisher(made, log)
    before = each.known(log.topic_id)
    each.run()
    log.lost, log.starts = lost, starts
    return gather(each, since={0: 4, 1: 0}, before=before)


def test_a_run_misses_each_record_that_it_has_sent(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, {6, 7}, {0: 3, 1: 0})
    assert found.problems[0].endswith(f"2 of the records [4, 10) of load {load_of(log)} are missing")


def test_a_run_excuses_records_that_the_log_no_longer_has(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, {4, 5}, {0: 5, 1: 0})
    assert found.passed
    assert "2 of the records [4, 10)" in found.not_read[0]


def test_a_run_that_lost_nothing_has_no_problems(tmp_path: Path) -> None:
    made, log = begun(tmp_path)
    found = evidence_of_the_rest(made, log, set(), {0: 3, 1: 0})
    assert (found.problems, found.not_read, found.records) == ([], [], 6)


@pytest.mark.parametrize("ordinal", [10, -1, 10**15])
def test_a_forged_ordinal_is_foreign_and_takes_no_memory(tmp_path: Path, ordinal: int) -> None:
    made, log = begun(tmp_path)
    publisher(made, log).run()
    _, _, [(name, identity)] = log.transactions[0][0]
    assert identity is not None
    table, window, _, rest = identity.decode().split(" ", 3)
    forged = f"{table} {window} {ordinal} {rest}".encode()
    log.forged = [(0, (b"k", b"v", [(name, forged)]))] * 150
    found = gather(publisher(made, log))
    assert f"record {ordinal} of load" in found.problems[0]
    assert (found.wrong, len(found.problems)) == (150, 100)
    assert "And 140 more" in found.headline


def load_of(log: Log) -> str:
    (value,) = log.progress.values()
    return Progress.from_bytes(value).load.load_id


@pytest.mark.parametrize("partitions", [(0, 0, 1), (1, 0, 0), (0, 1, 0), (1, 1, 0)])
def test_the_newest_record_of_a_row_wins_in_whatever_partition_it_is(
    tmp_path: Path, partitions: tuple[int, int, int]
) -> None:
    made = DecodedTopic(tmp_path / "lake", "orders")
    made.load([order(n) for n in range(10)])
    (window,) = made.windows
    places = [(p, o) for p, r in sorted(window.ranges.items()) for o in range(r.start, r.end)]
    kept = {p: [o for q, o in places if q == p] for p, _ in window.ranges.items()}
    raw: dict[str, Any] = {"table": made.declaration.raw_table, "key": None, "value": Part("bytes", ("value",))}
    # The first ten records are rows, then there are three changes of each of two loads.
    log = Log(partition_of=lambda number: partitions[0 if number < 10 else 1 if number < 13 else 2])
    for name, text in (("z", b"first"), ("a", b"second"), ("m", b"third")):
        values = {place: text if n < 3 else b"same" for n, place in enumerate(places)}
        samples.loaded(made.root, window, kept, load_id=name, values=values)
        publisher(made, log, **raw).run()
    assert log.values[10:] == [b"second"] * 3 + [b"third"] * 3
    found = gather(publisher(made, log, **raw))
    assert (found.problems, found.not_read) == ([], [])
