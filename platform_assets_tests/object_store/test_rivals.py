"""Two platforms in separate processes write the same window at the same time, while requests to the store and answers
from it are lost.

A proxy between each platform and the store cuts connections: either before a request arrives, or after the store has
executed the request and before the answer arrives. After each round there is one set of rows, one commit and one
receipt.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pytest

from platform_assets.lake import delta_log, holdings, load_log
from platform_assets.lake.location import Folder
from platform_assets.lake.vacuum import vacuum
from platform_assets_tests.support.lost_answers import Loss, LostAnswers, What, losing_answers
from platform_assets_tests.support.rival import Rival, rival
from platform_assets_tests.support.store_lake import StoreLake
from testbed.loads import numbered, records
from testbed.object_store import ObjectStore

if TYPE_CHECKING:
    from platform_assets_tests.conftest import Broker, TopicMaker

pytestmark = [pytest.mark.broker, pytest.mark.cluster]

SHARE: Final = 0.7
"""Probability that a platform loses something in a round."""
_GIVES_UP: Final = 0.05
"""Probability that a loss lasts longer than a client retries."""
_TIMES: Final = 8
_TRIES: Final = 3
_ENDINGS: Final = (
    ("PUT", ".json"),
    ("PUT", ".json"),
    ("PUT", ".json"),
    ("PUT", ".parquet"),
    ("GET", ".json"),
    ("PUT", ""),
)
"""Requests to lose: mostly commits."""


def loss(rng: random.Random) -> Loss:
    method, ending = rng.choice(_ENDINGS)
    what: What = "answer" if rng.random() < 0.7 else "request"
    times = _TIMES if rng.random() < _GIVES_UP else rng.choice((1, 1, 2))
    return Loss(ending, what, method, after=rng.choice((0, 0, 0, 1)), times=times)


def play(rivals: list[Rival], key: str, lk: StoreLake) -> list[dict[str, Any]]:
    """Make both platforms load the window, and commit at the same time if both get that far. Return both outcomes."""
    for each in rivals:
        each.begin(key, lk.closed)
    found = [each.wait() for each in rivals]
    for each, early in zip(rivals, found, strict=True):
        if early is None:
            each.go()
    return [each.result() if early is None else early for each, early in zip(rivals, found, strict=True)]


def assert_added_once(folder: Folder) -> None:
    """Check that no two commits of a table add the same file, which would show that a commit was made twice."""
    newest = load_log.version(folder)
    commits = [delta_log.commit(folder, number) for number in range(newest + 1)]
    added = Counter(add.path for commit in commits if commit is not None for add in commit.adds)
    assert [path for path, times in added.items() if times > 1] == []


def no_spark() -> Any:
    raise AssertionError("this process loads nothing")


@pytest.mark.parametrize("rounds", [6, pytest.param(100, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])])
def test_two_platforms_write_one_window_once_while_answers_are_lost(
    store: ObjectStore, broker: Broker, topic: TopicMaker, rng: random.Random, rounds: int
) -> None:
    name = f"rivals-{uuid.uuid4().hex[:12]}"
    lk = StoreLake(broker.bootstrap, topic(partitions=2), store.bucket / name, no_spark, address=store.root(name))
    table = lk.declaration.raw_table
    outcomes: Counter[str] = Counter()
    began, expected = time.monotonic(), 0
    with losing_answers(store.port) as one, losing_answers(store.port) as two:
        proxies: list[LostAnswers] = [one, two]
        with (
            rival(lk, store.environment(one.port)) as a,
            rival(lk, store.environment(two.port)) as b,
        ):
            for number in range(rounds):
                count = rng.randint(1, 400)
                expected += count
                sent = numbered(count, 2, f"round {number} ")
                key = lk.window_of(sent)
                for proxy in proxies:
                    proxy.lose(*[loss(rng) for _ in range(rng.choice((1, 1, 2)))] if rng.random() < SHARE else [])
                for each in play([a, b], key, lk):
                    assert "error" not in each, (number, each)
                    outcomes[each.get("outcome") or f"tried again after {each['again']}"] += 1
                for proxy in proxies:
                    proxy.lose()
                # A run does the same after a transient error.
                for _ in range(_TRIES):
                    again = play([a, b], key, lk)
                    if [each.get("outcome") for each in again] == ["unchanged", "unchanged"]:
                        break
                else:
                    raise AssertionError((number, again))
                assert Counter(r.value for r in lk.rows(key)) == Counter(r.value for r in sent), number
                assert lk.version() == number + 1, "one commit a window"
                receipt = lk.ledger.receipts(table, [key])[key]
                assert receipt.rows == count
                assert receipt.table_version == number + 1
                assert receipt.files_digest == holdings.files_of(lk.folder, key).digest
        lost: Counter[str] = Counter()
        for proxy in proxies:
            lost.update(proxy.counts)
    assert len(lk.rows()) == expected
    assert records(lk.rows()) == records(lk.committed())
    for folder in (lk.folder, lk.lake.commits, lk.lake.cuts):
        assert_added_once(folder)
    orphans = lk.orphans()
    for path in orphans:
        os.utime(path, (0, 0))
    assert len(vacuum(table, lk.folder).files) == len(orphans)
    assert lk.orphans() == []
    assert records(lk.rows()) == records(lk.committed())
    print(
        f"{rounds} rounds in {time.monotonic() - began:.0f} s; lost: {dict(lost)}; outcomes: {dict(outcomes)}; "
        f"orphans taken by vacuum: {len(orphans)}"
    )
