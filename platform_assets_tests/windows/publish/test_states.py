"""Publishing to a log in memory: loads that were begun by a publisher with another declaration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from platform_assets.errors import ConfigurationError
from platform_assets.kafka.publisher import Record
from platform_assets.model.publishing import Part, PublishDeclaration
from platform_assets.windows.publish.publishing import Progress, Publisher
from platform_assets_tests.support.decoded_topic import DecodedTopic, order


class Stopped(Exception):
    """A publisher that ended after a transaction."""


@dataclass
class Log:
    """A topic in memory: the records of each committed transaction, and the progress. Stops after `left` transactions."""

    topic_id: str = "T"
    transactions: list[list[Record]] = field(default_factory=list)
    progress: dict[bytes, bytes] = field(default_factory=dict)
    left: int = -1

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
def test_a_progress_that_does_not_fit_the_rows_is_an_error(tmp_path: Path, changes: dict[str, int]) -> None:
    made, log = begun(tmp_path)
    log.progress = {
        key: replace(Progress.from_bytes(value), **changes, digest="").to_bytes() for key, value in log.progress.items()
    }
    with pytest.raises(ConfigurationError, match="cannot be finished: it has 10 records now"):
        publisher(made, log).run()
    assert len(log.values) == 4
